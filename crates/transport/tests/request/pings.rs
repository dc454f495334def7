//! Whether a worker is there, asked without starting work.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use transport::request::{Call, Cause, Client, ClientOptions, ServerOptions};
use wire::discovery::{Endpoint, EndpointId, Transport};
use wire::request::{Ack, PROBE_PATH};

use crate::support::{SHORT, Scripted, client, echo, exactly, frame, rest, server, soon, text, until};

fn endpoint(address: &str) -> Endpoint {
    Endpoint::tcp(EndpointId::new("dynamo", "backend", "generate"), 0x1f, address)
}

async fn impatient() -> Client {
    Client::new(ClientOptions { ping_timeout: SHORT, ..ClientOptions::default() }).await.unwrap()
}

#[tokio::test]
async fn a_live_server_answers_and_starts_nothing() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle("1f/dynamo/backend/generate", echo()).unwrap();
    let client = client().await;
    for _ in 0..3 {
        soon("an answer", client.ping(&endpoint(&server.advertised_address()))).await.unwrap();
    }
    let counters = server.counters();
    assert_eq!((counters.calls, counters.pings, counters.refused_unknown), (0, 3, 0));
    assert_eq!((client.counters().pings, client.counters().pings_failed, client.counters().connections), (3, 0, 0));
    until("its connections are closed", || server.counters().connections == 0).await;
}

#[tokio::test]
async fn a_closed_port_is_told_at_once_even_while_an_older_connection_works() {
    let (client, worker) = (client().await, Scripted::new().await);
    // A call is under way on a connection that the client keeps.
    let call = client.call(Call::new(worker.at(), text("x")));
    let (responses, home) = tokio::join!(call, worker.answering());
    let address = worker.address().to_string();
    drop(worker);
    let error = soon("an error", client.ping(&endpoint(&address))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
    assert_eq!(error.peer(), format!("{address}/1f/dynamo/backend/generate"));
    assert_eq!(client.counters().pings_failed, 1);
    drop((responses, home));
}

#[tokio::test]
async fn silence_nonsense_and_a_hang_up_are_told_apart() {
    let (client, worker) = (impatient().await, Scripted::new().await);
    let there = endpoint(&worker.address().to_string());
    let (silent, connection) = tokio::join!(client.ping(&there), worker.accept());
    assert!(matches!(silent.unwrap_err().cause(), Cause::NoPong(SHORT)));
    drop(connection);
    let (left, ()) = tokio::join!(client.ping(&there), async { drop(worker.accept().await) });
    assert!(matches!(left.unwrap_err().cause(), Cause::Broken(_)));
    let nonsense = async {
        let mut connection = worker.accept().await;
        connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        rest(&mut connection).await
    };
    let (nonsense, _) = tokio::join!(client.ping(&there), nonsense);
    assert!(matches!(nonsense.unwrap_err().cause(), Cause::Malformed(_)));
}

#[tokio::test]
async fn a_ping_is_a_frame_for_a_path_that_nobody_serves() {
    let (client, worker) = (client().await, Scripted::new().await);
    let there = endpoint(&worker.address().to_string());
    let script = async {
        let mut connection = worker.accept().await;
        let expected = [&(PROBE_PATH.len() as u16).to_be_bytes()[..], PROBE_PATH.as_bytes(), b"\0\x02{}\0\0\0\0"].concat();
        assert_eq!(exactly(&mut connection, expected.len()).await, expected);
        // As the recorded worker refuses one.
        let refusal = format!("Server unavailable: unknown endpoint {PROBE_PATH}");
        connection.write_all(&Ack::Refused(refusal).encode()).await.unwrap();
        assert_eq!(rest(&mut connection).await, b"", "nothing more is said");
    };
    let (answered, ()) = tokio::join!(client.ping(&there), script);
    answered.unwrap();
}

#[tokio::test]
async fn a_full_server_answers_too() {
    let server = server(ServerOptions { max_connections: 1, max_running: 1, ..ServerOptions::default() }).await;
    let _handled = server.handle("1f/dynamo/backend/generate", echo()).unwrap();
    let mut one = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    one.write_all(&frame("1f/dynamo/backend/generate", "127.0.0.1:1", "x", b"")).await.unwrap();
    exactly(&mut one, 4).await;
    client().await.ping(&endpoint(&server.advertised_address())).await.unwrap();
}

#[tokio::test]
async fn other_transports_and_a_stopped_client_are_refused_without_a_try() {
    let client = client().await;
    let mut record = endpoint("127.0.0.1:1");
    record.transport = Transport::Other(serde_json::json!({"carrier": "pigeon"}));
    let error = client.ping(&record).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Way(_)), "{error}");
    assert_eq!(error.peer(), "dynamo/backend/generate/1f");
    assert!(Call::to(&record, Bytes::new()).is_none());
    client.stop().await;
    let error = client.ping(&endpoint("127.0.0.1:1")).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Stopped), "{error}");
}

#[tokio::test]
async fn a_host_that_does_not_answer_costs_the_pings_bound() {
    // An address of a network kept for documentation: nothing answers, or it is refused at once where there is no route.
    let client = impatient().await;
    let began = std::time::Instant::now();
    let error = soon("an error", client.ping(&endpoint("192.0.2.1:9"))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}
