//! How calls end before their time: cancelled from either side, drained, stalled, or dropped with their server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use transport::request::{Call, Cause, Handler, Refusal, Request, ServerOptions, one};
use wire::request::TypedError;

use crate::support::{PATH, SHORT, acknowledgement, answering, at, client, exactly, frame, rest, server, soon, text, until};

/// Yields these and then waits for ever; tells when it is dropped.
struct Endless {
    items: Vec<Bytes>,
    dropped: mpsc::UnboundedSender<()>,
}

impl Stream for Endless {
    type Item = Result<Bytes, TypedError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.items.pop() {
            Some(item) => Poll::Ready(Some(Ok(item))),
            None => Poll::Pending,
        }
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
    }
}

/// What a handler of such answers reports: tokens of calls, and the end of their streams.
struct Watched {
    tokens: mpsc::UnboundedReceiver<CancellationToken>,
    dropped: mpsc::UnboundedReceiver<()>,
}

fn endless(items: usize) -> (Arc<dyn Handler>, Watched) {
    let (began, tokens) = mpsc::unbounded_channel();
    let (ended, dropped) = mpsc::unbounded_channel();
    let handler = answering(move |request: Request| {
        began.send(request.cancelled).unwrap();
        Ok(Endless { items: vec![text("more"); items], dropped: ended.clone() }.boxed())
    });
    (handler, Watched { tokens, dropped })
}

#[tokio::test]
async fn dropping_an_answer_cancels_its_handler() {
    let server = server(ServerOptions::default()).await;
    let (handler, mut watched) = endless(1);
    let _handled = server.handle(PATH, handler).unwrap();
    let mut responses = client().await.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    responses.next().await.unwrap().unwrap();
    let token = watched.tokens.recv().await.unwrap();
    assert!(!token.is_cancelled());
    drop(responses);
    soon("the token", token.cancelled()).await;
    soon("the stream is dropped", watched.dropped.recv()).await.unwrap();
    until("the call is over", || server.counters().running == 0).await;
    assert_eq!(server.counters().cancelled, 1);
}

#[tokio::test]
async fn dropping_a_call_before_it_is_answered_cancels_its_handler() {
    let server = server(ServerOptions::default()).await;
    let (began, mut tokens) = mpsc::unbounded_channel();
    // It never gets as far as an answer.
    let handler = move |request: Request| {
        began.send(request.cancelled).unwrap();
        std::future::pending::<Result<transport::request::Items, TypedError>>()
    };
    let _handled = server.handle(PATH, Arc::new(handler)).unwrap();
    let (client, address) = (client().await, at(&server));
    let asking = client.clone();
    let call = tokio::spawn(async move { asking.call(Call::new(address, Bytes::new())).await });
    let token = soon("the handler", tokens.recv()).await.unwrap();
    call.abort();
    soon("the token", token.cancelled()).await;
    until("nothing runs", || client.counters().running == 0 && client.counters().awaited == 0).await;
}

#[tokio::test]
async fn a_caller_that_closes_or_talks_nonsense_cancels_its_handler() {
    for words in [&b""[..], b"\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\"halt\"", &[0xff; 300]] {
        let server = server(ServerOptions::default()).await;
        let (handler, mut watched) = endless(0);
        let _handled = server.handle(PATH, handler).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut asker = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        asker.write_all(&frame(PATH, &listener.local_addr().unwrap().to_string(), "s", b"")).await.unwrap();
        assert_eq!(acknowledgement(&mut asker).await, "");
        let mut home = soon("a call home", listener.accept()).await.unwrap().0;
        let token = soon("the handler", watched.tokens.recv()).await.unwrap();
        exactly(&mut home, 24).await;
        home.write_all(words).await.unwrap();
        if words.is_empty() {
            drop(home);
        }
        soon("the token", token.cancelled()).await;
        soon("the stream is dropped", watched.dropped.recv()).await.unwrap();
    }
}

#[tokio::test]
async fn a_caller_that_stops_reading_loses_its_call_and_costs_a_bounded_amount() {
    let server = server(ServerOptions { stalled_timeout: SHORT, ..ServerOptions::default() }).await;
    let (made, mut count) = mpsc::unbounded_channel();
    let flood = answering(move |_| {
        let made = made.clone();
        let items = futures_util::stream::repeat_with(move || {
            let item = crate::support::blob(100_000);
            made.send(item.len()).unwrap();
            Ok(item)
        });
        Ok(items.boxed())
    });
    let _handled = server.handle(PATH, flood).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut asker = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    asker.write_all(&frame(PATH, &listener.local_addr().unwrap().to_string(), "s", b"")).await.unwrap();
    let _home = soon("a call home", listener.accept()).await.unwrap().0;
    until("the call is given up", || server.counters().stalled_callers == 1).await;
    let mut bytes = 0;
    while let Ok(more) = count.try_recv() {
        bytes += more;
    }
    assert!(bytes < 16 << 20, "{bytes} bytes were made for a caller that reads nothing");
}

#[tokio::test]
async fn a_drain_refuses_new_calls_finishes_running_ones_and_says_how_many_it_cut() {
    let server = server(ServerOptions::default()).await;
    let go = CancellationToken::new();
    let wait = go.clone();
    let slow = answering(move |_| {
        let wait = wait.clone();
        let second = futures_util::stream::once(async move {
            wait.cancelled().await;
            Ok(text("second"))
        });
        Ok(futures_util::stream::iter([Ok(text("first"))]).chain(second).boxed())
    });
    let _slow = server.handle(PATH, slow).unwrap();
    let (handler, mut watched) = endless(1);
    let _endless = server.handle("endless", handler).unwrap();
    let (client, address) = (client().await, server.address());
    let mut finishing = client.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    assert_eq!(finishing.next().await.unwrap().unwrap(), text("first"));
    let mut cut = client.call(Call::new(format!("{address}/endless"), Bytes::new())).await.unwrap();
    cut.next().await.unwrap().unwrap();

    let drain = tokio::spawn(server.drain(Duration::from_millis(800)));
    let refused = async {
        loop {
            match client.call(Call::new(format!("{address}/{PATH}"), Bytes::new())).await {
                // The drain has not begun yet; that answer is left.
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        }
    };
    let error = soon("a refusal", refused).await;
    assert!(matches!(error.cause(), Cause::Refused { kind: Refusal::Unavailable, text } if text.contains("shutting down")), "{error}");
    go.cancel();
    assert_eq!(soon("the rest", finishing.next()).await.unwrap().unwrap(), text("second"));
    assert!(soon("the end", finishing.next()).await.is_none());

    assert_eq!(soon("the drain", drain).await.unwrap(), 1);
    soon("the cut handler is gone", watched.dropped.recv()).await.unwrap();
    let error = soon("the cut", cut.next()).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::Truncated(_)), "{error}");
    let error = client.call(Call::new(format!("{address}/{PATH}"), Bytes::new())).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_) | Cause::Broken(_)), "{error}");
}

#[tokio::test]
async fn dropping_a_server_ends_everything_at_once() {
    let server = server(ServerOptions::default()).await;
    let (handler, mut watched) = endless(1);
    let handled = server.handle(PATH, handler).unwrap();
    let client = client().await;
    let mut responses = client.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    responses.next().await.unwrap().unwrap();
    drop(server);
    soon("the stream is dropped", watched.dropped.recv()).await.unwrap();
    let error = soon("an end", responses.next()).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::Truncated(_)), "{error}");
    drop(handled);
    until("its connections are gone", || client.counters().connections == 0).await;
}

#[tokio::test]
async fn a_stopped_client_fails_calls_that_wait_and_lets_answers_be_read() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, answering(|_| Ok(one(text("late"))))).unwrap();
    let client = client().await;
    let mut reading = client.call(Call::new(at(&server), Bytes::new())).await.unwrap();
    // One that is acknowledged and never called back.
    let worker = crate::support::Scripted::new().await;
    let waiting = tokio::spawn({
        let (client, call) = (client.clone(), Call::new(worker.at(), Bytes::new()));
        async move { client.call(call).await }
    });
    let mut asked = worker.asked().await;
    asked.accept().await;
    soon("a stop", client.stop()).await;
    let error = soon("the call that waits", waiting).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::Stopped), "{error}");
    assert_eq!(reading.next().await.unwrap().unwrap(), text("late"));
    let error = client.call(Call::new(at(&server), Bytes::new())).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Stopped), "{error}");
    assert_eq!(rest(&mut asked.connection).await, b"");
}

#[tokio::test]
async fn a_handler_that_panics_breaks_its_own_call_only() {
    let server = server(ServerOptions::default()).await;
    let _broken = server.handle(PATH, answering(|_| panic!("on purpose"))).unwrap();
    let _fine = server.handle("fine", crate::support::echo()).unwrap();
    let client = client().await;
    let error = client.call(Call::new(at(&server), Bytes::new())).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Truncated(_)), "{error}");
    let mut responses = client.call(Call::new(format!("{}/fine", server.address()), text("x"))).await.unwrap();
    assert_eq!(responses.next().await.unwrap().unwrap(), text("x"));
    assert!(responses.next().await.is_none());
    until("the broken call is over", || server.counters().running == 0).await;
}
