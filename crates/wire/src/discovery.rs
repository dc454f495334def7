//! Dynamo 1.6.1's discovery: the keys and JSON documents that file store and etcd hold alike, and our one bucket beside.
//!
//! A [`Record`] is one document, and knows its [`Key`]. Ids are lower-case hex in keys and decimal numbers in documents, above
//! 2^53 where they are leases, so a reader must not take them through doubles. Fields 1.6.1 does not know are dropped by it, and
//! fields unknown here by us, except in a model card, which is kept whole.

mod card;
mod channel;
mod endpoint;
mod key;
mod model;
mod openai;
mod record;
pub(crate) mod scope;

pub use card::{
    BootstrapEndpoint, CardFile, ChatTemplateFile, Difference, FileRole, Lora, ModelCard, ModelType, TokenizerKind, WorkerType,
};
pub use channel::{ChannelTransport, EventChannel, EventSource};
pub use endpoint::{Endpoint, EndpointId, Transport};
pub use key::{Bucket, Key, KeyError};
pub use model::Model;
pub use openai::OpenAiWorker;
pub use record::{MAX_DOCUMENT_BYTES, Record, RecordError};
pub use scope::Scope;

/// Topics of the event plane.
pub mod topic {
    /// Lists of [`RouterEvent`](crate::router::RouterEvent)s.
    pub const KV_EVENTS: &str = "kv-events";
    /// [`ActiveLoad`](crate::load::ActiveLoad)s.
    pub const KV_METRICS: &str = "kv_metrics";
    /// [`ActiveSequenceEvent`](crate::load::ActiveSequenceEvent)s.
    pub const ACTIVE_SEQUENCES: &str = "active_sequences_events";
}

/// The name of the endpoint at which a publisher answers recovery queries.
pub fn recovery_endpoint_name(publisher_id: u64) -> String {
    format!("worker_kv_query_source_{publisher_id:x}")
}
