//! What clients may ask of a model, and what part of it a worker does.

use std::fmt;

/// A surface of OpenAI's API, or 1.6.1's older mark of a prefill worker. A card names several, separated by ` | `.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelType {
    /// Chat completions.
    Chat,
    /// Completions.
    Completions,
    /// Embeddings.
    Embedding,
    /// No surface: the prefill of other workers' requests.
    Prefill,
}

/// What part of a request a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkerType {
    /// All of it.
    Aggregated,
    /// The prompt, which a decode worker goes on from.
    Prefill,
    /// The answer.
    Decode,
    /// Images and such, before the prompt.
    Encode,
}

impl ModelType {
    /// As in cards.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "Chat",
            Self::Completions => "Completions",
            Self::Embedding => "Embedding",
            Self::Prefill => "Prefill",
        }
    }
}

impl WorkerType {
    /// As in cards.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Encode => "encode",
        }
    }

    /// Whether its tokens are answers of clients.
    pub fn answers(self) -> bool {
        match self {
            Self::Aggregated | Self::Decode => true,
            Self::Prefill | Self::Encode => false,
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        [Self::Aggregated, Self::Prefill, Self::Decode, Self::Encode].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for WorkerType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
