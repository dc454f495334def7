//! A worker that breaks after the first byte of its answer: the client is told, once, and the connection is closed.

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mocker::{Faults, StreamFault, StreamFaultKind};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::{
    raw::{RawWorker, Then, chunked},
    rig::{Rig, Shape, completion, counted, idle, routable, within},
    sse::{Events, assert_broken, assert_finished, assert_openai},
};
use crate::support::{
    PATIENCE,
    frontend::Frontend,
    http::{Answer, Ending},
    simulated,
};

/// Events that reach the client before it happens.
const BEFORE: u32 = 3;
/// Tokens that were asked for.
const TOKENS: u32 = 50;

/// The stream of the first choice breaks as said; nothing is sent again, and the worker is free for others.
async fn breaks(rig: &Rig, kind: StreamFaultKind, code: &str) -> Events {
    rig.routable(rig.fleet.len()).await;
    let (first, prompt) = rig.favourite().await;
    let before: u64 = rig.requests().iter().sum();
    rig.break_worker(first, Faults { stream: Some(StreamFault { after_events: BEFORE, kind }), ..Faults::default() });
    let ending = rig.ask(&prompt, Shape::Stream, TOKENS).await;
    assert_eq!(ending.answer.worker(), rig.id(first));
    let events = assert_broken(&ending, code);
    assert_eq!(events.tokens(), BEFORE as usize);
    assert_eq!(rig.requests().iter().sum::<u64>() - before, 1, "nothing is sent again after the first byte");
    rig.mend();
    rig.idle().await;
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_dies_in_the_middle_of_a_line_ends_with_one_error_event() {
    let rig = Rig::start(2, &[]).await;
    let events = breaks(&rig, StreamFaultKind::DieMidLine, "worker_closed").await;
    assert_eq!(events.torn.len(), 1, "the half line is an event of its own: {events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_dies_between_events_ends_with_one_error_event() {
    let rig = Rig::start(2, &[]).await;
    let events = breaks(&rig, StreamFaultKind::Close, "worker_closed").await;
    assert!(events.torn.is_empty(), "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_falls_silent_ends_with_one_error_event() {
    let rig = Rig::start(2, &["--engine-between-tokens-timeout-secs", "0.3"]).await;
    breaks(&rig, StreamFaultKind::Stall, "worker_stalled").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_event_of_the_engine_is_passed_on_and_not_followed_by_another() {
    let rig = Rig::start(2, &[]).await;
    let (first, prompt) = rig.favourite().await;
    let stream = Some(StreamFault { after_events: BEFORE, kind: StreamFaultKind::ErrorEvent });
    rig.break_worker(first, Faults { stream, ..Faults::default() });
    let ending = rig.ask(&prompt, Shape::Stream, TOKENS).await;
    let events = Events::of(&ending.answer.text());
    assert_eq!(events.tokens(), BEFORE as usize);
    let [error] = &events.errors[..] else { panic!("not one error: {events:?}") };
    assert_eq!(error["error"]["message"], "EngineCore encountered an issue.");
    counted(&rig.frontend, r"dynamo_frontend_requests_total", 0.0).await;
    let page = rig.frontend.get("/metrics").await.text();
    assert!(page.contains(r#"request_type="stream",status="broken"} 1"#), "{page}");
    rig.mend();
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_killed_breaks_its_streams_and_moves_what_has_no_byte_yet() {
    let rig = Rig::start(2, &[]).await;
    let (first, prompt) = rig.favourite().await;
    let mut stream = rig.open(&prompt, Shape::Stream, 1_000).await;
    let begun = stream.next().await.unwrap();
    assert!(!begun.is_empty());
    let plain = rig.ask(&prompt, Shape::Plain, TOKENS);
    let killed = async {
        crate::support::eventually("both are at work", async || crate::support::seen(rig.running(first) == 2, rig.running(first))).await;
        rig.break_worker(first, Faults { refuse: true, ..Faults::default() });
    };
    let (plain, ()) = tokio::join!(plain, killed);
    assert_broken(&stream.ending().await, "worker_closed");
    assert_eq!(plain.answer.worker(), rig.id(1 - first));
    assert_eq!(plain.answer.json()["usage"]["completion_tokens"], TOKENS);
    rig.mend();
    rig.idle().await;
}

/// What a client gets from a worker that sends these bytes.
async fn raw(bytes: Vec<u8>, then: Then, shape: Shape) -> Ending {
    let worker = RawWorker::start(bytes, then).await;
    let frontend = Frontend::start(&["--worker", &worker.url(), "--engine-between-tokens-timeout-secs", "0.3"]);
    routable(&frontend, 1).await;
    let body = completion(&simulated::prompt(1, 16), shape, TOKENS);
    let open = frontend.open("/v1/completions", &[], &body).await;
    let ending = within(PATIENCE, "the answer", open.ending()).await;
    assert_eq!(worker.generations(), 1);
    idle(&frontend).await;
    ending
}

const CHUNK: &str = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n";
const LAST: &str = "data: {\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_in_good_order_before_it_is_finished_is_broken() {
    let ending = raw(chunked("text/event-stream", &[CHUNK, CHUNK], true), Then::Close, Shape::Stream).await;
    assert_eq!(assert_broken(&ending, "worker_unfinished").chunks.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_line_and_an_open_event_are_closed_before_the_error_event() {
    for open in ["data: {\"choices\":[{\"te", "data: {\"choices\":[]}\n", "data: {\"choices\":[]}\r\n", "event: x\r"] {
        let ending = raw(chunked("text/event-stream", &[CHUNK, open], false), Then::Close, Shape::Stream).await;
        let events = assert_broken(&ending, "worker_closed");
        assert_eq!(events.errors.len(), 1, "{open:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_a_connection_ends_after_done_matters_to_nobody() {
    let ending = raw(chunked("text/event-stream", &[CHUNK, LAST, DONE], false), Then::Close, Shape::Stream).await;
    assert_finished(&ending, 2);
    let ending = raw(chunked("text/event-stream", &[CHUNK, LAST, DONE], false), Then::Hang, Shape::Stream).await;
    assert_finished(&ending, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_answer_that_breaks_in_the_middle_is_cut_off() {
    let promised = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"choices\": [".to_vec();
    for then in [Then::Close, Then::Hang] {
        let ending = raw(promised.clone(), then, Shape::Plain).await;
        assert!(!ending.whole, "a client must be able to tell: {ending:?}");
        assert_eq!(ending.answer.text(), "{\"choices\": [");
    }
    let ending = raw(chunked("application/json", &["{\"choices\": ["], false), Then::Close, Shape::Plain).await;
    assert!(!ending.whole, "{ending:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_2_a_broken_stream_ends_the_same_and_its_neighbours_go_on() {
    let rig = Rig::start(2, &[]).await;
    let (first, prompt) = rig.favourite().await;
    let stream = TcpStream::connect(rig.frontend.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    let open = async |prompt: &[u32], headers: &[(&str, &str)]| {
        let mut request = Request::post(format!("http://{}/v1/completions", rig.frontend.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::from(completion(prompt, Shape::Stream, TOKENS).to_string()));
        sender.clone().send_request(request.body(body).unwrap()).await.unwrap()
    };
    let other = rig.id(1 - first);
    let neighbour = open(&rig.prompt(), &[("x-dynamo-worker-instance-id", &other)]).await;
    rig.break_worker(
        first,
        Faults { stream: Some(StreamFault { after_events: BEFORE, kind: StreamFaultKind::DieMidLine }), ..Faults::default() },
    );
    let broken = ending(open(&prompt, &[]).await).await;
    assert_eq!(assert_broken(&broken, "worker_closed").tokens(), BEFORE as usize);
    assert_finished(&ending(neighbour).await, TOKENS);
    rig.mend();
    rig.idle().await;
}

async fn ending(response: Response<Incoming>) -> Ending {
    let (head, mut body) = response.into_parts();
    let mut bytes = BytesMut::new();
    let whole = loop {
        match body.frame().await {
            Some(Ok(frame)) => bytes.extend(frame.into_data()),
            Some(Err(_)) => break false,
            None => break true,
        }
    };
    Ending { answer: Answer { status: head.status, headers: head.headers, body: bytes.freeze() }, whole }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_event_of_a_broken_chat_is_the_same() {
    let rig = Rig::start(1, &[]).await;
    rig.break_worker(
        0,
        Faults { stream: Some(StreamFault { after_events: BEFORE, kind: StreamFaultKind::DieMidLine }), ..Faults::default() },
    );
    let messages = json!([{"role": "user", "content": "tell me a story"}]);
    let body = json!({"model": "mock-model", "messages": messages, "max_tokens": TOKENS, "ignore_eos": true, "stream": true});
    let ending = rig.frontend.open("/v1/chat/completions", &[], &body).await.ending().await;
    let events = assert_broken(&ending, "worker_closed");
    assert_openai(&events.errors[0]);
    rig.mend();
    rig.idle().await;
}
