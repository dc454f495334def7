//! Where a rank's events go: raw to its own sockets, or through a publisher onto Dynamo's event plane.

use std::{sync::Arc, time::Duration};

use worker::{KvEventPublisher, Load, LoadPublisher, StoredCall};

use crate::config::ServeError;
use crate::events::Publisher;
use crate::faults::Fate;
use crate::model::{Gauges, KvEvent, StoredBlocks};

/// How long a publisher may take to publish what is queued at its end.
const LAST: Duration = Duration::from_secs(2);

/// One rank's outlet.
pub(crate) enum Outlet {
    /// Sockets as engines have them.
    Raw(Box<Publisher>),
    /// The event plane.
    Plane(Box<PlaneOutlet>),
}

/// One rank on the event plane.
pub(crate) struct PlaneOutlet {
    /// `None`: it tells its load only.
    publisher: Option<KvEventPublisher>,
    load: Arc<LoadPublisher>,
    rank: u32,
    block_size: u32,
}

impl Outlet {
    /// The events of a step, before its tokens.
    pub(crate) async fn publish(&mut self, events: &[KvEvent], fate: Fate) {
        match self {
            Self::Raw(publisher) => publisher.publish(events, fate).await,
            Self::Plane(plane) => plane.publish(events, fate).await,
        }
    }

    /// How full the rank is behind a step.
    pub(crate) fn tell(&self, gauges: Gauges) {
        match self {
            Self::Raw(_) => {}
            Self::Plane(plane) => {
                let kv_used_blocks = Some(gauges.used_blocks as u64);
                plane.load.update(plane.rank, Load { kv_used_blocks, ..Load::default() });
            }
        }
    }

    /// As a restarted process would have it.
    pub(crate) async fn restart(self) -> Result<Self, ServeError> {
        match self {
            Self::Raw(publisher) => publisher.restart().await.map(|publisher| Self::Raw(Box::new(publisher))),
            Self::Plane(plane) => {
                if let Some(publisher) = &plane.publisher {
                    // Only after its shutdown does a publisher refuse, and then there is nobody to tell.
                    let _ = publisher.publish_cleared();
                }
                Ok(Self::Plane(plane))
            }
        }
    }

    pub(crate) async fn close(self) {
        match self {
            Self::Raw(publisher) => publisher.close().await,
            Self::Plane(plane) => {
                if let Some(publisher) = plane.publisher {
                    publisher.shutdown(LAST).await;
                }
            }
        }
    }
}

impl PlaneOutlet {
    pub(crate) fn new(publisher: Option<KvEventPublisher>, load: Arc<LoadPublisher>, rank: u32, block_size: u32) -> Self {
        Self { publisher, load, rank, block_size }
    }

    async fn publish(&self, events: &[KvEvent], fate: Fate) {
        let Some(publisher) = &self.publisher else { return };
        let told = match fate {
            Fate::Sent => events.iter().try_for_each(|event| self.tell(publisher, event)),
            // Consumers see a gap, and what they then recover lacks it.
            Fate::Dropped | Fate::Lost => publisher.publish_missed(),
        };
        // Tokens leave behind the events, so that whoever has an answer can find its blocks.
        let flushed = publisher.flush().await;
        if let Err(error) = told.and(flushed) {
            tracing::warn!(rank = self.rank, %error, "events were not published");
        }
    }

    fn tell(&self, publisher: &KvEventPublisher, event: &KvEvent) -> Result<(), worker::PublishError> {
        match event {
            KvEvent::Stored(stored) => publisher.publish_stored(self.call(stored)).map(drop),
            KvEvent::Removed { hash } => publisher.publish_removed(&[*hash]).map(drop),
            KvEvent::Cleared => publisher.publish_cleared().map(drop),
        }
    }

    fn call(&self, stored: &StoredBlocks) -> StoredCall {
        StoredCall {
            token_ids: stored.tokens.clone(),
            num_block_tokens: vec![self.block_size; stored.hashes.len()],
            block_hashes: stored.hashes.clone(),
            parent_hash: stored.parent,
            lora_name: stored.adapter.as_deref().map(str::to_owned),
            cache_salt: stored.salt.as_deref().map(str::to_owned),
            ..StoredCall::default()
        }
    }
}
