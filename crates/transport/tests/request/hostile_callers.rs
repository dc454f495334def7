//! Who may connect to a server without being a caller, and callers that lie.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use transport::request::{Call, Server, ServerOptions};

use crate::support::{PATH, SHORT, acknowledgement, at, client, echo, exactly, frame, rest, server, soon, text, until};

async fn connect(server: &Server, words: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(words).await.unwrap();
    stream
}

async fn call_goes_through(server: &Server) {
    let client = client().await;
    let mut responses = soon("an answer", client.call(Call::new(at(server), text("here")))).await.unwrap();
    assert_eq!(soon("an item", responses.next()).await.unwrap().unwrap(), text("here"));
}

/// A frame's head that claims a payload of this length.
fn claiming(path: &str, payload: u32) -> Vec<u8> {
    [&(path.len() as u16).to_be_bytes()[..], path.as_bytes(), &[0, 2], b"{}", &payload.to_be_bytes()].concat()
}

#[tokio::test]
async fn silent_connections_are_closed_in_time() {
    let server = server(ServerOptions { newcomer_timeout: SHORT, ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut strangers = Vec::new();
    for _ in 0..20 {
        strangers.push(connect(&server, b"").await);
    }
    strangers.push(connect(&server, &claiming("nobody", 1 << 30)).await);
    for stranger in &mut strangers {
        rest(stranger).await;
    }
    until("all are counted", || server.counters().closed_silent == 21).await;
    call_goes_through(&server).await;
}

#[tokio::test]
async fn garbage_is_closed_at_once() {
    let server = server(ServerOptions::default()).await;
    let words: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", &[0xff; 200], b"\x7f\x45\x4c\x46"];
    for words in words {
        assert_eq!(rest(&mut connect(&server, words).await).await, b"");
    }
    until("all are counted", || server.counters().closed_malformed == 4).await;
    // A head that is one, with headers that are none.
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut stranger = connect(&server, &claiming(PATH, 3)).await;
    stranger.write_all(b"xyz").await.unwrap();
    assert!(acknowledgement(&mut stranger).await.starts_with("Server unavailable: cannot read the request"));
}

#[tokio::test]
async fn a_flood_of_silent_connections_is_not_in_the_way_of_callers() {
    let server = server(ServerOptions { max_newcomers: 8, newcomer_timeout: Duration::from_secs(60), ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut strangers = Vec::new();
    for turn in 0..100 {
        strangers.push(connect(&server, b"").await);
        if turn % 25 == 0 {
            call_goes_through(&server).await;
        }
    }
    until("the oldest made room", || server.counters().closed_full >= 92).await;
    call_goes_through(&server).await;
}

#[tokio::test]
async fn requests_for_nobody_are_refused_before_their_payload_and_read_past() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut stranger = connect(&server, &claiming("no/body", 1_000_000)).await;
    assert_eq!(acknowledgement(&mut stranger).await, "Server unavailable: unknown endpoint no/body");
    stranger.write_all(&vec![7; 1_000_000]).await.unwrap();
    // The frame behind it is found in its place.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    stranger.write_all(&frame(PATH, &listener.local_addr().unwrap().to_string(), "s", &text("x"))).await.unwrap();
    assert_eq!(acknowledgement(&mut stranger).await, "");
    soon("a call home", listener.accept()).await.unwrap();
    assert_eq!(server.counters().refused_unknown, 1);
}

#[tokio::test]
async fn a_frame_that_claims_more_than_allowed_is_refused_by_its_head() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut stranger = connect(&server, &claiming(PATH, u32::MAX)).await;
    assert!(acknowledgement(&mut stranger).await.contains("the limit is 33554432"));
    assert_eq!(server.counters().refused_malformed, 1);
}

#[tokio::test]
async fn a_frame_that_does_not_come_to_its_end_is_closed_in_time() {
    let server = server(ServerOptions { frame_timeout: SHORT, ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut half = connect(&server, &claiming(PATH, 1000)).await;
    let mut idle = connect(&server, &frame(PATH, "127.0.0.1:1", "s", b"")).await;
    assert_eq!(acknowledgement(&mut idle).await, "");
    assert_eq!(rest(&mut half).await, b"");
    assert_eq!(server.counters().closed_silent, 1);
    // A connection that is only quiet stays.
    idle.write_all(&frame(PATH, "127.0.0.1:1", "s", b"")).await.unwrap();
    assert_eq!(acknowledgement(&mut idle).await, "");
}

#[tokio::test]
async fn frames_in_any_cut_are_acknowledged_in_turn() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let home = listener.local_addr().unwrap().to_string();
    let frames = [frame(PATH, &home, "a", b"1"), frame("nobody", &home, "b", b"2"), frame(PATH, &home, "c", &[3; 5000])].concat();
    for size in [1, 13, 4096, frames.len()] {
        let mut asker = connect(&server, b"").await;
        for piece in frames.chunks(size) {
            asker.write_all(piece).await.unwrap();
        }
        for expected in ["", "Server unavailable: unknown endpoint nobody", ""] {
            assert_eq!(acknowledgement(&mut asker).await, expected, "in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn callers_that_cannot_be_reached_cost_a_bounded_wait() {
    let server = server(ServerOptions { connect_timeout: SHORT, ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let mut asker = connect(&server, b"").await;
    for address in [&*closed, "", "nonsense", "127.0.0.1:99999", "[::"] {
        asker.write_all(&frame(PATH, address, "s", b"")).await.unwrap();
        assert_eq!(acknowledgement(&mut asker).await, "", "{address}");
    }
    until("all are given up", || server.counters().unreachable_callers == 5 && server.counters().running == 0).await;
}

#[tokio::test]
async fn control_headers_that_cannot_be_read_are_refused_in_the_acknowledgement() {
    use wire::request::{RequestFrame, TwoPart};
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut asker = connect(&server, b"").await;
    let good = frame(PATH, "127.0.0.1:1", "s", b"");
    let header = RequestFrame::take(&mut good[..].into(), 1 << 20).unwrap().unwrap().payload;
    let header = TwoPart::decode(&header).unwrap().header;
    let other = |from: &str, to: &str| String::from_utf8(header.to_vec()).unwrap().replace(from, to);
    let payloads = [
        Bytes::new(),
        Bytes::from_static(&[0xff; 40]),
        TwoPart::of_header("{").encode(),
        TwoPart::of_header(other("tcp_server", "carrier_pigeon")).encode(),
        TwoPart::of_header(other("single_in", "many_in")).encode(),
        TwoPart::of_header(other("\\\"stream_type\\\":\\\"response", "\\\"stream_type\\\":\\\"request")).encode(),
    ];
    for payload in payloads {
        let bytes = RequestFrame { path: PATH.to_owned(), headers: vec![], payload }.encode().unwrap();
        asker.write_all(&bytes).await.unwrap();
        let text = acknowledgement(&mut asker).await;
        assert!(text.starts_with("Server unavailable: cannot read the request"), "{text}");
    }
    assert_eq!(server.counters().refused_malformed, 6);
}

#[tokio::test]
async fn a_peer_that_takes_no_acknowledgements_is_closed_in_time() {
    let server = server(ServerOptions { frame_timeout: SHORT, ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut asker = connect(&server, &frame(PATH, "127.0.0.1:1", "s", b"")).await;
    exactly(&mut asker, 4).await;
    socket2::SockRef::from(&asker).set_recv_buffer_size(4096).unwrap();
    // Each is answered by more than it has.
    let questions = claiming("x", 0).repeat(10_000);
    let writer = tokio::spawn(async move { while asker.write_all(&questions).await.is_ok() {} });
    until("it is closed", || server.counters().closed_silent == 1).await;
    soon("the writer sees it", writer).await.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_bound_are_refused_with_the_reason() {
    let server = server(ServerOptions { max_connections: 2, ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut asker = connect(&server, &frame(PATH, "127.0.0.1:1", "s", b"")).await;
        assert_eq!(acknowledgement(&mut asker).await, "");
        kept.push(asker);
    }
    let mut third = connect(&server, &frame(PATH, "127.0.0.1:1", "s", b"")).await;
    assert_eq!(acknowledgement(&mut third).await, "Server overloaded: 2 connections");
    rest(&mut third).await;
    kept.pop();
    let again = async {
        loop {
            let mut asker = connect(&server, &frame(PATH, "127.0.0.1:1", "s", b"")).await;
            if acknowledgement(&mut asker).await.is_empty() {
                break;
            }
        }
    };
    soon("room for another", again).await;
}

#[tokio::test]
async fn connections_that_are_not_used_any_more_keep_nobody_out() {
    let server = server(ServerOptions { max_connections: 2, idle_timeout: SHORT, ..ServerOptions::default() }).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut asker = connect(&server, &frame(PATH, "127.0.0.1:1", "s", b"")).await;
        assert_eq!(acknowledgement(&mut asker).await, "");
        idle.push(asker);
    }
    for asker in &mut idle {
        assert_eq!(rest(asker).await, b"", "closed");
    }
    call_goes_through(&server).await;
    assert_eq!((server.counters().closed_silent, server.counters().refused_full), (2, 0));
}

/// On a single thread: it must come to serve others while one peer always has more to say.
#[tokio::test]
async fn a_peer_that_never_pauses_is_not_in_the_way_of_callers() {
    let server = server(ServerOptions::default()).await;
    let _handled = server.handle(PATH, echo()).unwrap();
    let address = server.address();
    // From a thread of its own, faster than it is read.
    let flood = tokio::task::spawn_blocking(move || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let mut acknowledgements = stream.try_clone().unwrap();
        std::thread::spawn(move || while matches!(acknowledgements.read(&mut [0; 65536]), Ok(1..)) {});
        let frames = claiming("x", 0).repeat(5000);
        while stream.write_all(&frames).is_ok() {}
    });
    until("the flood has begun", || server.counters().refused_unknown > 10_000).await;
    for _ in 0..20 {
        call_goes_through(&server).await;
    }
    drop(server);
    soon("the flood ends", flood).await.unwrap();
}
