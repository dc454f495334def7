//! etcd over https, which asks for our certificate too.

use std::{fs, path::PathBuf, sync::Arc};

use rustls::{RootCertStore, ServerConfig, crypto::ring, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use tempfile::TempDir;
use testkit::servers::Server;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use transport::discovery::{Backend, Discovery, EtcdConfig};

use crate::support::{Seen, eventually, key, open, value};

/// A certificate of its own making, with its files.
struct Identity {
    made: rcgen::CertifiedKey<rcgen::KeyPair>,
    folder: TempDir,
}

impl Identity {
    fn new(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("certificate.pem"), made.cert.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self { made, folder }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    fn files(&self) -> (PathBuf, PathBuf) {
        (self.certificate(), self.folder.path().join("key.pem"))
    }
}

/// Ends TLS before etcd, for clients that show this certificate; returns its URL.
async fn before(etcd: &Server, server: &Identity, client: &Identity) -> String {
    let provider = Arc::new(ring::default_provider());
    let mut clients = RootCertStore::empty();
    clients.add(client.made.cert.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider.clone()).build().unwrap();
    let key = PrivateKeyDer::try_from(server.made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_client_cert_verifier(verifier).with_single_cert(vec![server.made.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let port = etcd.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let (Ok(mut client), Ok(mut etcd)) = (acceptor.accept(stream).await, TcpStream::connect(("127.0.0.1", port)).await) else {
                    return;
                };
                let _ = tokio::io::copy_bidirectional(&mut client, &mut etcd).await;
            });
        }
    });
    url
}

fn at(url: &str, authority: &Identity, identity: Option<&Identity>) -> Discovery {
    let config = EtcdConfig {
        endpoints: vec![url.to_owned()],
        credentials: None,
        authorities: Some(authority.certificate()),
        identity: identity.map(Identity::files),
    };
    open(Backend::Etcd(config))
}

#[tokio::test]
async fn an_etcd_behind_tls_is_trusted_by_its_authority_and_trusts_our_certificate() {
    let etcd = Server::etcd();
    let (server, client, stranger) = (Identity::new("localhost"), Identity::new("us"), Identity::new("localhost"));
    let url = before(&etcd, &server, &client).await;
    let good = at(&url, &server, Some(&client));
    let mut seen = Seen::of(&good);
    let _registration = good.register(key("a1"), value("one"));
    seen.until("the key", |records| records.len() == 1).await;
    for bad in [at(&url, &stranger, Some(&client)), at(&url, &server, None), at(&url, &server, Some(&stranger))] {
        let _watch = Seen::of(&bad);
        eventually("stale", || !bad.health().is_fresh()).await;
    }
    assert!(good.health().is_fresh());
}
