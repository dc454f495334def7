//! The life of a bound PUB or ROUTER: one task that accepts and owns the tasks of its peers, and two ways to end:
//! `shutdown` lets queues drain until a deadline, dropping stops at once.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::listen::Acceptor;
use super::session::Peer;

#[derive(Debug)]
pub(crate) struct Server {
    endpoint: Endpoint,
    closing: CancellationToken,
    refused: Arc<AtomicU64>,
    /// Ends by itself after `closing`, and at its next await once `stop` is dropped.
    task: JoinHandle<Option<()>>,
    stop: DropGuard,
}

impl Server {
    /// Serves each connection with the future `serve` makes for it, at most `max_connections` at once. The future
    /// gets a token: once cancelled, it drains what is queued for its peer and ends.
    pub(crate) fn spawn<S, F>(acceptor: Acceptor, max_connections: usize, serve: S) -> Self
    where
        S: Fn(Connection, Peer, CancellationToken) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, closing) = (CancellationToken::new(), CancellationToken::new());
        let refused = Arc::new(AtomicU64::new(0));
        let endpoint = acceptor.endpoint().clone();
        let run = run(acceptor, max_connections, serve, closing.clone(), refused.clone());
        let task = tokio::spawn(stop.clone().run_until_cancelled_owned(run));
        Self { endpoint, closing, refused, task, stop: stop.drop_guard() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Connections closed because `max_connections` were open.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Accepts nobody any more, lets every peer's queue drain, and ends; after `within` whatever is left is dropped.
    pub(crate) async fn shutdown(mut self, within: Duration) {
        self.closing.cancel();
        if timeout(within, &mut self.task).await.is_err() {
            drop(self.stop);
            // A panic in it has been reported by the runtime; there is nothing left to undo.
            let _ = self.task.await;
        }
    }
}

async fn run<S, F>(mut acceptor: Acceptor, max_connections: usize, serve: S, closing: CancellationToken, refused: Arc<AtomicU64>)
where
    S: Fn(Connection, Peer, CancellationToken) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            (connection, peer) = acceptor.accept() => {
                if peers.len() < max_connections {
                    peers.spawn(serve(connection, peer, closing.clone()));
                } else {
                    refused.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(endpoint = %acceptor.endpoint(), max_connections, "too many connections, one refused");
                }
            }
            Some(ended) = peers.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(endpoint = %acceptor.endpoint(), %error, "the task of a connection failed");
                }
            }
            () = closing.cancelled() => break,
        }
    }
    drop(acceptor);
    while peers.join_next().await.is_some() {}
}
