//! Requests over NATS: byte for byte as a real 1.6.1 frontend and worker sent them, and what becomes of them when NATS or a
//! worker is away, full, silent or gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use testkit::dynamo;
use testkit::servers::Server as Process;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use transport::nats::{Nats, NatsOptions};
use transport::request::{Call, Cause, Client, ClientOptions, Handled, Handler, Refusal, Server, ServerOptions, one};
use wire::discovery::{Endpoint, EndpointId, Transport};
use wire::request::{ControlHeader, Prologue, Response, TwoPart};

use crate::raw_nats::{Heard, RawNats};
use crate::support::{SHORT, answering, blob, client_options, echo, exactly, finale, handshake, item, soon, text, until};

const INSTANCE: u64 = 0x1f;

fn id() -> EndpointId {
    EndpointId::new("dynamo", "backend", "generate")
}

fn record() -> Endpoint {
    Endpoint::new(id(), INSTANCE, Transport::nats_tcp(&id(), INSTANCE))
}

fn nats(process: &Process) -> Nats {
    let options = NatsOptions {
        ping_interval: Duration::from_millis(300),
        call_timeout: Duration::from_millis(500),
        reconnect_min: Duration::from_millis(5),
        reconnect_max: Duration::from_millis(50),
        ..NatsOptions::default()
    };
    Nats::connect(&process.url(), options).unwrap()
}

async fn client(process: &Process, options: ClientOptions) -> Client {
    let nats = nats(process);
    Client::with_nats(options, move || nats).await.unwrap()
}

/// A server of ours that serves this endpoint over NATS, known to the NATS server.
async fn served(process: &Process, options: ServerOptions, handler: Arc<dyn Handler>) -> (Server, Handled) {
    let server = Server::bind("127.0.0.1:0", options).await.unwrap().with_nats(nats(process));
    assert_eq!(server.advertised(&id(), INSTANCE), record().transport);
    let handled = server.handle(&id().request_path(INSTANCE), handler).unwrap();
    soon("the subscription", handled.reachable()).await;
    (server, handled)
}

fn call(body: Bytes) -> Call {
    Call::to(&record(), body).unwrap()
}

async fn ask(client: &Client, body: Bytes) -> Bytes {
    let mut responses = soon("an answer", client.call(call(body))).await.unwrap();
    let item = soon("an item", responses.next()).await.unwrap().unwrap();
    assert!(soon("the end", responses.next()).await.is_none());
    item
}

/// The requests that were recorded: subject, headers, body.
fn recorded() -> Vec<(String, Vec<u8>, Bytes)> {
    let records = dynamo::records("nats_request_plane");
    let lines = records.iter().filter(|record| record["line"].as_str().unwrap().starts_with("HPUB "));
    lines
        .map(|record| {
            let words: Vec<&str> = record["line"].as_str().unwrap().split(' ').collect();
            let mut bytes = dynamo::bytes(record["raw_hex"].as_str().unwrap());
            let payload = bytes.split_off(words[3].parse().unwrap());
            (words[1].to_owned(), bytes, payload.into())
        })
        .collect()
}

#[tokio::test]
async fn our_requests_differ_from_the_real_frontends_in_ids_address_and_time_only() {
    let process = Process::nats();
    let client = client(&process, ClientOptions::default()).await;
    let mut worker = RawNats::connect(process.port()).await;
    let recorded = recorded();
    assert_eq!(recorded.len(), 2);
    for (subject, headers, payload) in recorded {
        worker.subscribe(&subject, "q").await;
        let TwoPart { header, body } = TwoPart::decode(&payload).unwrap();
        let theirs = ControlHeader::decode(&header).unwrap();
        let endpoint = Endpoint::new(id(), INSTANCE, Transport::NatsTcp(subject.clone()));
        let call = client.call(Call::to(&endpoint, body.clone()).unwrap().id(theirs.id.clone()));
        let heard = tokio::select! {
            heard = worker.message() => heard,
            result = call => panic!("{result:?}"),
        };
        let ours = ControlHeader::decode(&TwoPart::decode(&heard.body.clone().into()).unwrap().header).unwrap();
        let expected = String::from_utf8(header.to_vec())
            .unwrap()
            .replace(&theirs.connection.subject, &ours.connection.subject)
            .replace(&theirs.connection.address, client.address());
        let expected = TwoPart { header: expected.into(), body }.encode();
        assert_eq!(heard.body, expected);
        let recorded = Heard { subject, reply: None, headers, body: Vec::new() };
        assert_eq!(heard.subject, recorded.subject);
        assert!(heard.reply.clone().unwrap().starts_with("_INBOX."));
        assert_eq!(heard.header("request-id"), recorded.header("request-id"));
        assert_eq!(heard.header("x-frontend-send-ts-ns").unwrap().len(), recorded.header("x-frontend-send-ts-ns").unwrap().len());
        assert_eq!(heard.headers.len(), recorded.headers.len(), "no header more");
    }
}

#[tokio::test]
async fn recorded_requests_are_acknowledged_and_answered_as_the_real_worker_did() {
    let process = Process::nats();
    for (subject, headers, payload) in recorded() {
        let (endpoint, instance) = subject.split_once('.').unwrap().1.rsplit_once('-').unwrap();
        let (id, instance) = (EndpointId::new("dynamo", "backend", endpoint), u64::from_str_radix(instance, 16).unwrap());
        assert_eq!(id.request_subject(instance), subject);
        let server = Server::bind("127.0.0.1:0", ServerOptions::default()).await.unwrap().with_nats(nats(&process));
        let seen = answering(|request| {
            assert!(request.headers.iter().any(|(name, value)| name == "request-id" && *value == request.control.id));
            Ok(one(request.body))
        });
        let handled = server.handle(&id.request_path(instance), seen).unwrap();
        soon("the subscription", handled.reachable()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut asker = RawNats::connect(process.port()).await;
        asker.subscribe("_INBOX.me.>", "").await;
        let TwoPart { header, body } = TwoPart::decode(&payload).unwrap();
        let theirs = ControlHeader::decode(&header).unwrap();
        let header = String::from_utf8(header.to_vec()).unwrap();
        let header = header.replace(&theirs.connection.address, &listener.local_addr().unwrap().to_string());
        let payload = TwoPart { header: header.into(), body: body.clone() }.encode();
        asker.publish(&subject, "_INBOX.me.1", &headers, &payload).await;
        let ack = asker.message().await;
        // The recorded one: an empty message without headers.
        assert_eq!((&*ack.subject, ack.headers, ack.body), ("_INBOX.me.1", Vec::new(), Vec::new()));
        let (mut home, _) = soon("a call home", listener.accept()).await.unwrap();
        let expected =
            [handshake(&theirs.connection.subject), Prologue::default().encode().encode(), item(&body), finale(), Response::sentinel()]
                .concat();
        assert_eq!(exactly(&mut home, expected.len()).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_get_their_own_answers() {
    let process = Process::nats();
    let (server, _handled) = served(&process, ServerOptions::default(), echo()).await;
    let client = client(&process, ClientOptions::default()).await;
    let calls = futures_util::stream::iter(0..500).map(|turn| {
        let client = client.clone();
        async move {
            let body = text(&format!("{turn}"));
            assert_eq!(ask(&client, body.clone()).await, body);
        }
    });
    calls.buffer_unordered(50).collect::<Vec<()>>().await;
    // Nearly what a message may have.
    let body = blob(900_000);
    assert!(ask(&client, body.clone()).await == body);
    let (asked, answered) = (client.counters(), server.counters());
    assert_eq!((asked.calls, asked.completed, asked.failed, asked.awaited, asked.connections), (501, 501, 0, 0, 0));
    assert_eq!((answered.calls, answered.cancelled, answered.connections), (501, 0, 0));
    soon("a ping", client.ping(&record())).await.unwrap();
    assert_eq!((server.counters().calls, server.counters().pings), (501, 1));
}

#[tokio::test]
async fn a_worker_that_is_not_there_is_told_at_once() {
    let process = Process::nats();
    let client = client(&process, ClientOptions::default()).await;
    let began = Instant::now();
    let error = soon("an error", client.call(call(text("x")))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(reason) if reason.contains("nobody")), "{error}");
    assert_eq!(error.peer(), "dynamo_backend.generate-1f");
    let error = soon("an error", client.ping(&record())).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2), "long before any time-out: {:?}", began.elapsed());
    assert_eq!((client.counters().unreachable, client.counters().pings_failed), (1, 1));
}

#[tokio::test]
async fn silence_a_late_worker_and_a_no_are_told_apart() {
    let process = Process::nats();
    let options = ClientOptions { ping_timeout: SHORT, ..client_options() };
    let client = client(&process, options).await;
    let mut worker = RawNats::connect(process.port()).await;
    worker.subscribe("dynamo_backend.generate-1f", "q").await;
    // As a frozen worker, whose subscription the server keeps.
    let error = soon("an error", client.call(call(text("x")))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unacknowledged(SHORT)), "{error}");
    worker.message().await;
    let error = soon("an error", client.ping(&record())).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::NoPong(SHORT)), "{error}");
    assert_eq!(worker.message().await.body, b"", "a ping is an empty message");
    // Acknowledged, and nothing more: twice the patience of one wait.
    let script = async {
        let heard = worker.message().await;
        worker.answer(&heard.reply.unwrap(), b"").await;
    };
    let (error, ()) = tokio::join!(client.call(call(text("x"))), script);
    assert!(matches!(error.unwrap_err().cause(), Cause::NoCallHome { .. }));
    // A worker that says no in its acknowledgement, as ours does to what it cannot read.
    let script = async {
        let heard = worker.message().await;
        worker.answer(&heard.reply.unwrap(), b"Server unavailable: shutting down").await;
    };
    let (error, ()) = tokio::join!(client.call(call(text("x"))), script);
    assert!(matches!(error.unwrap_err().cause(), Cause::Refused { kind: Refusal::Unavailable, .. }));
    // One that calls home and never acknowledges has acknowledged.
    let script = async {
        let heard = worker.message().await;
        let control = ControlHeader::decode(&TwoPart::decode(&heard.body.into()).unwrap().header).unwrap();
        let mut home = tokio::net::TcpStream::connect(control.connection.address).await.unwrap();
        let answer = [handshake(&control.connection.subject), Prologue::default().encode().encode(), item(&text("here")), finale()];
        home.write_all(&answer.concat()).await.unwrap();
        home
    };
    let (responses, _home) = tokio::join!(client.call(call(text("x"))), script);
    assert_eq!(responses.unwrap().next().await.unwrap().unwrap(), text("here"));
    assert_eq!(client.counters().awaited, 0);
}

#[tokio::test]
async fn a_worker_that_dies_with_a_call_is_known_by_its_subject_and_a_slow_one_is_not() {
    let process = Process::nats();
    let minute = Duration::from_secs(60);
    let client = client(&process, ClientOptions { ack_timeout: minute, call_home_timeout: minute, ..ClientOptions::default() }).await;
    let mut worker = RawNats::connect(process.port()).await;
    worker.subscribe("dynamo_backend.generate-1f", "q").await;
    // A slow one is asked whether it is there, answers, and calls home at last.
    let script = async {
        let request = worker.message().await;
        worker.answer(&request.reply.unwrap(), b"").await;
        for _ in 0..2 {
            let ping = worker.message().await;
            assert_eq!(ping.body, b"");
            worker.answer(&ping.reply.unwrap(), b"").await;
        }
        let control = ControlHeader::decode(&TwoPart::decode(&request.body.into()).unwrap().header).unwrap();
        let mut home = tokio::net::TcpStream::connect(control.connection.address).await.unwrap();
        let answer = [handshake(&control.connection.subject), Prologue::default().encode().encode()];
        home.write_all(&answer.concat()).await.unwrap();
        home
    };
    let (responses, home) = tokio::join!(client.call(call(text("x"))), script);
    responses.unwrap();
    drop(home);
    // After its acknowledgement, and before it.
    let mut next = Some(worker);
    for acknowledges in [true, false] {
        let mut worker = match next.take() {
            Some(worker) => worker,
            None => {
                let mut worker = RawNats::connect(process.port()).await;
                worker.subscribe("dynamo_backend.generate-1f", "q").await;
                worker
            }
        };
        let script = async {
            let request = worker.message().await;
            if acknowledges {
                worker.answer(&request.reply.unwrap(), b"").await;
                // Until the server has passed it on.
                worker.subscribe("other", "").await;
            }
            drop(worker);
            Instant::now()
        };
        let (error, died) = tokio::join!(client.call(call(text("x"))), script);
        let error = error.unwrap_err();
        assert!(matches!(error.cause(), Cause::Lost(_)), "{error}");
        assert!(died.elapsed() < Duration::from_secs(5), "{:?}", died.elapsed());
    }
    assert_eq!(client.counters().lost, 2);
}

#[tokio::test]
async fn what_nats_does_not_carry_is_refused_before_it_is_sent() {
    let process = Process::nats();
    let (server, _handled) = served(&process, ServerOptions::default(), echo()).await;
    let client = client(&process, ClientOptions::default()).await;
    let error = soon("an error", client.call(call(blob(1 << 20)))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge { limit, .. } if *limit == 1 << 20), "{error}");
    let error = soon("an error", client.call(call(text("x")).header("x", "1\r\nPUB a 0\r\n"))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Request(_)), "{error}");
    let spaced = Endpoint::new(id(), INSTANCE, Transport::NatsTcp("a b".to_owned()));
    let error = soon("an error", client.call(Call::to(&spaced, text("x")).unwrap())).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Request(_)), "{error}");
    assert_eq!(server.counters().calls, 0);
    ask(&client, text("x")).await;
}

#[tokio::test]
async fn a_client_without_nats_says_so() {
    let client = crate::support::client().await;
    let error = client.call(call(text("x"))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Way(_)), "{error}");
    let error = client.ping(&record()).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Way(_)), "{error}");
}

#[tokio::test]
async fn nats_away_fails_a_call_within_the_bound_on_connecting_and_comes_back_by_itself() {
    let mut process = Process::nats();
    let (server, _handled) = served(&process, ServerOptions::default(), echo()).await;
    let client = client(&process, ClientOptions { connect_timeout: SHORT, ping_timeout: SHORT, ..ClientOptions::default() }).await;
    ask(&client, text("before")).await;
    process.kill();
    let began = Instant::now();
    let error = soon("an error", client.call(call(text("x")))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(reason) if reason.contains("NATS")), "{error}");
    assert!(began.elapsed() < SHORT * 4, "{:?}", began.elapsed());
    process.restart();
    // Both ends subscribe again, in their time; until then nobody is there.
    let back = async {
        while client.call(call(text("x"))).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("an answer after the restart", back).await;
    assert_eq!(ask(&client, text("after")).await, text("after"));
    assert!(server.counters().calls >= 3);
}

#[tokio::test]
async fn a_request_on_its_way_when_nats_breaks_is_sent_again() {
    let mut process = Process::nats();
    let client = client(&process, ClientOptions { ack_timeout: Duration::from_secs(30), ..ClientOptions::default() }).await;
    let mut worker = RawNats::connect(process.port()).await;
    worker.subscribe("dynamo_backend.generate-1f", "q").await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.call(call(text("x"))).await }
    });
    let first = worker.message().await;
    process.kill();
    process.restart();
    let mut worker = RawNats::connect(process.port()).await;
    worker.subscribe("dynamo_backend.generate-1f", "q").await;
    let control = |heard: &Heard| ControlHeader::decode(&TwoPart::decode(&heard.body.clone().into()).unwrap().header).unwrap();
    // It may have come back before this worker did: then nobody is there, which is an answer too.
    let again = tokio::select! {
        again = worker.message() => Some(again),
        () = async { while !waiting.is_finished() { tokio::time::sleep(Duration::from_millis(5)).await } } => None,
    };
    match again {
        Some(again) => {
            assert_eq!(control(&again).connection.subject, control(&first).connection.subject, "whichever is answered first counts");
            worker.answer(&again.reply.unwrap(), b"Server unavailable: enough").await;
            let error = soon("an end", waiting).await.unwrap().unwrap_err();
            assert!(matches!(error.cause(), Cause::Refused { .. }), "{error}");
        }
        None => {
            let error = waiting.await.unwrap().unwrap_err();
            assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
        }
    }
}

#[tokio::test]
async fn a_full_server_says_so_over_the_callers_own_connection() {
    let process = Process::nats();
    let forever = answering(|_| Ok(futures_util::stream::pending().boxed()));
    let (server, _handled) = served(&process, ServerOptions { max_running: 1, ..ServerOptions::default() }, forever).await;
    let client = client(&process, ClientOptions::default()).await;
    let first = soon("an answer", client.call(call(text("x")))).await.unwrap();
    let error = soon("an error", client.call(call(text("x")))).await.unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Refused { kind: Refusal::Overloaded, text } if &**text == "Server overloaded: 1 calls running"),
        "{error}"
    );
    assert_eq!((server.counters().refused_full, client.counters().refused), (1, 1));
    drop(first);
    until("room", || server.counters().running == 0).await;
    soon("an answer", client.call(call(text("x")))).await.unwrap();
}

#[tokio::test]
async fn nonsense_on_the_subject_starts_nothing() {
    let process = Process::nats();
    let (server, _handled) = served(&process, ServerOptions::default(), echo()).await;
    let mut stranger = RawNats::connect(process.port()).await;
    stranger.subscribe("me.>", "").await;
    let bodies: [&[u8]; 4] = [&[0; 23], &[0xff; 24], &[0; 24], b"\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{}"];
    for body in bodies {
        stranger.publish("dynamo_backend.generate-1f", "me.1", b"NATS/1.0\r\n\r\n", body).await;
        let said = stranger.message().await;
        assert!(said.body.starts_with(b"Server unavailable: cannot read the request"), "{said:?}");
    }
    // Nor does anything without an address for its answer.
    stranger.answer("dynamo_backend.generate-1f", b"nonsense").await;
    until("all are counted", || server.counters().refused_malformed == 5).await;
    assert_eq!(server.counters().calls, 0);
}

#[tokio::test]
async fn a_drain_takes_what_was_sent_and_leaves_the_subject() {
    let process = Process::nats();
    let (go, wait) = tokio::sync::watch::channel(false);
    let slow = move |request: transport::request::Request| {
        let mut wait = wait.clone();
        async move {
            wait.wait_for(|go| *go).await.unwrap();
            Ok(one(request.body))
        }
    };
    let (server, _handled) = served(&process, ServerOptions::default(), Arc::new(slow)).await;
    let client = client(&process, ClientOptions::default()).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, text("before")).await }
    });
    until("it runs", || server.counters().running == 1).await;
    let drained = tokio::spawn(server.drain(Duration::from_secs(10)));
    let left = async {
        loop {
            match tokio::time::timeout(Duration::from_millis(50), client.ping(&record())).await {
                Ok(Err(_)) => break,
                Ok(Ok(())) | Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    soon("the subject has no reader", left).await;
    let error = client.call(call(text("x"))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
    go.send(true).unwrap();
    assert_eq!(soon("an answer", waiting).await.unwrap(), text("before"));
    assert_eq!(soon("the drain", drained).await.unwrap(), 0);
}

#[tokio::test]
async fn an_endpoint_that_is_withdrawn_is_gone_while_others_stay() {
    let process = Process::nats();
    let (server, handled) = served(&process, ServerOptions::default(), echo()).await;
    let other = id().sibling("other");
    let stays = server.handle(&other.request_path(INSTANCE), echo()).unwrap();
    soon("the subscription", stays.reachable()).await;
    let client = client(&process, ClientOptions::default()).await;
    ask(&client, text("x")).await;
    drop(handled);
    let gone = async {
        loop {
            match client.call(call(text("x"))).await {
                Err(error) if matches!(error.cause(), Cause::Unreachable(_)) => break,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    soon("it is gone", gone).await;
    let there = Endpoint::new(other.clone(), INSTANCE, server.advertised(&other, INSTANCE));
    soon("an answer", client.call(Call::to(&there, text("x")).unwrap())).await.unwrap();
    // Over TCP it is served as well.
    let tcp = Endpoint::tcp(other, INSTANCE, &server.advertised_address());
    let mut responses = soon("an answer", client.call(Call::to(&tcp, text("y")).unwrap())).await.unwrap();
    assert_eq!(responses.next().await.unwrap().unwrap(), text("y"));
}

#[tokio::test]
async fn a_killed_caller_cancels_over_nats_as_over_tcp() {
    let process = Process::nats();
    let forever = answering(|_| Ok(futures_util::stream::pending().boxed()));
    let (server, _handled) = served(&process, ServerOptions::default(), forever).await;
    let client = client(&process, ClientOptions::default()).await;
    drop(soon("an answer", client.call(call(text("x")))).await.unwrap());
    until("it is cancelled", || server.counters().cancelled == 1).await;
    assert_eq!(client.counters().abandoned, 1);
    // A client that is stopped leaves nobody waiting.
    client.stop().await;
    let error = client.call(call(text("x"))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Stopped), "{error}");
}
