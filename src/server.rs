//! The accept loop: HTTP/1.1 and h2c on one port, and a drain with a deadline.
//!
//! `axum::serve` offers neither a header time-out nor a drain that ends, so connections are served here.

use std::{io, net::SocketAddr, pin::pin, time::Duration};

use axum::{BoxError, Router, body::Body};
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto::Builder,
        graceful::{GracefulConnection, GracefulShutdown},
    },
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;
use tracing::{debug, warn};

/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long answers that are cut off have for their last words.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The address of the client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Binds `host:port`. The error names both.
pub(crate) async fn bind(host: &str, port: u16, flag: &str) -> io::Result<TcpListener> {
    TcpListener::bind((host, port))
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {host}:{port}: {error}; choose another {flag}")))
}

/// How the server ends.
#[derive(Clone)]
pub(crate) struct Drain {
    /// Running requests may finish for so long.
    pub(crate) within: Duration,
    /// Cancelled then, so that answers which still run end in good form.
    pub(crate) cut: CancellationToken,
}

/// Serves until `stop`, then drains. Returns the number of connections that were still open at the deadline.
pub(crate) async fn serve(listener: TcpListener, app: Router, stop: CancellationToken, drain: Drain) -> usize {
    let (connections, tasks) = (GracefulShutdown::new(), TaskTracker::new());
    let mut stopped = pin!(stop.cancelled());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connections.watch(connection(stream, peer, &app));
                tasks.spawn(async move {
                    if let Err(error) = connection.await {
                        debug!(%peer, %error, "connection ended with an error");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let mut draining = pin!(connections.shutdown());
    if tokio::time::timeout(drain.within, &mut draining).await.is_ok() {
        return 0;
    }
    let open = tasks.len();
    drain.cut.cancel();
    // Whoever does not read is not waited for any longer.
    let _ = tokio::time::timeout(LAST_WORDS, draining).await;
    open
}

fn connection(stream: TcpStream, peer: SocketAddr, app: &Router) -> impl GracefulConnection<Error = BoxError> + Send + 'static {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "cannot set TCP_NODELAY");
    }
    let app = app.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        app.clone().call(request.map(Body::new))
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    builder.serve_connection(TokioIo::new(stream), service).into_owned()
}
