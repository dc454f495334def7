//! One publisher's numbered stream of KV events, folded into the index.
//!
//! [`Feed`] owns the cursor of one publisher's socket and the index writers of the ranks it speaks for. It decides what
//! each message is (the next one, a duplicate, a gap, the first of a restarted engine), what to ask the publisher's replay
//! service for, which events count, and how far each target's index can be trusted (rules 4 to 11). [`Leases`] are the
//! lanes that no event fills: what was predicted and what an answer confirmed.
//!
//! On the event plane the same is told by publishers that count for themselves: [`plane::PlaneFeed`] is who follows them.
//!
//! Everything here is synchronous: `now` is an argument, and a replay that is needed is a returned value. Sockets, time-outs
//! of single reads and reconnection are the caller's. The table of states is in this crate's README.

#![forbid(unsafe_code)]

mod backoff;
mod config;
mod demand;
mod feed;
mod fold;
mod fresh;
mod groups;
mod heeds;
mod held;
mod journal;
mod leases;
mod life;
mod observation;
pub mod plane;
pub mod publisher;
mod query;
mod rank;
mod recovery;
mod relay;
mod status;
mod trust;

pub use config::{FeedConfig, Limits, RankRange, ReplayMode};
pub use demand::Demand;
pub use feed::Feed;
pub use heeds::Heeds;
pub use leases::{Added, Leases};
pub use observation::Observation;
pub use query::{Replay, ReplayEnd};
pub use relay::{Relayed, unnamed_adapter};
pub use status::{Accuracy, Ignored, IgnoredCounts, RankStatus, Status, StreamStatus};
pub use trust::Trust;
