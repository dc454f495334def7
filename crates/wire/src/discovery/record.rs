//! One document, of whatever type.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Endpoint, EventChannel, EventSource, Key, Model, OpenAiWorker};

/// The largest document that is read, in bytes. A model card with its template is some tens of KiB.
pub const MAX_DOCUMENT_BYTES: usize = 4 << 20;

/// A record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Record {
    /// An endpoint that can be called.
    Endpoint(Endpoint),
    /// A model card.
    Model(Model),
    /// Where a topic is published.
    EventChannel(EventChannel),
    /// Whom a publisher speaks for.
    EventSource(EventSource),
    /// A stock engine beside a sidecar.
    OpenAiWorker(OpenAiWorker),
}

/// A document that is no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Too large to be one.
    #[error("a document of {0} bytes, expected at most {MAX_DOCUMENT_BYTES}")]
    TooLarge(usize),
    /// No JSON, or not the fields of its type.
    #[error("the document is no record: {0}")]
    Json(#[from] serde_json::Error),
}

impl Record {
    /// Where it is kept.
    pub fn key(&self) -> Key {
        match self {
            Self::Endpoint(endpoint) => endpoint.key(),
            Self::Model(model) => model.key(),
            Self::EventChannel(channel) => channel.key(),
            Self::EventSource(source) => source.key(),
            Self::OpenAiWorker(worker) => worker.key(),
        }
    }

    /// Compact JSON, as 1.6.1 writes it.
    pub fn to_json(&self) -> Bytes {
        // Every key is a string and every value one that JSON has, which are the only reasons to fail.
        Bytes::from(serde_json::to_vec(self).expect("a record is JSON"))
    }

    /// Reads a document. Unknown fields are ignored.
    pub fn from_json(document: &[u8]) -> Result<Self, RecordError> {
        if document.len() > MAX_DOCUMENT_BYTES {
            return Err(RecordError::TooLarge(document.len()));
        }
        Ok(serde_json::from_slice(document)?)
    }
}

macro_rules! record_of {
    ($($kind:ident),*) => {$(
        impl From<$kind> for Record {
            fn from(record: $kind) -> Self {
                Self::$kind(record)
            }
        }
    )*};
}

record_of!(Endpoint, Model, EventChannel, EventSource, OpenAiWorker);
