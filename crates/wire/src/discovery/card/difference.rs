//! By what two cards of one model cannot be served together: a router prepares a request once and may send it to the workers of either.

use std::fmt;

use super::{CardFile, ModelCard, ModelType};

/// A difference between two cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub field: &'static str,
    /// What it is on the one.
    pub ours: String,
    /// What it is on the other.
    pub theirs: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} is {} on one and {} on the other", self.field, self.ours, self.theirs)
    }
}

type Field = (&'static str, fn(&ModelCard) -> Option<String>);

/// Compared in this order, where both cards say something. Files are the same by content, wherever they are.
const FIELDS: [Field; 8] = [
    ("model input", |card| card.model_input().map(str::to_owned)),
    ("tokenizer", |card| card.tokenizer_file().and_then(content)),
    ("tokenizer configuration", |card| card.tokenizer_config_file().and_then(content)),
    ("chat template", |card| card.chat_template_file().and_then(|template| content(template.file))),
    ("generation configuration", |card| card.generation_config_file().and_then(content)),
    ("context length", |card| card.context_length().map(|tokens| tokens.to_string())),
    ("block size", |card| card.block_size().map(|tokens| tokens.to_string())),
    ("tokens of speculation", |card| Some(if card.enable_eagle() { "EAGLE's" } else { "none" }.to_owned())),
];

/// Compared between workers that answer clients: a prefill worker's tokens are no answer.
const ANSWERING: [Field; 3] = [
    ("tool call parser", |card| Some(card.tool_call_parser().unwrap_or("none").to_owned())),
    ("reasoning parser", |card| Some(card.reasoning_parser().unwrap_or("none").to_owned())),
    ("kinds of requests", |card| {
        card.text(&["model_type"])?;
        let kinds = [ModelType::Chat, ModelType::Completions, ModelType::Embedding];
        Some(kinds.into_iter().filter(|kind| card.serves(*kind)).map(ModelType::name).collect::<Vec<_>>().join(" | "))
    }),
];

pub(super) fn between(ours: &ModelCard, theirs: &ModelCard) -> Option<Difference> {
    let answers = |card: &ModelCard| card.worker_type().is_some_and(|kind| kind.answers());
    let answering: &[Field] = if answers(ours) && answers(theirs) { &ANSWERING } else { &[] };
    FIELDS.iter().chain(answering).find_map(|(field, of)| {
        let (ours, theirs) = (of(ours)?, of(theirs)?);
        (ours != theirs).then_some(Difference { field, ours, theirs })
    })
}

/// A file by its content, if that is told.
fn content(file: CardFile<'_>) -> Option<String> {
    file.blake3.map(str::to_owned)
}
