//! How far a target's index can be believed (rule 10).

use std::sync::Arc;

/// The trust in one target, as shown to operators and used by the self-check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Nothing was heard yet, or what is heard contradicts the configuration.
    #[default]
    Blind,
    /// The index is the fold of the stream since the engine's start or last clear.
    Exact,
    /// A replay that should make it exact is under way, or has to wait for the connection.
    Recovering,
    /// Something is missing.
    Degraded,
}

impl Trust {
    /// The word for it in answers, metrics and the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Blind => "blind",
            Self::Exact => "exact",
            Self::Recovering => "recovering",
            Self::Degraded => "degraded",
        }
    }
}

/// A short text that is shared by all who show it.
pub(crate) type Reason = Arc<str>;

/// What the fold of one rank stands on, apart from what is going on at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Footing {
    /// No batch of this engine life yet, and nothing that proves there was none.
    Unheard,
    /// Every batch since the engine's start, or every one since a clear.
    Whole,
    /// As whole, but it could not be verified that the publisher is still the same life and that nothing was missed.
    Doubtful(Reason),
    /// Something is known to be missing.
    Lacking(Reason),
}

/// What is going on with the stream at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Connected, following live messages.
    Following,
    /// The same, and all that came so far was no stream of batches.
    Unreadable,
    /// A replay is awaited before trust can be given.
    Recovering(&'static str),
    /// Not connected, for the first time or again.
    Disconnected,
    /// Something stands against believing what is held, and nothing is awaited that would settle it.
    Unsure(Reason),
}
