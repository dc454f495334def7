//! The processes of Dynamo, none of which outlives the test.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use transport::discovery::{Backend, EtcdConfig};
use worker::RuntimeConfig;

use crate::support::{eventually, http};

/// Tokenizer and configuration; no weights are needed.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/tiny-llama");
const PUBLISHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dynamo/publisher.py");
/// Tokens in a block.
pub(super) const BLOCK: usize = 16;
/// Blocks of a worker's cache: few, so that some are evicted.
const BLOCKS: &str = "400";
/// Ranks of the publisher.
pub(super) const RANKS: u32 = 2;
/// Ends the whole process group as soon as the process or the test is gone: a test that is killed closes this shell's input.
const GUARD: &str = r#"exec 3<&0; ("$@"; kill -KILL 0) </dev/null & read -r _ <&3; kill -KILL 0"#;

/// How processes find each other.
pub(super) struct Planes {
    environment: Vec<(&'static str, String)>,
    flags: Vec<String>,
    pub(super) backend: Backend,
}

impl Planes {
    pub(super) fn file_and_zmq(root: &Path) -> Self {
        let folder = root.to_str().unwrap().to_owned();
        Self {
            environment: vec![
                ("DYN_DISCOVERY_BACKEND", "file".to_owned()),
                ("DYN_EVENT_PLANE", "zmq".to_owned()),
                ("DYN_FILE_KV", folder.clone()),
                ("DYN_REQUEST_PLANE", "tcp".to_owned()),
            ],
            flags: ["--discovery-backend", "file", "--file-kv", &folder].map(str::to_owned).to_vec(),
            backend: Backend::File { root: root.to_owned() },
        }
    }

    pub(super) fn etcd_and_nats(etcd: &str, nats: &str) -> Self {
        Self {
            environment: vec![
                ("DYN_DISCOVERY_BACKEND", "etcd".to_owned()),
                ("DYN_EVENT_PLANE", "nats".to_owned()),
                ("DYN_REQUEST_PLANE", "tcp".to_owned()),
                ("ETCD_ENDPOINTS", etcd.to_owned()),
                ("NATS_SERVER", nats.to_owned()),
            ],
            flags: ["--discovery-backend", "etcd", "--etcd-endpoints", etcd, "--nats-server", nats].map(str::to_owned).to_vec(),
            backend: Backend::Etcd(EtcdConfig { endpoints: vec![etcd.to_owned()], ..EtcdConfig::default() }),
        }
    }

    /// The same with requests over NATS.
    pub(super) fn requests_over_nats(mut self) -> Self {
        self.environment.retain(|(name, _)| *name != "DYN_REQUEST_PLANE");
        self.environment.push(("DYN_REQUEST_PLANE", "nats".to_owned()));
        self
    }

    /// Of a process of ours, by the same variables.
    pub(super) fn of_worker(&self) -> RuntimeConfig {
        let variable = |wanted: &str| self.environment.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone());
        RuntimeConfig::from_lookup(variable).unwrap()
    }

    /// Of our frontend.
    pub(super) fn flags(&self) -> Vec<&str> {
        let own = ["--router-mode", "kv", "--tcp-response-stream-host", "127.0.0.1"];
        own.into_iter().chain(self.flags.iter().map(String::as_str)).collect()
    }
}

/// Starts processes.
pub(super) struct Peers {
    venv: PathBuf,
    /// Their logs.
    home: tempfile::TempDir,
    pub(super) planes: Planes,
}

/// One process and what it started. Dropping it kills them.
pub(super) struct Peer(Child);

impl Peer {
    /// Signals the process, and not what guards it.
    pub(super) fn signal(&self, signal: Signal) {
        for process in self.members() {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process(process, signal);
        }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.members().is_empty()
    }

    /// The processes of its group but the shells that guard them.
    fn members(&self) -> Vec<Pid> {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let of_group = processes.filter(|process| {
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
            let Some((head, tail)) = stat.rsplit_once(')') else { return false };
            // State, parent, group.
            let mut tail = tail.split_ascii_whitespace();
            !head.ends_with("(sh") && tail.next() != Some("Z") && tail.nth(1) == Some(&self.0.id().to_string())
        });
        of_group.filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The guard kills its group once its input ends.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Peers {
    pub(super) fn new(venv: &Path, planes: Planes) -> Self {
        Self { venv: venv.to_owned(), home: tempfile::tempdir().unwrap(), planes }
    }

    fn python(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", GUARD, "guard"]).arg(self.venv.join("bin/python")).args(arguments);
        command.env_clear().envs(self.planes.environment.iter().map(|(name, value)| (name, value)));
        let fixed = [
            ("DYN_TCP_RPC_HOST", "127.0.0.1"),
            ("DYN_TCP_RESPONSE_STREAM_HOST", "127.0.0.1"),
            ("DYN_EVENT_PLANE_HOST", "127.0.0.1"),
            ("DYN_SDK_DISABLE_ANSI_LOGGING", "1"),
            ("DYN_LOG", "warn"),
            ("HF_HUB_OFFLINE", "1"),
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ];
        command.envs(fixed).env("HOME", self.home.path());
        let log = File::create(self.home.path().join(format!("{name}.log"))).unwrap();
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    /// A simulated worker with real events.
    pub(super) fn worker(&self, name: &str) -> Peer {
        self.worker_with(name, &["--speedup-ratio", "100", "--num-gpu-blocks-override", BLOCKS], &[])
    }

    /// The same with other arguments, and more variables.
    pub(super) fn worker_with(&self, name: &str, more: &[&str], variables: &[(&str, &str)]) -> Peer {
        let arguments = ["-m", "dynamo.mocker", "--model-path", MODEL, "--model-name", "tiny", "--block-size", "16"];
        Peer(self.python(name, &[&arguments, more].concat()).envs(variables.iter().copied()).spawn().unwrap())
    }

    /// The real frontend, through which requests reach the workers. Ready when it lists the model.
    pub(super) async fn frontend(&self) -> RealFrontend {
        self.frontend_with("frontend", &["--router-mode", "round-robin"], &[]).await
    }

    /// The same with arguments and variables, logging under a name.
    pub(super) async fn frontend_with(&self, name: &str, more: &[&str], variables: &[(&str, &str)]) -> RealFrontend {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let port = address.port().to_string();
        let arguments = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", &port];
        let mut command = self.python(name, &[&arguments, more].concat());
        let frontend = RealFrontend { address, peer: Peer(command.envs(variables.iter().copied()).spawn().unwrap()) };
        eventually("the real frontend lists the model", async || {
            if tokio::net::TcpStream::connect(address).await.is_err() {
                return Err(self.log(name));
            }
            let models = http::open(address, "GET", "/v1/models", &[], &Value::Null).await.whole().await;
            if models.text().contains("\"tiny\"") { Ok(()) } else { Err(models.text()) }
        })
        .await;
        frontend
    }

    /// What a process has written.
    pub(super) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.home.path().join(format!("{name}.log"))).unwrap_or_default()
    }
}

/// Dynamo's frontend.
pub(super) struct RealFrontend {
    pub(super) address: SocketAddr,
    pub(super) peer: Peer,
}

/// An engine of somebody's own with real `KvEventPublisher` objects, one per rank.
pub(super) struct Publisher {
    pub(super) worker_id: u64,
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Process,
}

/// It ends with its input; this is for a test that fails before.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Publisher {
    pub(super) async fn start(peers: &Peers) -> Self {
        let planes = if matches!(peers.planes.backend, Backend::Etcd(_)) { ["etcd", "nats"] } else { ["file", "zmq"] };
        let ranks = RANKS.to_string();
        let environment = peers.python("publisher", &[]);
        let mut command = Command::new(peers.venv.join("bin/python"));
        command.args([PUBLISHER, planes[0], planes[1], &ranks, MODEL]).env_clear();
        command.envs(environment.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let log = File::create(peers.home.path().join("publisher.log")).unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut answers = BufReader::new(output);
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        let worker_id = line.trim().parse().unwrap_or_else(|_| panic!("no worker id but {line:?}: {}", peers.log("publisher")));
        Self { worker_id, input, answers, _process: Process(child) }
    }

    pub(super) async fn tell(&mut self, command: &Value) {
        writeln!(self.input, "{command}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok\n");
    }
}
