//! The `dynamo-frontend` process.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    PATIENCE, eventually,
    http::{self, Answer, Open},
};

/// Between two looks at a process that should end.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The log line that says where it listens.
const LISTENING: &str = "listening";
/// And the one of the admin routes, which is written before it.
const ADMIN: &str = "admin routes listen on a port of their own";

const DRAIN: &str = "--drain-timeout-secs";
/// Without it a frontend without workers would look for some in the temporary folder, where any process may put them.
const DISCOVERY: &str = "--discovery-backend";

/// The binary with an environment of its own.
fn command(args: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynamo-frontend"));
    command.args(args).env_clear().envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A frontend that serves. Dropping it stops it as an operator would, and fails if that does not end well.
pub(crate) struct Frontend {
    pub(crate) address: SocketAddr,
    child: Child,
    log: Log,
    killed: bool,
}

impl Frontend {
    /// Starts it on a free loopback port and waits until it listens.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut all = vec!["--http-host", "127.0.0.1", "--http-port", "0", "--log-format", "json"];
        if !args.contains(&DRAIN) {
            all.extend([DRAIN, "5"]);
        }
        if !args.contains(&DISCOVERY) {
            all.extend([DISCOVERY, "mem"]);
        }
        all.extend(args);
        let mut child = command(&all, &[]).spawn().unwrap();
        let (listening, address) = mpsc::channel();
        let log = Log::follow(child.stderr.take().unwrap(), listening);
        match address.recv_timeout(PATIENCE) {
            Ok(address) => Self { address, child, log, killed: false },
            Err(_) => {
                child.kill().unwrap();
                panic!("{args:?} never listens, {}:\n{}", child.wait().unwrap(), log.text());
            }
        }
    }

    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Open {
        http::open(self.address, "POST", path, headers, body).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.open(path, &[], body).await.whole().await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        http::open(self.address, "GET", path, &[], &Value::Null).await.whole().await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        http::open(self.address, "DELETE", path, &[], &Value::Null).await.whole().await
    }

    /// A completion that succeeds.
    pub(crate) async fn complete(&self, body: &Value) -> Answer {
        let answer = self.post("/v1/completions", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    }

    /// A worker's entry in `GET /workers`; null if there is none.
    pub(crate) async fn worker(&self, id: &str) -> Value {
        let answer = self.get("/workers").await.json();
        let found = answer["workers"].as_array().unwrap().iter().find(|worker| worker["id"] == id);
        found.cloned().unwrap_or_default()
    }

    /// The first rank of a worker; null while it is not known.
    pub(crate) async fn rank(&self, id: &str) -> Value {
        self.worker(id).await["ranks"].get_mut(0).map(Value::take).unwrap_or_default()
    }

    /// What `POST /route` says of a body.
    pub(crate) async fn route(&self, body: &Value) -> Value {
        let answer = self.post("/route", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// The candidate that is this worker.
    pub(crate) async fn candidate(&self, worker: &str, body: &Value) -> Value {
        let route = self.route(body).await;
        let found = route["candidates"].as_array().unwrap().iter().find(|candidate| candidate["worker_id"] == worker);
        found.cloned().unwrap_or_else(|| panic!("{worker} is no candidate: {route}"))
    }

    /// Waits until `count` workers can be sent requests, with this trust in each.
    pub(crate) async fn serves(&self, count: usize, trust: &str) {
        eventually(&format!("{count} workers up and {trust}"), async || {
            let answer = self.get("/workers").await.json();
            let workers = answer["workers"].as_array().unwrap();
            let up = workers.iter().filter(|worker| worker["state"] == "up" && worker["ranks"][0]["trust"] == trust);
            if up.count() == count { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }

    /// A gauge or counter of `/metrics`, summed over its labels; `None` where it is not shown.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let page = self.get("/metrics").await.text();
        let values = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
            rest.rsplit_once(' ')?.1.parse::<f64>().ok()
        });
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// Its resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// The process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// SIGSTOP: its connections stay open, and it reads nothing.
    pub(crate) fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Where the admin routes are, with `--admin-port`.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        let log = self.log.text();
        log.lines().find_map(|line| address(line, ADMIN)).unwrap_or_else(|| panic!("no address of admin routes in:\n{log}"))
    }

    /// SIGTERM. It goes on running until it has drained.
    pub(crate) fn terminate(&self) {
        terminate(&self.child).unwrap();
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.killed = true;
    }

    /// Its exit status, once it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        let status = end(&mut self.child, PATIENCE);
        if thread::panicking() {
            eprintln!("log of the frontend, {status}:\n{}", self.log.text());
        } else {
            assert!(status.success() || self.killed, "{status}:\n{}", self.log.text());
        }
    }
}

/// SIGTERM, and SIGKILL for a process that is still there after `within`.
fn end(child: &mut Child, within: Duration) -> ExitStatus {
    if let Ok(Some(status)) = child.try_wait() {
        return status;
    }
    if terminate(child).is_ok()
        && let Some(status) = ended(child, within)
    {
        return status;
    }
    // It may have ended meanwhile; then waiting tells.
    let _ = child.kill();
    child.wait().unwrap()
}

fn terminate(child: &Child) -> std::io::Result<ExitStatus> {
    Command::new("sh").arg("-c").arg(format!("kill -TERM {}", child.id())).stderr(Stdio::null()).status()
}

fn ended(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(LOOK_EVERY);
    }
    None
}

/// What the process wrote to its standard error.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    /// Reads to the end, on a thread, and tells the address once it is logged.
    fn follow(stderr: impl Read + Send + 'static, listening: mpsc::Sender<SocketAddr>) -> Self {
        let log = Self::default();
        let written = log.clone();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { break };
                if let Some(address) = address(&line, LISTENING) {
                    // Nobody waits for it any more where the start was given up.
                    let _ = listening.send(address);
                }
                let mut text = written.0.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
        });
        log
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

/// The address in a line with this message.
fn address(line: &str, message: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok()?;
    let fields = &line["fields"];
    if fields["message"] != message {
        return None;
    }
    fields["address"].as_str()?.parse().ok()
}

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the binary to its end.
pub(crate) fn run(args: &[&str], environment: &[(&str, &str)]) -> Run {
    let mut child = command(args, environment).spawn().unwrap();
    // The output of a run that ends by itself is far below what a pipe holds.
    let status = ended(&mut child, PATIENCE);
    if status.is_none() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { status: status.and_then(|status| status.code()), stdout: text(output.stdout), stderr: text(output.stderr) }
}
