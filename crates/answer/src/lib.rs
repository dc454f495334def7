//! What token-level engines say, as OpenAI answers.
//!
//! An [`Answer`] takes the [`wire::generate::EngineOutput`]s of one request's choices, from whichever workers, and appends to a
//! buffer what the client gets: SSE chunks, or one JSON body. On the way token ids become text (a character is never split),
//! stop strings and tokens end a choice, thoughts and calls of tools are taken out of the text, log-probabilities go with the
//! text they belong to, and every token is counted once.
//!
//! A [`Whole`] is one body made of the chunks of a worker that writes OpenAI's itself.
//!
//! No clock, no thread, no socket: the caller reads from the workers, moves a choice to another one when it has to
//! ([`Answer::delivered`]), and sends the bytes. Left out on purpose: choosing workers, time-outs, statuses of HTTP.

mod answer;
mod choice;
mod delta;
mod echo;
mod leg;
mod openai;
pub mod reasoning;
mod shape;
mod stop;
mod stream;
mod tally;
mod text;
pub mod tools;
mod whole;

pub use answer::Answer;
pub use delta::Delta;
pub use shape::{Echo, Fault, OpenAiError, Progress, Prompt, ResponseNvext, Shape, Stops, Timing, Usage, Workers};
pub use whole::Whole;
