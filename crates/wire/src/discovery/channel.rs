//! Event channels, where a topic is published, and event sources, whom a publisher speaks for.

use serde::{Deserialize, Serialize};

use super::{Bucket, Endpoint, EndpointId, Key, Scope, scope::encode_segment};

/// One publisher's channel for one topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventChannel {
    /// What the events are about.
    pub scope: Scope,
    /// The topic.
    pub topic: String,
    /// The publisher's id, called so in the documents.
    pub instance_id: u64,
    /// Where to subscribe.
    pub transport: ChannelTransport,
}

impl EventChannel {
    /// `v1/event_channels/<scope>/topic/<topic>/<publisher hex>`.
    pub fn key(&self) -> Key {
        Key::new(Bucket::EventChannels, &path(&self.scope, &self.topic, self.instance_id))
    }
}

/// Where a channel's messages come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", content = "config")]
pub enum ChannelTransport {
    /// NATS subjects that begin so; the topic follows.
    Nats {
        /// `namespace.<ns>.component.<c>.endpoint.<e>`.
        subject_prefix: String,
    },
    /// A PUB socket of the publisher's own.
    Zmq {
        /// `tcp://host:port`.
        endpoint: String,
    },
    /// Brokers between publishers and subscribers.
    ZmqBroker {
        /// Where publishers connect.
        xsub_endpoints: Vec<String>,
        /// Where subscribers connect.
        xpub_endpoints: Vec<String>,
    },
}

/// Which worker and rank a publisher of KV events speaks for, and who answers for what was missed. A record does not change while
/// its publisher lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SourceDocument", into = "SourceDocument")]
pub struct EventSource {
    /// What the events are about.
    pub scope: Scope,
    /// The topic.
    pub topic: String,
    /// The publisher.
    pub publisher_id: u64,
    /// The endpoint whose instances hold the blocks.
    pub kv_state_endpoint: EndpointId,
    /// The instance of it.
    pub worker_id: u64,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Who answers recovery queries; `None` for a publisher that is live only.
    pub recovery_target: Option<Endpoint>,
}

impl EventSource {
    /// `v1/event_sources/<scope>/topic/<topic>/<publisher hex>`.
    pub fn key(&self) -> Key {
        Key::new(Bucket::EventSources, &path(&self.scope, &self.topic, self.publisher_id))
    }
}

fn path(scope: &Scope, topic: &str, publisher_id: u64) -> String {
    format!("{}/topic/{}/{publisher_id:x}", scope.path(), encode_segment(topic))
}

#[derive(Serialize, Deserialize)]
struct SourceDocument {
    scope: Scope,
    topic: String,
    publisher_id: u64,
    metadata: Metadata,
}

#[derive(Serialize, Deserialize)]
struct Metadata {
    kv_state_endpoint: EndpointId,
    worker: Worker,
    publisher_id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recovery_target: Option<Endpoint>,
}

#[derive(Serialize, Deserialize)]
struct Worker {
    worker_id: u64,
    #[serde(default)]
    dp_rank: u32,
}

impl From<SourceDocument> for EventSource {
    fn from(document: SourceDocument) -> Self {
        let metadata = document.metadata;
        Self {
            scope: document.scope,
            topic: document.topic,
            publisher_id: document.publisher_id,
            kv_state_endpoint: metadata.kv_state_endpoint,
            worker_id: metadata.worker.worker_id,
            dp_rank: metadata.worker.dp_rank,
            recovery_target: metadata.recovery_target,
        }
    }
}

impl From<EventSource> for SourceDocument {
    fn from(source: EventSource) -> Self {
        Self {
            scope: source.scope,
            topic: source.topic,
            publisher_id: source.publisher_id,
            metadata: Metadata {
                kv_state_endpoint: source.kv_state_endpoint,
                worker: Worker { worker_id: source.worker_id, dp_rank: source.dp_rank },
                publisher_id: source.publisher_id,
                recovery_target: source.recovery_target,
            },
        }
    }
}
