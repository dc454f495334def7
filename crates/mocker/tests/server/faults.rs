//! Misbehaviour on demand.

use std::time::Duration;

use crate::support::*;
use http_body_util::BodyExt;
use mocker::{Freeze, Handle, StreamFault, StreamFaultKind};
use serde_json::{Value, json};

/// Long enough to tell silence from slowness, which nothing here is.
const SILENCE: Duration = Duration::from_millis(60);

fn streaming() -> Value {
    json!({"prompt": "the old bridge", "max_tokens": 6, "ignore_eos": true, "stream": true})
}

async fn silent<T>(what: impl Future<Output = T>) {
    assert!(tokio::time::timeout(SILENCE, what).await.is_err(), "an answer came");
}

/// Everything a stream brings, and whether its body ended as bodies do.
async fn drained(handle: &Handle) -> (String, bool) {
    let mut body = send(handle, "POST", "/v1/completions", &[], &streaming()).await.unwrap().into_body();
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => return (String::from_utf8(text).unwrap(), false),
        }
    }
    (String::from_utf8(text).unwrap(), true)
}

fn stream_fault(handle: &Handle, after_events: u32, kind: StreamFaultKind) {
    handle.set_faults(|faults| faults.stream = Some(StreamFault { after_events, kind }));
}

#[tokio::test]
async fn a_frozen_engine_answers_health_and_nothing_else_comes() {
    let handle = start(quick()).await;
    handle.set_faults(|faults| faults.freeze = Freeze::Engine);
    let mut asked = Box::pin(post(&handle, "/v1/completions", json!({"prompt": "x"})));
    silent(&mut asked).await;
    assert_eq!(get(&handle, "/health").await.status, 200);
    assert_eq!(handle.counters().batches, 0);
    handle.set_faults(|faults| faults.freeze = Freeze::None);
    assert_eq!(asked.await.status, 200);
    handle.shutdown().await;
}

#[tokio::test]
async fn a_frozen_process_answers_nothing_until_it_thaws() {
    let handle = start(quick()).await;
    let mut body =
        send(&handle, "POST", "/v1/completions", &[], &json!({"prompt": "x", "max_tokens": 200, "ignore_eos": true, "stream": true}))
            .await
            .unwrap()
            .into_body();
    handle.set_faults(|faults| faults.freeze = Freeze::Process);
    let mut health = Box::pin(get(&handle, "/health"));
    silent(&mut health).await;
    let rest = async {
        while let Some(frame) = body.frame().await {
            frame.unwrap();
        }
    };
    tokio::pin!(rest);
    silent(&mut rest).await;
    let set = call(&handle, "PUT", "/mocker/faults", &[], json!({})).await;
    assert_eq!(set.status, 200, "the switches work in a frozen process");
    assert_eq!(health.await.status, 200);
    rest.await;
    handle.shutdown().await;
}

#[tokio::test]
async fn a_refusing_server_is_not_there_and_comes_back_on_its_port() {
    let handle = start(mocker::Config { speedup: 1.0, ..quick() }).await;
    let body = json!({"prompt": "x", "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut open = send(&handle, "POST", "/v1/completions", &[], &body).await.unwrap().into_body();
    open.frame().await.unwrap().unwrap();
    handle.set_faults(|faults| faults.refuse = true);
    let cut = async {
        loop {
            match open.frame().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return true,
                None => return false,
            }
        }
    };
    assert!(tokio::time::timeout(PATIENCE, cut).await.unwrap(), "the open stream is cut, not ended");
    let address = handle.address();
    let connected = tokio::net::TcpStream::connect(address).await;
    assert_eq!(connected.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    eventually("the request is aborted", || handle.gauges(0).unwrap().running == 0).await;
    handle.set_faults(|faults| faults.refuse = false);
    let back = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, back).await.unwrap();
    assert_eq!(get(&handle, "/health").await.status, 200);
    handle.shutdown().await;
}

#[tokio::test]
async fn a_status_fault_answers_generation_only() {
    let handle = start(quick()).await;
    handle.set_faults(|faults| faults.status = Some(503));
    let answer = post(&handle, "/v1/completions", json!({"prompt": "x"})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &json!(503)));
    assert_eq!(post(&handle, "/v1/chat/completions", json!({"messages": []})).await.status, 503);
    assert_eq!(get(&handle, "/health").await.status, 200);
    assert_eq!(handle.counters().requests, 2);
    handle.shutdown().await;
}

#[tokio::test]
async fn streams_die_as_told() {
    let handle = start(quick()).await;
    let (whole, ended) = drained(&handle).await;
    assert!(ended && whole.ends_with("data: [DONE]\n\n"));
    let events: Vec<&str> = whole.split_inclusive("\n\n").collect();

    stream_fault(&handle, 2, StreamFaultKind::DieMidLine);
    let (text, ended) = drained(&handle).await;
    assert!(!ended && text.matches("\n\n").count() == 2 && !text.ends_with('\n'), "{text:?}");
    assert!(text.rsplit("\n\n").next().unwrap().starts_with("data: {\"id\""));

    stream_fault(&handle, 2, StreamFaultKind::Close);
    let (text, ended) = drained(&handle).await;
    assert!(!ended && text.matches("\n\n").count() == 2 && text.ends_with("\n\n"), "{text:?}");

    for after in [0, 3] {
        stream_fault(&handle, after, StreamFaultKind::ErrorEvent);
        let (text, ended) = drained(&handle).await;
        let last: Vec<&str> = text.split_inclusive("\n\n").skip(after as usize).collect();
        let error: Value = serde_json::from_str(last[0].strip_prefix("data: ").unwrap().trim()).unwrap();
        assert!(ended && last.len() == 2 && last[1] == "data: [DONE]\n\n", "{text:?}");
        assert_eq!(error["error"]["code"], 500);
    }

    stream_fault(&handle, 1, StreamFaultKind::Stall);
    let mut body = send(&handle, "POST", "/v1/completions", &[], &streaming()).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    silent(body.frame()).await;
    drop(body);
    eventually("nothing is left running", || handle.gauges(0).unwrap().running == 0).await;

    // A fault beyond the end changes nothing.
    stream_fault(&handle, events.len() as u32, StreamFaultKind::Close);
    assert!(drained(&handle).await.1);
    handle.shutdown().await;
}

#[tokio::test]
async fn latencies_hold_back_what_they_name() {
    let handle = start(quick()).await;
    handle.set_faults(|faults| faults.latency_ms = 600_000);
    silent(post(&handle, "/v1/completions", json!({"prompt": "x"}))).await;
    assert_eq!(get(&handle, "/health").await.status, 200);
    handle.set_faults(|faults| (faults.latency_ms, faults.health_latency_ms) = (0, 600_000));
    silent(get(&handle, "/health")).await;
    assert_eq!(post(&handle, "/v1/completions", json!({"prompt": "x"})).await.status, 200);
    handle.shutdown().await;
}

#[tokio::test]
async fn a_restart_cuts_streams() {
    let mut handle = start(mocker::Config { speedup: 1.0, ..quick() }).await;
    let body = json!({"prompt": "x", "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut open = send(&handle, "POST", "/v1/completions", &[], &body).await.unwrap().into_body();
    open.frame().await.unwrap().unwrap();
    handle.restart().await.unwrap();
    let mut last = open.frame().await;
    while let Some(Ok(_)) = last {
        last = open.frame().await;
    }
    assert!(last.is_some_and(|frame| frame.is_err()), "cut, not ended");
    assert_eq!(handle.gauges(0).unwrap().running, 0);
    assert_eq!(post(&handle, "/v1/completions", json!({"prompt": "x", "max_tokens": 1})).await.status, 200);
    handle.shutdown().await;
}

#[tokio::test]
async fn switches_over_http_are_checked() {
    let handle = start(quick()).await;
    let set = json!({"freeze": "none", "status": 429, "stream": {"after_events": 2, "kind": "die_mid_line"}, "drop_batches": 3});
    assert_eq!(call(&handle, "PUT", "/mocker/faults", &[], set).await.status, 200);
    let faults = handle.faults();
    assert_eq!((faults.status, faults.drop_batches), (Some(429), 3));
    assert_eq!(faults.stream, Some(StreamFault { after_events: 2, kind: StreamFaultKind::DieMidLine }));
    assert_eq!(get(&handle, "/mocker/faults").await.json()["status"], 429);
    for odd in [json!({"refuse": true}), json!({"status": 200}), json!({"freze": "engine"}), json!({"freeze": "all"})] {
        assert_eq!(call(&handle, "PUT", "/mocker/faults", &[], odd).await.status, 400);
    }
    assert_eq!(handle.faults(), faults, "a refused change changes nothing");
    handle.shutdown().await;
}
