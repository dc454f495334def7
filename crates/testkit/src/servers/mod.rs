//! Real servers for tests: nats-server and etcd, each on free loopback ports with a folder of its own, ended by its process
//! id when dropped.
//!
//! A test can [`kill`](Server::kill) one, start it again on the same port with its data or [wiped](Server::wipe), and
//! [`freeze`](Server::freeze) it. Every method blocks until what it says is so; a server that is missing or does not answer
//! fails the test that asked for it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

mod answers;
mod ports;

pub use ports::bind_again;

/// How long a server may take to answer after it was started.
const START: Duration = Duration::from_secs(20);

/// How often other ports are tried when a server ends at once, as it does when another process was faster.
const ATTEMPTS: usize = 5;

#[derive(Clone, Copy)]
enum Kind {
    Nats,
    Etcd,
}

impl Kind {
    fn binary(self) -> &'static str {
        match self {
            Kind::Nats => "nats-server",
            Kind::Etcd => "etcd",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Kind::Nats => "nats-server",
            Kind::Etcd => "etcd-server",
        }
    }

    /// Where the binary is. Folders of system binaries are searched too: not every user has them in `PATH`.
    fn path(self) -> PathBuf {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from));
        let found = folders.map(|folder| folder.join(self.binary())).find(|file| file.is_file());
        found.unwrap_or_else(|| panic!("{} is missing: run 'apt-get update && apt-get install -y {}'", self.binary(), self.package()))
    }
}

/// One server. Dropping it ends the process and removes its folder.
pub struct Server {
    kind: Kind,
    binary: PathBuf,
    more: Vec<String>,
    folder: TempDir,
    ports: [u16; 2],
    process: Option<Child>,
}

impl Server {
    /// A nats-server.
    pub fn nats() -> Self {
        Self::nats_with(&[])
    }

    /// A nats-server with more arguments, for example `["--user", "a", "--pass", "b"]`.
    pub fn nats_with(more: &[&str]) -> Self {
        Self::start(Kind::Nats, more)
    }

    /// An etcd of one member.
    pub fn etcd() -> Self {
        Self::etcd_with(&[])
    }

    /// An etcd of one member with more arguments.
    pub fn etcd_with(more: &[&str]) -> Self {
        Self::start(Kind::Etcd, more)
    }

    fn start(kind: Kind, more: &[&str]) -> Self {
        let binary = kind.path();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let more = more.iter().map(|more| (*more).to_owned()).collect();
        let mut server = Self { kind, binary, more, folder, ports: [0; 2], process: None };
        for _ in 0..ATTEMPTS {
            server.ports = ports::free();
            if server.spawn() {
                return server;
            }
        }
        panic!("{} does not start:\n{}", kind.binary(), server.log());
    }

    /// What a client is given: `nats://127.0.0.1:PORT` or `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        match self.kind {
            Kind::Nats => format!("nats://127.0.0.1:{}", self.port()),
            Kind::Etcd => format!("http://127.0.0.1:{}", self.port()),
        }
    }

    /// The port clients connect to, the same for the life of this value.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The folder of its data and its log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends the process by SIGKILL and waits for its end. Nothing happens when it does not run.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Removes all data of a server that was killed.
    pub fn wipe(&mut self) {
        assert!(self.process.is_none(), "kill {} before its data is wiped", self.kind.binary());
        let _ = fs::remove_dir_all(self.folder.path().join("data"));
    }

    /// Starts a killed server again on its port, with the data that is there, and waits until it answers.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.kind.binary());
        assert!(self.spawn(), "{} does not start again:\n{}", self.kind.binary(), self.log());
    }

    /// Stops the process by SIGSTOP: its connections stay open, nothing answers.
    pub fn freeze(&self) {
        let process = self.signal(Signal::STOP);
        waitpid(Some(process), WaitOptions::UNTRACED).expect("a child that stops");
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) -> Pid {
        let process = self.process.as_ref().unwrap_or_else(|| panic!("{} does not run", self.kind.binary()));
        let process = Pid::from_child(process);
        kill_process(process, signal).expect("a signal to a child that was not waited for");
        process
    }

    /// Whether the process started and answers.
    fn spawn(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).expect("a log file");
        let mut command = Command::new(&self.binary);
        command.args(self.arguments()).args(&self.more).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        let process = self.process.insert(command.spawn().expect("the binary was found"));
        let answers = match self.kind {
            Kind::Nats => answers::nats,
            Kind::Etcd => answers::etcd,
        };
        let ready = answers::within(START, self.ports[0], answers, || process.try_wait().is_ok_and(|ended| ended.is_none()));
        if !ready {
            self.kill();
        }
        ready
    }

    fn arguments(&self) -> Vec<String> {
        let [client, peer] = self.ports;
        let data = self.folder.path().join("data");
        let own = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect();
        match self.kind {
            Kind::Nats => own(&["--addr", "127.0.0.1", "--port", &client.to_string()]),
            Kind::Etcd => {
                let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
                let mut list: Vec<String> = own(&["--name", "one", "--initial-cluster", &format!("one={peer}")]);
                list.extend(own(&["--data-dir", &data.to_string_lossy()]));
                list.extend(own(&["--listen-client-urls", &client, "--advertise-client-urls", &client]));
                list.extend(own(&["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]));
                list
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
