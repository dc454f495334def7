//! Model cards, as routers of 1.6.1 read them.

mod files;

use std::path::Path;

use serde_json::{Map, Value, json};
use wire::discovery::{EndpointId, Model, ModelCard, ModelType, WorkerType};

pub use files::{FilesError, ModelFiles};

/// What requests carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelInput {
    /// Token ids.
    #[default]
    Tokens,
    /// What the client sent: the worker has no files by which a router could prepare it.
    Text,
}

/// A model as an endpoint serves it. What is not known is 0 or `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name clients use. On an adapter's card it is the base model's, and clients use the adapter's.
    pub name: String,
    /// Where tokenizer and template are: a folder on a disk that routers share.
    pub source_path: String,
    /// The files there. Without them, a router of 1.6.1 cannot prepare requests.
    pub files: ModelFiles,
    /// What requests carry.
    pub input: ModelInput,
    /// What clients may ask for; nothing of a prefill worker.
    pub kinds: Vec<ModelType>,
    /// What part of a request the worker does.
    pub worker_type: WorkerType,
    /// Which workers it needs beside it: one of these lists. A prefill worker needs one that decodes, and the other way round.
    pub needs: Vec<Vec<WorkerType>>,
    /// Tokens per block.
    pub kv_block_size: u32,
    /// Longest sequence, in tokens.
    pub context_length: u32,
    /// How often a request may move to another worker once it has begun to answer.
    pub migration_limit: u32,
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
    /// Whether it publishes KV events.
    pub publishes_kv_events: bool,
    /// The parser of tool calls, by 1.6.1's name.
    pub tool_call_parser: Option<String>,
    /// The parser of reasoning.
    pub reasoning_parser: Option<String>,
    /// Host and port where a prefill worker's engine waits for those of decode workers.
    pub bootstrap: Option<(String, u16)>,
    /// What an engine adds for others of its kind.
    pub runtime_data: Map<String, Value>,
    /// An adapter's name, for a card of its own.
    pub adapter: Option<String>,
}

impl ModelInput {
    fn name(self) -> &'static str {
        match self {
            Self::Tokens => "Tokens",
            Self::Text => "Text",
        }
    }
}

impl ModelSpec {
    /// A model with one rank, of which only name and block size are known.
    pub fn new(name: impl Into<String>, kv_block_size: u32) -> Self {
        Self {
            name: name.into(),
            source_path: String::new(),
            files: ModelFiles::default(),
            input: ModelInput::Tokens,
            kinds: vec![ModelType::Chat, ModelType::Completions],
            worker_type: WorkerType::Aggregated,
            needs: Vec::new(),
            kv_block_size,
            context_length: 0,
            migration_limit: 0,
            total_kv_blocks: None,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            dp_start: 0,
            dp_size: 1,
            enable_local_indexer: false,
            publishes_kv_events: true,
            tool_call_parser: None,
            reasoning_parser: None,
            bootstrap: None,
            runtime_data: Map::new(),
            adapter: None,
        }
    }

    /// With the files of a model's folder, and the longest sequence they tell unless one is given. It reads and hashes them on this
    /// thread.
    pub fn in_folder(mut self, folder: &Path) -> Result<Self, FilesError> {
        self.files = ModelFiles::of_folder(folder)?;
        self.source_path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).to_string_lossy().into_owned();
        if self.context_length == 0 {
            self.context_length = self.files.context_length.unwrap_or(0);
        }
        Ok(self)
    }

    /// For a worker that does this part of requests, and needs those that do the other.
    pub fn of_type(mut self, worker_type: WorkerType) -> Self {
        self.worker_type = worker_type;
        self.needs = match worker_type {
            WorkerType::Aggregated | WorkerType::Encode => Vec::new(),
            WorkerType::Prefill => vec![vec![WorkerType::Decode]],
            WorkerType::Decode => vec![vec![WorkerType::Prefill]],
        };
        if !worker_type.answers() {
            self.kinds.clear();
        }
        self
    }

    pub(crate) fn record(&self, id: EndpointId, instance_id: u64) -> Model {
        let suffix = self.adapter.as_deref().map(slug);
        Model { id, instance_id, suffix, card: ModelCard(self.card()) }
    }

    /// In 1.6.1's words and order.
    fn card(&self) -> Value {
        let name = self.adapter.as_ref().unwrap_or(&self.name);
        let mut card = Map::new();
        let mut set = |key: &str, value: Value| drop(card.insert(key.to_owned(), value));
        set("display_name", json!(name));
        set("slug", json!(slug(name)));
        set("source_path", json!(self.source_path));
        for (key, file) in self.files.fields() {
            file.into_iter().for_each(|file| set(key, file));
        }
        if let Some(tokens) = self.files.context_length {
            set("architectural_max_context_length", json!(tokens));
        }
        set("context_length", json!(self.context_length));
        set("kv_cache_block_size", json!(self.kv_block_size));
        set("migration_limit", json!(self.migration_limit));
        let kinds: Vec<_> = self.kinds.iter().map(|kind| kind.name()).collect();
        set("model_type", json!(kinds.join(" | ")));
        set("model_input", json!(self.input.name()));
        set("worker_type", json!(self.worker_type.name()));
        let names = |list: &Vec<WorkerType>| list.iter().map(|kind| kind.name()).collect::<Vec<_>>();
        set("needs", json!(self.needs.iter().map(names).collect::<Vec<_>>()));
        if let Some(adapter) = &self.adapter {
            set("lora", json!({"name": adapter}));
        }
        set("runtime_config", self.runtime_config());
        set("media_decoder", Value::Null);
        set("media_fetcher", Value::Null);
        Value::Object(card)
    }

    fn runtime_config(&self) -> Value {
        let mut config = json!({
            "context_length": self.context_length,
            "total_kv_blocks": self.total_kv_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "tool_call_parser": self.tool_call_parser,
            "reasoning_parser": self.reasoning_parser,
            "tool_call_arguments_format": "json_string",
            "structural_tag_mode": "off",
            "structural_tag_scope": "auto",
            "structural_tag_schema": "auto",
            "exclude_tools_when_tool_choice_none": true,
            "data_parallel_start_rank": self.dp_start,
            "data_parallel_size": self.dp_size,
            "enable_local_indexer": self.enable_local_indexer,
            "kv_event_publishing_enabled": self.publishes_kv_events,
        });
        if !self.runtime_data.is_empty() {
            config["runtime_data"] = Value::Object(self.runtime_data.clone());
        }
        if let Some((host, port)) = &self.bootstrap {
            config["disaggregated_endpoint"] = json!({"bootstrap_host": host, "bootstrap_port": port});
        }
        config["enable_eagle"] = json!(false);
        config
    }
}

/// A name as part of a key: what is neither letter, digit, `-` nor `_` becomes `_`.
fn slug(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(kept).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use testkit::dynamo;
    use wire::discovery::Record;

    use super::*;

    /// The tests' model folder, which the recorded cards were made of.
    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-llama")
    }

    /// A recorded card, with the paths of this folder.
    fn recorded(file: &str, at: usize) -> Model {
        let models = dynamo::records(file);
        let texts = models.iter().map(|record| record["document"].as_str().unwrap()).filter(|text| text.contains("\"card_json\""));
        let here = folder().canonicalize().unwrap();
        let text = texts.clone().nth(at).unwrap().replace("/models/tiny-llama", here.to_str().unwrap());
        match Record::from_json(text.as_bytes()).unwrap() {
            Record::Model(model) => model,
            other => panic!("{other:?}"),
        }
    }

    fn written(spec: &ModelSpec, like: &Model) -> String {
        let model = spec.record(like.id.clone(), like.instance_id);
        String::from_utf8(Record::from(model).to_json().to_vec()).unwrap()
    }

    fn text(model: &Model) -> String {
        String::from_utf8(Record::from(model.clone()).to_json().to_vec()).unwrap()
    }

    /// As the real simulated worker describes itself.
    fn mocker() -> ModelSpec {
        let spec = ModelSpec {
            total_kv_blocks: Some(16_384),
            max_num_seqs: Some(256),
            max_num_batched_tokens: Some(8192),
            enable_local_indexer: true,
            runtime_data: json!({"output_replay_consumer": true}).as_object().unwrap().clone(),
            ..ModelSpec::new("tiny", 16).in_folder(&folder()).unwrap()
        };
        ModelSpec { context_length: 0, ..spec }
    }

    #[test]
    fn cards_are_a_real_workers_byte_for_byte() {
        let like = recorded("documents", 0);
        assert_eq!(written(&ModelSpec { total_kv_blocks: Some(4096), ..mocker() }, &like), text(&like));
        let like = recorded("cards", 0);
        let decode = ModelSpec { enable_local_indexer: false, publishes_kv_events: false, ..mocker().of_type(WorkerType::Decode) };
        assert_eq!(written(&decode, &like), text(&like));
        let like = recorded("cards", 1);
        let prefill = ModelSpec { bootstrap: Some(("127.0.0.1".to_owned(), 7788)), ..mocker().of_type(WorkerType::Prefill) };
        assert_eq!(written(&prefill, &like), text(&like));
    }

    #[test]
    fn an_adapter_has_a_card_of_its_own_under_the_same_instance() {
        let like = recorded("cards", 4);
        let adapter = ModelSpec { adapter: Some("sql/v1".to_owned()), ..mocker() };
        let model = adapter.record(like.id.clone(), like.instance_id);
        assert_eq!((model.key(), model.suffix.as_deref()), (like.key(), Some("sql_v1")));
        assert_eq!((model.card.display_name(), model.card.lora()), (Some("sql/v1"), like.card.lora()));
        assert_eq!(model.card.files(), like.card.files());
    }

    #[test]
    fn a_card_says_what_routing_reads() {
        let spec = ModelSpec { dp_size: 4, total_kv_blocks: Some(9), ..ModelSpec::new("Org/Tiny v1", 16) };
        let model = spec.record(EndpointId::new("dynamo", "backend", "generate"), 255);
        assert_eq!(model.key().as_str(), "v1/mdc/dynamo/backend/generate/ff");
        let card = &model.card;
        assert_eq!((card.display_name(), card.block_size(), card.ranks()), (Some("Org/Tiny v1"), Some(16), 4));
        assert_eq!((card.total_blocks(), card.model_input(), card.rank_start()), (Some(9), Some("Tokens"), 0));
        assert_eq!(card.slug(), Some("org_tiny_v1"));
        let text = ModelSpec { input: ModelInput::Text, ..spec }.record(model.id.clone(), 255);
        assert_eq!(text.card.model_input(), Some("Text"));
        assert_eq!(mocker().in_folder(&folder()).unwrap().context_length, 16_384, "by the model's own configuration");
    }

    #[test]
    fn a_folder_without_a_tokenizer_is_refused_by_name() {
        let refused = ModelSpec::new("x", 16).in_folder(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
        assert!(refused.to_string().ends_with("has no config.json, which routers need"), "{refused}");
    }
}
