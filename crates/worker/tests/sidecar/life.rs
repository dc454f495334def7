//! Engines that come, die and come back, and how a sidecar leaves.

use std::{ffi::OsStr, io::BufRead, net::SocketAddr, os::unix::ffi::OsStrExt, time::Instant};

use mocker::{Config, Freeze, Handle};
use testkit::servers::bind_again;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;
use wire::discovery::Transport;

use crate::world::{Frontend, Sidecar, command, complete, config, engine, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_waits_for_an_engine_takes_a_dead_one_off_and_a_living_one_on_again() {
    let mut frontend = Frontend::new().await;
    let first = engine(config()).await;
    let address = first.address();
    let _sidecar = Sidecar::start(frontend.folder.path(), &first.url(), &[]);
    let before = frontend.until("the source", |frontend| frontend.source(0)).await;
    let worker = frontend.until("the worker's record", Frontend::worker).await;
    first.shutdown().await;
    frontend.until("an empty record", |frontend| (frontend.records() == 0).then_some(())).await;

    let second = again(address).await;
    let again = frontend.until("the worker's record again", Frontend::worker).await;
    assert_eq!(again, worker);
    let after = frontend.until("another source", |frontend| frontend.source(0)).await;
    assert_ne!(after.publisher_id, before.publisher_id, "numbers begin anew, so the publisher is another one");
    complete(&second, 1, 100).await;
    assert!(frontend.holds_the_truth(&after, &second, 0).await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_engine_is_taken_off_after_its_silence_and_a_thawed_one_on_again() {
    let mut frontend = Frontend::new().await;
    let engine = engine(config()).await;
    let _sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &["--silence-secs", "1"]);
    frontend.until("the worker's record", Frontend::worker).await;
    engine.set_faults(|faults| faults.freeze = Freeze::Process);
    frontend.until("an empty record", |frontend| (frontend.records() == 0).then_some(())).await;
    engine.set_faults(|faults| faults.freeze = Freeze::None);
    frontend.until("the worker's record again", Frontend::worker).await;
}

/// Answers everything alike, until the task is dropped.
async fn stranger(address: SocketAddr, answer: &'static str) -> AbortOnDropHandle<()> {
    let listener = bind_again(async || TcpListener::bind(address).await).await;
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let (mut peer, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                // Whoever asks may leave at any time.
                let _ = peer.read(&mut [0; 4096]).await;
                let _ = peer.write_all(answer.as_bytes()).await;
            });
        }
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_whose_port_somebody_else_has_is_taken_off_until_it_is_back() {
    let mut frontend = Frontend::new().await;
    let mut engine = engine(config()).await;
    let address = engine.address();
    let _sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &["--silence-secs", "60"]);
    for answer in [
        "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 4\r\n\r\nnope",
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 18\r\n\r\n<html>hello</html>",
        "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    ] {
        frontend.until("the worker's record", Frontend::worker).await;
        engine.shutdown().await;
        // At once, so that the sidecar sees no port that refuses.
        let stranger = stranger(address, answer).await;
        frontend.until("an empty record", |frontend| (frontend.records() == 0).then_some(())).await;
        stranger.abort();
        // It ends by being aborted, and its port is free then.
        let _ = stranger.await;
        engine = again(address).await;
    }
    frontend.until("the worker's record", Frontend::worker).await;
}

/// An engine at an address that was in use a moment ago.
async fn again(address: SocketAddr) -> Handle {
    engine(Config { http: address, ..config() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asked_to_end_it_withdraws_at_once() {
    let mut frontend = Frontend::new().await;
    let engine = engine(config()).await;
    let mut sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &[]);
    frontend.until("everything on record", |frontend| frontend.worker().and(frontend.source(0))).await;
    let asked = Instant::now();
    sidecar.terminate();
    frontend.until("no worker", |frontend| frontend.worker().is_none().then_some(())).await;
    let gone = asked.elapsed();
    assert!(gone.as_secs() < 3, "{gone:?}");
    assert!(sidecar.ended().await.success());
    frontend.until("an empty record", |frontend| (frontend.records() == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asked_to_end_before_there_is_an_engine_it_ends() {
    let frontend = Frontend::new().await;
    // A port that nobody listens on any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut sidecar = Sidecar::start(frontend.folder.path(), &format!("http://{gone}"), &[]);
    // It has begun once its folder is there.
    while !frontend.folder.path().join("v1").exists() && sidecar.0.try_wait().unwrap().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    sidecar.terminate();
    sidecar.ended().await;
    assert_eq!(frontend.records(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_or_refused_reaches_the_log() {
    let mut frontend = Frontend::new().await;
    let engine = engine(config()).await;
    let (mut sidecar, log) = Sidecar::logged(frontend.folder.path(), &engine.url());
    let source = frontend.until("the source", |frontend| frontend.source(0)).await;
    let Transport::Tcp(address) = source.recovery_target.unwrap().transport else { panic!("not over TCP") };
    for _ in 0..2 {
        // Somebody who does not speak the protocol of the port.
        let mut stranger = TcpStream::connect(address.split('/').next().unwrap()).await.unwrap();
        stranger.write_all(&[0xff; 200]).await.unwrap();
        let _ = soon("the end of the connection", stranger.read(&mut [0])).await;
    }
    let told = tokio::task::spawn_blocking(move || {
        let told = log.lines().map_while(Result::ok).filter(|line| line.contains("dropped or refused"));
        told.collect::<Vec<_>>()
    });
    // What came after the first line is told at the end.
    sidecar.terminate();
    assert!(sidecar.ended().await.success());
    let told = soon("the log", told).await.unwrap();
    assert!((1..=2).contains(&told.len()) && told.last().unwrap().contains("requests closed_malformed=2 (+"), "{told:?}");
}

#[test]
fn what_cannot_be_is_named_and_ends_with_64() {
    let refused = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = command().args(arguments).envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&[], &[]).contains("--engine"));
    let engine = ["--engine", "http://127.0.0.1:1"];
    let with = |more: &[&'static str]| [&engine[..], more].concat();
    assert!(refused(&with(&["--dp-size", "none"]), &[]).contains("--dp-size (DYN_WORKER_DP_SIZE)=none"));
    assert!(refused(&with(&["--event-plane", "kafka"]), &[]).contains("--event-plane=kafka: allowed are nats and zmq"));
    assert!(refused(&engine, &[("DYN_EVENT_PLANE", "kafka")]).contains("DYN_EVENT_PLANE=kafka"));
    assert!(refused(&with(&["--unknown"]), &[]).contains("--unknown"));
    assert!(refused(&engine, &[("ETCD_ENDPOINTS", "ju nk")]).contains("ETCD_ENDPOINTS=ju nk"));
    assert!(refused(&with(&["--etcd-endpoints", "ju nk"]), &[]).contains("--etcd-endpoints=ju nk"));
    assert!(refused(&engine, &[("ETCD_ENDPOINTS", "https://e:1"), ("ETCD_AUTH_CA", "/nowhere")]).contains("/nowhere"));
    assert!(refused(&engine, &[("DYN_TCP_RPC_HOST", "ju nk")]).contains("DYN_TCP_RPC_HOST=ju nk"));
    let no_text = OsStr::from_bytes(b"\xff\xfe");
    for name in ["DYN_EVENT_PLANE", "DYN_DISCOVERY_BACKEND", "DYN_NAMESPACE", "DYN_TCP_RPC_PORT", "ETCD_ENDPOINTS", "DYN_WORKER_ENGINE"] {
        let mut command = command();
        command.env(name, no_text).args(if name == "DYN_WORKER_ENGINE" { &[][..] } else { &engine[..] });
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{name}");
        let named = if name == "DYN_WORKER_ENGINE" { "--engine" } else { name };
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{name}: {output:?}");
    }
    assert!(refused(&["--engine", "nonsense"], &[]).contains("--engine (DYN_WORKER_ENGINE)=nonsense"));
    let help = command().arg("--help").output().unwrap();
    assert!(help.status.success());
    assert!(String::from_utf8(help.stdout).unwrap().contains("--kv-events"));
}
