//! Questions to an engine over real sockets.

use std::time::Duration;

use axum::{Router, routing::get};
use bytes::Bytes;
use engine::{
    BaseUrl, Failure,
    discover::{AskError, Engine, EventSources},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::{io::AsyncWriteExt, net::TcpListener};

use crate::support::*;

fn engine(url: &BaseUrl) -> Engine {
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("Bearer key"))]);
    Engine::new(client(), url.clone(), headers, Duration::from_millis(500))
}

#[tokio::test]
async fn a_vllm_server_is_found_out() {
    let tokens = |headers: HeaderMap, body: String| async move {
        assert_eq!(headers[header::AUTHORIZATION], "Bearer key");
        assert_eq!(headers[header::CONTENT_TYPE], "application/json");
        assert_eq!(body, r#"{"prompt":"Hello world"}"#);
        r#"{"count":5,"max_model_len":2048,"tokens":[1,944,267,265,288],"token_strs":null}"#
    };
    let app = Router::new()
        .route("/v1/models", get(|| async { include_str!("data/models.json") }))
        .route("/kv_event_sources", get(|| async { include_str!("data/kv_event_sources.json") }))
        .route("/metrics", get(|| async { include_str!("data/metrics.txt") }))
        .route("/tokenize", axum::routing::post(tokens));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound")).parse().expect("an address");
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let engine = engine(&url);
    assert_eq!(engine.models().await.expect("models").len(), 3);
    let EventSources::On(sources) = engine.kv_event_sources().await.expect("sources") else { panic!("events are on") };
    assert_eq!(sources[0].endpoint, "tcp://127.0.0.1:19100");
    assert_eq!(engine.metrics().await.expect("metrics").block_size, Some(32));
    let tokens = engine.tokenize(Bytes::from_static(br#"{"prompt":"Hello world"}"#)).await.expect("tokens");
    assert_eq!(tokens.tokens, [1, 944, 267, 265, 288]);
    let error = engine.server_info().await.expect_err("vLLM has none");
    assert!(error.is_absent(), "{error}");
    serving.abort();
}

#[tokio::test]
async fn what_is_not_an_answer_is_named() {
    let worker = Worker::saying(plain("200 OK", "<html>")).await;
    let error = engine(&worker.url).models().await.expect_err("not JSON");
    assert!(matches!(error, AskError::Shape { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("/v1/models of worker {} answered something unreadable", worker.url)));

    let worker = Worker::saying(plain("403 Forbidden", "no key")).await;
    let error = engine(&worker.url).models().await.expect_err("403");
    assert!(matches!(&error, AskError::Status { status: StatusCode::FORBIDDEN, message, .. } if message == "no key"), "{error}");
    assert!(!error.is_absent());

    let error = engine(&nowhere().await).models().await.expect_err("nobody there");
    assert!(matches!(&error, AskError::Send(error) if matches!(error.failure, Failure::Refused)), "{error}");
}

#[tokio::test]
async fn endless_and_dripping_answers_are_bounded() {
    for (piece, pause) in [("x".repeat(100_000), 0), ("x".to_owned(), 10)] {
        let worker = Worker::start(move |_, mut stream| {
            let piece = chunk(&piece);
            async move {
                read_request(&mut stream).await;
                let mut next = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
                while stream.write_all(next.as_bytes()).await.is_ok() {
                    next.clone_from(&piece);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        })
        .await;
        let error = soon("the end of the question", engine(&worker.url).metrics()).await.expect_err("no end");
        let AskError::Send(error) = error else { panic!("{error}") };
        assert!(matches!(error.failure, Failure::Malformed(_) | Failure::NoFirstByte(_)), "{error}");
    }
}
