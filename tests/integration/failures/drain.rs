//! SIGTERM: no new work, running answers finish, and a deadline for those that do not.

use std::{
    io::ErrorKind,
    process::ExitStatus,
    time::{Duration, Instant},
};

use ::http::StatusCode;
use tokio::net::TcpStream;

use super::{
    rig::{Rig, Shape, completion},
    sse::{Events, assert_broken, assert_finished, assert_openai},
};
use crate::support::{eventually, frontend::Frontend, http, seen};

/// Waits until the port is closed.
async fn refuses(frontend: &Frontend) {
    eventually("new connections are refused", async || match TcpStream::connect(frontend.address).await {
        Ok(_) => Err("accepted".to_owned()),
        Err(error) => seen(error.kind() == ErrorKind::ConnectionRefused, error),
    })
    .await;
}

async fn ended(frontend: &mut Frontend) -> ExitStatus {
    eventually("the process ends", async || frontend.ended().ok_or_else(|| "it runs".to_owned())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_running_answers_finish_and_takes_no_new_ones() {
    let mut rig = Rig::start(1, &[]).await;
    let prompt = rig.prompt();
    let mut stream = rig.open(&prompt, Shape::Stream, 120).await;
    let begun = stream.next().await.unwrap();
    let address = rig.frontend.address;
    let body = completion(&prompt, Shape::Plain, 120);
    let plain = tokio::spawn(async move { http::open(address, "POST", "/v1/completions", &[], &body).await.whole().await });
    eventually("both are at work", async || seen(rig.running(0) == 2, rig.running(0))).await;
    rig.frontend.terminate();
    refuses(&rig.frontend).await;
    assert_eq!(rig.frontend.ended(), None);
    assert_eq!(rig.running(0), 2, "it drains");

    let mut ending = stream.ending().await;
    ending.answer.body = [begun, ending.answer.body].concat().into();
    assert_finished(&ending, 120);
    assert_eq!(plain.await.unwrap().json()["usage"]["completion_tokens"], 120);
    assert_eq!(ended(&mut rig.frontend).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_still_runs_at_the_drain_deadline_is_cut_off() {
    let mut rig = Rig::start(1, &["--drain-timeout-secs", "1"]).await;
    let mut stream = rig.open(&rig.prompt(), Shape::Stream, 5_000).await;
    stream.next().await.unwrap();
    let (address, body) = (rig.frontend.address, completion(&rig.prompt(), Shape::Plain, 5_000));
    let plain = tokio::spawn(async move { http::open(address, "POST", "/v1/completions", &[], &body).await.whole().await });
    eventually("both are at work", async || seen(rig.running(0) == 2, rig.running(0))).await;
    let asked = Instant::now();
    rig.frontend.terminate();
    let ending = stream.ending().await;
    let took = asked.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(3)).contains(&took), "{took:?}");
    let plain = plain.await.unwrap();
    assert_eq!(plain.status, StatusCode::SERVICE_UNAVAILABLE, "nothing of it had gone out");
    assert_openai(&plain.json());
    let events: Events = assert_broken(&ending, "frontend_stopping");
    assert!(events.tokens() > 10, "it ran until the deadline: {events:?}");
    assert_eq!(ended(&mut rig.frontend).await.code(), Some(0));
    eventually("the engine has nothing to do", async || rig.engines_idle()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_only_wait_do_not_hold_up_the_end() {
    let mut rig = Rig::start(1, &["--drain-timeout-secs", "10"]).await;
    // One that never sent a request, and one between two.
    let silent = TcpStream::connect(rig.frontend.address).await.unwrap();
    let mut answered = rig.open(&rig.prompt(), Shape::Stream, 1).await;
    while answered.next().await.is_some() {}
    let asked = Instant::now();
    rig.frontend.terminate();
    assert_eq!(ended(&mut rig.frontend).await.code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    drop((silent, answered));
}
