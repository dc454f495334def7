//! What a client makes of workers that stay silent, refuse, break off or break the protocol: each is an error of its own kind
//! that names the worker, and none is a hang.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use transport::request::{Call, CallError, Cause, Client, ClientOptions, Refusal, Responses};
use wire::request::{Codec, Prologue, Response, TwoPart, TypedError};

use crate::support::{PATH, SHORT, Scripted, client, client_options, finale, impatient, item, rest, soon, text, until};

/// A call of a scripted worker, and what the script brings.
async fn against<S>(client: &Client, worker: &Scripted, script: impl Future<Output = S>) -> (Result<Responses, CallError>, S) {
    let call = client.call(Call::new(worker.at(), text("x")));
    soon("a result", async { tokio::join!(call, script) }).await
}

fn expect(error: &CallError, worker: &Scripted, is: impl Fn(&Cause) -> bool) {
    assert_eq!(error.peer(), worker.at());
    assert!(error.to_string().starts_with(&worker.at()), "{error}");
    assert!(is(error.cause()), "{error}");
}

#[tokio::test]
async fn a_worker_that_acknowledges_and_stays_silent_is_an_error_in_time() {
    let (client, worker) = (impatient().await, Scripted::new().await);
    let script = async {
        let mut asked = worker.asked().await;
        asked.accept().await;
        asked
    };
    let (result, _asked) = against(&client, &worker, script).await;
    expect(
        &result.unwrap_err(),
        &worker,
        |cause| matches!(cause, Cause::NoCallHome { after: SHORT, address } if **address == *client.address()),
    );
    assert_eq!(client.counters().awaited, 0);
}

#[tokio::test]
async fn a_worker_that_does_not_acknowledge_is_an_error_in_time() {
    let (client, worker) = (impatient().await, Scripted::new().await);
    let (result, mut asked) = against(&client, &worker, worker.asked()).await;
    expect(&result.unwrap_err(), &worker, |cause| matches!(cause, Cause::Unacknowledged(SHORT)));
    assert_eq!(rest(&mut asked.connection).await, b"", "a connection that is owed an acknowledgement is given up");
}

#[tokio::test]
async fn nobody_listening_is_an_error_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("{}/{PATH}", listener.local_addr().unwrap());
    drop(listener);
    let client = impatient().await;
    let error = soon("a refusal", client.call(Call::new(address.clone(), Bytes::new()))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)) && error.peer() == address, "{error}");
    let error = client.call(Call::new("127.0.0.1:1", Bytes::new())).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Address), "{error}");
    let error = soon("a refusal", client.call(Call::new("not an address/x", Bytes::new()))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn a_host_that_answers_no_connection_is_an_error_in_time() {
    // A listener whose queue is full answers nobody; connections are made until one is not accepted.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SHORT, TcpStream::connect(address)).await {
        queued.push(stream);
    }
    let client = Client::new(ClientOptions { connect_timeout: SHORT, ..client_options() }).await.unwrap();
    let error = soon("a time-out", client.call(Call::new(format!("{address}/x"), Bytes::new()))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(reason) if reason.contains("500 ms")), "{error}");
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_acknowledgement_is_tried_once_more() {
    let (client, worker) = (client().await, Scripted::new().await);
    let script = async {
        drop(worker.asked().await);
        drop(worker.asked().await);
    };
    let (result, ()) = against(&client, &worker, script).await;
    expect(&result.unwrap_err(), &worker, |cause| matches!(cause, Cause::Broken(_)));
    let script = async {
        drop(worker.asked().await);
        worker.answering().await
    };
    let (result, _home) = against(&client, &worker, script).await;
    result.unwrap();
}

#[tokio::test]
async fn acknowledgements_that_are_none_are_errors() {
    let refused = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    for (text, expected) in [
        ("Server overloaded: worker at capacity", Refusal::Overloaded),
        ("Server unavailable: unknown endpoint x", Refusal::Unavailable),
        ("no", Refusal::Other),
    ] {
        let (client, worker) = (client().await, Scripted::new().await);
        let script = async {
            let mut asked = worker.asked().await;
            asked.connection.write_all(&refused(text)).await.unwrap();
            asked
        };
        let (result, _asked) = against(&client, &worker, script).await;
        expect(
            &result.unwrap_err(),
            &worker,
            |cause| matches!(cause, Cause::Refused { kind, text: words } if *kind == expected && &**words == text),
        );
        assert_eq!(client.counters().connections, 1, "a refusal leaves the connection as it was");
    }
    for garbage in [&[0xff; 4][..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0; 8]] {
        let (client, worker) = (impatient().await, Scripted::new().await);
        let script = async {
            let mut asked = worker.asked().await;
            asked.connection.write_all(garbage).await.unwrap();
            asked
        };
        let (result, mut asked) = against(&client, &worker, script).await;
        // Eight zeros are one acknowledgement too many: the call itself is accepted, and nobody calls home.
        expect(&result.unwrap_err(), &worker, |cause| matches!(cause, Cause::Malformed(_) | Cause::NoCallHome { .. }));
        assert_eq!(rest(&mut asked.connection).await, b"", "{garbage:?}");
        until("the connection is gone", || client.counters().connections == 0).await;
    }
}

#[tokio::test]
async fn a_failed_prologue_is_an_error_with_and_without_its_type() {
    let typed =
        TypedError { class: "Capacity".into(), reason: "capacity.exhausted".into(), message: "full".into(), ..TypedError::default() };
    for typed in [None, Some(typed)] {
        let (client, worker) = (client().await, Scripted::new().await);
        let prologue = Prologue { error: Some("full".into()), typed: typed.clone() };
        let script = async {
            let mut asked = worker.asked().await;
            asked.accept().await;
            let mut home = asked.call_home().await;
            home.write_all(&prologue.encode().encode()).await.unwrap();
            home
        };
        let (result, mut home) = against(&client, &worker, script).await;
        expect(
            &result.unwrap_err(),
            &worker,
            |cause| matches!(cause, Cause::Failed { message, error } if &**message == "full" && error.as_deref() == typed.as_ref()),
        );
        assert_eq!(rest(&mut home).await, b"", "the worker is done and told nothing");
    }
}

#[tokio::test]
async fn a_prologue_that_does_not_come_or_is_none_is_an_error() {
    let malformed: [&[u8]; 3] = [&TwoPart::of_header("{}x").encode(), &item(&text("early")), &Response::sentinel()];
    for (bytes, closes) in [(&b""[..], false), (b"", true), (malformed[0], false), (malformed[1], false), (malformed[2], false)] {
        let (client, worker) = (impatient().await, Scripted::new().await);
        let script = async {
            let mut asked = worker.asked().await;
            asked.accept().await;
            let mut home = asked.call_home().await;
            home.write_all(bytes).await.unwrap();
            (!closes).then_some(home)
        };
        let (result, home) = against(&client, &worker, script).await;
        expect(&result.unwrap_err(), &worker, |cause| match (bytes.is_empty(), closes) {
            (true, true) => matches!(cause, Cause::Truncated(_)),
            (true, false) => matches!(cause, Cause::Silent(SHORT)),
            (false, _) => matches!(cause, Cause::Malformed(_) | Cause::TooLarge { .. }),
        });
        if let Some(mut home) = home {
            assert!(rest(&mut home).await.ends_with(b"\"kill\""), "{bytes:?}");
        }
    }
}

/// Two items, then these bytes, and the connection is closed or kept.
async fn after_two_items(bytes: &[u8], closes: bool) -> (CallError, Scripted) {
    let (client, worker) = (impatient().await, Scripted::new().await);
    let (responses, mut home) = against(&client, &worker, worker.answering()).await;
    let mut responses = responses.unwrap();
    home.write_all(&[item(&text("one")), item(&text("two")), Bytes::copy_from_slice(bytes)].concat()).await.unwrap();
    let home = (!closes).then_some(home);
    for expected in ["one", "two"] {
        assert_eq!(soon("an item", responses.next()).await.unwrap().unwrap(), text(expected));
    }
    let error = soon("an error", responses.next()).await.unwrap().unwrap_err();
    assert!(responses.next().await.is_none(), "nothing comes after it");
    if let Some(mut home) = home {
        assert!(rest(&mut home).await.ends_with(b"\"kill\""), "{error}");
    }
    (error, worker)
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_never_taken_for_a_complete_one() {
    let (error, worker) = after_two_items(b"", true).await;
    expect(&error, &worker, |cause| matches!(cause, Cause::Truncated(_)));
    // In the middle of an item.
    let (error, worker) = after_two_items(&item(&text("three"))[..30], true).await;
    expect(&error, &worker, |cause| matches!(cause, Cause::Truncated(_)));
    // A goodbye that does not follow the end.
    let (error, worker) = after_two_items(&Response::sentinel(), false).await;
    expect(&error, &worker, |cause| matches!(cause, Cause::Truncated(_)));
    let (error, worker) = after_two_items(b"", false).await;
    expect(&error, &worker, |cause| matches!(cause, Cause::Silent(SHORT)));
    let (error, worker) = after_two_items(&item(&text("three"))[..30], false).await;
    expect(&error, &worker, |cause| matches!(cause, Cause::Silent(SHORT)));
}

#[tokio::test]
async fn bytes_no_worker_sends_are_errors_and_allocate_nothing() {
    let lengths = |header: u64, body: u64| [header.to_be_bytes(), body.to_be_bytes(), [0; 8]].concat();
    let unknown = TwoPart::of_header("\"what\"").encode();
    let not_wrapped = TwoPart { header: Bytes::new(), body: text("bare") }.encode();
    for bytes in
        [lengths(0, 1 << 62), lengths(1 << 40, 0), lengths(u64::MAX, u64::MAX), unknown.to_vec(), not_wrapped.to_vec(), vec![0x20; 64]]
    {
        let (error, worker) = after_two_items(&bytes, false).await;
        expect(&error, &worker, |cause| matches!(cause, Cause::TooLarge { .. } | Cause::Malformed(_)));
    }
    let (error, worker) = after_two_items(&[finale(), item(&text("three"))].concat(), false).await;
    expect(&error, &worker, |cause| matches!(cause, Cause::Malformed(_)));
}

#[tokio::test]
async fn a_worker_that_goes_between_the_last_item_and_its_goodbye_has_answered() {
    for ends in ["closes", "stays silent"] {
        let (client, worker) = (client().await, Scripted::new().await);
        let (responses, mut home) = against(&client, &worker, worker.answering()).await;
        let mut responses = responses.unwrap();
        home.write_all(&[item(&text("all")), finale()].concat()).await.unwrap();
        let _home = (ends == "stays silent").then_some(home);
        assert_eq!(responses.next().await.unwrap().unwrap(), text("all"));
        assert!(soon("the end", responses.next()).await.is_none(), "{ends}");
    }
}

#[tokio::test]
async fn bytes_in_any_cut_bring_the_same_items() {
    let (client, worker) = (client().await, Scripted::new().await);
    let (responses, mut home) = against(&client, &worker, worker.answering()).await;
    let mut responses = responses.unwrap();
    let bytes = [item(&text("one")), item(&crate::support::blob(3000)), finale(), Response::sentinel()].concat();
    let writer = tokio::spawn(async move {
        for piece in bytes.chunks(7) {
            home.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        rest(&mut home).await
    });
    assert_eq!(soon("an item", responses.next()).await.unwrap().unwrap(), text("one"));
    assert_eq!(soon("an item", responses.next()).await.unwrap().unwrap(), crate::support::blob(3000));
    assert!(soon("the end", responses.next()).await.is_none());
    assert_eq!(writer.await.unwrap(), b"");
}

#[tokio::test]
async fn waiting_for_an_item_can_be_given_up_and_taken_up_again() {
    let (client, worker) = (Client::new(ClientOptions::default()).await.unwrap(), Scripted::new().await);
    let (responses, mut home) = tokio::join!(client.call(Call::new(worker.at(), Bytes::new())), worker.answering());
    let mut responses = responses.unwrap();
    let bytes = [item(&crate::support::blob(100_000)), finale(), Response::sentinel()].concat();
    for piece in bytes.chunks(9_000) {
        home.write_all(piece).await.unwrap();
        // Not all of it is there: this one is given up, wherever it has got to.
        let given_up = tokio::time::timeout(Duration::from_millis(3), responses.next()).await;
        if let Ok(item) = given_up {
            assert_eq!(item.unwrap().unwrap(), crate::support::blob(100_000));
            assert!(soon("the end", responses.next()).await.is_none());
            return;
        }
    }
    assert_eq!(soon("an item", responses.next()).await.unwrap().unwrap(), crate::support::blob(100_000));
}

#[tokio::test]
async fn json_answers_are_held_to_the_same_bounds() {
    let options = ClientOptions { max_item_bytes: 1000, ..client_options() };
    let (client, worker) = (Client::new(options).await.unwrap(), Scripted::new().await);
    let call = client.call(Call::new(worker.at(), Bytes::from_static(b"{}")).codec(Codec::Json));
    let (responses, mut home) = tokio::join!(call, worker.answering());
    let mut responses = responses.unwrap();
    home.write_all(&Response::item(Codec::Json, b"[1,2]")).await.unwrap();
    assert_eq!(responses.next().await.unwrap().unwrap(), "[1,2]");
    home.write_all(&Response::item(Codec::Json, &[b'1'; 2000])).await.unwrap();
    let error = responses.next_piece().await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge { limit: 1000, .. }), "{error}");
}
