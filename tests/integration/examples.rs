//! The examples, run as a reader would: the fleets of the scripts, one listed and one that announces itself (the twin of
//! docker-compose.yml), and conversations with them.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::support::eventually;

/// A port with six free ones behind it.
fn free_ports() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let drawn = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::iter::repeat_with(drawn).find(|port| *port < 65_000 && (1..=6).all(|more| is_free(port + more))).unwrap()
}

/// Ended by SIGTERM, as by Ctrl-C, so that the script ends what it started.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

impl Script {
    fn start(name: &str, port: u16) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let binaries = Path::new(env!("CARGO_BIN_EXE_dynamo-frontend")).parent().unwrap();
        for binary in ["dynamo-mocker", "dynamo-worker"] {
            assert!(binaries.join(binary).exists(), "{binary} is not built: cargo test --workspace, or cargo build -p mocker -p worker");
        }
        let mut script = Command::new(root.join("examples").join(name));
        script.env("PORT", port.to_string()).env("BIN", binaries).stdout(Stdio::null()).stderr(Stdio::null());
        Self(script.spawn().unwrap())
    }
}

async fn both_engines_serve(port: u16) {
    eventually("both engines serve", async || {
        let address = ([127, 0, 0, 1], port).into();
        if tokio::net::TcpStream::connect(address).await.is_err() {
            return Err("nothing listens yet".to_owned());
        }
        let page = crate::support::http::open(address, "GET", "/workers", &[], &serde_json::Value::Null).await.whole().await.text();
        if page.matches("\"exact\"").count() == 2 { Ok(()) } else { Err(page) }
    })
    .await;
}

/// The blocks that were held when each turn of the conversation came.
fn conversation(port: u16) -> Vec<u32> {
    let python = std::env::var("DYNAMO_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/chat.py");
    let chat = Command::new(python).arg(chat).arg(format!("http://127.0.0.1:{port}")).output().unwrap();
    let printed = String::from_utf8_lossy(&chat.stdout).into_owned();
    assert!(chat.status.success(), "{printed}{}", String::from_utf8_lossy(&chat.stderr));
    printed.lines().map(|line| line.split([',', ' ']).nth(2).unwrap().parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_of_the_script_serves_a_conversation_from_its_cache() {
    let port = free_ports();
    let script = Script::start("fleet.sh", port);
    both_engines_serve(port).await;
    let held = conversation(port);
    assert_eq!(held.len(), 4, "{held:?}");
    assert!(held[0] == 0 && held[1] > 0 && held[1] < held[2] && held[2] < held[3], "each turn finds the turns before it: {held:?}");
    drop(script);
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "the script ends what it started");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_announces_itself_is_known_to_both_frontends() {
    let port = free_ports();
    let script = Script::start("discovery.sh", port);
    both_engines_serve(port).await;
    both_engines_serve(port + 1).await;
    let held = conversation(port);
    assert_eq!(held.len(), 4, "{held:?}");
    assert!(held[0] == 0 && held[1] > 0 && held[1] < held[2] && held[2] < held[3], "each turn finds the turns before it: {held:?}");
    let held = conversation(port + 1);
    assert!(held[0] > 0, "the other frontend knows where the conversation was: {held:?}");
    drop(script);
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "the script ends what it started");
}
