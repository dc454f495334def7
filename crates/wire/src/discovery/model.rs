//! A model card under its key.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Bucket, EndpointId, Key, ModelCard};

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
