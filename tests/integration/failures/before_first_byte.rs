//! A worker that fails before the first byte of its answer: the request moves, bounded, and the client sees one answer.

use http::StatusCode;
use mocker::{Faults, StreamFault, StreamFaultKind};
use serde_json::Value;

use super::{
    raw::{RawWorker, Then, chunked},
    rig::{Rig, Shape, completion, idle, routable},
    sse::{assert_finished, assert_openai},
};
use crate::support::{
    frontend::Frontend,
    http::Ending,
    simulated::{self, BLOCK},
};

/// Tokens of each answer.
const TOKENS: u32 = 3;
const RETRIES: &str = "dynamo_frontend_retries_total";

fn status(status: u16) -> Faults {
    Faults { status: Some(status), ..Faults::default() }
}

/// A stream that goes wrong before its first event is whole.
fn first_event(kind: StreamFaultKind) -> Faults {
    Faults { stream: Some(StreamFault { after_events: 0, kind }), ..Faults::default() }
}

/// A good answer of [`TOKENS`] tokens.
fn assert_answered(shape: Shape, ending: &Ending) {
    match shape {
        Shape::Stream => assert_finished(ending, TOKENS),
        Shape::Plain => {
            assert!(ending.whole);
            assert_eq!(ending.answer.status, StatusCode::OK, "{}", ending.answer.text());
            assert_eq!(ending.answer.json()["usage"]["completion_tokens"], TOKENS);
        }
    }
}

/// The first choice fails with `faults`; another worker answers.
async fn moves(rig: &Rig, shape: Shape, faults: Faults) {
    rig.routable(rig.fleet.len()).await;
    let (first, prompt) = rig.favourite().await;
    let (before, retries) = (rig.requests(), rig.frontend.metric(RETRIES).await.unwrap_or(0.0));
    rig.break_worker(first, faults);
    let ending = rig.ask(&prompt, shape, TOKENS).await;
    assert_answered(shape, &ending);
    let second = rig.position(ending.answer.worker());
    assert_ne!(second, first, "{faults:?}: the first choice answered after all");
    let tries: Vec<u64> = rig.requests().iter().zip(&before).map(|(after, before)| after - before).collect();
    let expected = (0..tries.len()).map(|at| u64::from(at == second || (at == first && !faults.refuse)));
    assert_eq!(tries, expected.collect::<Vec<_>>(), "{faults:?}");
    assert_eq!(rig.frontend.metric(RETRIES).await, Some(retries + 1.0), "{faults:?}");
    rig.mend();
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_above_499_moves_the_request_to_another_worker() {
    let rig = Rig::start(3, &[]).await;
    for code in [500, 502, 503, 504] {
        for shape in Shape::BOTH {
            moves(&rig, shape, status(code)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_moves_the_request_to_another_worker() {
    let rig = Rig::start(3, &[]).await;
    for shape in Shape::BOTH {
        moves(&rig, shape, Faults { refuse: true, ..Faults::default() }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_200_that_turns_into_an_error_or_breaks_in_its_first_event_is_a_failed_send() {
    let rig = Rig::start(3, &[]).await;
    for kind in [StreamFaultKind::ErrorEvent, StreamFaultKind::DieMidLine, StreamFaultKind::Close] {
        moves(&rig, Shape::Stream, first_event(kind)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_answer_moves_the_request_to_another_worker() {
    let answers: [(&str, Vec<u8>); 5] = [
        ("closed without a word", Vec::new()),
        ("not HTTP", b"* OK IMAP4rev1 ready\r\n".to_vec()),
        ("half a head", b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec()),
        ("no body where one is promised", b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n".to_vec()),
        ("a stream that ends before it begins", chunked("text/event-stream", &[": hello\n\n"], true)),
    ];
    for (name, bytes) in answers {
        let (raw, good) = (RawWorker::start(bytes, Then::Close).await, simulated::quick().await);
        let frontend = Frontend::start(&["--worker", &raw.url(), "--worker", &good.url()]);
        routable(&frontend, 2).await;
        for (round, shape) in Shape::BOTH.into_iter().enumerate() {
            // The one that was chosen longest ago comes first, and that is the worker that fails.
            let body = completion(&simulated::prompt(1, BLOCK), shape, TOKENS);
            let ending = frontend.open("/v1/completions", &[], &body).await.ending().await;
            assert_answered(shape, &ending);
            assert_eq!(ending.answer.worker(), simulated::id(&good), "{name}");
            assert_eq!(raw.generations(), round + 1, "{name}: tried once each time");
        }
        idle(&frontend).await;
    }
}

/// All workers answer `code`: so many are tried, and the last answer is passed on as it came.
async fn gives_up(rig: &Rig, code: u16, tries: u64) {
    for position in 0..rig.fleet.len() {
        rig.break_worker(position, status(code));
    }
    for shape in Shape::BOTH {
        let before: u64 = rig.requests().iter().sum();
        let ending = rig.ask(&rig.prompt(), shape, TOKENS).await;
        assert!(ending.whole);
        assert_eq!(ending.answer.status.as_u16(), code);
        assert_eq!(ending.answer.text(), engines_words(code), "unchanged");
        assert_eq!(ending.answer.header("content-type"), "application/json");
        rig.position(ending.answer.header("x-dynamo-worker-id"));
        ending.answer.header("x-request-id");
        assert_eq!(rig.requests().iter().sum::<u64>() - before, tries, "{code}, {shape:?}");
    }
    let page = rig.frontend.get("/metrics").await.text();
    for shape in ["unary", "stream"] {
        assert!(page.contains(&format!(r#"request_type="{shape}",status="error"}} 1"#)), "{page}");
    }
    rig.mend();
    rig.idle().await;
}

/// The body of a simulated engine that was told to fail.
fn engines_words(code: u16) -> String {
    let kind = if code < 500 { "BadRequestError" } else { "InternalServerError" };
    format!(r#"{{"error":{{"message":"a fault was asked for","type":"{kind}","param":null,"code":{code}}}}}"#)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_others_are_tried_after_a_503_and_one_after_a_500_then_the_answer_is_passed_on() {
    for (code, tries) in [(500, 2), (502, 3), (503, 3), (504, 3)] {
        let rig = Rig::start(4, &[]).await;
        gives_up(&rig, code, tries).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_event_of_the_last_worker_is_passed_on_as_an_answer() {
    let rig = Rig::start(4, &[]).await;
    for position in 0..4 {
        rig.break_worker(position, first_event(StreamFaultKind::ErrorEvent));
    }
    let ending = rig.ask(&rig.prompt(), Shape::Stream, TOKENS).await;
    assert!(ending.whole);
    assert_eq!(ending.answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(ending.answer.header("content-type"), "application/json");
    assert_eq!(ending.answer.json()["error"]["message"], "EngineCore encountered an issue.");
    assert_eq!(rig.requests().iter().sum::<u64>(), 2);
    rig.mend();
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_without_a_word_gets_an_error_body_and_keeps_its_headers() {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n".to_vec();
    let raw = RawWorker::start(answer, Then::Close).await;
    let frontend = Frontend::start(&["--worker", &raw.url()]);
    routable(&frontend, 1).await;
    let answer = frontend.post("/v1/completions", &completion(&simulated::prompt(1, BLOCK), Shape::Plain, TOKENS)).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "7"));
    assert_eq!(answer.header("content-type"), "application/json");
    assert_openai(&answer.json());
    idle(&frontend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reached_is_a_502_that_names_what_was_tried() {
    let rig = Rig::start(4, &[]).await;
    for position in 0..4 {
        rig.break_worker(position, Faults { refuse: true, ..Faults::default() });
    }
    // Before the probes find out.
    let ending = rig.ask(&rig.prompt(), Shape::Plain, TOKENS).await;
    assert_eq!(ending.answer.status, StatusCode::BAD_GATEWAY, "{}", ending.answer.text());
    let body = ending.answer.json();
    assert_openai(&body);
    assert!(body["error"]["message"].as_str().unwrap().contains("connection refused"), "{body}");
    assert_eq!(rig.frontend.metric(RETRIES).await, Some(2.0));
    rig.mend();
    rig.routable(4).await;
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_below_500_is_passed_on_unchanged_and_never_counts_against_the_worker() {
    let rig = Rig::start(2, &[]).await;
    let (first, prompt) = rig.favourite().await;
    let before = rig.requests();
    // The fifth failure in a row would close the worker off.
    let statuses = [400, 401, 404, 422, 429, 400, 429, 499];
    for code in statuses {
        rig.break_worker(first, status(code));
        for shape in Shape::BOTH {
            let ending = rig.ask(&prompt, shape, TOKENS).await;
            assert!(ending.whole);
            assert_eq!(ending.answer.status.as_u16(), code);
            assert_eq!(ending.answer.text(), engines_words(code));
            assert_eq!(ending.answer.header("x-dynamo-worker-id"), rig.id(first));
        }
    }
    let tries = 2 * statuses.len() as u64;
    assert_eq!(rig.requests()[first] - before[first], tries);
    assert_eq!(rig.requests()[1 - first], before[1 - first], "no other worker is tried");
    assert_eq!(rig.frontend.metric(RETRIES).await, None);
    assert_eq!(rig.frontend.worker(&rig.id(first)).await["state"], "up");
    rig.mend();
    let ending = rig.ask(&prompt, Shape::Plain, TOKENS).await;
    assert_eq!(ending.answer.worker(), rig.id(first), "it is still the first choice");
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_names_its_worker_goes_nowhere_else() {
    let rig = Rig::start(2, &[]).await;
    rig.break_worker(0, status(503));
    let body = completion(&rig.prompt(), Shape::Plain, TOKENS);
    let pin = [("x-dynamo-worker-instance-id", &*rig.id(0))];
    let answer = rig.frontend.open("/v1/completions", &pin, &body).await.whole().await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.text(), engines_words(503));
    assert_eq!(rig.requests(), [1, 0]);
    rig.mend();
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_every_worker_answers_with_a_500_closes_nobody_off() {
    let rig = Rig::start(2, &[]).await;
    for position in 0..2 {
        rig.break_worker(position, status(500));
    }
    for _ in 0..10 {
        assert_eq!(rig.ask(&rig.prompt(), Shape::Plain, TOKENS).await.answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    }
    assert_eq!(rig.requests(), [10, 10], "each of them is asked each time");
    for position in 0..2 {
        assert_eq!(rig.frontend.worker(&rig.id(position)).await["state"], "up");
    }
    rig.mend();
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_in_a_row_close_a_worker_off_until_it_proves_itself() {
    let rig = Rig::start(2, &[]).await;
    let first = 0;
    rig.break_worker(first, status(500));
    let state = async || rig.frontend.worker(&rig.id(first)).await["state"].clone();
    // The other one answers each of them, so the failures are the first one's own.
    let mut asked = 0;
    while state().await == "up" {
        assert!(asked < 100, "{:?} requests came to the workers, and none is closed off", rig.requests());
        assert_answered(Shape::Plain, &rig.ask(&rig.prompt(), Shape::Plain, TOKENS).await);
        asked += 1;
    }
    assert!(rig.requests()[first] >= 5, "{:?}", rig.requests());
    // It is looked at again after half a second, which may be now.
    let states: [Value; 2] = ["breaker_open".into(), "suspect".into()];
    let now = state().await;
    assert!(states.contains(&now), "{now}");
    crate::support::eventually("its health lets one request through", async || {
        let now = state().await;
        crate::support::seen(now == "suspect", now)
    })
    .await;
    rig.mend();
    let (again, prompt) = loop {
        let (position, prompt) = rig.favourite().await;
        if position == first {
            break (position, prompt);
        }
    };
    assert_eq!(rig.ask(&prompt, Shape::Plain, TOKENS).await.answer.worker(), rig.id(again));
    assert_eq!(state().await, "up");
    rig.idle().await;
}
