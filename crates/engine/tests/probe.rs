//! Dead, slow, failing; and what that does to requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use engine::{
    BaseUrl, Break, Class, Client, End, Failure, Moves, Outgoing, Probe, ProbeOptions, Pulse, Reply, Verdict,
    health::{Down, Limits, State},
};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use tokio::{
    io::AsyncWriteExt,
    sync::{Notify, mpsc},
};

use crate::support::*;

/// Quick limits; ratios as the defaults.
fn quick() -> ProbeOptions {
    let limits = Limits {
        probe_every: Duration::from_millis(20),
        dead_after: Duration::from_millis(500),
        refused_dead_after: Duration::from_millis(100),
        backoff_min: Duration::from_millis(10),
        backoff_max: Duration::from_millis(50),
        ..Limits::default()
    };
    ProbeOptions { within: Duration::from_millis(50), limits, ..ProbeOptions::default() }
}

fn probe(url: &BaseUrl, options: ProbeOptions) -> Probe {
    Probe::spawn(client(), url.clone(), options)
}

/// The same, with a breaker that stays open.
fn patient() -> ProbeOptions {
    let mut options = quick();
    options.limits.backoff_min = Duration::from_secs(5);
    options
}

/// Probes the worker until it is up.
async fn up(worker: &Worker, options: ProbeOptions) -> (Probe, Pulse) {
    let probe = probe(&worker.url, options);
    let pulse = probe.pulse().clone();
    becomes(&pulse, State::Up).await;
    (probe, pulse)
}

/// Sends a request and reads its answer to the end.
async fn answered(client: &Client, url: &BaseUrl, request: Outgoing) {
    let Reply::Bytes(reply) = soon("an answer", client.send(url, request)).await.expect("an answer");
    soon("its body", reply.relay(()).2.collect()).await.expect("whole");
}

async fn becomes(pulse: &Pulse, state: State) {
    let mut changes = pulse.watch();
    soon(state.name(), changes.wait_for(|status| status.state == state)).await.expect("the pulse lives");
}

const DEAD: State = State::Down(Down::Dead);

fn is_health(request: &str) -> bool {
    request.starts_with("GET /health ")
}

/// What a streaming worker shares with its test.
#[derive(Default)]
struct Strings {
    /// Health is accepted and never answered.
    silent: AtomicBool,
    /// The next token may be sent.
    feed: Notify,
    /// A request arrived that will get no answer.
    mute_arrived: Notify,
}

/// Answers health until told to go silent; other requests get a stream that never ends, or no answer at all.
async fn streaming(strings: &Arc<Strings>) -> Worker {
    let strings = Arc::clone(strings);
    Worker::start(move |_, mut stream| {
        let strings = Arc::clone(&strings);
        async move {
            let mut request = read_request(&mut stream).await;
            // Whoever keeps the connection is answered even when the port is closed.
            while is_health(&request) && !strings.silent.load(Ordering::SeqCst) {
                let _ = stream.write_all(plain("200 OK", "").as_bytes()).await;
                request = read_request(&mut stream).await;
            }
            if request.is_empty() {
                return;
            }
            if is_health(&request) {
                read_to_end(&mut stream).await;
                return;
            }
            if request.contains("mute") {
                strings.mute_arrived.notify_one();
                read_to_end(&mut stream).await;
                return;
            }
            stream.write_all([SSE_HEAD, &chunk(&token("a"))].concat().as_bytes()).await.expect("writes");
            loop {
                strings.feed.notified().await;
                if stream.write_all(chunk(&token("b")).as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    })
    .await
}

fn with(pulse: &Pulse, body: &'static str) -> Outgoing {
    Outgoing { pulse: Some(pulse.clone()), body: bytes::Bytes::from_static(body.as_bytes()), ..outgoing() }
}

#[tokio::test]
async fn a_closed_port_is_death_that_moves_waiting_requests_and_ends_open_streams() {
    let strings = Arc::<Strings>::default();
    let worker = streaming(&strings).await;
    let url = worker.url.clone();
    let probe = probe(&url, quick());
    let pulse = probe.pulse().clone();
    assert_eq!(pulse.status().state, State::Down(Down::Unproven));
    becomes(&pulse, State::Up).await;

    let client = client();
    let Reply::Bytes(stream) = soon("a stream", client.send(&url, with(&pulse, "{}"))).await.expect("a stream");
    let (witness, mut testimony) = witness();
    let (_, _, relay) = stream.relay(witness);
    let waiting = tokio::spawn({
        let (client, url, pulse) = (client.clone(), url.clone(), pulse.clone());
        async move { client.send(&url, with(&pulse, "mute")).await.map(drop) }
    });
    soon("the waiting request", strings.mute_arrived.notified()).await;
    worker.close_port().await;
    becomes(&pulse, DEAD).await;

    let error = soon("the waiting request's end", waiting).await.expect("no panic").expect_err("it moves");
    assert!(matches!(&error.failure, Failure::WorkerDead(reason) if reason.contains("refused")), "{error}");
    assert_eq!(error.class(), Class::Unavailable);
    let body = soon("the stream's end", read_all(relay)).await;
    assert!(body.starts_with(&token("a")) && body.contains("\"worker_dead\""), "{body}");
    assert!(matches!(testimony.end().await.end, End::Broken(Break::WorkerDead(_))));
    let error = soon("a send to the dead", client.send(&url, with(&pulse, "{}"))).await.map(drop).expect_err("dead");
    assert!(matches!(error.failure, Failure::WorkerDead(_)), "{error}");
}

/// All data of a body that breaks off.
async fn read_all(mut relay: engine::Relay<Witness>) -> String {
    let mut body = Vec::new();
    loop {
        match relay.frame().await {
            Some(Ok(frame)) => body.extend(frame.into_data().expect("data")),
            Some(Err(_)) => return String::from_utf8(body).expect("text"),
            None => panic!("a broken stream must not end in good order"),
        }
    }
}

#[tokio::test]
async fn slow_health_is_not_death_while_a_stream_flows_and_silence_is() {
    let strings = Arc::<Strings>::default();
    let worker = streaming(&strings).await;
    let (_probe, pulse) = up(&worker, quick()).await;
    let Reply::Bytes(stream) = soon("a stream", client().send(&worker.url, with(&pulse, "{}"))).await.expect("a stream");
    let (witness, mut testimony) = witness();
    let (_, _, mut relay) = stream.relay(witness);
    strings.silent.store(true, Ordering::SeqCst);
    // Twice the silence that would be death, with a token every tenth of it.
    for _ in 0..20 {
        strings.feed.notify_one();
        soon("a token", relay.frame()).await.expect("a frame").expect("good");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(pulse.status().deaths, 0, "{:?}", pulse.status());
    assert!(pulse.status().state.is_routable());
    let body = soon("the stream's end", read_all(relay)).await;
    assert!(body.contains("\"worker_dead\""), "{body}");
    assert!(matches!(testimony.end().await.end, End::Broken(Break::WorkerDead(reason)) if reason.contains("no byte")));
    strings.silent.store(false, Ordering::SeqCst);
    becomes(&pulse, State::Up).await;
}

#[tokio::test]
async fn the_probe_carries_its_key_and_takes_any_answer_but_a_5xx() {
    let (requests, mut seen) = mpsc::unbounded_channel();
    let worker = Worker::start(move |number, mut stream| {
        let requests = requests.clone();
        async move {
            // The test may be over.
            let _ = requests.send(read_request(&mut stream).await);
            let status = if number == 1 { "503 Engine Died" } else { "401 Unauthorized" };
            let _ = stream.write_all(plain(status, "").as_bytes()).await;
        }
    })
    .await;
    let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer key"))]);
    let probe = probe(&worker.url, ProbeOptions { headers, ..quick() });
    let mut changes = probe.pulse().watch();
    soon("a change", changes.changed()).await.expect("the pulse lives");
    assert_eq!(changes.borrow_and_update().state, State::Down(Down::Failing));
    soon("a change", changes.changed()).await.expect("the pulse lives");
    assert_eq!(changes.borrow_and_update().state, State::Up);
    let request = seen.recv().await.expect("a probe");
    assert!(request.contains("authorization: Bearer key"), "{request}");
}

#[tokio::test]
async fn failing_requests_open_the_breaker_and_client_errors_never_do() {
    let worker = Worker::start(move |_, mut stream| async move {
        let request = read_request(&mut stream).await;
        let status = if is_health(&request) {
            "200 OK"
        } else if request.contains("bad") {
            "400 Bad Request"
        } else {
            "503 Busy"
        };
        let _ = stream.write_all(plain(status, "{}").as_bytes()).await;
    })
    .await;
    let (_probe, pulse) = up(&worker, patient()).await;
    let client = client();
    for _ in 0..20 {
        answered(&client, &worker.url, with(&pulse, "bad")).await;
    }
    assert_eq!(pulse.status().state, State::Up);
    // Client errors in between prove nothing either way: an engine without its core can still answer them.
    for _ in 0..5 {
        answered(&client, &worker.url, with(&pulse, "bad")).await;
        soon("an answer", client.send(&worker.url, with(&pulse, "{}"))).await.map(drop).expect_err("a 503");
    }
    let status = pulse.status();
    assert_eq!((status.state, status.breaker_opened), (State::Down(Down::BreakerOpen), 1));
    assert!(status.reason.contains("answered 503"), "{}", status.reason);
}

/// A worker that is healthy and answers each other request with these bytes.
async fn answering(answer: String) -> (Worker, Probe) {
    let worker = Worker::start(move |_, mut stream| {
        let answer = answer.clone();
        async move {
            let request = read_request(&mut stream).await;
            let answer = if is_health(&request) { plain("200 OK", "") } else { answer };
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await;
    let (probe, _) = up(&worker, patient()).await;
    (worker, probe)
}

/// Sends one request to the first worker, and to the second where the first one's failure allows it.
async fn one_request(workers: [&(Worker, Probe); 2]) {
    let (client, mut moves) = (client(), Moves::default());
    for (worker, probe) in workers {
        match soon("an end", client.send(&worker.url, with(probe.pulse(), "{}"))).await {
            Ok(Reply::Bytes(reply)) => return moves.answered(reply.status),
            Err(error) if moves.judge(&error) == Verdict::Elsewhere => {}
            Err(_) => return,
        }
    }
}

#[tokio::test]
async fn a_request_that_no_worker_can_answer_opens_no_breaker() {
    let error_event = "data: {\"error\": {\"message\": \"no\", \"code\": 500}}\n\n";
    for answer in [plain("500 Oops", "{}"), [SSE_HEAD, &chunk(error_event), LAST_CHUNK].concat()] {
        let (first, second) = (answering(answer.clone()).await, answering(answer).await);
        for _ in 0..10 {
            one_request([&first, &second]).await;
            one_request([&second, &first]).await;
        }
        for (_, probe) in [&first, &second] {
            let status = probe.pulse().status();
            assert_eq!((status.state, status.breaker_opened), (State::Up, 0), "{}", status.reason);
        }
    }
}

#[tokio::test]
async fn a_500_counts_when_another_worker_answers_the_same_request() {
    let (bad, good) = (answering(plain("500 Oops", "{}")).await, answering(plain("200 OK", "{}")).await);
    for _ in 0..5 {
        assert_eq!(bad.1.pulse().status().state, State::Up);
        one_request([&bad, &good]).await;
    }
    let status = bad.1.pulse().status();
    assert_eq!(status.state, State::Down(Down::BreakerOpen));
    assert!(status.reason.contains("answered 500") && status.reason.contains("where another worker answered"), "{}", status.reason);
    assert_eq!(good.1.pulse().status().state, State::Up);
}

#[tokio::test]
async fn a_400_of_another_worker_does_not_make_a_500_count() {
    let (bad, strict) = (answering(plain("500 Oops", "{}")).await, answering(plain("400 Bad Request", "{}")).await);
    for _ in 0..10 {
        one_request([&bad, &strict]).await;
    }
    assert_eq!(bad.1.pulse().status().state, State::Up);
}

#[tokio::test]
async fn an_error_told_in_the_middle_of_a_stream_opens_no_breaker() {
    let error = "data: {\"error\": {\"message\": \"no\", \"code\": 500}}\n\n";
    let (worker, probe) = answering([SSE_HEAD, &chunk(&token("a")), &chunk(error), LAST_CHUNK].concat()).await;
    let client = client();
    for _ in 0..10 {
        answered(&client, &worker.url, with(probe.pulse(), "{}")).await;
    }
    assert_eq!(probe.pulse().status().state, State::Up);
}

#[tokio::test]
async fn a_request_that_succeeds_closes_a_half_open_breaker() {
    let worker = Worker::start(move |_, mut stream| async move {
        let request = read_request(&mut stream).await;
        let fails = !is_health(&request) && !request.contains("good");
        let _ = stream.write_all(plain(if fails { "503 Busy" } else { "200 OK" }, "{}").as_bytes()).await;
    })
    .await;
    let mut options = quick();
    options.limits.backoff_max = Duration::from_secs(100);
    let (_probe, pulse) = up(&worker, options).await;
    let client = client();
    for _ in 0..5 {
        soon("an answer", client.send(&worker.url, with(&pulse, "{}"))).await.map(drop).expect_err("a 503");
    }
    assert_eq!(pulse.status().breaker_opened, 1);
    becomes(&pulse, State::Suspect).await;
    let Reply::Bytes(reply) = soon("an answer", client.send(&worker.url, with(&pulse, "good"))).await.expect("a 200");
    assert_eq!(pulse.status().state, State::Suspect, "not before its end");
    soon("its body", reply.relay(()).2.collect()).await.expect("whole");
    assert_eq!(pulse.status().state, State::Up);
}

#[tokio::test]
async fn streams_that_break_open_the_breaker() {
    let worker = Worker::start(move |_, mut stream| async move {
        let request = read_request(&mut stream).await;
        let answer = if is_health(&request) { plain("200 OK", "") } else { [SSE_HEAD, &chunk(&token("a"))].concat() };
        let _ = stream.write_all(answer.as_bytes()).await;
    })
    .await;
    let (_probe, pulse) = up(&worker, patient()).await;
    let client = client();
    for _ in 0..5 {
        let Reply::Bytes(reply) = soon("a stream", client.send(&worker.url, with(&pulse, "{}"))).await.expect("a stream");
        let (witness, _testimony) = witness();
        soon("its end", read_all(reply.relay(witness).2)).await;
    }
    assert_eq!(pulse.status().state, State::Down(Down::BreakerOpen));
}

#[tokio::test]
async fn clients_that_leave_never_open_the_breaker() {
    let strings = Arc::<Strings>::default();
    let worker = streaming(&strings).await;
    let (_probe, pulse) = up(&worker, quick()).await;
    let client = client();
    for _ in 0..10 {
        let Reply::Bytes(reply) = soon("a stream", client.send(&worker.url, with(&pulse, "{}"))).await.expect("a stream");
        drop(reply.relay(()));
    }
    assert_eq!((pulse.status().breaker_opened, pulse.status().deaths), (0, 0));
}
