//! A feed with one or more targets, and short ways to say what comes.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use feed::{Feed, FeedConfig, Limits, RankRange, RankStatus, Replay, ReplayEnd, ReplayMode, StreamStatus, Trust};
use index::{BlockSize, Catalog, KvIndexer, Lanes, Levels, LocalHash, Seed, Target, Targets, Window, local_hashes};
use wire::{
    Adapter, Event, Group, Medium, Message, Removed, Stored, Tokens,
    encode::{Encoder, Generation},
};

pub(crate) const BLOCK: u32 = 4;

pub(crate) struct Bench {
    pub(crate) feed: Feed,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) targets: Vec<Target>,
    pub(crate) now: Instant,
}

pub(crate) fn config(replay: ReplayMode) -> FeedConfig {
    let targets = Targets::new();
    FeedConfig {
        label: "bench".to_owned(),
        model: "model".to_owned(),
        block_size: BlockSize::new(BLOCK),
        ranks: RankRange { start: 0, size: 1 },
        socket_rank: 0,
        targets: vec![targets.allocate().unwrap()],
        adapters: BTreeMap::new(),
        replay,
        limits: Limits::default(),
    }
}

impl Bench {
    pub(crate) fn new(config: FeedConfig) -> Self {
        let catalog = Arc::new(Catalog::default());
        let targets = config.targets.clone();
        Self { feed: Feed::new(config, catalog.clone()), catalog, targets, now: Instant::now() }
    }

    /// Connected, with an empty replay: exact and empty.
    pub(crate) fn joined() -> Self {
        let mut bench = Self::new(config(ReplayMode::Available));
        assert_eq!(bench.connect(), asked(0));
        assert_eq!(bench.end(), None);
        bench
    }

    /// Exact, having folded in messages 0 to `last`, each with a block of its own after the one before.
    pub(crate) fn following(last: u64) -> Self {
        let mut bench = Self::joined();
        for seq in 0..=last {
            assert_eq!(bench.live(seq), None);
        }
        bench.is(Trust::Exact, last as usize + 1);
        bench
    }

    /// Connected without a replay socket.
    pub(crate) fn without_replay() -> Self {
        let mut bench = Self::new(config(ReplayMode::Unavailable));
        assert_eq!(bench.connect(), None);
        bench
    }

    pub(crate) fn connect(&mut self) -> Option<Replay> {
        self.feed.connected(self.now)
    }

    pub(crate) fn disconnect(&mut self) {
        self.feed.disconnected(self.now);
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The message that [`numbered`] makes.
    pub(crate) fn live(&mut self, seq: u64) -> Option<Replay> {
        self.feed.live(self.now, numbered(seq))
    }

    pub(crate) fn live_events(&mut self, seq: u64, events: &[Event]) -> Option<Replay> {
        self.feed.live(self.now, message(seq, events))
    }

    pub(crate) fn replayed(&mut self, seqs: impl IntoIterator<Item = u64>) {
        for seq in seqs {
            self.feed.replayed(self.now, numbered(seq));
        }
    }

    pub(crate) fn end(&mut self) -> Option<Replay> {
        self.feed.replay_ended(self.now, ReplayEnd::Marker)
    }

    pub(crate) fn silent(&mut self) -> Option<Replay> {
        self.feed.replay_ended(self.now, ReplayEnd::Silent)
    }

    /// Lets time pass to the feed's deadline. Returns how long that was and what it wants.
    pub(crate) fn wait(&mut self) -> Option<(Duration, Option<Replay>)> {
        let at = self.feed.deadline()?;
        let waited = at - self.now;
        self.now = at;
        Some((waited, self.feed.tick(at)))
    }

    pub(crate) fn stream(&self) -> StreamStatus {
        self.feed.status().stream()
    }

    pub(crate) fn rank(&self) -> RankStatus {
        self.feed.status().rank(0).unwrap()
    }

    pub(crate) fn is(&self, trust: Trust, blocks: usize) {
        let rank = self.rank();
        assert_eq!((rank.trust, rank.blocks), (trust, blocks), "{}; {:?}", rank.reason, self.stream());
    }

    /// (gaps, replayed, rebuilt, degraded)
    pub(crate) fn gaps(&self) -> (u64, u64, u64, u64) {
        let stream = self.stream();
        (stream.gaps, stream.replayed, stream.rebuilt, stream.degraded_gaps)
    }

    pub(crate) fn indexer(&self) -> Arc<KvIndexer> {
        self.catalog.indexer("model", BlockSize::new(BLOCK).unwrap())
    }

    pub(crate) fn overlap(&self, chain: &[LocalHash], lanes: Lanes) -> u32 {
        let mut levels = Levels::default();
        self.indexer().lookup(chain, lanes, &mut levels);
        levels.depth(self.targets[0].slot)
    }
}

pub(crate) fn asked(from: u64) -> Option<Replay> {
    Some(Replay { from })
}

/// Message `seq` of a stream in which each message adds one block to one chain. Its engine hash is `seq + 1`.
pub(crate) fn numbered(seq: u64) -> Message {
    let parent = (seq > 0).then_some(seq);
    message(seq, &[store(&[seq + 1], parent, &tokens(&[seq as u32]))])
}

/// The same of another engine life: other bytes, and other hashes.
pub(crate) fn other(seq: u64) -> Message {
    let parent = (seq > 0).then_some(1000 + seq);
    message(seq, &[store(&[1001 + seq], parent, &tokens(&[seq as u32]))])
}

pub(crate) fn message(seq: u64, events: &[Event]) -> Message {
    Message { seq, payload: Encoder::new(Generation::Vllm033).batch(1000.0 + seq as f64, 0, events) }
}

pub(crate) fn garbage(seq: u64) -> Message {
    Message { seq, payload: Bytes::from_static(b"\xc1") }
}

pub(crate) fn store(hashes: &[u64], parent: Option<u64>, tokens: &[u32]) -> Event {
    Event::Stored(stored(hashes, parent, tokens))
}

pub(crate) fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32]) -> Stored {
    let tokens = Tokens::Plain(tokens.to_vec());
    Stored { block_hashes: hashes.to_vec(), parent, tokens, block_size: BLOCK, ..Stored::default() }
}

pub(crate) fn remove(hashes: &[u64]) -> Event {
    Event::Removed(Removed { block_hashes: hashes.to_vec(), ..Removed::default() })
}

pub(crate) fn removed_from(medium: Medium, group: Group, hashes: &[u64]) -> Event {
    Event::Removed(Removed { block_hashes: hashes.to_vec(), medium, group, ..Removed::default() })
}

/// The tokens of made-up blocks.
pub(crate) fn tokens(blocks: &[u32]) -> Vec<u32> {
    blocks.iter().flat_map(|block| (0..BLOCK).map(move |at| block * BLOCK + at)).collect()
}

/// What a router makes of a prompt of these blocks.
pub(crate) fn chain(blocks: &[u32], seed: Seed) -> Vec<LocalHash> {
    let mut locals = Vec::new();
    local_hashes(&tokens(blocks), BlockSize::new(BLOCK).unwrap(), seed, Window::Plain, &mut locals);
    locals
}

pub(crate) fn named(adapter: &str) -> Adapter {
    Adapter::Named(adapter.to_owned())
}
