//! Why an event cannot be used.

use std::fmt;

/// One event that cannot be used; its neighbours can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterEventError {
    /// The event's number, if at least that can be read: a consumer then knows that nothing was lost on the way.
    pub event_id: Option<u64>,
    /// What is wrong with it.
    pub fault: RouterFault,
}

impl fmt::Display for RouterEventError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event_id {
            Some(id) => write!(out, "event {id}: {}", self.fault),
            None => write!(out, "an event without a number: {}", self.fault),
        }
    }
}

impl std::error::Error for RouterEventError {}

/// What makes an event unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterFault {
    /// A field the event cannot do without is not there.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// A field holds something else than its kind of value.
    #[error("its {field} is or has {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it holds.
        found: &'static str,
    },
    /// A storage tier not known here.
    #[error("its storage tier is unknown: {0}")]
    Tier(String),
    /// A change not known here.
    #[error("its data is of an unknown kind: {0}")]
    Data(String),
}
