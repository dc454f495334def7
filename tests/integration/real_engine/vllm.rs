//! A real vLLM engine on CPU, as a process that cannot outlive the test.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use transport::zmtp::{Dealer, Options};

/// What the engine's attention on CPU wants at least.
pub(super) const BLOCK_TOKENS: u64 = 32;
/// Blocks of its cache; one more is never used.
pub(super) const CACHE_BLOCKS: u64 = 255;
/// Prompt and answer together.
const MAX_TOKENS: u32 = 2048;
/// A start takes one to three minutes on a small busy machine, and ten where nothing is compiled yet.
const START_WITHIN: Duration = Duration::from_secs(900);
/// Between two questions to an engine that starts.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// One exchange with the replay socket. The engine answers it within 0.1 s, between two batches.
const REPLAY_WITHIN: Duration = Duration::from_secs(30);

/// Ends the whole process group as soon as the engine or the test is gone: a test that is killed closes this shell's input.
const GUARD: &str = r#"("$@"; kill -KILL 0) </dev/null & read -r _; kill -KILL 0"#;

/// Where the engine publishes.
#[derive(Clone, Copy)]
pub(super) enum Sockets {
    Tcp,
    Ipc,
}

/// One engine. Dropping it ends every process it started.
pub(super) struct Vllm {
    venv: PathBuf,
    model: PathBuf,
    /// Its log, caches and local sockets.
    home: tempfile::TempDir,
    address: SocketAddr,
    /// As the engine binds them.
    events: String,
    replay: String,
    /// `None` while it is down.
    guard: Option<Child>,
    /// Number of a message that was seen on its replay socket.
    seen: u64,
}

impl Vllm {
    /// Starts an engine; it is not ready yet.
    pub(super) fn start(venv: &Path, model: &Path, sockets: Sockets) -> Self {
        let home = tempfile::tempdir().unwrap();
        let [http, events, replay] = free_ports();
        let (events, replay) = match sockets {
            Sockets::Tcp => (format!("tcp://*:{events}"), format!("tcp://*:{replay}")),
            Sockets::Ipc => ["events", "replay"].map(|name| format!("ipc://{}", home.path().join(name).display())).into(),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, http));
        let (venv, model) = (venv.to_owned(), model.to_owned());
        let mut engine = Self { venv, model, home, address, events, replay, guard: None, seen: 0 };
        engine.spawn();
        engine
    }

    fn spawn(&mut self) {
        let log = File::create(self.log_path()).unwrap();
        let home = self.home.path();
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(self.venv.join("bin/vllm")).arg("serve").args(self.flags());
        command
            // The engine's processes compile every module at each start otherwise.
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .envs([("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")])
            // For /reset_prefix_cache.
            .env("VLLM_SERVER_DEV_MODE", "1")
            // Engines that pin their threads pin them to the same cores.
            .envs([("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind"), ("OMP_NUM_THREADS", "1")])
            .envs([("VLLM_HOST_IP", "127.0.0.1"), ("VLLM_LOGGING_LEVEL", "WARNING")])
            .env("XDG_CACHE_HOME", home)
            .env("XDG_CONFIG_HOME", home);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        self.guard = Some(command.spawn().unwrap());
        self.seen = 0;
    }

    fn flags(&self) -> Vec<String> {
        let model = self.model.display();
        let events = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": self.events, "replay_endpoint": self.replay,
        });
        let flags = format!(
            "{model} --served-model-name tiny --host 127.0.0.1 --port {port} --dtype float32 --enforce-eager --seed 0 \
             --block-size {BLOCK_TOKENS} --num-gpu-blocks-override {blocks} --max-model-len {MAX_TOKENS} --max-num-seqs 16 --max-num-batched-tokens 512 \
             --enable-prefix-caching --enable-prompt-tokens-details --disable-uvicorn-access-log \
             --enable-lora --max-loras 2 --max-lora-rank 8 --lora-modules sql={model}/loras/sql chat={model}/loras/chat",
            port = self.address.port(),
            blocks = CACHE_BLOCKS + 1,
        );
        flags.split_whitespace().map(str::to_owned).chain(["--kv-events-config".to_owned(), events.to_string()]).collect()
    }

    /// Waits until it serves.
    pub(super) async fn ready(&mut self) {
        let deadline = Instant::now() + START_WITHIN;
        while !is_healthy(self.address).await {
            let ended = self.guard.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the engine ended: {ended:?}");
            assert!(Instant::now() < deadline, "the engine does not get ready");
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// SIGKILL to every process of the engine at once.
    pub(super) fn kill(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            guard.wait().unwrap();
        }
    }

    /// Starts it again with the addresses it had; it is not ready yet.
    pub(super) fn restart(&mut self) {
        self.kill();
        self.spawn();
    }

    pub(super) fn is_running(&self) -> bool {
        self.guard.is_some()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The id the frontend gives it.
    pub(super) fn id(&self) -> String {
        self.address.to_string()
    }

    /// Its event socket as a subscriber names it.
    pub(super) fn events(&self) -> String {
        self.events.replace('*', "127.0.0.1")
    }

    /// Number of the last message that belongs to anything the engine has answered so far; `None` if there is none.
    ///
    /// The engine queues a request's events before its answer, and its publisher looks for a replay request, then for a
    /// queued batch, in turn. So when two replays in a row end with the same message, the queue was empty in between.
    pub(super) async fn published(&mut self) -> Option<u64> {
        let mut dealer = Dealer::connect(&self.replay.replace('*', "127.0.0.1").parse().unwrap(), &Options::default()).await.unwrap();
        let mut last = None;
        loop {
            let again = tokio::time::timeout(REPLAY_WITHIN, replayed(&mut dealer, self.seen)).await.expect("the replay ends");
            if last == Some(again) {
                return again;
            }
            self.seen = again.unwrap_or(0);
            last = Some(again);
        }
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap();
        String::from_utf8_lossy(&log[log.len().saturating_sub(8000)..]).into_owned()
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("end of the log of {}:\n{}", self.address, self.log_tail());
        }
    }
}

/// Distinct ports that were free a moment ago.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

async fn is_healthy(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n").await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        std::io::Result::Ok(head)
    };
    matches!(ask.await, Ok(head) if head.ends_with(b" 200"))
}

/// Asks for every message from `from` on, and says which was the last.
async fn replayed(dealer: &mut Dealer, from: u64) -> Option<u64> {
    dealer.send(&[Bytes::new(), Bytes::copy_from_slice(&from.to_be_bytes())]).await.unwrap();
    let mut last = None;
    loop {
        let message = dealer.recv().await.unwrap();
        let [.., number, payload] = &message[..] else { panic!("{message:?}") };
        let number = u64::from_be_bytes(number[..].try_into().unwrap());
        if number == u64::MAX && payload.is_empty() {
            return last;
        }
        last = Some(number);
    }
}
