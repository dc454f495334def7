//! One process on the planes: what its publishers and endpoints share.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use transport::{
    discovery::Discovery,
    health::PlaneHealth,
    nats::{Nats, NatsUrlError},
    plane::{PlaneKind, PlaneSocket},
    request::{Server, ServerCounters, ServerOptions},
};

use crate::{
    config::{RequestPlane, RuntimeConfig},
    names::{Component, Namespace},
};

/// How long requests are still taken after the records were withdrawn: routers hear of it within milliseconds, or at the next look
/// at a store that tells nobody.
const LINGER: Duration = Duration::from_millis(500);

/// A process on the planes. Cheap to clone; the planes end with [`Runtime::shutdown`], or with the last clone.
#[derive(Clone, Debug)]
pub struct Runtime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RuntimeConfig,
    handle: Handle,
    discovery: Discovery,
    nats: OnceLock<Nats>,
    instance_id: u64,
    /// Taken by the shutdown. Held for a registration or a look.
    server: Mutex<Option<Server>>,
    /// Whether an endpoint answers requests of clients, so that a drain lingers.
    serves_clients: AtomicBool,
}

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Discovery's.
    #[error(transparent)]
    Discovery(#[from] transport::discovery::OpenError),
    /// NATS's.
    #[error(transparent)]
    Nats(#[from] NatsUrlError),
    /// The request plane's port could not be had.
    #[error("request plane: cannot listen on {address}: {error}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        error: io::Error,
    },
    /// There are no planes any more.
    #[error("the runtime was shut down")]
    Down,
}

impl Runtime {
    /// Takes part from now on, on the current Tokio runtime. Neither discovery nor NATS need to be there.
    pub async fn start(config: RuntimeConfig) -> Result<Self, RuntimeError> {
        let discovery = Discovery::open(config.discovery.clone(), config.discovery_options.clone())?;
        let address = config.request_address();
        let options = ServerOptions { advertised_host: config.request_host.clone(), ..ServerOptions::default() };
        let server = Server::bind(&address, options).await.map_err(|error| RuntimeError::Listen { address, error })?;
        let nats = OnceLock::new();
        let server = match config.request_plane {
            RequestPlane::Tcp => server,
            RequestPlane::Nats => {
                let connected = Nats::connect(&config.nats_server, config.nats.clone())?;
                server.with_nats(nats.get_or_init(|| connected).clone())
            }
        };
        let instance_id = discovery.instance_id();
        let (server, handle) = (Mutex::new(Some(server)), Handle::current());
        let serves_clients = AtomicBool::new(false);
        Ok(Self(Arc::new(Inner { config, handle, discovery, nats, instance_id, server, serves_clients })))
    }

    /// A namespace.
    pub fn namespace(&self, name: impl Into<String>) -> Namespace {
        Namespace::new(self.clone(), name.into())
    }

    /// A component of the configured namespace.
    pub fn component(&self, name: impl Into<String>) -> Component {
        self.namespace(self.0.config.namespace.clone()).component(name)
    }

    /// This process in keys, records and events.
    pub fn instance_id(&self) -> u64 {
        self.0.instance_id
    }

    /// Where its records are kept.
    pub fn discovery(&self) -> &Discovery {
        &self.0.discovery
    }

    /// What carries the events it publishes.
    pub fn event_plane(&self) -> PlaneKind {
        self.0.config.event_plane
    }

    /// The connection to NATS, made by the first who asks.
    pub fn nats(&self) -> Result<Nats, RuntimeError> {
        if let Some(nats) = self.0.nats.get() {
            return Ok(nats.clone());
        }
        let _on = self.0.handle.enter();
        let made = Nats::connect(&self.0.config.nats_server, self.0.config.nats.clone())?;
        Ok(self.0.nats.get_or_init(|| made).clone())
    }

    /// Each plane in use and its state.
    pub fn health(&self) -> Vec<(&'static str, PlaneHealth)> {
        let nats = self.0.nats.get().map(|nats| ("nats", nats.health()));
        [("discovery", self.0.discovery.health())].into_iter().chain(nats).collect()
    }

    /// What came to the request plane and what became of it; `None` once it is closed.
    pub fn request_counters(&self) -> Option<ServerCounters> {
        self.with_server(Server::counters)
    }

    /// Withdraws every record, lets calls that run finish within this time, and closes the request plane. Where clients' requests are
    /// served, those that come in the first half second are still taken: their routers had not heard of the withdrawal.
    pub async fn shutdown(&self, within: Duration) {
        self.0.discovery.close().await;
        let linger = if self.0.serves_clients.load(Ordering::Relaxed) { LINGER.min(within) } else { Duration::ZERO };
        tokio::time::sleep(linger).await;
        let within = within.saturating_sub(linger);
        let server = self.0.server.lock().take();
        if let Some(server) = server {
            let cut = server.drain(within).await;
            if cut > 0 {
                tracing::warn!(calls = cut, "calls were cut at the end of the time they were given");
            }
        }
    }

    pub(crate) fn serves_clients(&self) {
        self.0.serves_clients.store(true, Ordering::Relaxed);
    }

    pub(crate) fn event_socket(&self) -> Result<PlaneSocket, RuntimeError> {
        Ok(match self.event_plane() {
            PlaneKind::Nats => PlaneSocket::Nats(self.nats()?),
            PlaneKind::Zmq => self.0.config.event_socket(),
        })
    }

    pub(crate) fn nats_server(&self) -> &str {
        &self.0.config.nats_server
    }

    /// The runtime it was started on.
    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// What the request plane says, while there is one.
    pub(crate) fn with_server<T>(&self, look: impl FnOnce(&Server) -> T) -> Option<T> {
        self.0.server.lock().as_ref().map(look)
    }
}
