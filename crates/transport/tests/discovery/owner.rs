//! An owner in a process of its own, which can be killed and frozen.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

use transport::discovery::{Backend, EtcdConfig};

use crate::support::{key, open, value};

const BACKEND: &str = "DISCOVERY_TEST_BACKEND";
const NAME: &str = "DISCOVERY_TEST_NAME";

/// The process. Ended by SIGKILL when dropped.
pub(crate) struct Owner(Child);

impl Owner {
    /// One that has registered a key of this name in a directory.
    pub(crate) fn in_directory(root: &Path, name: &str) -> Self {
        Self::start(&format!("file:{}", root.display()), name)
    }

    /// One that has registered a key of this name in etcd.
    pub(crate) fn in_etcd(url: &str, name: &str) -> Self {
        Self::start(&format!("etcd:{url}"), name)
    }

    fn start(backend: &str, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "owner::process", "--ignored", "--nocapture"]).env(BACKEND, backend).env(NAME, name);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let owner = Self(child);
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("held")), "the owner did not register");
        owner
    }

    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").arg(signal).arg(self.0.id().to_string()).status().unwrap().success());
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the process that other tests start"]
fn process() {
    let Ok(backend) = std::env::var(BACKEND) else { return };
    let backend = match backend.split_once(':').unwrap() {
        ("file", root) => Backend::File { root: root.into() },
        (_, url) => Backend::Etcd(EtcdConfig { endpoints: vec![url.to_owned()], ..EtcdConfig::default() }),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let discovery = open(backend);
        let name = std::env::var(NAME).unwrap();
        let registration = discovery.register(key(&name), value(&name));
        registration.held().await.unwrap();
        println!("held");
        // Until the test is gone.
        let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    });
}
