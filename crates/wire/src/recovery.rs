//! Recovery of what a subscriber missed: the [`Query`] for a range of events, and its [`Answer`].
//!
//! One query, one answer: the events from a number on, or a dump of the whole cache when they are no longer kept. 1.6.1 sends a dump as
//! one item however large it is: [`DumpReader`] hands its events on while the rest is still read. Between our own ends it comes in
//! pages: a query that says `pages` may be answered by several items of the same kind, each with `page` (from 0) and `last`, those of a
//! dump that lacks something with `lacking`. 1.6.1 ignores the key of the query and never writes those of the answer.

mod encode;
mod part;
mod query;
mod reader;
mod small;

use crate::router::RouterEvent;

pub use part::{AnswerError, Listing, MAX_ANSWER_BYTES, MAX_VALUE_BYTES, Part, Tail};
pub use query::{Query, QueryError};
pub use reader::DumpReader;

/// What a publisher answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The events asked for, all up to the newest, with their own numbers.
    Events {
        /// In order.
        events: Vec<RouterEvent>,
        /// The newest event there is.
        last_event_id: u64,
    },
    /// Events that rebuild the whole cache from nothing; their numbers mean nothing.
    TreeDump {
        /// Parents before children.
        events: Vec<RouterEvent>,
        /// The newest event that the dump has in it.
        last_event_id: u64,
        /// What is to be emptied first: `all`.
        reset_scope: String,
    },
    /// A dump was due and could not be made.
    TreeDumpFailed {
        /// The newest event there is.
        last_event_id: u64,
        /// Why.
        message: String,
    },
    /// The start is past the newest event.
    TooNew {
        /// As asked.
        requested_start: u64,
        /// As asked, or the newest event.
        requested_end: u64,
        /// The newest event there is.
        newest_available: u64,
    },
    /// The end is before the start.
    InvalidRange {
        /// As asked.
        start_id: u64,
        /// As asked.
        end_id: u64,
    },
    /// Anything else that went wrong, such as a query for another worker.
    Error(String),
    /// An answer not known here, by its name.
    Unknown(String),
}

/// One item of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The answer, or a page of it.
    pub answer: Answer,
    /// Which page, from 0.
    pub page: u32,
    /// Whether no page follows.
    pub last: bool,
    /// The publisher missed engine events, so its dump may lack blocks or hold stale ones. Ours; only sent to askers that take pages.
    pub lacking: bool,
}

impl From<Answer> for Item {
    /// The one and only page.
    fn from(answer: Answer) -> Self {
        Self { answer, page: 0, last: true, lacking: false }
    }
}
