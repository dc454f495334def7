//! Makes connections: TCP and TLS within one time-out, and each connection knows how often it has answered.

use std::{
    error::Error as StdError,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::client::{Options, OptionsError};

/// The certificate authorities whose word is taken for an https worker. A system that has none is no error: http workers
/// need none.
#[derive(Debug, Clone, Default)]
pub enum Authorities {
    /// The system's.
    #[default]
    System,
    /// The system's, and beside them the certificates of this PEM text, which may be a worker's own.
    SystemAnd(Vec<u8>),
}

/// TCP keepalive: a host that vanished is noticed after idle + retries x interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// The connector of both pools.
#[derive(Clone)]
pub(crate) struct Dial {
    inner: HttpsConnector<HttpConnector>,
    within: Duration,
}

impl Dial {
    pub(crate) fn new(options: &Options) -> Result<Self, OptionsError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE_IDLE));
        tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        tcp.set_connect_timeout(Some(options.connect));
        let inner =
            HttpsConnectorBuilder::new().with_tls_config(tls(&options.authorities)?).https_or_http().enable_http1().wrap_connector(tcp);
        Ok(Self { inner, within: options.connect })
    }
}

fn tls(authorities: &Authorities) -> Result<ClientConfig, OptionsError> {
    // Single certificates of the system that cannot be read are left out, as they are by other clients.
    let roots = roots(rustls_native_certs::load_native_certs().certs, authorities)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| OptionsError::Tls(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn roots(system: Vec<CertificateDer<'static>>, authorities: &Authorities) -> Result<RootCertStore, OptionsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system);
    match authorities {
        Authorities::System => {}
        Authorities::SystemAnd(pem) => {
            let systems = roots.len();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| OptionsError::Authorities(error.to_string()))?;
                roots.add(certificate).map_err(|error| OptionsError::Authorities(error.to_string()))?;
            }
            if roots.len() == systems {
                return Err(OptionsError::Authorities("no certificate in it".to_owned()));
            }
        }
    }
    Ok(roots)
}

type BoxError = Box<dyn StdError + Send + Sync>;

impl Service<Uri> for Dial {
    type Response = Line;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Line, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.inner.call(uri);
        let within = self.within;
        Box::pin(async move {
            match tokio::time::timeout(within, connecting).await {
                Ok(stream) => Ok(Line { stream: stream?, answers: Answers::default() }),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {within:?}")).into()),
            }
        })
    }
}

/// Answers that came on one connection; shared with whoever uses it. A connection that has answered before may have
/// been closed by the worker's keep-alive limit at the moment it was used again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers(Arc<AtomicU32>);

impl Answers {
    pub(crate) fn count_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// One connection.
pub(crate) struct Line {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    answers: Answers,
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.answers.clone())
    }
}

impl Read for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> rcgen::Certificate {
        rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate").cert
    }

    #[test]
    fn authorities_of_a_file_are_trusted_beside_the_systems() {
        let (system, file) = (certificate("system"), certificate("file"));
        let both = roots(vec![system.der().clone()], &Authorities::SystemAnd(file.pem().into_bytes())).expect("roots");
        let alone = |certificate: &rcgen::Certificate| roots(vec![certificate.der().clone()], &Authorities::System).expect("roots");
        assert_eq!(both.roots, [alone(&system).roots, alone(&file).roots].concat());
        assert_ne!(both.roots[0], both.roots[1]);
    }

    #[test]
    fn a_system_without_authorities_is_no_error() {
        assert!(roots(Vec::new(), &Authorities::System).expect("roots").is_empty());
        let file = certificate("file").pem().into_bytes();
        assert_eq!(roots(Vec::new(), &Authorities::SystemAnd(file)).expect("roots").len(), 1);
    }
}
