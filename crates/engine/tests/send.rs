//! Everything up to the first byte.

use std::time::Duration;

use engine::{Class, Client, Failure, Options, Outgoing, Reply};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use tokio::{io::AsyncWriteExt, sync::mpsc};

use crate::support::*;

async fn body_of(reply: Reply) -> String {
    let Reply::Bytes(reply) = reply;
    let (_, _, relay) = reply.relay(());
    let bytes = soon("the body", relay.collect()).await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

async fn failure_of(client: &Client, worker: &Worker) -> Failure {
    send(client, &worker.url).await.map(drop).expect_err("the send fails").failure
}

#[tokio::test]
async fn a_worker_that_is_down_refuses_and_another_may_be_tried() {
    let url = nowhere().await;
    let error = send(&client(), &url).await.map(drop).expect_err("refused");
    assert!(matches!(error.failure, Failure::Refused), "{error}");
    assert_eq!(error.class(), Class::Unavailable);
    assert_eq!(error.to_string(), format!("POST /v1/completions at worker {url}: connection refused"));
}

#[tokio::test]
async fn a_frozen_worker_costs_the_first_byte_time_out_and_no_retry() {
    let worker = Worker::start(|_, stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let client = Client::new(Options { first_byte: Duration::from_millis(100), ..options() }).expect("a client");
    let error = send(&client, &worker.url).await.map(drop).expect_err("nothing comes");
    assert!(matches!(error.failure, Failure::NoFirstByte(limit) if limit == Duration::from_millis(100)), "{error}");
    assert_eq!(error.class(), Class::Final);
}

#[tokio::test]
async fn a_name_that_is_not_found_is_no_connection() {
    let url = "http://no-such-host.invalid:8000".parse().expect("an address");
    let error = send(&client(), &url).await.map(drop).expect_err("no such host");
    assert!(matches!(error.failure, Failure::Connect(_)), "{error}");
}

#[tokio::test]
async fn a_4xx_is_an_answer_and_passes_as_it_is() {
    let worker = Worker::saying(plain("404 Not Found", r#"{"error":{"code":404}}"#)).await;
    let reply = send(&client(), &worker.url).await.expect("an answer");
    let Reply::Bytes(bytes) = &reply;
    assert_eq!(bytes.status, StatusCode::NOT_FOUND);
    assert_eq!(body_of(reply).await, r#"{"error":{"code":404}}"#);
}

#[tokio::test]
async fn a_5xx_is_a_failure_that_can_be_passed_on() {
    for (status, class) in [("500 Oops", Class::Internal), ("503 Busy", Class::Unavailable)] {
        let worker = Worker::saying(plain(status, r#"{"error":"x"}"#)).await;
        let error = send(&client(), &worker.url).await.map(drop).expect_err("failed");
        assert_eq!(error.class(), class, "{error}");
        let answer = error.answer().expect("an answer");
        assert_eq!(&answer.body[..], br#"{"error":"x"}"#);
        assert_eq!(answer.headers[header::CONTENT_TYPE], "application/json");
        assert!(!answer.headers.contains_key(header::CONTENT_LENGTH));
    }
}

#[tokio::test]
async fn a_5xx_whose_body_is_endless_or_never_comes_is_still_only_a_5xx() {
    let head = "HTTP/1.1 500 Oops\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\n\r\n";
    let endless = Worker::start(move |_, mut stream| async move {
        read_request(&mut stream).await;
        let mut piece = head.to_owned();
        while stream.write_all(piece.as_bytes()).await.is_ok() {
            piece = chunk(&"x".repeat(10_000));
        }
    })
    .await;
    let mute = Worker::start(move |_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(head.as_bytes()).await.expect("writes");
        read_to_end(&mut stream).await;
    })
    .await;
    let client = client();
    for worker in [endless, mute] {
        let Failure::Status(answer) = failure_of(&client, &worker).await else { panic!("a status") };
        assert_eq!((answer.status, answer.body.len()), (StatusCode::INTERNAL_SERVER_ERROR, 0));
        assert!(!answer.headers.contains_key(header::CONTENT_TYPE));
    }
}

#[tokio::test]
async fn a_200_whose_first_event_is_an_error_is_a_failed_send() {
    for (code, status, class) in [
        (r#""code": 500"#, 500, Class::Internal),
        (r#""code": 503"#, 503, Class::Unavailable),
        (r#""code": 400"#, 400, Class::Final),
        (r#""code": null"#, 500, Class::Internal),
        (r#""code": 7"#, 500, Class::Internal),
    ] {
        let data = format!(r#"{{"error": {{"message": "EngineCore died", {code}}}}}"#);
        let event = format!("data: {data}\n\n");
        // Cut in the middle of the event, and with `[DONE]` behind it, as vLLM does.
        let (first, second) = event.split_at(20);
        let stream = [SSE_HEAD, &chunk(first), &chunk(second), &chunk("data: [DONE]\n\n"), LAST_CHUNK].concat();
        let worker = Worker::saying(stream).await;
        let error = send(&client(), &worker.url).await.map(drop).expect_err("failed");
        let Failure::ErrorEvent(answer) = &error.failure else { panic!("{error}") };
        assert_eq!((answer.status.as_u16(), error.class()), (status, class));
        assert_eq!(answer.body, data);
        assert_eq!(answer.headers[header::CONTENT_TYPE], "application/json");
    }
}

#[tokio::test]
async fn a_close_before_the_first_byte_is_a_failed_send_at_each_step() {
    for sent in [
        String::new(),
        "HTTP/1.1 200 O".to_owned(),
        SSE_HEAD.to_owned(),
        [SSE_HEAD, &chunk(": comment\n\n")].concat(),
        [SSE_HEAD, &chunk("data: {\"cho")].concat(),
        [SSE_HEAD, LAST_CHUNK].concat(),
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n".to_owned(),
    ] {
        let worker = Worker::saying(sent.clone()).await;
        let error = send(&client(), &worker.url).await.map(drop).expect_err("failed");
        assert!(matches!(error.failure, Failure::Closed(_)), "after {sent:?}: {error}");
        assert_eq!(error.class(), Class::Unavailable);
        assert_eq!(worker.accepts(), 1, "a new connection that closes is not tried twice");
    }
}

#[tokio::test]
async fn a_stall_in_the_middle_of_the_first_event_is_a_failed_send() {
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all([SSE_HEAD, &chunk("data: {\"cho")].concat().as_bytes()).await.expect("writes");
        read_to_end(&mut stream).await;
    })
    .await;
    let client = Client::new(Options { between_tokens: Duration::from_millis(100), ..options() }).expect("a client");
    let failure = failure_of(&client, &worker).await;
    assert!(matches!(failure, Failure::Stalled(_)), "{failure}");
}

#[tokio::test]
async fn heads_without_bounds_end_at_ours() {
    let huge = format!("HTTP/1.1 200 OK\r\nx-huge: {}\r\n\r\n", "a".repeat(1 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x-many: a\r\n".repeat(10_000));
    for head in [huge, many, "SSH-2.0-OpenSSH_9.2\r\n".to_owned()] {
        let worker = Worker::saying(head).await;
        let failure = failure_of(&client(), &worker).await;
        assert!(matches!(failure, Failure::Malformed(_)), "{failure}");
    }
    let endless = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        let mut piece = "HTTP/1.1 200 OK\r\nx-endless: ".to_owned();
        while stream.write_all(piece.as_bytes()).await.is_ok() {
            piece = "a".repeat(1000);
        }
    })
    .await;
    let failure = failure_of(&client(), &endless).await;
    assert!(matches!(failure, Failure::Malformed(_)), "{failure}");
}

#[tokio::test]
async fn a_dripping_head_ends_at_the_first_byte_time_out() {
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        let mut piece = "HTTP/1.1 200 OK\r\nx: ";
        while stream.write_all(piece.as_bytes()).await.is_ok() {
            piece = "a";
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let client = Client::new(Options { first_byte: Duration::from_millis(200), ..options() }).expect("a client");
    let failure = failure_of(&client, &worker).await;
    assert!(matches!(failure, Failure::NoFirstByte(_)), "{failure}");
}

#[tokio::test]
async fn a_stream_without_an_event_is_held_up_to_a_bound_only() {
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        let mut piece = SSE_HEAD.to_owned();
        while stream.write_all(piece.as_bytes()).await.is_ok() {
            piece = chunk(&format!(": {}\n", "x".repeat(10_000)));
        }
    })
    .await;
    let Reply::Bytes(reply) = send(&client(), &worker.url).await.expect("released at the bound");
    assert_eq!(reply.status, StatusCode::OK);
}

#[tokio::test]
async fn the_request_that_arrives_is_the_clients_own() {
    let (requests, mut seen) = mpsc::unbounded_channel();
    let worker = Worker::start(move |_, mut stream| {
        let requests = requests.clone();
        async move {
            requests.send(read_request(&mut stream).await).expect("the test listens");
            stream.write_all(plain("200 OK", "{}").as_bytes()).await.expect("writes");
        }
    })
    .await;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "front:8000"),
        ("authorization", "Bearer secret"),
        ("content-type", "application/json"),
        ("content-length", "999"),
        ("connection", "close, x-hop"),
        ("x-hop", "1"),
        ("accept-encoding", "gzip"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let outgoing =
        Outgoing { headers, rank: Some(3), path_and_query: http::uri::PathAndQuery::from_static("/v1/completions?x=1"), ..outgoing() };
    soon("the answer", client().send(&worker.url, outgoing)).await.expect("an answer");
    let request = seen.recv().await.expect("a request");
    let (head, body) = request.split_once("\r\n\r\n").expect("a head");
    let mut lines: Vec<&str> = head.lines().collect();
    assert_eq!(lines.remove(0), "POST /v1/completions?x=1 HTTP/1.1");
    lines.sort_unstable();
    let host = format!("host: {}:{}", worker.url.host(), worker.url.port());
    assert_eq!(
        lines,
        ["authorization: Bearer secret", "content-length: 14", "content-type: application/json", &host, "x-data-parallel-rank: 3"]
    );
    assert_eq!(body, "{\"prompt\":\"x\"}");
}

#[tokio::test]
async fn connections_are_used_again() {
    let worker = Worker::start(|_, mut stream| async move {
        while !read_request(&mut stream).await.is_empty() {
            stream.write_all(plain("200 OK", "{}").as_bytes()).await.expect("writes");
        }
    })
    .await;
    let client = client();
    for _ in 0..30 {
        assert_eq!(body_of(send(&client, &worker.url).await.expect("an answer")).await, "{}");
    }
    // A connection may come back to the pool just after the next request looked there.
    assert!(worker.accepts() < 10, "{} connections for 30 requests", worker.accepts());
}

#[tokio::test]
async fn a_connection_closed_while_it_lay_idle_is_replaced_once() {
    // Each connection answers once; then it reads the next request and closes without a word, as a server does whose
    // keep-alive ends at the moment the request arrives.
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(plain("200 OK", "{}").as_bytes()).await.expect("writes");
        read_request(&mut stream).await;
    })
    .await;
    let client = client();
    for _ in 0..10 {
        assert_eq!(body_of(send(&client, &worker.url).await.expect("an answer")).await, "{}");
    }
}

#[tokio::test]
async fn connections_that_the_worker_closed_are_not_used() {
    let worker = Worker::saying(plain("200 OK", "{}")).await;
    let client = client();
    for sent in 1..=10 {
        assert_eq!(body_of(send(&client, &worker.url).await.expect("an answer")).await, "{}");
        assert_eq!(worker.accepts(), sent);
    }
}

#[tokio::test]
async fn dropping_a_send_that_waits_closes_its_connection() {
    let (requests, mut seen) = mpsc::unbounded_channel();
    let worker = Worker::start(move |_, mut stream| {
        let requests = requests.clone();
        async move {
            read_request(&mut stream).await;
            requests.send("arrived").expect("the test listens");
            read_to_end(&mut stream).await;
            requests.send("closed").expect("the test listens");
        }
    })
    .await;
    let client = client();
    let url = worker.url.clone();
    let sending = tokio::spawn(async move { client.send(&url, outgoing()).await.map(drop) });
    assert_eq!(soon("the request", seen.recv()).await, Some("arrived"));
    sending.abort();
    let closed = tokio::time::timeout(Duration::from_secs(1), seen.recv()).await;
    assert_eq!(closed.expect("within 1 s"), Some("closed"));
}
