//! NATS core, for the event plane and for requests: one shared connection that is lazy, retried for ever, and never waited for by anybody
//! who serves a request.
//!
//! The client crate buffers and drops in places of its own; the facts this module works around:
//! - while there is no connection its calls are accepted up to a limit and then block for ever, so every call here has a
//!   time-out and is only made while connected;
//! - it tells of lost connections through a small queue that itself overflows, so its state is also looked at once a second;
//! - that it dropped messages it tells without saying whose, so that is seen by the numbers of the publishers' messages;
//! - a subscription counts once the server has it, which a flush does not tell: `Link::confirmed` waits for an answer
//!   of the server to a question asked behind it.
//!
//! Left out on purpose: JetStream (1.6.1 uses none for either), and certificates that are not checked.

mod auth;
mod letter;
mod link;
mod monitor;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_nats::client::PublishErrorKind;
use async_nats::{Client, ServerAddr, Subject};
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::health::{HealthBoard, PlaneHealth};

pub use auth::NatsAuth;
pub(crate) use letter::{Letter, Unsent, headers};
use link::PAUSE;
pub(crate) use link::{Link, LinkState};

/// Where the server is unless told, as 1.6.1 has it.
pub const DEFAULT_URL: &str = "nats://localhost:4222";

/// Shown until the first attempt has come to something.
const CONNECTING: &str = "not connected yet";
/// What a connection may spend, and how it identifies itself.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Who we are.
    pub auth: NatsAuth,
    /// What the server's certificate is checked against, beside the system's roots.
    pub tls: NatsTls,
    /// Shown in the server's list of connections.
    pub name: String,
    /// The server is pinged when it was silent for this long (5 s); after two without an answer it is gone.
    pub ping_interval: Duration,
    /// Bound on one attempt to connect (5 s).
    pub connect_timeout: Duration,
    /// Bound on one call (2 s).
    pub call_timeout: Duration,
    /// First delay before connecting again (50 ms); it doubles, with jitter, up to `reconnect_max`.
    pub reconnect_min: Duration,
    /// Longest delay before connecting again (2 s). Tries never end.
    pub reconnect_max: Duration,
    /// Messages of one subject that may wait for its task (8192), each at most as large as the server allows (1 MiB unless
    /// it was told otherwise). Further ones are dropped; the next message of the same publisher shows that.
    pub subject_messages: usize,
}

/// Certificates, as PEM files. A server that demands TLS gets it in any case.
#[derive(Clone, Debug, Default)]
pub struct NatsTls {
    /// Additional certificate authority.
    pub authority: Option<PathBuf>,
    /// Our certificate and its key, for servers that ask for one.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            auth: NatsAuth::default(),
            tls: NatsTls::default(),
            name: "dynamo".to_owned(),
            ping_interval: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(2),
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
            subject_messages: 8192,
        }
    }
}

/// A text that names no NATS server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not a NATS server: {reason}; expected nats://host:port, several separated by commas")]
pub struct NatsUrlError {
    text: String,
    reason: String,
}

/// One connection, cheap to clone. It is closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Nats {
    shared: Arc<Shared>,
    _running: Arc<Running>,
}

#[derive(Debug)]
struct Running {
    _monitor: AbortOnDropHandle<()>,
    _stop: DropGuard,
}

struct Shared {
    /// The servers, without what is secret in their URLs.
    servers: String,
    options: NatsOptions,
    started: SystemTime,
    /// Logs each outage once.
    board: HealthBoard,
    link: watch::Sender<Connection>,
    reconnects: AtomicU64,
    /// Subscriptions that were taken as made.
    unconfirmed: AtomicU64,
}

/// The state of the connection.
#[derive(Clone, Debug)]
enum Connection {
    Down {
        reason: Arc<str>,
    },
    /// `epoch` differs from connection to connection.
    Up {
        client: Client,
        epoch: u64,
    },
}

/// Why a message will never be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refused {
    #[error("it is larger than the server allows")]
    TooLarge,
    #[error("its subject is not a valid NATS subject")]
    Subject,
}

impl Nats {
    /// A connection to one of the servers in `url`. Returns at once, also where there is no server, and tries for ever;
    /// must be called within a tokio runtime, which carries it.
    pub fn connect(url: &str, options: NatsOptions) -> Result<Self, NatsUrlError> {
        let servers = parse(url)?;
        let shown = servers.iter().map(shown).collect::<Vec<_>>().join(",");
        let shared = Arc::new(Shared {
            board: HealthBoard::new(format!("nats {shown}")),
            servers: shown,
            options,
            started: SystemTime::now(),
            link: watch::Sender::new(Connection::Down { reason: Arc::from(CONNECTING) }),
            reconnects: AtomicU64::new(0),
            unconfirmed: AtomicU64::new(0),
        });
        let stop = CancellationToken::new();
        let monitor = tokio::spawn(monitor::run(shared.clone(), servers, stop.clone()));
        let running = Running { _monitor: AbortOnDropHandle::new(monitor), _stop: stop.drop_guard() };
        Ok(Self { shared, _running: Arc::new(running) })
    }

    /// Whether a text names servers; none is dialled.
    pub fn check(url: &str) -> Result<(), NatsUrlError> {
        parse(url).map(drop)
    }

    /// Whether the connection is up, and since when and why it is not.
    pub fn health(&self) -> PlaneHealth {
        let health = self.shared.board.health();
        match &*self.shared.link.borrow() {
            Connection::Down { reason } if health.is_fresh() => {
                PlaneHealth { stale_since: Some(self.shared.started), reason: reason.to_string() }
            }
            Connection::Up { .. } | Connection::Down { .. } => health,
        }
    }

    /// The servers, as configured, without passwords.
    pub fn servers(&self) -> &str {
        &self.shared.servers
    }

    /// How often a connection was made again after one was lost.
    pub fn reconnects(&self) -> u64 {
        self.shared.reconnects.load(Ordering::Relaxed)
    }

    /// How often the server did not confirm that it has a subscription, so that its first messages may be lost unseen.
    pub fn unconfirmed(&self) -> u64 {
        self.shared.unconfirmed.load(Ordering::Relaxed)
    }

    /// Hands a message to the connection, waiting for one as long as it takes. `Ok` is no delivery: what was on its way when
    /// a connection broke is lost. Cancel-safe: a dropped call has sent nothing.
    pub(crate) async fn publish(&self, subject: &Subject, payload: &Bytes) -> Result<(), Refused> {
        let mut link = self.link();
        loop {
            let (client, _) = link.up().await;
            match timeout(self.shared.options.call_timeout, client.publish(subject.clone(), payload.clone())).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => match error.kind() {
                    PublishErrorKind::MaxPayloadExceeded => return Err(Refused::TooLarge),
                    PublishErrorKind::InvalidSubject => return Err(Refused::Subject),
                    PublishErrorKind::Send => sleep(PAUSE).await,
                },
                // The server takes nothing; the message stays with the caller's queue, which is bounded.
                Err(_) => {}
            }
        }
    }

    /// Gives a message to the connection within the bound on a call, or not at all: for one whose loss its receiver notices.
    pub(crate) async fn answer(&self, subject: Subject, payload: Bytes) {
        let client = match &*self.shared.link.borrow() {
            Connection::Up { client, .. } => client.clone(),
            Connection::Down { .. } => return,
        };
        // Whoever waits for it has a bound of his own.
        let _ = timeout(self.shared.options.call_timeout, client.publish(subject, payload)).await;
    }

    /// Waits until what was published before is with the kernel, or the connection is down.
    pub(crate) async fn flush(&self) {
        let client = match &*self.shared.link.borrow() {
            Connection::Up { client, .. } => client.clone(),
            Connection::Down { .. } => return,
        };
        // Best effort: whoever flushes is leaving.
        let _ = timeout(self.shared.options.call_timeout, client.flush()).await;
    }

    /// The state of the connection, to be followed.
    pub(crate) fn link(&self) -> Link {
        Link::of(&self.shared)
    }
}

fn parse(url: &str) -> Result<Vec<ServerAddr>, NatsUrlError> {
    let refuse = |reason: String| NatsUrlError { text: secretless(url), reason };
    let servers = url.split(',').map(str::trim).filter(|server| !server.is_empty());
    let servers: Vec<ServerAddr> =
        servers.map(str::parse).collect::<Result<_, std::io::Error>>().map_err(|error| refuse(error.to_string()))?;
    match servers.iter().find(|server| server.host().is_empty() || server.is_websocket()) {
        Some(_) => Err(refuse("a host is missing, or it is a web socket".to_owned())),
        None if servers.is_empty() => Err(refuse("it is empty".to_owned())),
        None => Ok(servers),
    }
}

fn shown(server: &ServerAddr) -> String {
    format!("{}://{}:{}", server.scheme(), server.host(), server.port())
}

/// The text without what stands before an `@`: it may be a password.
fn secretless(url: &str) -> String {
    let part = |server: &str| match server.rsplit_once('@') {
        Some((_, host)) => format!("...@{host}"),
        None => server.to_owned(),
    };
    url.split(',').map(part).collect::<Vec<_>>().join(",")
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("servers", &self.servers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_refused_with_a_reason_that_shows_no_password() {
        assert_eq!(parse("nats://a:1, b:2").unwrap().len(), 2);
        assert_eq!(shown(&parse("localhost").unwrap()[0]), "nats://localhost:4222");
        for text in ["", ",", "http://h:1", "nats://me:secret@:4222", "nats://h:99999", "ws://h:1"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("expected nats://host:port") && !error.contains("secret"), "{error}");
        }
    }
}
