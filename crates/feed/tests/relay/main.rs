//! A raw stream passed on to a publisher: what that holds is what an index fed directly holds, and its numbers are contiguous only
//! where nothing is missing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod recordings;
mod streams;

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use feed::{
    Feed, FeedConfig, Limits, RankRange, RankStatus, Relayed, Replay, ReplayEnd, ReplayMode,
    publisher::{Call, PublisherConfig, PublisherState},
};
use index::{BlockSize, Catalog, Target, Targets};
use wire::{Message, router::RouterEvent};

/// One stream told to both: an index, and a publisher behind a relay.
pub(crate) struct Both {
    indexed: Feed,
    relaying: Feed,
    catalog: Arc<Catalog>,
    target: Target,
    size: BlockSize,
    pub(crate) publisher: PublisherState,
    /// What the publisher refused, with its words.
    pub(crate) refused: Vec<String>,
    pub(crate) published: Vec<RouterEvent>,
    now: Instant,
}

impl Both {
    pub(crate) fn new(block_size: u32, replay: ReplayMode) -> Self {
        let target = Targets::new().allocate().unwrap();
        let size = BlockSize::new(block_size).unwrap();
        let config = FeedConfig {
            label: "both".to_owned(),
            model: "model".to_owned(),
            block_size: Some(size),
            ranks: RankRange { start: 0, size: 1 },
            socket_rank: 0,
            targets: vec![target],
            adapters: BTreeMap::new(),
            replay,
            limits: Limits::default(),
        };
        let catalog = Arc::new(Catalog::default());
        let mut both = Self {
            indexed: Feed::new(config.clone(), catalog.clone()),
            relaying: Feed::new(config, Arc::default()).relaying(),
            catalog,
            target,
            size,
            publisher: PublisherState::new(PublisherConfig::new(7, 0, size)),
            refused: Vec::new(),
            published: Vec::new(),
            now: Instant::now(),
        };
        both.tell(Feed::connected);
        both
    }

    pub(crate) fn tell<T: PartialEq + std::fmt::Debug>(&mut self, act: impl Fn(&mut Feed, Instant) -> T) -> T {
        let wanted = act(&mut self.indexed, self.now);
        assert_eq!(act(&mut self.relaying, self.now), wanted, "both feeds decide alike");
        assert_eq!(self.indexed.relayed().count(), 0);
        let relayed: Vec<(u32, Relayed)> = self.relaying.relayed().collect();
        for (rank, relayed) in relayed {
            assert_eq!(rank, 0);
            self.publish(relayed);
        }
        wanted
    }

    fn publish(&mut self, relayed: Relayed) {
        let call = match relayed {
            Relayed::Stored(call) => match call.checked(self.size) {
                Ok(call) => Call::Stored(call),
                Err(error) => {
                    self.refused.push(error.to_string());
                    return self.publisher.missed();
                }
            },
            Relayed::Removed { hashes, tier } => Call::Removed { hashes, tier },
            Relayed::Cleared => Call::Cleared,
            Relayed::Missed => return self.publisher.missed(),
        };
        self.published.extend(self.publisher.apply(&call).unwrap());
    }

    pub(crate) fn live(&mut self, message: &Message) -> Option<Replay> {
        self.tell(|feed, now| feed.live(now, message.clone()))
    }

    pub(crate) fn replayed(&mut self, messages: &[Message]) -> Option<Replay> {
        for message in messages {
            self.tell(|feed, now| feed.replayed(now, message.clone()));
        }
        self.tell(|feed, now| feed.replay_ended(now, ReplayEnd::Marker))
    }

    pub(crate) fn rank(&self) -> RankStatus {
        self.indexed.status().rank(0).unwrap()
    }

    /// Blocks and digest, of the index and of the publisher.
    pub(crate) fn held(&self) -> [(usize, u64); 2] {
        let indexer = self.catalog.indexer("model", self.size);
        let indexed = (self.rank().blocks, indexer.digest(self.target));
        [indexed, (self.publisher.blocks().unwrap(), self.publisher.digest().unwrap())]
    }

    /// The numbers that were skipped.
    pub(crate) fn skipped(&self) -> Vec<u64> {
        let numbers: Vec<u64> = self.published.iter().map(|event| event.event.event_id).collect();
        let end = self.publisher.counters().missed + numbers.len() as u64;
        (1..=end).filter(|number| !numbers.contains(number)).collect()
    }
}
