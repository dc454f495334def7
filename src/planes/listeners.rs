//! Follows the channels of one topic, whoever publishes on it: one subscription and one task for each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio_util::task::AbortOnDropHandle;
use transport::plane::{PlaneEvent, Subscription};
use wire::{discovery::EventChannel, load::LoadError};

use super::Planes;

/// What is done with the messages of a topic.
pub(crate) trait Hear: Send + Sync + 'static {
    /// How old a message may be when it is heard, so that many cost one look at a publisher's socket; `None`: each at once.
    const LEISURE: Option<Duration>;

    /// A message of this publisher.
    ///
    /// # Errors
    /// It cannot be read.
    fn hear(&self, publisher: u64, payload: &[u8]) -> Result<(), LoadError>;

    /// A message that is no message.
    fn malformed(&self);

    /// The publisher is not followed any more.
    fn left(&self, publisher: u64);
}

/// The channels of one topic.
pub(crate) struct Listeners<H> {
    planes: Arc<Planes>,
    to: Arc<H>,
    followed: BTreeMap<u64, Followed>,
}

struct Followed {
    channel: EventChannel,
    _task: AbortOnDropHandle<()>,
}

impl<H: Hear> Listeners<H> {
    pub(crate) fn new(planes: Arc<Planes>, to: Arc<H>) -> Self {
        Self { planes, to, followed: BTreeMap::new() }
    }

    /// Follows these channels and no others.
    pub(crate) fn follow(&mut self, channels: &BTreeMap<u64, &EventChannel>) {
        let Some(client) = self.planes.client() else { return };
        self.followed.retain(|publisher, followed| {
            let stays = channels.get(publisher).is_some_and(|channel| **channel == followed.channel);
            if !stays {
                self.to.left(*publisher);
            }
            stays
        });
        for (publisher, channel) in channels {
            self.followed.entry(*publisher).or_insert_with(|| {
                let _on = self.planes.events().enter();
                let subscription = match H::LEISURE {
                    Some(rest) => client.subscriptions.subscribe_at_leisure(channel, rest),
                    None => client.subscriptions.subscribe(channel),
                };
                let task = tokio::spawn(listen(subscription, self.to.clone()));
                Followed { channel: (*channel).clone(), _task: AbortOnDropHandle::new(task) }
            });
        }
    }
}

async fn listen<H: Hear>(mut subscription: Subscription, to: Arc<H>) {
    let publisher = subscription.publisher_id();
    loop {
        match subscription.next().await {
            PlaneEvent::Envelope(envelope) => {
                if let Err(error) = to.hear(publisher, &envelope.payload) {
                    tracing::debug!(publisher, topic = envelope.topic, %error, "a message cannot be read");
                    to.malformed();
                }
            }
            PlaneEvent::Malformed { reason } => {
                tracing::debug!(publisher, reason, "a message is none of its publisher's");
                to.malformed();
            }
            // What is missed here is told anew with the next message, or runs out.
            PlaneEvent::Connected | PlaneEvent::Disconnected { .. } | PlaneEvent::Dropped { .. } => {}
        }
    }
}
