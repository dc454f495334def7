//! Model cards, and the engines of ours that are reached over HTTP.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Bucket, EndpointId, Key};

/// A model served by one instance of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Document", into = "Document")]
pub struct Model {
    /// The endpoint that serves it.
    pub id: EndpointId,
    /// The instance.
    pub instance_id: u64,
    /// What tells several models of one instance apart, such as an adapter's name.
    pub suffix: Option<String>,
    /// The card.
    pub card: ModelCard,
}

impl Model {
    /// `v1/mdc/<ns>/<component>/<endpoint>/<instance hex>[/<suffix>]`.
    pub fn key(&self) -> Key {
        let mut path = self.id.instance_path(self.instance_id);
        if let Some(suffix) = self.suffix.as_deref().filter(|suffix| !suffix.is_empty()) {
            path.push('/');
            path.push_str(suffix);
        }
        Key::new(Bucket::Mdc, &path)
    }
}

/// A model card: the JSON object as it is, and what routing needs of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCard(pub Value);

impl ModelCard {
    /// The name clients use.
    pub fn display_name(&self) -> Option<&str> {
        self.0.get("display_name")?.as_str()
    }

    /// Tokens per block, unless it is unknown or 0.
    pub fn block_size(&self) -> Option<u32> {
        self.number(&["kv_cache_block_size"]).filter(|size| *size > 0)
    }

    /// `Tokens` or `Text`.
    pub fn model_input(&self) -> Option<&str> {
        self.0.get("model_input")?.as_str()
    }

    /// How often a request may move to another worker.
    pub fn migration_limit(&self) -> u32 {
        self.number(&["migration_limit"]).unwrap_or(0)
    }

    /// Blocks of one rank's cache.
    pub fn total_blocks(&self) -> Option<u32> {
        self.number(&["runtime_config", "total_kv_blocks"])
    }

    /// The first data-parallel rank.
    pub fn rank_start(&self) -> u32 {
        self.number(&["runtime_config", "data_parallel_start_rank"]).unwrap_or(0)
    }

    /// How many ranks there are, at least one.
    pub fn ranks(&self) -> u32 {
        self.number(&["runtime_config", "data_parallel_size"]).unwrap_or(1).max(1)
    }

    fn number(&self, path: &[&str]) -> Option<u32> {
        let value = path.iter().try_fold(&self.0, |value, key| value.get(key))?;
        u32::try_from(value.as_u64()?).ok()
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    namespace: String,
    component: String,
    endpoint: String,
    instance_id: u64,
    card_json: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model_suffix: Option<String>,
}

impl From<Document> for Model {
    fn from(document: Document) -> Self {
        Self {
            id: EndpointId::new(document.namespace, document.component, document.endpoint),
            instance_id: document.instance_id,
            suffix: document.model_suffix,
            card: ModelCard(document.card_json),
        }
    }
}

impl From<Model> for Document {
    fn from(model: Model) -> Self {
        Self {
            namespace: model.id.namespace,
            component: model.id.component,
            endpoint: model.id.endpoint,
            instance_id: model.instance_id,
            card_json: model.card.0,
            model_suffix: model.suffix,
        }
    }
}

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
