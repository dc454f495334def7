//! What a stretch of generated text turns out to be.

/// A piece of an answer, in the order in which the client is to see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// What the model thought before it answered.
    Reasoning(String),
    /// What it answers.
    Content(String),
    /// A call of a tool, or more of one.
    ToolCall {
        /// Which call of this answer, from 0 in the order in which they began.
        index: u32,
        /// On the first piece of a call.
        id: Option<String>,
        /// The function, on the first piece of a call.
        name: Option<String>,
        /// More of the arguments: JSON text, to be appended to what came before.
        arguments: String,
    },
}
