//! The HTTP listener and its connections, with the faults of a dying process: refusing and cutting.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::config::ServeError;
use crate::faults::Switches;

/// Time between tries to take the port back after refusing.
const RELISTEN_EVERY: Duration = Duration::from_millis(20);
/// Pause after a failed accept, which usually means too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The server task.
pub(crate) struct Server {
    address: SocketAddr,
    /// Each asks for every connection to be cut; answered once they are.
    cuts: mpsc::Sender<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

struct Listening {
    address: SocketAddr,
    router: Router,
    /// `None` while refusing.
    listener: Option<TcpListener>,
    connections: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(
        address: SocketAddr,
        switches: Switches,
        stop: CancellationToken,
        router: Router,
    ) -> Result<Self, ServeError> {
        let refused = |error: std::io::Error| ServeError::Bind { what: "HTTP", endpoint: address.to_string(), reason: error.to_string() };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (cuts, cut) = mpsc::channel(1);
        let listening = Listening { address, router, listener: Some(listener), connections: JoinSet::new() };
        Ok(Self { address, cuts, task: tokio::spawn(listening.run(switches, cut, stop)) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection; new ones are accepted as before.
    pub(crate) async fn cut(&self) {
        let (done, cut) = oneshot::channel();
        if self.cuts.send(done).await.is_ok() {
            // The task answers, or it has ended and every connection with it.
            let _ = cut.await;
        }
    }

    /// Waits for the end of the task, which the token it was started with asks for.
    pub(crate) async fn join(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the HTTP server of a simulated engine failed");
        }
    }
}

impl Listening {
    async fn run(mut self, switches: Switches, mut cut: mpsc::Receiver<oneshot::Sender<()>>, stop: CancellationToken) {
        let mut faults = switches.watch();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // `switches` is held here, so the channel stays open.
                _ = faults.changed() => {
                    let refuse = faults.borrow_and_update().refuse;
                    if refuse {
                        self.listener = None;
                        self.connections.shutdown().await;
                    }
                }
                Some(done) = cut.recv() => {
                    self.connections.shutdown().await;
                    // Nobody waits any more if this fails.
                    let _ = done.send(());
                }
                accepted = accept(&mut self.listener, self.address, &switches) => self.serve(accepted),
                Some(_) = self.connections.join_next() => {}
            }
        }
        self.listener = None;
        self.connections.shutdown().await;
    }

    fn serve(&mut self, stream: TcpStream) {
        // Small writes of a stream must not wait for acknowledgements; without the option they are only slower.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(self.router.clone());
        self.connections.spawn(async move {
            let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
}

/// The next connection. Takes the port (back) first, once nobody wants it refused. Cancel-safe.
async fn accept(listener: &mut Option<TcpListener>, address: SocketAddr, switches: &Switches) -> TcpStream {
    loop {
        let Some(open) = listener else {
            switches.until(|faults| !faults.refuse).await;
            match TcpListener::bind(address).await {
                Ok(bound) => *listener = Some(bound),
                Err(_) => tokio::time::sleep(RELISTEN_EVERY).await,
            }
            continue;
        };
        match open.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
