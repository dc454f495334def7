//! Which target a request goes to, and what is booked on each.
//!
//! The caller lists [`Candidate`]s (what each target holds of the prompt, and why it may be out) and an [`Ask`] (prompts, kind of
//! answer). [`Scheduler::reserve`] chooses by the configured [`Mode`] and books in the same step; the [`Ticket`] it
//! returns frees the booking when dropped. No clock, no thread, no socket: `now` and `rng` are arguments.
//!
//! Left out on purpose: finding candidates (the index and the caller know them), sending, retrying (the caller reserves
//! again with [`Exclusion::AlreadyTried`]), and blocks of generated text: the ledger counts prompts.

mod ask;
mod blocks;
mod candidate;
mod config;
pub mod cost;
mod ledger;
mod pick;
mod prefill;
mod refusal;
mod scheduler;
mod ticket;

pub use ask::{Answer, Ask, Chain, Label, Prompt};
pub use candidate::{Candidate, Depths, Exclusion, Overlap};
pub use config::{BadWeight, Config, MAX_WEIGHT, Mode, UnknownMode};
pub use cost::Costed;
pub use ledger::Load;
pub use refusal::{NoWorker, Reasons};
pub use scheduler::{Counters, Preview, Scheduler};
pub use ticket::Ticket;
