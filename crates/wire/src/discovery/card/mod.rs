//! Model cards: what an endpoint serves, and what is needed to prepare requests for it.
//!
//! A card is kept as the JSON object it is, so that nothing of it is lost, and read field by field. A field that is not of its kind counts
//! as one that is not there. 0 is 1.6.1's word for a number that is not known.

mod difference;
mod files;
mod kinds;
mod runtime;

use serde_json::Value;

pub use difference::Difference;
pub use files::{CardFile, ChatTemplateFile, FileRole, TokenizerKind};
pub use kinds::{ModelType, WorkerType};
pub use runtime::BootstrapEndpoint;

/// A model card: the JSON object as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCard(pub Value);

/// What makes a card an adapter's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lora<'a> {
    /// The adapter's name, by which clients ask for it. The base model's name is on the card without a suffix beside this one.
    pub name: &'a str,
    /// How many adapters the engine holds at once.
    pub max_gpu_lora_count: Option<u32>,
}

impl ModelCard {
    /// The name clients use.
    pub fn display_name(&self) -> Option<&str> {
        self.text(&["display_name"])
    }

    /// The name as part of a key.
    pub fn slug(&self) -> Option<&str> {
        self.text(&["slug"])
    }

    /// Other names clients may use.
    pub fn aliases(&self) -> Vec<&str> {
        let aliases = self.0.get("aliases").and_then(Value::as_array);
        aliases.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Where the model came from: a folder, or a name on a hub.
    pub fn source_path(&self) -> Option<&str> {
        self.text(&["source_path"])
    }

    /// Tokens that prompt and answer may have together.
    pub fn context_length(&self) -> Option<u32> {
        let told = [&["context_length"][..], &["runtime_config", "context_length"]];
        told.into_iter().find_map(|path| self.known(path))
    }

    /// The same by the model's own configuration, which an engine may hold to less.
    pub fn architectural_context_length(&self) -> Option<u32> {
        self.known(&["architectural_max_context_length"])
    }

    /// Tokens per block.
    pub fn block_size(&self) -> Option<u32> {
        self.known(&["kv_cache_block_size"])
    }

    /// How often a request may move to another worker.
    pub fn migration_limit(&self) -> u32 {
        self.number(&["migration_limit"]).unwrap_or(0)
    }

    /// `Tokens`, `Text` or `Tensor`.
    pub fn model_input(&self) -> Option<&str> {
        self.text(&["model_input"])
    }

    /// Whether clients may ask for this.
    pub fn serves(&self, kind: ModelType) -> bool {
        self.text(&["model_type"]).is_some_and(|kinds| kinds.split('|').any(|name| name.trim() == kind.name()))
    }

    /// What part of a request the worker does. Cards of older workers do not say; their kind does. `None`: a part not known here.
    pub fn worker_type(&self) -> Option<WorkerType> {
        match self.0.get("worker_type").filter(|named| !named.is_null()) {
            Some(named) => WorkerType::of_name(named.as_str()?),
            None if self.serves(ModelType::Prefill) => Some(WorkerType::Prefill),
            None => Some(WorkerType::Aggregated),
        }
    }

    /// Which workers it needs beside it: one of these lists, and all of that.
    pub fn needs(&self) -> Vec<Vec<WorkerType>> {
        let lists = self.0.get("needs").and_then(Value::as_array);
        let list = |list: &Value| list.as_array()?.iter().map(|name| WorkerType::of_name(name.as_str()?)).collect();
        lists.into_iter().flatten().filter_map(list).collect()
    }

    /// What makes it an adapter's card.
    pub fn lora(&self) -> Option<Lora<'_>> {
        let max_gpu_lora_count = self.number(&["lora", "max_gpu_lora_count"]);
        Some(Lora { name: self.text(&["lora", "name"])?, max_gpu_lora_count })
    }

    /// The first thing by which requests for this card and the other cannot be prepared alike.
    pub fn disagreement(&self, other: &Self) -> Option<Difference> {
        difference::between(self, other)
    }

    fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(&self.0, |value, key| value.get(key))
    }

    fn text(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.as_str().filter(|text| !text.is_empty())
    }

    fn number(&self, path: &[&str]) -> Option<u32> {
        u32::try_from(self.at(path)?.as_u64()?).ok()
    }

    fn known(&self, path: &[&str]) -> Option<u32> {
        self.number(path).filter(|number| *number > 0)
    }

    fn flag(&self, path: &[&str]) -> bool {
        self.at(path).and_then(Value::as_bool).unwrap_or_default()
    }
}
