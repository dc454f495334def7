//! Real processes of Dynamo 1.6.1 at the other end, over TCP and over NATS: a worker that is asked, frozen and killed, and a frontend
//! that asks. Their publishers listen on every address, so all of it runs where nothing but loopback exists:
//!
//! `DYNAMO_TEST_DYNAMO=target/dynamo tests/dynamo/alone cargo test --offline -p transport --test request -- --ignored real_dynamo`

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};
use testkit::dynamo;
use testkit::servers::Server as Process;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use transport::discovery::{Backend, Discovery, Options};
use transport::nats::{Nats, NatsOptions};
use transport::request::{Call, Cause, Client, ClientOptions, Server, ServerOptions};
use wire::discovery::{Endpoint, Record};

use crate::support::{answering, until};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/tiny-llama");
/// Ends the whole process group as soon as the process or the test is gone: a test that is killed closes this shell's input.
const GUARD: &str = r#"exec 3<&0; ("$@"; kill -KILL 0) </dev/null & read -r _ <&3; kill -KILL 0"#;
/// A process of theirs takes seconds to import.
const START: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plane {
    Tcp,
    Nats,
}

/// What both sides share.
struct World {
    plane: Plane,
    nats: Process,
    folder: tempfile::TempDir,
}

/// One process of theirs and what it started. Dropping it kills them.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // A frozen one has to go on to be ended.
        self.signal("CONT");
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Peer {
    /// To everything it started, and what guards that.
    fn signal(&self, signal: &str) {
        let kill = format!("kill -s {signal} -- -{}", self.0.id());
        Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status().unwrap();
    }
}

impl World {
    fn new(plane: Plane) -> Self {
        Self { plane, nats: Process::nats(), folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn python(&self, name: &str, arguments: &[&str]) -> Peer {
        let venv = std::env::var("DYNAMO_TEST_DYNAMO").expect("DYNAMO_TEST_DYNAMO names a virtual environment with Dynamo");
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", GUARD, "guard"]).arg(Path::new(&venv).join("bin/python")).args(arguments).env_clear();
        let (store, nats) = (self.store(), self.nats.url());
        let plane = if self.plane == Plane::Tcp { "tcp" } else { "nats" };
        command.envs([
            ("DYN_DISCOVERY_BACKEND", "file"),
            ("DYN_FILE_KV", store.to_str().unwrap()),
            ("DYN_EVENT_PLANE", "zmq"),
            ("DYN_REQUEST_PLANE", plane),
            ("NATS_SERVER", &nats),
            ("DYN_TCP_RPC_HOST", "127.0.0.1"),
            ("DYN_TCP_RESPONSE_STREAM_HOST", "127.0.0.1"),
            ("DYN_EVENT_PLANE_HOST", "127.0.0.1"),
            ("DYN_SDK_DISABLE_ANSI_LOGGING", "1"),
            ("DYN_LOG", "warn"),
            ("HF_HUB_OFFLINE", "1"),
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("HOME", self.folder.path().to_str().unwrap()),
        ]);
        let log = File::create(self.folder.path().join(format!("{name}.log"))).unwrap();
        Peer(command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    /// A simulated worker, at a speed at which answers take a while.
    async fn worker(&self) -> (Peer, Endpoint, Record) {
        let arguments =
            ["-m", "dynamo.mocker", "--model-path", MODEL, "--model-name", "tiny", "--block-size", "16", "--speedup-ratio", "1"];
        let peer = self.python("worker", &arguments);
        let began = Instant::now();
        loop {
            let found = (self.records("instances", "generate").pop(), self.records("mdc", "generate").pop());
            if let (Some(Record::Endpoint(endpoint)), Some(card)) = found {
                // Their records come a moment before their listeners.
                tokio::time::sleep(Duration::from_millis(500)).await;
                return (peer, endpoint, card);
            }
            assert!(began.elapsed() < START, "no worker: {}", self.log("worker"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn records(&self, bucket: &str, endpoint: &str) -> Vec<Record> {
        let Ok(entries) = std::fs::read_dir(self.store().join("v1").join(bucket)) else { return Vec::new() };
        let of = |name: &str| name.contains(&format!("%2F{endpoint}%2F")) && !name.starts_with(".tmp");
        let files = entries.filter_map(Result::ok).filter(|entry| of(&entry.file_name().to_string_lossy()));
        files.filter_map(|entry| Record::from_json(&std::fs::read(entry.path()).ok()?).ok()).collect()
    }

    fn connection(&self) -> Nats {
        Nats::connect(&self.nats.url(), NatsOptions::default()).unwrap()
    }

    async fn client(&self) -> Client {
        let nats = self.connection();
        Client::with_nats(ClientOptions::default(), move || nats).await.unwrap()
    }
}

/// A prompt of some tokens and so many to be made.
fn body(tokens: u32) -> Bytes {
    let request = json!({
        "model": "tiny", "token_ids": (1..40).collect::<Vec<u32>>(),
        "stop_conditions": {"max_tokens": tokens, "ignore_eos": true}, "sampling_options": {}, "output_options": {},
        "eos_token_ids": [], "annotations": [],
    });
    rmp_serde::to_vec_named(&request).unwrap().into()
}

async fn asked(plane: Plane) {
    let world = World::new(plane);
    let (worker, endpoint, _) = world.worker().await;
    let client = world.client().await;
    // It answers a ping in far less than a second, and a request from beginning to end.
    let began = Instant::now();
    client.ping(&endpoint).await.unwrap_or_else(|error| panic!("{error}: {}", world.log("worker")));
    println!("{plane:?}: a ping of a live worker took {:?}", began.elapsed());
    let mut responses = client.call(Call::to(&endpoint, body(8)).unwrap()).await.unwrap();
    let mut items = Vec::new();
    while let Some(item) = responses.next().await {
        items.push(rmp_serde::from_slice::<Value>(&item.unwrap()).unwrap());
    }
    let tokens: usize = items.iter().map(|item| item["data"]["token_ids"].as_array().unwrap().len()).sum();
    assert_eq!(tokens, 8, "{items:?}");
    assert_eq!(items.last().unwrap()["data"]["finish_reason"], "length");
    // A ping has started nothing, and left nothing.
    client.ping(&endpoint).await.unwrap();

    // Frozen it does not answer, and thawed it does.
    worker.signal("STOP");
    // Its threads stop one by one; a ping may still be answered meanwhile.
    let error = loop {
        let began = Instant::now();
        if let Err(error) = client.ping(&endpoint).await {
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            break error;
        }
    };
    assert!(matches!(error.cause(), Cause::NoPong(_)), "{error}");
    worker.signal("CONT");
    client.ping(&endpoint).await.unwrap();

    // Killed in the middle of an answer: the answer breaks off at once, and nobody is there any more.
    let mut responses = client.call(Call::to(&endpoint, body(4000)).unwrap()).await.unwrap();
    responses.next().await.unwrap().unwrap();
    let began = Instant::now();
    worker.signal("KILL");
    let error = loop {
        match responses.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("an answer of a worker that was killed has no end"),
        }
    };
    assert!(matches!(error.cause(), Cause::Truncated(_)), "{error}");
    println!("{plane:?}: a worker's death was known after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let gone = async {
        loop {
            match client.ping(&endpoint).await {
                Err(error) if matches!(error.cause(), Cause::Unreachable(_)) => break,
                Ok(()) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("a dead worker is unreachable");
    let error = client.call(Call::to(&endpoint, body(1)).unwrap()).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/dynamo"]
async fn a_real_worker_is_pinged_asked_frozen_and_killed_over_tcp() {
    asked(Plane::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/dynamo"]
async fn a_real_worker_is_pinged_asked_frozen_and_killed_over_nats() {
    asked(Plane::Nats).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/dynamo"]
async fn an_answer_that_is_left_ends_the_real_workers_work() {
    let world = World::new(Plane::Nats);
    let (_worker, endpoint, _) = world.worker().await;
    let client = world.client().await;
    for _ in 0..5 {
        let mut responses = client.call(Call::to(&endpoint, body(4000)).unwrap()).await.unwrap();
        responses.next().await.unwrap().unwrap();
    }
    assert_eq!(client.counters().abandoned, 5);
    client.ping(&endpoint).await.unwrap();
    let mut responses = client.call(Call::to(&endpoint, body(1)).unwrap()).await.unwrap();
    while let Some(item) = responses.next().await {
        item.unwrap();
    }
}

/// The data of the items that a real worker was recorded to send.
fn recorded_items() -> Vec<Bytes> {
    let frames = dynamo::exchange("reqplane_minimal_body").into_iter().filter(|(kind, _)| kind == "f");
    let data = |frame: Vec<u8>| {
        let body = frame.get(24..)?.strip_prefix(b"\x82\xa4data")?.strip_suffix(b"\xaecomplete_final\xc2")?;
        Some(Bytes::copy_from_slice(body))
    };
    frames.filter_map(|(_, frame)| data(frame)).collect()
}

/// Puts another instance into a record of a real worker.
fn ours(record: Record, instance_id: u64) -> Record {
    let mut document: Value = serde_json::from_slice(&record.to_json()).unwrap();
    document["instance_id"] = json!(instance_id);
    Record::from_json(&serde_json::to_vec(&document).unwrap()).unwrap()
}

async fn completion(address: SocketAddr) -> String {
    let body = json!({"model": "tiny", "prompt": "hello", "max_tokens": 3}).to_string();
    let Ok(mut stream) = TcpStream::connect(address).await else { return String::new() };
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await;
    answer
}

async fn serves(plane: Plane) {
    let world = World::new(plane);
    // A real worker's model card, for a server of ours.
    let (worker, endpoint, card) = world.worker().await;
    drop(worker);
    // What it left in the store would be asked too, for as long as a lease.
    std::fs::remove_dir_all(world.store()).unwrap();
    let discovery = Discovery::open(Backend::File { root: world.store() }, Options::default()).unwrap();
    let instance_id = discovery.instance_id();
    let mut server = Server::bind("127.0.0.1:0", ServerOptions::default()).await.unwrap();
    if plane == Plane::Nats {
        server = server.with_nats(world.connection());
    }
    let items = recorded_items();
    let handler = answering(move |_| Ok(futures_util::stream::iter(items.clone().into_iter().map(Ok)).boxed()));
    let handled = server.handle(&endpoint.id.request_path(instance_id), handler).unwrap();
    handled.reachable().await;
    let transport = server.advertised(&endpoint.id, instance_id);
    let records = [Endpoint::new(endpoint.id.clone(), instance_id, transport).into(), ours(card, instance_id)];
    let _registrations: Vec<_> = records.iter().map(|record: &Record| discovery.register(record.key(), record.to_json())).collect();

    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = address.port().to_string();
    let arguments = ["-m", "dynamo.frontend", "--router-mode", "round-robin", "--http-host", "127.0.0.1", "--http-port", &port];
    let _frontend = world.python("frontend", &arguments);
    let began = Instant::now();
    loop {
        let answer = completion(address).await;
        if answer.starts_with("HTTP/1.1 200") {
            assert!(answer.contains("\"finish_reason\":\"length\""), "{answer}");
            break;
        }
        assert!(began.elapsed() < START, "{answer}\n{}", world.log("frontend"));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    for _ in 0..20 {
        let answer = completion(address).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", world.log("frontend"));
    }
    until("every call is over", || server.counters().running == 0).await;
    let counters = server.counters();
    assert!(counters.calls >= 21 && counters.cancelled == 0, "{counters:?}");
    assert_eq!(counters.connections > 0, plane == Plane::Tcp, "{counters:?}");
    discovery.close().await;
    assert_eq!(server.drain(Duration::from_secs(5)).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/dynamo"]
async fn a_real_frontend_is_served_over_tcp() {
    serves(Plane::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/dynamo"]
async fn a_real_frontend_is_served_over_nats() {
    serves(Plane::Nats).await;
}
