//! The engines of ours that are reached over HTTP.

use serde::{Deserialize, Serialize};

use super::{Bucket, EndpointId, Key};

/// A stock engine beside a sidecar, reached over OpenAI HTTP. A shape of ours in a bucket of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OpenAiDocument", into = "OpenAiDocument")]
pub struct OpenAiWorker {
    /// Names as an endpoint of 1.6.1 would have them: its events are published under these.
    pub id: EndpointId,
    /// The worker's id in events.
    pub instance_id: u64,
    /// Base URL of the engine's API, as seen from other hosts.
    pub url: String,
    /// The model it serves.
    pub model: String,
    /// Tokens per block, if the sidecar learned it.
    pub block_size: Option<u32>,
    /// The first data-parallel rank.
    pub dp_start: u32,
    /// How many ranks.
    pub dp_size: u32,
    /// Why nobody publishes events for it; `None`: somebody does, or will.
    pub no_events: Option<String>,
}

impl OpenAiWorker {
    /// `v1/openai_workers/<ns>/<component>/<endpoint>/<instance hex>`.
    pub fn key(&self) -> Key {
        Key::new(Bucket::OpenAiWorkers, &self.id.instance_path(self.instance_id))
    }
}

#[derive(Serialize, Deserialize)]
struct OpenAiDocument {
    namespace: String,
    component: String,
    endpoint: String,
    instance_id: u64,
    url: String,
    model: String,
    #[serde(default)]
    block_size: Option<u32>,
    #[serde(default)]
    dp_start: u32,
    #[serde(default = "one")]
    dp_size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    no_events: Option<String>,
}

fn one() -> u32 {
    1
}

impl From<OpenAiDocument> for OpenAiWorker {
    fn from(document: OpenAiDocument) -> Self {
        Self {
            id: EndpointId::new(document.namespace, document.component, document.endpoint),
            instance_id: document.instance_id,
            url: document.url,
            model: document.model,
            block_size: document.block_size,
            dp_start: document.dp_start,
            dp_size: document.dp_size,
            no_events: document.no_events,
        }
    }
}

impl From<OpenAiWorker> for OpenAiDocument {
    fn from(worker: OpenAiWorker) -> Self {
        Self {
            namespace: worker.id.namespace,
            component: worker.id.component,
            endpoint: worker.id.endpoint,
            instance_id: worker.instance_id,
            url: worker.url,
            model: worker.model,
            block_size: worker.block_size,
            dp_start: worker.dp_start,
            dp_size: worker.dp_size,
            no_events: worker.no_events,
        }
    }
}
