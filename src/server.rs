//! The accept loop: HTTP/1.1 and h2c on one port, and a drain with a deadline.
//!
//! `axum::serve` offers neither a header time-out nor a drain that ends, so connections are served here.

use std::{io, net::SocketAddr, pin::pin, time::Duration};

use axum::{Router, body::Body};
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower_service::Service;
use tracing::{debug, warn};

/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The address of the client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Binds `host:port`. The error names both.
pub(crate) async fn bind(host: &str, port: u16, flag: &str) -> io::Result<TcpListener> {
    TcpListener::bind((host, port))
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {host}:{port}: {error}; choose another {flag}")))
}

/// Serves until `stop`, then lets running requests finish for at most `drain`.
/// Returns the number of connections that were still open at the deadline.
pub(crate) async fn serve(listener: TcpListener, app: Router, stop: CancellationToken, drain: Duration) -> usize {
    let connections = GracefulShutdown::new();
    let mut stopped = pin!(stop.cancelled());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => break,
        };
        match accepted {
            Ok((stream, peer)) => spawn_connection(stream, peer, &app, &connections),
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let open = connections.count();
    match tokio::time::timeout(drain, connections.shutdown()).await {
        Ok(()) => 0,
        Err(_) => open,
    }
}

fn spawn_connection(stream: TcpStream, peer: SocketAddr, app: &Router, connections: &GracefulShutdown) {
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
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(%peer, %error, "connection ended with an error");
        }
    });
}
