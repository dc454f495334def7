//! Who may connect to the call-home listener without being awaited. None of them costs more than a place for a moment, and
//! none is in the way of a worker.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use transport::request::{Call, Client, ClientOptions};
use wire::request::{Prologue, Response, StreamType};

use crate::support::{SHORT, Scripted, client, finale, handshake, item, rest, soon, text, until};

const NOBODY: &str = "4461dade-896e-4ca7-9f2c-333e82405507";

async fn stranger(client: &Client, words: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(client.address()).await.unwrap();
    stream.write_all(words).await.unwrap();
    stream
}

/// A call goes through from beginning to end.
async fn call_goes_through(client: &Client) {
    let worker = Scripted::new().await;
    let (responses, mut home) = tokio::join!(client.call(Call::new(worker.at(), Bytes::new())), worker.answering());
    home.write_all(&[item(&text("here")), finale(), Response::sentinel()].concat()).await.unwrap();
    let mut responses = responses.unwrap();
    assert_eq!(soon("an item", responses.next()).await.unwrap().unwrap(), text("here"));
    assert!(soon("the end", responses.next()).await.is_none());
}

#[tokio::test]
async fn silent_strangers_are_closed_in_time() {
    let client = Client::new(ClientOptions { handshake_timeout: SHORT, ..ClientOptions::default() }).await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..20 {
        strangers.push(stranger(&client, b"").await);
    }
    // Half a handshake is as good as none.
    strangers.push(stranger(&client, &handshake(NOBODY)[..50]).await);
    for mut stranger in strangers {
        assert_eq!(rest(&mut stranger).await, b"");
    }
    until("all are counted", || client.counters().strangers == 21).await;
    assert_eq!(client.counters().newcomers, 0);
}

#[tokio::test]
async fn garbage_and_huge_lengths_are_closed_at_once() {
    let client = client().await;
    let lengths = |header: u64, body: u64| [header.to_be_bytes(), body.to_be_bytes(), [0; 8]].concat();
    let words: [Vec<u8>; 7] = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        lengths(1 << 40, 0),
        lengths(u64::MAX, 0),
        lengths(75, 1 << 40),
        [lengths(60_000, 0), vec![b' '; 5000]].concat(),
        [lengths(4, 0), b"{{{{".to_vec()].concat(),
        vec![0; 24],
    ];
    for words in &words {
        assert_eq!(rest(&mut stranger(&client, words).await).await, b"", "{words:?}");
    }
    until("all are counted", || client.counters().strangers == words.len() as u64).await;
    call_goes_through(&client).await;
}

#[tokio::test]
async fn unknown_used_and_abandoned_subjects_are_told_to_stop() {
    let client = client().await;
    for subject in [NOBODY, "", "4461DADE-896E-4CA7-9F2C-333E82405507", "../../etc"] {
        let mut stranger = stranger(&client, &handshake(subject)).await;
        let said = rest(&mut stranger).await;
        assert!(said.is_empty() || said.ends_with(b"\"kill\""), "{subject}: {said:?}");
        assert_eq!(said.is_empty(), subject != NOBODY, "{subject}");
    }
    // A subject is good for one connection.
    let worker = Scripted::new().await;
    let script = async {
        let mut asked = worker.asked().await;
        asked.accept().await;
        let mut first = asked.call_home().await;
        first.write_all(&Prologue::default().encode().encode()).await.unwrap();
        (asked, first)
    };
    let (responses, (asked, mut first)) = tokio::join!(client.call(Call::new(worker.at(), Bytes::new())), script);
    let mut responses = responses.unwrap();
    let mut second = asked.call_home().await;
    assert!(rest(&mut second).await.ends_with(b"\"kill\""));
    first.write_all(&item(&text("undisturbed"))).await.unwrap();
    assert_eq!(responses.next().await.unwrap().unwrap(), text("undisturbed"));
    // And for none once its call is given up.
    let call = tokio::time::timeout(SHORT, client.call(Call::new(worker.at(), Bytes::new())));
    let script = async {
        let mut asked = Asked::again(asked).await;
        asked.accept().await;
        asked
    };
    let (given_up, asked) = tokio::join!(call, script);
    given_up.unwrap_err();
    let mut late = asked.call_home().await;
    assert!(rest(&mut late).await.ends_with(b"\"kill\""));
}

use crate::support::Asked;

impl Asked {
    /// The next request on the same connection.
    async fn again(self) -> Self {
        Self::read(self.connection).await
    }
}

#[tokio::test]
async fn a_stream_of_the_wrong_kind_is_a_stranger() {
    let client = client().await;
    let words = wire::request::Handshake { subject: NOBODY.to_owned(), stream_type: StreamType::Request }.encode().encode();
    assert_eq!(rest(&mut stranger(&client, &words).await).await, b"");
}

#[tokio::test]
async fn a_flood_of_silent_strangers_is_not_in_the_way_of_workers() {
    let options = ClientOptions { max_newcomers: 8, handshake_timeout: Duration::from_secs(60), ..ClientOptions::default() };
    let client = Client::new(options).await.unwrap();
    let mut strangers = Vec::new();
    for turn in 0..100 {
        strangers.push(stranger(&client, b"").await);
        if turn % 25 == 0 {
            call_goes_through(&client).await;
        }
    }
    until("the oldest made room", || client.counters().newcomers <= 8 && client.counters().strangers >= 92).await;
    call_goes_through(&client).await;
    for mut stranger in strangers.drain(..92) {
        assert_eq!(rest(&mut stranger).await, b"");
    }
}
