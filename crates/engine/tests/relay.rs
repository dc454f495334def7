//! Everything after the first byte.

use std::time::Duration;

use engine::{Break, Client, End, Options, Reply, Summary, Usage};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Notify, mpsc},
};

use crate::support::*;

/// The error of the last event, which must be the only one, must parse, and must be followed by nothing.
fn error_code(body: &str) -> String {
    assert_eq!(body.matches("\"error\"").count(), 1, "{body}");
    assert!(!body.contains("[DONE]"), "{body}");
    let (_, last) = body.rsplit_once("\n\ndata: ").expect("an event of its own");
    let json: serde_json::Value = serde_json::from_str(last.strip_suffix("\n\n").expect("a closed event")).expect("JSON");
    assert!(json["error"]["message"].is_string());
    json["error"]["code"].as_str().expect("a code").to_owned()
}

/// What a client gets when the worker sends these bytes and closes.
async fn relayed(sent: String) -> (String, bool, Summary) {
    let worker = Worker::saying(sent).await;
    let mut front = Front::start(client(), worker.url.clone(), None).await;
    let mut stream = front.ask().await;
    let raw = soon("the end of the answer", read_to_end(&mut stream)).await;
    let (_, body, whole) = take_apart(&raw);
    (body, whole, front.testimony.end().await)
}

#[tokio::test]
async fn a_stream_passes_byte_by_byte_and_its_usage_is_read() {
    let text = include_str!("data/chat-stream.txt");
    for length in [7, 100, 100_000] {
        let chunks: String = text.as_bytes().chunks(length).map(|piece| chunk(std::str::from_utf8(piece).expect("ascii"))).collect();
        let (body, whole, summary) = relayed([SSE_HEAD, &chunks, LAST_CHUNK].concat()).await;
        assert_eq!(body, text, "pieces of {length} bytes");
        assert!(whole);
        let usage = Some(Usage { prompt_tokens: 161, completion_tokens: 24, cached_tokens: Some(96) });
        assert_eq!(summary, Summary { end: End::Complete, events: 26, usage });
    }
}

#[tokio::test]
async fn the_observer_hears_the_first_event_before_the_client_reads() {
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all([SSE_HEAD, &chunk(&token("a"))].concat().as_bytes()).await.expect("writes");
        read_to_end(&mut stream).await;
    })
    .await;
    let Reply::Bytes(reply) = send(&client(), &worker.url).await.expect("a stream");
    let (witness, mut testimony) = witness();
    let (_, headers, relay) = reply.relay(witness);
    assert_eq!(testimony.next().await, Told::FirstEvent);
    assert!(!headers.contains_key("transfer-encoding"));
    drop(relay);
    assert_eq!(testimony.next().await, Told::Ended(Summary { end: End::ClientLeft, events: 1, usage: None }));
}

#[tokio::test]
async fn the_observer_hears_a_first_event_that_is_longer_than_what_is_held_back() {
    let long = token(&"x".repeat(300 * 1024));
    let pieces: String = long.as_bytes().chunks(10_000).map(|piece| chunk(std::str::from_utf8(piece).expect("ascii"))).collect();
    let worker = Worker::saying([SSE_HEAD, &pieces, &chunk(&finish()), LAST_CHUNK].concat()).await;
    let Reply::Bytes(reply) = send(&client(), &worker.url).await.expect("a stream");
    let (witness, mut testimony) = witness();
    let body = soon("the stream", reply.relay(witness).2.collect()).await.expect("whole").to_bytes();
    assert_eq!(body, [long, finish()].concat());
    assert_eq!(testimony.next().await, Told::FirstEvent);
    assert_eq!(testimony.next().await, Told::Ended(Summary { end: End::Complete, events: 2, usage: None }));
}

#[tokio::test]
async fn a_stream_that_dies_in_a_line_ends_with_a_newline_and_one_error_event() {
    let half = "data: {\"choices\":[{\"te";
    let (body, whole, summary) = relayed([SSE_HEAD, &chunk(&token("a")), &chunk(half)].concat()).await;
    assert!(body.starts_with(&format!("{}{half}\n\ndata: ", token("a"))), "{body}");
    assert_eq!(error_code(&body), "worker_closed");
    assert!(!whole, "the body breaks off");
    assert!(matches!(summary.end, End::Broken(Break::Closed(_))), "{summary:?}");
    assert_eq!(summary.events, 1);
}

#[tokio::test]
async fn a_stream_that_dies_between_events_ends_with_one_error_event() {
    let (body, whole, _) = relayed([SSE_HEAD, &chunk(&token("a")), &chunk(&token("b"))].concat()).await;
    assert!(body.starts_with(&format!("{}{}data: ", token("a"), token("b"))), "{body}");
    assert_eq!(error_code(&body), "worker_closed");
    assert!(!whole);
    // An event without its blank line is closed before the error event.
    let open = "data: {\"choices\":[]}\n";
    let (body, ..) = relayed([SSE_HEAD, &chunk(&token("a")), &chunk(open)].concat()).await;
    assert!(body.starts_with(&format!("{}{open}\ndata: ", token("a"))), "{body}");
    error_code(&body);
}

#[tokio::test]
async fn a_stream_that_ends_in_good_order_but_unfinished_is_broken() {
    let (body, whole, summary) = relayed([SSE_HEAD, &chunk(&token("a")), LAST_CHUNK].concat()).await;
    assert_eq!(error_code(&body), "worker_unfinished");
    assert!(!whole);
    assert_eq!(summary, Summary { end: End::Broken(Break::Unfinished), events: 1, usage: None });
}

#[tokio::test]
async fn a_connection_that_breaks_after_done_breaks_nothing() {
    let (body, whole, summary) = relayed([SSE_HEAD, &chunk(&token("a")), &chunk(&finish())].concat()).await;
    assert_eq!((body, whole, summary.end), ([token("a"), finish()].concat(), true, End::Complete));
}

#[tokio::test]
async fn a_stream_with_a_length_or_without_any_is_judged_alike() {
    let text = [token("a"), finish()].concat();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    for head in [format!("{head}content-length: {}\r\n\r\n", text.len()), format!("{head}connection: close\r\n\r\n")] {
        let (body, whole, summary) = relayed(format!("{head}{text}")).await;
        assert_eq!((body.as_str(), whole, summary.end), (text.as_str(), true, End::Complete));
    }
    let short = format!("{head}content-length: {}\r\n\r\n{}", token("a").len(), token("a"));
    let (body, whole, _) = relayed(short).await;
    assert_eq!((error_code(&body).as_str(), whole), ("worker_unfinished", false));
}

#[tokio::test]
async fn an_engines_own_error_event_passes_and_is_not_doubled() {
    let error = "data: {\"error\": {\"message\": \"EngineCore died\", \"code\": 500}}\n\n";
    let text = [&token("a"), error, "data: [DONE]\n\n"].concat();
    let (body, whole, summary) = relayed([SSE_HEAD, &chunk(&text), LAST_CHUNK].concat()).await;
    assert_eq!((body.as_str(), whole), (text.as_str(), true));
    assert_eq!(summary.end, End::Broken(Break::EngineError), "[DONE] is no proof of success");
    // The same, and then the connection breaks.
    let (body, whole, summary) = relayed([SSE_HEAD, &chunk(&token("a")), &chunk(error)].concat()).await;
    assert_eq!((body, whole), ([&token("a"), error].concat(), false));
    assert!(matches!(summary.end, End::Broken(Break::Closed(_))));
}

#[tokio::test]
async fn a_stream_that_falls_silent_ends_at_the_between_tokens_time_out() {
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all([SSE_HEAD, &chunk(&token("a"))].concat().as_bytes()).await.expect("writes");
        read_to_end(&mut stream).await;
    })
    .await;
    let options = Options { between_tokens: Duration::from_millis(200), ..options() };
    let mut front = Front::start(Client::new(options).expect("a client"), worker.url.clone(), None).await;
    let mut stream = front.ask().await;
    let (_, body, whole) = take_apart(&soon("the end", read_to_end(&mut stream)).await);
    assert_eq!((error_code(&body).as_str(), whole), ("worker_stalled", false));
    assert_eq!(front.testimony.end().await.end, End::Broken(Break::Stalled(Duration::from_millis(200))));
}

#[tokio::test]
async fn tokens_that_keep_coming_are_never_too_slow_and_a_slow_client_is_no_stall() {
    let text = format!("{}{}", token("a").repeat(8), finish());
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(SSE_HEAD.as_bytes()).await.expect("writes");
        for _ in 0..8 {
            stream.write_all(chunk(&token("a")).as_bytes()).await.expect("writes");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stream.write_all([&chunk(&finish()), LAST_CHUNK].concat().as_bytes()).await.expect("writes");
    })
    .await;
    let options = Options { between_tokens: Duration::from_millis(500), ..options() };
    let Reply::Bytes(reply) = send(&Client::new(options).expect("a client"), &worker.url).await.expect("a stream");
    let (_, _, mut relay) = reply.relay(());
    let mut read = Vec::new();
    // Waits once, so that the timer of the first wait is running while the client does not read.
    for _ in 0..2 {
        read.extend(relay.frame().await.expect("a frame").expect("good").into_data().expect("data"));
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    read.extend(soon("the rest", relay.collect()).await.expect("whole").to_bytes());
    assert_eq!(String::from_utf8(read).expect("text"), text);
}

#[tokio::test]
async fn a_plain_answer_passes_with_its_length_and_its_usage() {
    let json =
        r#"{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}}"#;
    for answer in [
        plain("200 OK", json),
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{}{}{LAST_CHUNK}",
            chunk(&json[..60]),
            chunk(&json[60..])
        ),
    ] {
        let (body, whole, summary) = relayed(answer).await;
        assert_eq!((body.as_str(), whole), (json, true));
        let usage = Some(Usage { prompt_tokens: 9, completion_tokens: 1, cached_tokens: Some(8) });
        assert_eq!(summary, Summary { end: End::Complete, events: 0, usage });
    }
}

#[tokio::test]
async fn a_plain_answer_in_pieces_is_complete_at_its_last_byte() {
    let worker = Worker::start(|_, mut stream| async move {
        read_request(&mut stream).await;
        let answer = plain("200 OK", "0123456789");
        let (first, second) = answer.split_at(answer.len() - 5);
        for piece in [first, second] {
            stream.write_all(piece.as_bytes()).await.expect("writes");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        read_to_end(&mut stream).await;
    })
    .await;
    let mut front = Front::start(client(), worker.url.clone(), None).await;
    let raw = soon("the end", read_to_end(&mut front.ask().await)).await;
    assert!(raw.ends_with("\r\n\r\n0123456789"), "{raw}");
    assert_eq!(front.testimony.end().await.end, End::Complete);
}

#[tokio::test]
async fn an_answer_without_a_body_is_complete() {
    let (_, _, summary) = relayed("HTTP/1.1 204 No Content\r\n\r\n".to_owned()).await;
    assert_eq!(summary.end, End::Complete);
    let (body, _, summary) = relayed(plain("200 OK", "")).await;
    assert_eq!((body.as_str(), summary.end), ("", End::Complete));
}

#[tokio::test]
async fn a_plain_answer_that_breaks_is_short_of_its_length() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"half\":";
    let worker = Worker::saying(answer).await;
    let mut front = Front::start(client(), worker.url.clone(), None).await;
    let mut stream = front.ask().await;
    let raw = soon("the end", read_to_end(&mut stream)).await;
    let (head, body, _) = take_apart(&raw);
    assert!(head.contains("content-length: 100"), "{head}");
    assert_eq!(body, "{\"half\":", "nothing is added to a plain answer");
    assert!(matches!(front.testimony.end().await.end, End::Broken(Break::Closed(_))));
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_engines_work_within_a_second() {
    let (events, mut seen) = mpsc::unbounded_channel();
    let worker = Worker::start(move |_, mut stream| {
        let events = events.clone();
        async move {
            read_request(&mut stream).await;
            stream.write_all([SSE_HEAD, &chunk(&token("a"))].concat().as_bytes()).await.expect("writes");
            read_to_end(&mut stream).await;
            events.send("closed").expect("the test listens");
        }
    })
    .await;
    let mut front = Front::start(client(), worker.url.clone(), None).await;
    let mut stream = front.ask().await;
    let mut first = [0; 64];
    soon("the first bytes", stream.read_exact(&mut first)).await.expect("reads");
    drop(stream);
    let closed = tokio::time::timeout(Duration::from_secs(1), seen.recv()).await;
    assert_eq!(closed.expect("within 1 s"), Some("closed"));
    assert_eq!(front.testimony.end().await.end, End::ClientLeft);
}

#[tokio::test]
async fn a_client_that_leaves_at_done_has_the_whole_answer() {
    let over = std::sync::Arc::new(Notify::new());
    let hold = std::sync::Arc::clone(&over);
    let worker = Worker::start(move |_, mut stream| {
        let hold = std::sync::Arc::clone(&hold);
        async move {
            read_request(&mut stream).await;
            stream.write_all([SSE_HEAD, &chunk(&finish())].concat().as_bytes()).await.expect("writes");
            hold.notified().await;
        }
    })
    .await;
    let Reply::Bytes(reply) = send(&client(), &worker.url).await.expect("a stream");
    let (witness, mut testimony) = witness();
    let (_, _, mut relay) = reply.relay(witness);
    let frame = soon("the bytes", relay.frame()).await.expect("a frame").expect("good");
    assert_eq!(frame.into_data().expect("data"), finish());
    drop(relay);
    assert_eq!(testimony.end().await.end, End::Complete);
    over.notify_one();
}
