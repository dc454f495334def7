//! A worker that dies between its acknowledgement and its call home. The connection it leaves tells, long before any time-out.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use transport::request::{Call, Cause, Client, ClientOptions};
use wire::request::{Ack, Prologue, Response};

use crate::support::{Asked, Scripted, client, finale, item, soon, text};

/// Far less than a call home is waited for.
const AT_ONCE: Duration = Duration::from_secs(2);

async fn call(client: &Client, worker: &Scripted) -> Result<transport::request::Responses, transport::request::CallError> {
    soon("an end", client.call(Call::new(worker.at(), Bytes::new()))).await
}

#[tokio::test]
async fn its_calls_fail_at_once_and_say_why() {
    let client = Client::new(ClientOptions { call_home_timeout: Duration::from_secs(60), ..ClientOptions::default() }).await.unwrap();
    let worker = Scripted::new().await;
    let began = Instant::now();
    let script = async {
        let mut asked = worker.asked().await;
        asked.accept().await;
        asked
    };
    let (error, ()) = tokio::join!(call(&client, &worker), async { drop(script.await) });
    let error = error.unwrap_err();
    assert!(matches!(error.cause(), Cause::Lost(_)), "{error}");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert_eq!((client.counters().lost, client.counters().failed, client.counters().awaited), (1, 1, 0));
}

#[tokio::test]
async fn all_that_wait_on_all_its_connections_fail_and_no_others() {
    let options = ClientOptions { call_home_timeout: Duration::from_secs(60), connections_per_worker: 3, ..ClientOptions::default() };
    let client = Client::new(options).await.unwrap();
    let (worker, other) = (Scripted::new().await, Scripted::new().await);
    let mut calls = JoinSet::new();
    for _ in 0..40 {
        let (client, address) = (client.clone(), worker.at());
        calls.spawn(async move { client.call(Call::new(address, Bytes::new())).await });
    }
    let stays = tokio::spawn({
        let (client, address) = (client.clone(), other.at());
        async move { client.call(Call::new(address, Bytes::new())).await }
    });
    let mut elsewhere = other.asked().await;
    elsewhere.accept().await;
    // Every request is read and acknowledged, whatever connections they come on.
    let mut connections = Vec::new();
    let mut acknowledged = 0;
    while acknowledged < 40 {
        let mut connection = worker.accept().await;
        let mut input = bytes::BytesMut::new();
        while let Ok(read) =
            tokio::time::timeout(Duration::from_millis(100), tokio::io::AsyncReadExt::read_buf(&mut connection, &mut input)).await
        {
            assert_ne!(read.unwrap(), 0);
            while wire::request::RequestFrame::take(&mut input, 1 << 20).unwrap().is_some() {
                connection.write_all(&Ack::Accepted.encode()).await.unwrap();
                acknowledged += 1;
            }
        }
        connections.push(connection);
    }
    assert_eq!(acknowledged, 40);
    let began = Instant::now();
    drop(connections);
    while let Some(done) = soon("an end", calls.join_next()).await {
        let error = done.unwrap().unwrap_err();
        assert!(matches!(error.cause(), Cause::Lost(_)), "{error}");
    }
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert!(!stays.is_finished());
    let mut home = elsewhere.call_home().await;
    home.write_all(&Prologue::default().encode().encode()).await.unwrap();
    soon("an answer", stays).await.unwrap().unwrap();
}

#[tokio::test]
async fn one_that_closes_in_good_order_may_still_call() {
    let (client, worker) = (client().await, Scripted::new().await);
    let script = async {
        let mut asked = worker.asked().await;
        asked.accept().await;
        let Asked { connection, control, frame, body } = asked;
        // It reads to our end of the connection, which it has closed on its side.
        drop(connection);
        let mut home = tokio::net::TcpStream::connect(&control.connection.address).await.unwrap();
        let answer = [
            crate::support::handshake(&control.connection.subject),
            Prologue::default().encode().encode(),
            item(&text("last")),
            finale(),
            Response::sentinel(),
        ];
        home.write_all(&answer.concat()).await.unwrap();
        drop((frame, body));
        home
    };
    let (responses, _home) = tokio::join!(call(&client, &worker), script);
    let mut responses = responses.unwrap();
    assert_eq!(responses.next().await.unwrap().unwrap(), text("last"));
    assert!(responses.next().await.is_none());
    assert_eq!((client.counters().lost, client.counters().completed), (0, 1));
}

#[tokio::test]
async fn an_answer_that_has_begun_is_not_touched() {
    let (client, worker) = (client().await, Scripted::new().await);
    let script = async {
        let mut asked = worker.asked().await;
        asked.accept().await;
        let mut home = asked.call_home().await;
        home.write_all(&Prologue::default().encode().encode()).await.unwrap();
        (asked, home)
    };
    let (responses, (asked, mut home)) = tokio::join!(call(&client, &worker), script);
    let mut responses = responses.unwrap();
    drop(asked);
    // Longer than a last call is waited for.
    tokio::time::sleep(Duration::from_millis(300)).await;
    home.write_all(&[item(&text("x")), finale(), Response::sentinel()].concat()).await.unwrap();
    assert_eq!(soon("an item", responses.next()).await.unwrap().unwrap(), text("x"));
    assert!(responses.next().await.is_none());
}

#[tokio::test]
async fn one_that_is_there_again_on_the_same_port_keeps_its_calls() {
    let options = ClientOptions { call_home_timeout: Duration::from_secs(60), ..ClientOptions::default() };
    let client = Client::new(options).await.unwrap();
    let worker = Scripted::new().await;
    let begin = || {
        let (client, address) = (client.clone(), worker.at());
        tokio::spawn(async move { client.call(Call::new(address, Bytes::new())).await })
    };
    let first = begin();
    let mut before = worker.asked().await;
    before.accept().await;
    drop(before);
    // The listener stands for the process that took the port; its connections are new.
    let second = begin();
    let mut after = worker.asked().await;
    after.accept().await;
    let error = soon("an end", first).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::Lost(_)), "{error}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished(), "the old connection's end is not the new one's");
    let mut home = after.call_home().await;
    home.write_all(&Prologue::default().encode().encode()).await.unwrap();
    soon("an answer", second).await.unwrap().unwrap();
    assert_eq!(client.counters().lost, 1);
}
