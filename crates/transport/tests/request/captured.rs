//! What a real 1.6.1 frontend, a real 1.6.1 worker and an independent client said to each other, said again to our ends.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::Value;
use testkit::dynamo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use transport::request::{Call, Cause, Handler, Refusal, Request, ServerOptions};
use wire::request::{Codec, ControlHeader, RequestFrame, TwoPart, TypedError};

use crate::support::{Asked, Scripted, acknowledgement, answering, client, exactly, rest, server, soon};

/// One recorded exchange.
struct Exchange {
    request: Vec<u8>,
    ack: Vec<u8>,
    /// Everything the worker wrote on the connection it opened.
    answer: Vec<Vec<u8>>,
    /// What the asker wrote there.
    control: Vec<u8>,
}

impl Exchange {
    fn of(name: &str) -> Self {
        let lines = dynamo::exchange(name);
        let all = |kinds: &[&str]| -> Vec<Vec<u8>> {
            lines.iter().filter(|(kind, _)| kinds.contains(&&**kind)).map(|(_, bytes)| bytes.clone()).collect()
        };
        Self {
            request: all(&["request"]).concat(),
            ack: all(&["ack"]).concat(),
            answer: all(&["hs", "f"]),
            control: all(&["frontend_control"]).concat(),
        }
    }

    fn path(&self) -> String {
        let length = usize::from(u16::from_be_bytes([self.request[0], self.request[1]]));
        String::from_utf8(self.request[2..2 + length].to_vec()).unwrap()
    }

    /// The request with our listener in the place of the recorded one: the only difference, of the same length.
    fn request_for(&self, listener: &TcpListener) -> Vec<u8> {
        let ours = listener.local_addr().unwrap().to_string();
        let at = self.request.windows(10).position(|window| window == b"127.0.0.1:").unwrap();
        let recorded = at..at + "127.0.0.1:12345".len();
        assert_eq!(ours.len(), recorded.len(), "ports of test listeners have five digits, as the recorded ones");
        let mut request = self.request.clone();
        request[recorded].copy_from_slice(ours.as_bytes());
        request
    }

    /// The data of the recorded items, without what is put around each.
    fn items(&self) -> Vec<Bytes> {
        let mut items = Vec::new();
        for frame in &self.answer {
            let body = &frame[24..];
            if let Some(data) = body.strip_prefix(b"\x82\xa4data").and_then(|rest| rest.strip_suffix(b"\xaecomplete_final\xc2")) {
                items.push(Bytes::copy_from_slice(data));
            } else if let Some(data) = body.strip_prefix(b"{\"data\":").and_then(|rest| rest.strip_suffix(b",\"complete_final\":false}")) {
                items.push(Bytes::copy_from_slice(data));
            }
        }
        items
    }
}

/// A handler that yields these items, and ends or not.
fn yielding(items: Vec<Result<Bytes, TypedError>>, ends: bool) -> Arc<dyn Handler> {
    answering(move |_| {
        let items = futures_util::stream::iter(items.clone());
        Ok(match ends {
            true => items.boxed(),
            false => items.chain(futures_util::stream::pending()).boxed(),
        })
    })
}

/// Sends a recorded request to a server of ours; its acknowledgement, and the connection it opens if it does.
async fn replay(exchange: &Exchange, handler: Arc<dyn Handler>) -> (Vec<u8>, TcpStream) {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(&exchange.path(), handler).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut connection = TcpStream::connect(server.address()).await.unwrap();
    connection.write_all(&exchange.request_for(&listener)).await.unwrap();
    let ack = exactly(&mut connection, 4).await;
    let home = soon("a call home", listener.accept()).await.unwrap().0;
    // The server stays until its call is over.
    tokio::spawn(async move {
        let _kept = (_handled, connection);
        server.drain(std::time::Duration::from_secs(10)).await
    });
    (ack, home)
}

#[tokio::test]
async fn recorded_requests_are_answered_byte_for_byte_as_the_real_worker_did() {
    let names = [
        "reqplane_minimal_body",
        "reqplane_full_body",
        "reqplane_unknown_extra_key",
        "reqplane_json_codec",
        "worker_query_recovery_all",
        "worker_query_from_0",
        "worker_query_range_1_3",
        "worker_query_range_2_open",
        "worker_query_nokind",
        "worker_query_toonew",
        "worker_query_inverted",
        "worker_query_wrong_worker",
    ];
    for name in names {
        let exchange = Exchange::of(name);
        let items = exchange.items();
        assert!(!items.is_empty(), "{name}");
        let (ack, mut home) = replay(&exchange, yielding(items.into_iter().map(Ok).collect(), true)).await;
        assert_eq!(ack, exchange.ack, "{name}");
        let expected = exchange.answer.concat();
        assert_eq!(exactly(&mut home, expected.len()).await, expected, "{name}");
        // The worker waits for us to close, as the real one.
        drop(home);
    }
}

#[tokio::test]
async fn typed_errors_are_items_as_the_real_worker_wrote_them() {
    let no_max_tokens = TypedError {
        error_type: "InvalidArgument".into(),
        class: "InvalidRequest".into(),
        reason: "request.invalid_argument".into(),
        message: "max_output_tokens must be specified for mocker".into(),
        public: Some("`max_output_tokens` (or `max_tokens`) is required by the mocker worker".into()),
    };
    let out_of_bounds = "dp_rank 7 is out of bounds for dp_size 1";
    let bad_rank = TypedError { message: out_of_bounds.into(), public: Some(out_of_bounds.into()), ..no_max_tokens.clone() };
    for (name, error) in [("reqplane_no_max_tokens", no_max_tokens), ("reqplane_dp_rank_bad", bad_rank)] {
        let exchange = Exchange::of(name);
        let (_, mut home) = replay(&exchange, yielding(vec![Err(error)], true)).await;
        let expected = exchange.answer.concat();
        assert_eq!(exactly(&mut home, expected.len()).await, expected, "{name}");
    }
}

#[tokio::test]
async fn stop_and_kill_end_an_answer_without_its_closing_messages() {
    for name in ["reqplane_control_stop", "reqplane_control_kill"] {
        let exchange = Exchange::of(name);
        let items = exchange.items().into_iter().map(Ok).collect();
        let (_, mut home) = replay(&exchange, yielding(items, false)).await;
        let expected = exchange.answer.concat();
        assert_eq!(exactly(&mut home, expected.len()).await, expected, "{name}");
        home.write_all(&exchange.control).await.unwrap();
        assert_eq!(rest(&mut home).await, b"", "{name}");
    }
}

#[tokio::test]
async fn an_unknown_endpoint_is_refused_in_the_words_of_the_real_worker() {
    let exchange = Exchange::of("reqplane_unknown_endpoint");
    let server = server(ServerOptions::default()).await;
    let mut connection = TcpStream::connect(server.address()).await.unwrap();
    connection.write_all(&exchange.request).await.unwrap();
    assert_eq!(exactly(&mut connection, exchange.ack.len()).await, exchange.ack);
    assert_eq!(server.counters().refused_unknown, 1);
}

/// The real worker acknowledges these and falls silent. Ours says why, in the place where 1.6.1 looks for it; acknowledgement and
/// handshake are the same.
#[tokio::test]
async fn a_body_that_cannot_be_decoded_is_a_failed_prologue_and_not_silence() {
    for name in ["reqplane_garbage_body", "worker_query_empty", "worker_query_kind_live"] {
        let exchange = Exchange::of(name);
        assert!(exchange.answer.is_empty(), "{name}");
        let refuse = |_: Request| Err(TypedError { message: "cannot read the body".into(), ..TypedError::default() });
        let (ack, mut home) = replay(&exchange, answering(refuse)).await;
        assert_eq!(ack, exchange.ack);
        let handshake = exactly(&mut home, 24 + 75).await;
        assert!(handshake.ends_with(b"\",\"stream_type\":\"response\"}"), "{name}");
        let mut head = exactly(&mut home, 24).await;
        let header = exactly(&mut home, u64::from_be_bytes(head.drain(..8).collect::<Vec<_>>().try_into().unwrap()) as usize).await;
        let prologue: Value = serde_json::from_slice(&header).unwrap();
        assert_eq!(prologue["error"], "cannot read the body", "{name}");
    }
}

/// Answers of real workers, each with the data of its items as noted.
fn recorded_answers() -> Vec<(String, Vec<Vec<u8>>, Vec<Value>)> {
    let mut answers = Vec::new();
    for name in ["zmq1_response_plain", "zmq2_response_plain"] {
        for record in dynamo::records(name) {
            let frames = record["frames"].as_array().unwrap();
            let bytes = frames.iter().map(|frame| dynamo::bytes(frame["raw_hex"].as_str().unwrap())).collect();
            let noted = frames.iter().filter_map(|frame| frame["data_decoded"].get(1)?.get("data").cloned());
            answers.push((name.to_owned(), bytes, noted.collect()));
        }
    }
    answers
}

/// A worker that acknowledges and sends what a real one sent, with the subject of this call.
async fn play(worker: &Scripted, frames: &[Vec<u8>]) -> TcpStream {
    let mut asked = worker.asked().await;
    asked.accept().await;
    let mut home = TcpStream::connect(&asked.control.connection.address).await.unwrap();
    let mut bytes = frames.concat();
    let at = bytes.windows(11).position(|window| window == b"{\"subject\":").unwrap() + 12;
    bytes[at..at + 36].copy_from_slice(asked.control.connection.subject.as_bytes());
    home.write_all(&bytes).await.unwrap();
    home
}

#[tokio::test]
async fn recorded_answers_are_read_as_noted_and_closed_by_us() {
    let (client, worker) = (client().await, Scripted::new().await);
    let answers = recorded_answers();
    assert!(answers.len() > 4);
    for (name, frames, noted) in answers {
        let call = Call::new(worker.at(), Bytes::new());
        let (responses, mut home) = soon("an answer", async { tokio::join!(client.call(call), play(&worker, &frames)) }).await;
        let mut responses = responses.unwrap();
        for noted in &noted {
            let data = soon("an item", responses.next()).await.unwrap().unwrap();
            assert_eq!(&rmp_serde::from_slice::<Value>(&data).unwrap(), noted, "{name}");
        }
        assert!(soon("the end", responses.next()).await.is_none(), "{name}");
        assert_eq!(rest(&mut home).await, b"", "nothing is said to a worker that is done");
        assert!(responses.next().await.is_none(), "it stays over");
    }
}

#[tokio::test]
async fn a_recorded_error_item_is_a_typed_error_and_the_answer_ends_in_good_order() {
    let record = &dynamo::records("zmq1_response_stream_error")[0];
    let frames: Vec<_> =
        record["frames"].as_array().unwrap().iter().map(|frame| dynamo::bytes(frame["raw_hex"].as_str().unwrap())).collect();
    let (client, worker) = (client().await, Scripted::new().await);
    let (responses, _home) = tokio::join!(client.call(Call::new(worker.at(), Bytes::new())), play(&worker, &frames));
    let mut responses = responses.unwrap();
    let error = responses.next().await.unwrap().unwrap_err();
    assert_eq!(error.peer(), worker.at());
    let Cause::Item(error) = error.cause() else { panic!("{error}") };
    assert_eq!((&*error.error_type, &*error.class, &*error.reason), ("InvalidArgument", "InvalidRequest", "request.invalid_argument"));
    assert_eq!(error.message, "max_output_tokens must be specified for mocker");
    assert_eq!(error.public.as_deref(), Some("`max_output_tokens` (or `max_tokens`) is required by the mocker worker"));
    assert!(responses.next().await.is_none());
}

#[tokio::test]
async fn leaving_an_answer_says_to_the_worker_what_the_real_frontend_said() {
    let mut seen = 0;
    for name in ["zmq1_response_cancelled", "zmq2_response_cancelled"] {
        for record in dynamo::records(name) {
            let frames: Vec<_> =
                record["frames"].as_array().unwrap().iter().map(|frame| dynamo::bytes(frame["raw_hex"].as_str().unwrap())).collect();
            let (client, worker) = (client().await, Scripted::new().await);
            let (responses, mut home) = tokio::join!(client.call(Call::new(worker.at(), Bytes::new())), play(&worker, &frames[..3]));
            let mut responses = responses.unwrap();
            assert!(responses.next().await.unwrap().is_ok());
            drop(responses);
            assert_eq!(rest(&mut home).await, dynamo::bytes(record["reverse_hex"].as_str().unwrap()), "{name}");
            seen += 1;
        }
    }
    assert!(seen >= 4);
}

#[tokio::test]
async fn our_requests_differ_from_the_real_frontends_in_ids_address_and_time_only() {
    for name in ["zmq1_request_kvquery", "zmq1_request_generate", "zmq2_request_generate"] {
        for record in dynamo::records(name) {
            let bytes = dynamo::bytes(record["raw_hex"].as_str().unwrap());
            let recorded = RequestFrame::take(&mut bytes[..].into(), 1 << 20).unwrap().unwrap();
            let TwoPart { header, body } = TwoPart::decode(&recorded.payload).unwrap();
            let recorded_control = ControlHeader::decode(&header).unwrap();
            let (client, worker) = (client().await, Scripted::new().await);
            let address = format!("{}/{}", worker.address(), recorded.path);
            let call = client.call(Call::new(address, body.clone()).id(recorded_control.id.clone()));
            let Asked { frame, control, body: sent, .. } = tokio::select! {
                asked = worker.asked() => asked,
                result = call => panic!("{result:?}"),
            };
            assert_eq!((&frame.path, &sent), (&recorded.path, &body), "{name}");
            // The header, its ids and our address put in the place of the recorded ones.
            let header = String::from_utf8(header.to_vec()).unwrap();
            let expected = header
                .replace(&recorded_control.connection.subject, &control.connection.subject)
                .replace(&recorded_control.connection.address, client.address());
            assert_eq!(String::from_utf8(TwoPart::decode(&frame.payload).unwrap().header.to_vec()).unwrap(), expected, "{name}");
            // Header names come in any order: 1.6.1 writes a hash map.
            let names = |frame: &RequestFrame| {
                let mut names: Vec<_> =
                    frame.headers.iter().map(|(name, _)| name.clone()).filter(|name| !name.starts_with("trace")).collect();
                names.sort();
                names
            };
            assert_eq!(names(&frame), names(&recorded), "{name}");
            assert_eq!(frame.header("request-id"), recorded.header("request-id"));
            assert_eq!(frame.header("x-endpoint-path"), recorded.header("x-endpoint-path"));
        }
    }
}

#[tokio::test]
async fn the_recorded_refusal_is_a_typed_error() {
    let exchange = Exchange::of("reqplane_unknown_endpoint");
    let (client, worker) = (client().await, Scripted::new().await);
    let script = async {
        let mut asked = worker.asked().await;
        asked.connection.write_all(&exchange.ack).await.unwrap();
        asked
    };
    let (result, _) = tokio::join!(client.call(Call::new(worker.at(), Bytes::new())), script);
    let error = result.unwrap_err();
    let Cause::Refused { kind: Refusal::Unavailable, text } = error.cause() else { panic!("{error}") };
    assert_eq!(&**text, "Server unavailable: unknown endpoint 337a51820face8e4/dynamo/backend/nope");
}

#[tokio::test]
async fn json_and_msgpack_calls_reach_the_handler_and_come_back_in_their_codec() {
    let server = server(ServerOptions::default()).await;
    let codecs = answering(|request| {
        let name = match request.control.codec {
            Codec::Json => Bytes::from_static(b"\"json\""),
            Codec::Msgpack => crate::support::text("msgpack"),
        };
        let error = TypedError { message: "so".into(), reason: "why".into(), ..TypedError::default() };
        Ok(futures_util::stream::iter([Ok(name), Err(error)]).boxed())
    });
    let _handled = server.handle(crate::support::PATH, codecs).unwrap();
    let client = client().await;
    for (codec, expected) in [(Codec::Json, Bytes::from_static(b"\"json\"")), (Codec::Msgpack, crate::support::text("msgpack"))] {
        let mut responses = client.call(Call::new(crate::support::at(&server), Bytes::new()).codec(codec)).await.unwrap();
        assert_eq!(responses.next().await.unwrap().unwrap(), expected);
        let error = responses.next().await.unwrap().unwrap_err();
        assert!(matches!(error.cause(), Cause::Item(item) if item.message == "so" && item.reason == "why"), "{error}");
        assert!(responses.next().await.is_none());
    }
    let mut raw = TcpStream::connect(server.address()).await.unwrap();
    raw.write_all(&crate::support::frame("no/such/end/point", "127.0.0.1:1", "x", b"")).await.unwrap();
    assert!(acknowledgement(&mut raw).await.starts_with("Server unavailable:"));
}
