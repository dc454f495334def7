//! Workers that discovery finds, and their events on the event plane: real etcd and NATS, or a folder and ZMQ.

mod digests;
mod events;
mod faults;
mod lossy;
mod membership;
mod publishing;
mod replicas;
mod sidecar;

use std::time::Duration;

use tempfile::TempDir;
use testkit::servers::Server;
use transport::discovery::{Backend, Discovery, EtcdConfig, Options, Registration};
use wire::discovery::{EndpointId, OpenAiWorker, Record};

use crate::support::frontend::Frontend;

/// How long a record outlives an owner that died.
pub(super) const TTL: Duration = Duration::from_secs(3);

/// Where the processes of one test meet.
pub(super) enum Place {
    /// A folder, and ZMQ for events.
    Folder(TempDir),
    /// etcd, and NATS for events.
    Servers { etcd: Box<Server>, nats: Option<Box<Server>> },
}

impl Place {
    pub(super) fn folder() -> Self {
        Self::Folder(tempfile::tempdir().unwrap())
    }

    /// Nothing here publishes events.
    pub(super) fn etcd() -> Self {
        Self::Servers { etcd: Box::new(Server::etcd()), nats: None }
    }

    pub(super) fn etcd_and_nats() -> Self {
        Self::Servers { etcd: Box::new(Server::etcd()), nats: Some(Box::new(Server::nats())) }
    }

    pub(super) fn etcd_server(&mut self) -> &mut Server {
        match self {
            Self::Servers { etcd, .. } => etcd,
            Self::Folder(_) => panic!("a folder is no server"),
        }
    }

    pub(super) fn nats_server(&mut self) -> &mut Server {
        match self {
            Self::Servers { nats: Some(nats), .. } => nats,
            Self::Servers { nats: None, .. } | Self::Folder(_) => panic!("there is no NATS here"),
        }
    }

    /// Flags of a process that takes part.
    pub(super) fn flags(&self) -> Vec<String> {
        let flag = |name: &str, value: String| [name.to_owned(), value];
        match self {
            Self::Folder(folder) => {
                let folder = folder.path().to_str().unwrap().to_owned();
                [flag("--discovery-backend", "file".to_owned()), flag("--file-kv", folder)].concat()
            }
            Self::Servers { etcd, nats } => {
                let mut flags = [flag("--discovery-backend", "etcd".to_owned()), flag("--etcd-endpoints", etcd.url())].concat();
                flags.extend(nats.iter().flat_map(|nats| flag("--nats-server", nats.url())));
                flags
            }
        }
    }

    /// A frontend that takes part.
    pub(super) fn frontend(&self, more: &[&str]) -> Frontend {
        let flags = self.flags();
        let args: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Frontend::start(&args)
    }

    pub(super) fn backend(&self) -> Backend {
        match self {
            Self::Folder(folder) => Backend::File { root: folder.path().to_owned() },
            Self::Servers { etcd, .. } => Backend::Etcd(EtcdConfig { endpoints: vec![etcd.url()], ..EtcdConfig::default() }),
        }
    }

    pub(super) fn nats_url(&self) -> Option<String> {
        match self {
            Self::Folder(_) => None,
            Self::Servers { nats, .. } => nats.as_ref().map(|nats| nats.url()),
        }
    }

    /// A process of its own that takes part.
    pub(super) fn discovery(&self) -> Discovery {
        Discovery::open(self.backend(), Options { ttl: Some(TTL), ..Options::default() }).unwrap()
    }
}

/// The endpoint of every worker here, in a namespace.
pub(super) fn endpoint(namespace: &str) -> EndpointId {
    EndpointId::new(namespace, "backend", "generate")
}

/// Puts a record in place.
pub(super) async fn announce(discovery: &Discovery, record: impl Into<Record>) -> Registration {
    let record = record.into();
    let registration = discovery.register(record.key(), record.to_json());
    registration.held().await.unwrap();
    registration
}

/// The record of an engine beside a sidecar.
pub(super) fn open_ai_worker(namespace: &str, instance_id: u64, url: &str) -> OpenAiWorker {
    let (url, model) = (url.to_owned(), "mock-model".to_owned());
    OpenAiWorker { id: endpoint(namespace), instance_id, url, model, block_size: Some(16), dp_start: 0, dp_size: 1, no_events: None }
}
