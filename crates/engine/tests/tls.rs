//! https workers.

use std::sync::Arc;

use engine::{Authorities, BaseUrl, Class, Client, Failure, Options, OptionsError, Reply};
use http_body_util::BodyExt;
use rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
use tokio::{io::AsyncWriteExt, net::TcpListener};
use tokio_rustls::TlsAcceptor;

use crate::support::*;

/// An https worker with a certificate of its own making; returns its address and the certificate.
async fn https_worker() -> (BaseUrl, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a server");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accepts");
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                stream.write_all(plain("200 OK", "\"safe\"").as_bytes()).await.expect("writes");
                stream.shutdown().await.expect("closes");
            });
        }
    });
    (format!("https://localhost:{port}").parse().expect("an address"), made.cert.pem())
}

fn trusting(pem: &str) -> Result<Client, OptionsError> {
    Client::new(Options { authorities: Authorities::SystemAnd(pem.as_bytes().to_vec()), ..options() })
}

#[tokio::test]
async fn a_worker_with_a_trusted_certificate_answers() {
    let (url, pem) = https_worker().await;
    let Reply::Bytes(reply) = send(&trusting(&pem).expect("a client"), &url).await.expect("an answer");
    let body = reply.relay(()).2.collect().await.expect("whole").to_bytes();
    assert_eq!(&body[..], b"\"safe\"");
}

#[tokio::test]
async fn a_worker_with_another_certificate_fails_as_tls() {
    let (_, other) = https_worker().await;
    let (url, _) = https_worker().await;
    for client in [trusting(&other).expect("a client"), client()] {
        let error = send(&client, &url).await.map(drop).expect_err("not trusted");
        assert!(matches!(error.failure, Failure::Tls(_)), "{error}");
        assert_eq!(error.class(), Class::Unavailable);
    }
}

#[tokio::test]
async fn an_http_worker_asked_for_https_fails_as_tls() {
    let worker = Worker::start(|_, mut stream| async move {
        stream.write_all(plain("400 Bad Request", "{}").as_bytes()).await.expect("writes");
        read_to_end(&mut stream).await;
    })
    .await;
    let url = format!("https://localhost:{}", worker.url.port()).parse().expect("an address");
    let error = send(&client(), &url).await.map(drop).expect_err("no TLS there");
    assert!(matches!(error.failure, Failure::Tls(_)), "{error}");
}

#[tokio::test]
async fn a_server_that_never_shakes_hands_costs_the_connect_time_out() {
    let worker = Worker::start(|_, mut stream| async move {
        read_to_end(&mut stream).await;
    })
    .await;
    let url = format!("https://localhost:{}", worker.url.port()).parse().expect("an address");
    let client = Client::new(Options { connect: std::time::Duration::from_millis(200), ..options() }).expect("a client");
    let error = send(&client, &url).await.map(drop).expect_err("no handshake");
    assert!(matches!(&error.failure, Failure::Connect(text) if text.contains("200ms")), "{error}");
}

#[test]
fn certificates_that_cannot_be_read_are_named() {
    for pem in ["", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"] {
        let error = trusting(pem).map(drop).expect_err("unreadable").to_string();
        assert!(error.starts_with("the certificate authorities cannot be read"), "{error}");
    }
}
