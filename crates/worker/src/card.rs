//! The least a model card must say so that routers can use the model.

use serde_json::{Value, json};
use wire::discovery::{EndpointId, Model, ModelCard};

/// A model as an endpoint serves it. What is not known is 0 or `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// The name clients use.
    pub name: String,
    /// Where tokenizer and template are: a folder on a disk that routers share.
    pub source_path: String,
    /// Tokens per block.
    pub kv_block_size: u32,
    /// Longest sequence, in tokens.
    pub context_length: u32,
    /// Blocks of one rank's cache.
    pub total_kv_blocks: Option<u64>,
    /// Sequences one rank runs at once.
    pub max_num_seqs: Option<u64>,
    /// Tokens of one step of a rank.
    pub max_num_batched_tokens: Option<u64>,
    /// The first data-parallel rank.
    pub dp_start: u32,
    /// How many ranks.
    pub dp_size: u32,
    /// Whether its publishers answer recovery queries.
    pub enable_local_indexer: bool,
    /// An adapter's name, for a card of its own.
    pub adapter: Option<String>,
}

impl ModelSpec {
    /// A model with one rank, of which only name and block size are known.
    pub fn new(name: impl Into<String>, kv_block_size: u32) -> Self {
        Self {
            name: name.into(),
            source_path: String::new(),
            kv_block_size,
            context_length: 0,
            total_kv_blocks: None,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            dp_start: 0,
            dp_size: 1,
            enable_local_indexer: false,
            adapter: None,
        }
    }

    pub(crate) fn record(&self, id: EndpointId, instance_id: u64) -> Model {
        let suffix = self.adapter.as_deref().map(slug);
        Model { id, instance_id, suffix, card: ModelCard(self.card()) }
    }

    /// In 1.6.1's words and order.
    fn card(&self) -> Value {
        json!({
            "display_name": self.name,
            "slug": slug(&self.name),
            "source_path": self.source_path,
            "context_length": self.context_length,
            "kv_cache_block_size": self.kv_block_size,
            "migration_limit": 0,
            "model_type": "Chat | Completions",
            "model_input": "Tokens",
            "worker_type": "aggregated",
            "needs": [],
            "runtime_config": {
                "context_length": self.context_length,
                "total_kv_blocks": self.total_kv_blocks,
                "max_num_seqs": self.max_num_seqs,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "data_parallel_start_rank": self.dp_start,
                "data_parallel_size": self.dp_size,
                "enable_local_indexer": self.enable_local_indexer,
                "kv_event_publishing_enabled": true,
            },
        })
    }
}

/// A name as part of a key: what is neither letter, digit, `-` nor `_` becomes `_`.
fn slug(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_what_routing_reads() {
        let spec = ModelSpec { dp_size: 4, total_kv_blocks: Some(9), ..ModelSpec::new("Org/Tiny v1", 16) };
        let model = spec.record(EndpointId::new("dynamo", "backend", "generate"), 255);
        assert_eq!(model.key().as_str(), "v1/mdc/dynamo/backend/generate/ff");
        let card = &model.card;
        assert_eq!((card.display_name(), card.block_size(), card.ranks()), (Some("Org/Tiny v1"), Some(16), 4));
        assert_eq!((card.total_blocks(), card.model_input(), card.rank_start()), (Some(9), Some("Tokens"), 0));
        assert_eq!(card.0["slug"], "org_tiny_v1");
        let adapter = ModelSpec { adapter: Some("sql".into()), ..spec };
        let key = adapter.record(EndpointId::new("dynamo", "backend", "generate"), 255).key();
        assert_eq!(key.as_str(), "v1/mdc/dynamo/backend/generate/ff/sql");
    }
}
