//! The event plane: [`PlanePublisher`] publishes one topic, [`Subscriptions`] follow other publishers' channels, over ZMQ and
//! over NATS, as Dynamo 1.6.1 does.
//!
//! Delivery is at most once on both. Whatever may have been missed is told to the reader as a value, in its place:
//! [`PlaneEvent::Connected`], and [`PlaneEvent::Dropped`] ahead of the next message that arrives. What to do about it is the
//! reader's. Between a socket and its reader there is one queue bounded in bytes, per publisher followed, so that one that floods
//! takes nothing from the others.
//!
//! Subscribers follow each channel's own record, whatever this process publishes on. A channel on ZMQ brokers is followed
//! at one of its endpoints, the next when that is away; publishing through a broker is not offered.

mod demux;
mod outbox;
mod publisher;
mod seat;
mod subscribe;

use wire::envelope::Envelope;

pub use publisher::{OpenError, PlanePublisher, PlaneSocket, PublishCounters, PublisherOptions};
pub use subscribe::{Subscription, SubscriptionOptions, Subscriptions};

/// What carries the events we publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneKind {
    /// A NATS server.
    Nats,
    /// A ZMQ socket of each publisher.
    Zmq,
}

impl PlaneKind {
    /// What is meant by the word for it.
    pub fn named(word: &str) -> Option<Self> {
        [Self::Nats, Self::Zmq].into_iter().find(|kind| kind.as_str() == word)
    }

    /// The word for it in options and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Zmq => "zmq",
        }
    }
}

/// What happened on a channel, in the order it happened.
#[derive(Clone, Debug, PartialEq)]
pub enum PlaneEvent {
    /// What the publisher publishes from now on arrives or is told as missing. What it published before may be lost.
    Connected,
    /// Nothing arrives until the next [`Connected`](Self::Connected). Told again when the reason changes.
    Disconnected {
        /// Why, for operators.
        reason: String,
    },
    /// One message of the publisher.
    Envelope(Envelope),
    /// Messages of the publisher did not arrive: thrown away on our side or on the way, at least so many.
    Dropped {
        /// How many.
        messages: u64,
    },
    /// A message that is none of this publisher's, or unreadable.
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
}
