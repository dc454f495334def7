//! The accept loop: HTTP/1.1 and h2c on one port, bounded waits for clients, and a drain with a deadline.
//!
//! `axum::serve` offers neither time-outs nor a drain that ends, so connections are served here.

mod patience;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{BoxError, Router, body::Body};
use http::{Request, Version};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto::Builder,
        graceful::{GracefulConnection, GracefulShutdown},
    },
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;
use tracing::{debug, warn};

use patience::{Arriving, Leaving};
pub(crate) use patience::{Patience, Stalled};

/// A client's host that vanished is noticed after idle + retries x interval, while nothing is sent to it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// The same on HTTP/2, where a client may hold a connection without a request for as long as it answers.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(20);

/// Pause after a failed accept (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long answers that are cut off have for their last words.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The address of the client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Binds `host:port`. The error names both.
pub(crate) async fn bind(host: &str, port: u16, flag: &str) -> io::Result<TcpListener> {
    TcpListener::bind((host, port)).await.map_err(|error| {
        let mend = if error.kind() == io::ErrorKind::AddrInUse { flag } else { "--http-host" };
        io::Error::new(error.kind(), format!("cannot listen on {host}:{port}: {error}; choose another {mend}"))
    })
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
pub(crate) async fn serve(listener: TcpListener, app: Router, stop: CancellationToken, drain: Drain, patience: Patience) -> usize {
    let (connections, tasks) = (GracefulShutdown::new(), TaskTracker::new());
    let places = Arc::new(Semaphore::new(most_connections()));
    let mut troubles = Troubles::default();
    let mut stopped = pin!(stop.cancelled());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Ok(place) = places.clone().try_acquire_owned() else {
                    // Closed at once, so that descriptors are left for the connections to workers.
                    troubles.say("too many clients are connected");
                    continue;
                };
                troubles.over();
                settle(&stream, peer, patience);
                let client = Client { peer, patience, has_asked: Arc::default(), gone: CancellationToken::new() };
                let connection = connections.watch(connection(stream, &client, &app));
                tasks.spawn(async move {
                    let _place = place;
                    // Dropping the connection closes it, and ends what its requests had begun.
                    tokio::select! {
                        ended = connection => if let Err(error) = ended {
                            debug!(%peer, %error, "connection ended with an error");
                        },
                        () = client.given_up() => debug!(%peer, "connection closed: its client neither sends nor reads"),
                    }
                });
            }
            Err(error) => {
                troubles.say(&error.to_string());
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

/// Clients that may be connected at once: three quarters of the files that may be open, the rest is for workers.
fn most_connections() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    files.map_or(Semaphore::MAX_PERMITS, |files| usize::try_from(files / 4 * 3).unwrap_or(usize::MAX)).min(Semaphore::MAX_PERMITS)
}

/// Says in the log that clients are turned away: when it begins, not for each of them.
#[derive(Default)]
struct Troubles {
    turned_away: u64,
}

impl Troubles {
    fn say(&mut self, reason: &str) {
        if self.turned_away == 0 {
            warn!(reason, "clients are turned away");
        }
        self.turned_away += 1;
    }

    fn over(&mut self) {
        if self.turned_away > 0 {
            warn!(turned_away = self.turned_away, "clients are let in again");
            self.turned_away = 0;
        }
    }
}

/// What must be known of the client of one connection.
#[derive(Clone)]
struct Client {
    peer: SocketAddr,
    patience: Patience,
    /// Whether the head of a request has come.
    has_asked: Arc<AtomicBool>,
    /// Cancelled when it does not read, on HTTP/1: there the whole connection waits for it.
    gone: CancellationToken,
}

impl Client {
    /// Resolves when it is waited for no longer. Before the first head is there, hyper has no time-out: it still reads which
    /// version of HTTP it is.
    async fn given_up(&self) {
        let in_time = tokio::time::timeout(self.patience.head, self.gone.cancelled()).await;
        if in_time.is_err() && self.has_asked.load(Ordering::Relaxed) {
            self.gone.cancelled().await;
        }
    }
}

/// Options of an accepted socket. None of them decides whether it can be served.
fn settle(stream: &TcpStream, peer: SocketAddr, patience: Patience) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    let settled = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive));
    // Keepalive does not look at a connection with bytes under way; this does, also when the client's window is closed.
    #[cfg(target_os = "linux")]
    let settled = settled.and_then(|()| socket.set_tcp_user_timeout(Some(patience.reading)));
    if let Err(error) = settled {
        debug!(%peer, %error, "cannot set the options of a connection");
    }
}

fn connection(stream: TcpStream, client: &Client, app: &Router) -> impl GracefulConnection<Error = BoxError> + Send + 'static {
    let (client, patience, app) = (client.clone(), client.patience, app.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        client.has_asked.store(true, Ordering::Relaxed);
        let gone = if request.version() == Version::HTTP_2 { CancellationToken::new() } else { client.gone.clone() };
        let mut request = request.map(|body| Body::new(Arriving::new(body, patience.body)));
        request.extensions_mut().insert(Peer(client.peer));
        let answering = app.clone().call(request);
        async move { answering.await.map(|response| response.map(|body| Leaving::new(body, patience.reading, gone))) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience.head);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_WITHIN);
    builder.serve_connection(TokioIo::new(stream), service).into_owned()
}
