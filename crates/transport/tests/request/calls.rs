//! Client to server: many calls, many at once, long answers, large items, and the bounds on all of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use testkit::servers::bind_again;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use transport::request::{Call, Cause, Client, ClientOptions, PathTaken, Refusal, ServerOptions, one};
use wire::discovery::{Endpoint, EndpointId};

use crate::support::{PATH, answering, at, blob, client, echo, server, soon, text, until};

/// The one item of a call that brings one.
async fn ask(client: &Client, address: String, body: Bytes) -> Bytes {
    let mut responses = soon("an answer", client.call(Call::new(address, body))).await.unwrap();
    let item = soon("an item", responses.next()).await.unwrap().unwrap();
    assert!(soon("the end", responses.next()).await.is_none());
    item
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_calls_get_their_own_answers_over_few_connections() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let client = client().await;
    let mut askers = JoinSet::new();
    for asker in 0..20 {
        let (client, address) = (client.clone(), at(&server));
        askers.spawn(async move {
            for turn in 0..150 {
                let body = text(&format!("{asker}/{turn}"));
                assert_eq!(ask(&client, address.clone(), body.clone()).await, body);
            }
        });
    }
    while let Some(done) = askers.join_next().await {
        done.unwrap();
    }
    let (asked, answered) = (client.counters(), server.counters());
    assert_eq!((asked.calls, asked.failed, asked.running, asked.awaited), (3000, 0, 0, 0));
    assert!((1..=8).contains(&asked.connections), "{asked:?}");
    assert_eq!((answered.calls, answered.cancelled, answered.connections), (3000, 0, asked.connections));
    until("every call is over", || server.counters().running == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_calls_run_at_once() {
    let server = server(ServerOptions::default()).await;
    // None is answered before all are there.
    let all = Arc::new(Barrier::new(200));
    let meet = move |request: transport::request::Request| {
        let all = all.clone();
        async move {
            all.wait().await;
            Ok(one(request.body))
        }
    };
    let _handled = server.handle(PATH, Arc::new(meet)).unwrap();
    let client = client().await;
    let asked: HashSet<Bytes> = (0..200).map(|number| text(&number.to_string())).collect();
    let calls = asked.iter().map(|body| ask(&client, at(&server), body.clone()));
    let answers: HashSet<Bytes> = futures_util::future::join_all(calls).await.into_iter().collect();
    assert_eq!(answers, asked);
}

#[tokio::test]
async fn an_answer_of_many_items_comes_whole_and_in_order() {
    const ITEMS: usize = 20_000;
    let server = server(ServerOptions::default()).await;
    let count =
        answering(|_| Ok(futures_util::stream::iter(0..ITEMS).map(|number| Ok(rmp_serde::to_vec(&number).unwrap().into())).boxed()));
    let _handled = server.handle(PATH, count).unwrap();
    let mut responses = client().await.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    for expected in 0..ITEMS {
        let item = soon("an item", responses.next()).await.unwrap().unwrap();
        assert_eq!(rmp_serde::from_slice::<usize>(&item).unwrap(), expected);
    }
    assert!(responses.next().await.is_none());
}

#[tokio::test]
async fn large_bodies_and_items_come_whole_or_in_pieces() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let client = client().await;
    let body = blob(20 << 20);
    assert!(ask(&client, at(&server), body.clone()).await == body, "whole");
    let mut responses = client.call(Call::new(at(&server), body.clone())).await.unwrap();
    let (mut pieces, mut taken) = (0, 0);
    loop {
        let piece = soon("a piece", responses.next_piece()).await.unwrap().unwrap();
        assert!(piece.data.len() <= 512 << 10, "{} bytes in a piece", piece.data.len());
        assert!(body[taken..].starts_with(&piece.data), "at {taken}");
        (pieces, taken) = (pieces + 1, taken + piece.data.len());
        if piece.last {
            break;
        }
    }
    assert_eq!(taken, body.len());
    assert!(pieces > 20, "{pieces}");
    assert!(responses.next_piece().await.is_none());
}

#[tokio::test]
async fn what_is_larger_than_allowed_is_refused_on_either_side() {
    let server = server(ServerOptions { max_frame_bytes: 1 << 20, max_body_bytes: 1 << 20, ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, answering(|_| Ok(one(blob(300_000))))).unwrap();
    let options = ClientOptions { max_body_bytes: 2 << 20, max_item_bytes: 100_000, ..ClientOptions::default() };
    let client = Client::new(options).await.unwrap();
    let error = client.call(Call::new(at(&server), blob(3 << 20))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge { limit, .. } if *limit == 2 << 20), "{error}");
    let error = client.call(Call::new(at(&server), blob((1 << 20) + 1))).await.unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Refused { kind: Refusal::Unavailable, text } if text.contains("the limit is 1048576")),
        "{error}"
    );
    let mut responses = client.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    let error = responses.next().await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge { limit: 100_000, .. }), "{error}");
    assert!(responses.next().await.is_none());
    // The connection that carried the refused request is as good as before.
    assert_eq!((server.counters().connections, client.counters().connections), (1, 1));
}

#[tokio::test]
async fn a_full_server_says_so_and_takes_the_next_when_it_has_room() {
    let server = server(ServerOptions { max_running: 2, ..ServerOptions::default() }).await;
    let forever = answering(|_| Ok(futures_util::stream::pending().boxed()));
    let _handled = server.handle(PATH, forever).unwrap();
    let client = client().await;
    let first = client.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    let _second = client.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    let error = client.call(Call::new(at(&server), Bytes::new())).await.unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Refused { kind: Refusal::Overloaded, text } if &**text == "Server overloaded: 2 calls running"),
        "{error}"
    );
    assert_eq!(server.counters().refused_full, 1);
    drop(first);
    until("room", || server.counters().running == 1).await;
    client.call(Call::new(at(&server), Bytes::new())).await.unwrap();
}

#[tokio::test]
async fn bodies_in_the_hands_of_handlers_count_until_they_are_let_go() {
    let server = server(ServerOptions { max_body_bytes: 3 << 20, ..ServerOptions::default() }).await;
    let held = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let hold = held.clone();
    let keeping = answering(move |request| {
        hold.lock().push(request.body);
        Ok(one(text("kept")))
    });
    let _handled = server.handle(PATH, keeping).unwrap();
    let client = client().await;
    ask(&client, at(&server), blob(2 << 20)).await;
    let error = client.call(Call::new(at(&server), blob(2 << 20))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Refused { kind: Refusal::Overloaded, .. }), "{error}");
    ask(&client, at(&server), blob(1000)).await;
    held.lock().clear();
    ask(&client, at(&server), blob(2 << 20)).await;
}

#[tokio::test]
async fn a_client_runs_so_many_calls_and_no_more() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let client = Client::new(ClientOptions { max_calls: 1, ..ClientOptions::default() }).await.unwrap();
    let first = client.call(Call::new(at(&server), text("x"))).await.unwrap();
    let error = client.call(Call::new(at(&server), text("x"))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Busy(1)), "{error}");
    drop(first);
    client.call(Call::new(at(&server), text("x"))).await.unwrap();
}

#[tokio::test]
async fn a_server_that_restarts_on_its_port_is_called_again_without_a_failed_call() {
    let first = server(ServerOptions::default()).await;
    let handled = first.handle(PATH, echo()).unwrap();
    let (client, address) = (client().await, at(&first));
    for turn in 0..5 {
        ask(&client, address.clone(), text(&format!("before {turn}"))).await;
    }
    let port = first.address();
    drop(handled);
    assert_eq!(first.drain(Duration::from_secs(5)).await, 0);
    let second = bind_again(async || transport::request::Server::bind(&port.to_string(), ServerOptions::default()).await).await;
    let _handled = second.handle(PATH, echo()).unwrap();
    ask(&client, address, text("after")).await;
    assert_eq!(client.counters().failed, 0);
}

#[tokio::test]
async fn endpoints_come_and_go_while_others_stay() {
    let server = server(ServerOptions::default()).await;
    let (id, other) = (EndpointId::new("dynamo", "backend", "generate"), EndpointId::new("dynamo", "backend", "other"));
    let handled = server.handle(&id.request_path(7), echo()).unwrap();
    let _stays = server.handle(&other.request_path(7), echo()).unwrap();
    let PathTaken { .. } = server.handle(&id.request_path(7), echo()).unwrap_err();
    let record = Endpoint::tcp(id.clone(), 7, &server.advertised_address());
    assert_eq!(record.transport, server.advertised(&id, 7));
    let client = client().await;
    let call = || client.call(Call::to(&record, text("x")).unwrap());
    assert_eq!(call().await.unwrap().next().await.unwrap().unwrap(), text("x"));
    drop(handled);
    let error = call().await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Refused { kind: Refusal::Unavailable, .. }), "{error}");
    assert_eq!(error.peer(), format!("{}/7/dynamo/backend/generate", server.address()));
    let record = Endpoint::tcp(other, 7, &server.advertised_address());
    client.call(Call::to(&record, text("x")).unwrap()).await.unwrap();
    let _again = server.handle(&id.request_path(7), echo()).unwrap();
    call().await.unwrap();
}

#[tokio::test]
async fn headers_id_and_body_reach_the_handler() {
    let server = server(ServerOptions::default()).await;
    let seen = Arc::new(parking_lot::Mutex::new(None));
    let keep = seen.clone();
    let handler = answering(move |request| {
        *keep.lock() = Some((request.headers.clone(), request.control.id.clone(), request.body.clone()));
        Ok(one(text("ok")))
    });
    let _handled = server.handle(PATH, handler).unwrap();
    let call = Call::new(at(&server), text("body")).id("my-id").header("traceparent", "00-1-2-3");
    client().await.call(call).await.unwrap();
    let (headers, id, body) = seen.lock().take().unwrap();
    let header = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    assert_eq!((&*id, body), ("my-id", text("body")));
    assert_eq!(header("request-id").as_deref(), Some("my-id"));
    assert_eq!(header("traceparent").as_deref(), Some("00-1-2-3"));
    assert_eq!(header("x-endpoint-path").as_deref(), Some(PATH));
    assert!(header("x-frontend-send-ts-ns").unwrap().parse::<u64>().unwrap() > 1_700_000_000_000_000_000);
}

#[tokio::test]
async fn what_an_answer_leaves_unread_waits_at_the_worker() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let server = server(ServerOptions::default()).await;
    let endless = answering(move |_| {
        let count = count.clone();
        let items = futures_util::stream::repeat_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(blob(10_000))
        });
        Ok(items.boxed())
    });
    let _handled = server.handle(PATH, endless).unwrap();
    let mut responses = client().await.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    // Until the worker is held up: its count stands still between two looks.
    let settled = async {
        let mut last = usize::MAX;
        while made.load(Ordering::Relaxed) != last {
            last = made.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon("the worker is held up", settled).await;
    let held = made.load(Ordering::Relaxed) * 10_000;
    assert!(held < 16 << 20, "{held} bytes made for a reader that does not read");
    for _ in 0..made.load(Ordering::Relaxed) + 1000 {
        soon("an item", responses.next()).await.unwrap().unwrap();
    }
}
