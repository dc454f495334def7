//! The servers of tests do what tests ask of them.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use testkit::servers::Server;

fn post(server: &Server, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// `a` as the key.
const RANGE: &str = r#"{"key":"YQ=="}"#;

#[test]
fn etcd_keeps_its_data_over_a_kill_and_loses_it_when_wiped() {
    let mut etcd = Server::etcd();
    let port = etcd.port();
    post(&etcd, "/v3/kv/put", r#"{"key":"YQ==","value":"Yg=="}"#).unwrap();
    etcd.kill();
    assert!(post(&etcd, "/v3/kv/range", RANGE).is_err());
    etcd.restart();
    assert_eq!(etcd.port(), port);
    assert!(post(&etcd, "/v3/kv/range", RANGE).unwrap().contains("Yg=="));
    etcd.kill();
    etcd.wipe();
    etcd.restart();
    assert!(!post(&etcd, "/v3/kv/range", RANGE).unwrap().contains("Yg=="));
}

#[test]
fn a_frozen_server_accepts_and_stays_silent_until_it_is_thawed() {
    let nats = Server::nats();
    nats.freeze();
    let mut stream = TcpStream::connect(("127.0.0.1", nats.port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut start = [0; 4];
    assert!(stream.read_exact(&mut start).is_err());
    nats.thaw();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"INFO");
}

#[test]
fn a_dropped_server_is_gone() {
    let nats = Server::nats();
    let port = nats.port();
    drop(nats);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
