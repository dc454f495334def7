//! What token-level workers are asked and answer, as Dynamo 1.6.1's `generate` endpoints do: the body of a request, and the data of each
//! item of the answer.
//!
//! There is one form, MessagePack maps with field names, and JSON is the same values in the other spelling. Options that are not set are
//! written as nil where 1.6.1 writes them so and left out where it leaves them out, so that its own bytes come back as they were. Unknown
//! keys are ignored. What an engine hands over for another engine is a JSON value that nobody here looks into.
//!
//! Reading allocates in proportion to the bytes given: at most [`ALLOCATION_FACTOR`] times as many, and [`MAX_DEPTH`] bounds recursion.

mod hints;
mod json;
mod options;
mod output;
mod parts;
mod read;
mod request;
mod value;

pub use hints::{BootstrapInfo, PrefillResult, RoutingHints};
pub use options::{OutputOptions, SamplingOptions, StopConditions};
pub use output::{Annotated, EngineOutput};
pub use parts::{EngineUsage, FinishReason, StopReason, TopLogprob};
pub use request::GenerateRequest;

/// How deep a value may be nested that is passed through as it is. JSON's reader goes no deeper.
pub const MAX_DEPTH: usize = 100;

/// Reading a body allocates at most so many times its bytes, and 64 KiB.
pub const ALLOCATION_FACTOR: usize = 128;

/// Why a body is no request, or an item's data no output.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The bytes end inside a value, or are not MessagePack.
    #[error("it is not one complete messagepack value")]
    Broken,
    /// Not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A field is something else than its kind of value.
    #[error("{field} is {found}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is instead.
        found: &'static str,
    },
    /// A field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A finish reason not known here.
    #[error("finish_reason is \"{0}\", which is not known")]
    FinishReason(String),
}
