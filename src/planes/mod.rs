//! Discovery and the event plane as one process takes part in them: made once at the start, told about in `/health`,
//! `/workers` and metrics, and gone at the end.
//!
//! Neither is a lifeline (rule 14): while one is away what it said last stays, marked stale. A change of that is logged once,
//! where it is noticed.

pub(crate) mod listeners;
mod metrics;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use transport::{
    discovery::{self, Discovery, EtcdConfig},
    follow::PlaneClient,
    health::PlaneHealth,
    hosts,
    nats::{Nats, NatsAuth, NatsOptions},
    plane::{PlaneKind, PlaneSocket, SubscriptionOptions, Subscriptions},
    request::{Client, ClientOptions},
    stream::Turns,
};

use crate::config::{
    Config,
    planes::{Backend, PlaneOptions},
};
pub(crate) use metrics::PlaneCollector;

/// How long a worker may take to say that it has a request. Its runtime says so, not its engine: one that does not is frozen, and the
/// request that found it is waiting for its first token.
const ACK_WITHIN: Duration = Duration::from_secs(3);

/// Most requests that run on token-level workers at once, and questions for missed events with them: each has a connection of
/// its own.
const MOST_CALLS: usize = 32_768;

/// The planes.
pub(crate) struct Planes {
    options: PlaneOptions,
    /// `None` where workers are listed and nothing else is looked for.
    discovery: Option<Discovery>,
    nats: SharedNats,
    /// Asks workers, of requests and of missed events alike, so that they call back to one port; `None` where workers are listed
    /// and nothing else is looked for.
    requests: Option<Client>,
    /// Where publishers are followed and asked; `None` where events are not listened to.
    client: Option<Arc<PlaneClient>>,
    events: Handle,
    records: AtomicUsize,
    pub(crate) loads: Arc<LoadCounters>,
}

/// What came of the loads that workers tell of.
#[derive(Debug, Default)]
pub(crate) struct LoadCounters {
    pub(crate) received: AtomicU64,
    pub(crate) unreadable: AtomicU64,
}

/// Whether anything that is published is of use here.
#[derive(Clone, Copy)]
enum Channels {
    Followed,
    Ignored,
}

impl Planes {
    /// Takes part, whether or not any server is there. Everything runs on `events`, but for the client of requests: what it
    /// carries are answers that people wait for, and it lives where it is made.
    pub(crate) async fn start(config: &Config, events: Handle) -> anyhow::Result<Arc<Self>> {
        let channels = if config.listens_to_events() || config.replica_sync { Channels::Followed } else { Channels::Ignored };
        let nats = SharedNats::new(&config.planes.nats_server, events.clone())?;
        let requests = match &config.planes.discovery {
            Backend::Mem => None,
            Backend::File { .. } | Backend::Etcd { .. } => Some(requests(&config.planes, nats.clone()).await?),
        };
        let (options, on) = (config.planes.clone(), events.clone());
        events.spawn(Self::make(options, (nats, requests), channels, on)).await.context("discovery cannot start")?
    }

    async fn make(
        options: PlaneOptions,
        (nats, requests): (SharedNats, Option<Client>),
        channels: Channels,
        events: Handle,
    ) -> anyhow::Result<Arc<Self>> {
        let discovery = match backend(&options.discovery) {
            Some(backend) => Some(Discovery::open(backend, discovery::Options::default())?),
            None => None,
        };
        let client = match (&requests, channels) {
            (Some(requests), Channels::Followed) => Some(Arc::new(client(requests.clone(), nats.clone()))),
            (Some(_), Channels::Ignored) | (None, _) => None,
        };
        Ok(Arc::new(Self { options, discovery, nats, requests, client, events, records: AtomicUsize::new(0), loads: Arc::default() }))
    }

    pub(crate) fn options(&self) -> &PlaneOptions {
        &self.options
    }

    pub(crate) fn discovery(&self) -> Option<&Discovery> {
        self.discovery.as_ref()
    }

    /// What sends requests to token-level workers, on the runtime of requests.
    pub(crate) fn requests(&self) -> Option<&Client> {
        self.requests.as_ref()
    }

    pub(crate) fn client(&self) -> Option<&Arc<PlaneClient>> {
        self.client.as_ref()
    }

    /// The runtime of everything that listens.
    pub(crate) fn events(&self) -> &Handle {
        &self.events
    }

    /// What this process publishes on.
    pub(crate) fn own_socket(&self) -> PlaneSocket {
        match self.options.event_plane {
            PlaneKind::Nats => PlaneSocket::Nats(self.nats.get()),
            PlaneKind::Zmq => PlaneSocket::zmq(self.options.event_host.as_deref()),
        }
    }

    /// Discovery has so many records.
    pub(crate) fn set_records(&self, records: usize) {
        self.records.store(records, Ordering::Relaxed);
    }

    /// The connection to NATS, if anything needs one.
    fn nats(&self) -> Option<&Nats> {
        self.nats.made.get()
    }

    /// Each plane's state for operators.
    pub(crate) fn show(&self) -> Value {
        let mut discovery = self.discovery.as_ref().map_or_else(|| json!({"state": "ok"}), |discovery| show(&discovery.health()));
        discovery["backend"] = json!(self.options.discovery.name());
        if self.discovery.is_some() {
            discovery["records"] = json!(self.records.load(Ordering::Relaxed));
        }
        let nats = self.nats().map_or_else(
            || json!({"state": "unused"}),
            |nats| {
                let mut shown = show(&nats.health());
                shown["server"] = json!(nats.servers());
                shown
            },
        );
        json!({"discovery": discovery, "nats": nats})
    }

    /// Leaves. What was followed is let go of before.
    pub(crate) async fn stop(&self) {
        if let Some(discovery) = &self.discovery {
            discovery.close().await;
        }
        if let Some(requests) = &self.requests {
            requests.stop().await;
        }
    }
}

fn show(health: &PlaneHealth) -> Value {
    match health.stale_since {
        None => json!({"state": "ok"}),
        Some(since) => json!({"state": "stale", "stale_since": unix_seconds(since), "reason": health.reason}),
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn backend(configured: &Backend) -> Option<discovery::Backend> {
    match configured {
        Backend::Mem => None,
        Backend::File { root } => Some(discovery::Backend::File { root: root.clone() }),
        Backend::Etcd { endpoints } => {
            // User, password and certificates.
            let etcd = EtcdConfig::from_variables(variable);
            Some(discovery::Backend::Etcd(EtcdConfig { endpoints: endpoints.clone(), ..etcd }))
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The one connection to NATS, made when the first channel or endpoint needs it.
#[derive(Clone)]
struct SharedNats {
    url: String,
    /// Where it lives, whoever needs it first: a flood of events must not delay a request.
    events: Handle,
    options: NatsOptions,
    made: Arc<OnceLock<Nats>>,
}

impl SharedNats {
    fn new(url: &str, events: Handle) -> anyhow::Result<Self> {
        let options = NatsOptions { auth: NatsAuth::from_lookup(variable), name: "dynamo-frontend".to_owned(), ..NatsOptions::default() };
        Nats::check(url).context("--nats-server")?;
        Ok(Self { url: url.to_owned(), events, options, made: Arc::default() })
    }

    fn get(&self) -> Nats {
        let _on = self.events.enter();
        // `new` has seen that the text names a server.
        let connect = || Nats::connect(&self.url, self.options.clone()).expect("a text that names a NATS server");
        self.made.get_or_init(connect).clone()
    }
}

async fn requests(options: &PlaneOptions, nats: SharedNats) -> anyhow::Result<Client> {
    let host = hosts::interface_for(options.response_host.as_deref());
    let bind = hosts::address(&host, 0);
    let calls = ClientOptions {
        bind,
        advertised_host: options.response_host.clone(),
        max_calls: MOST_CALLS,
        ack_timeout: ACK_WITHIN,
        ..ClientOptions::default()
    };
    let client = Client::with_nats(calls, move || nats.get()).await;
    client.with_context(|| format!("cannot listen for answers of workers on {host} (--tcp-response-stream-host)"))
}

fn client(requests: Client, nats: SharedNats) -> PlaneClient {
    let subscriptions = Subscriptions::new(move || nats.get(), SubscriptionOptions::default());
    PlaneClient { subscriptions, requests, turns: Turns::default() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use transport::request::Call;

    use super::*;
    use crate::config::cli::Cli;

    #[tokio::test]
    async fn nothing_is_asked_and_nobody_is_waited_for_after_the_stop() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let args = ["dynamo-frontend", "--router-mode", "kv", "--discovery-backend", "file", "--file-kv", root];
        let config = Config::from_args(Cli::try_parse_from(args).unwrap().serve).unwrap();
        let planes = Planes::start(&config, Handle::current()).await.unwrap();
        planes.stop().await;
        let client = planes.client().unwrap();
        let refused = client.requests.call(Call::new("127.0.0.1:1/recovery", bytes::Bytes::new())).await.err().unwrap();
        assert!(refused.to_string().contains("stopped"), "{refused}");
    }

    #[tokio::test]
    async fn a_text_that_names_no_nats_server_is_found_at_the_start() {
        assert!(SharedNats::new("nats://127.0.0.1:4222", Handle::current()).is_ok());
        assert!(SharedNats::new("nats://:no:port", Handle::current()).is_err());
    }
}
