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
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
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

/// Whose certificates an https worker may show.
#[derive(Debug, Clone, Default)]
pub enum Trust {
    /// Those signed by the system's authorities. Where the system has none, no https worker is trusted.
    #[default]
    System,
    /// Those signed by (or equal to) the certificates of this PEM text, and no others.
    Pem(Vec<u8>),
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
        let inner = HttpsConnectorBuilder::new().with_tls_config(tls(&options.trust)?).https_or_http().enable_http1().wrap_connector(tcp);
        Ok(Self { inner, within: options.connect })
    }
}

fn tls(trust: &Trust) -> Result<ClientConfig, OptionsError> {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| OptionsError::Tls(error.to_string()))
    };
    let config = match trust {
        Trust::System => match builder()?.with_native_roots() {
            Ok(config) => config,
            // A machine without authorities can still serve http workers.
            Err(_) => builder()?.with_root_certificates(RootCertStore::empty()),
        },
        Trust::Pem(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| OptionsError::Authorities(error.to_string()))?;
                roots.add(certificate).map_err(|error| OptionsError::Authorities(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(OptionsError::Authorities("no certificate in it".to_owned()));
            }
            builder()?.with_root_certificates(roots)
        }
    };
    Ok(config.with_no_client_auth())
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
