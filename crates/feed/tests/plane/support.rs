//! A rank with its publishers, and short ways to say what comes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use feed::{
    RankStatus, StreamStatus, Trust,
    plane::{PlaneConfig, PlaneFeed, PlaneLimits, PlaneQuery, QueryId, Source},
};
use index::{BlockSize, Catalog, Lanes, Levels, LocalHash, Target, Targets};
use wire::{
    recovery::{Answer, Listing, Part, Tail},
    router::{Domain, KvCacheEvent, KvData, RouterEvent, RouterEventError, RouterFault, StoredBlock, StoredBlocks, Tier},
};

pub(crate) const WORKER: u64 = 7;
pub(crate) const RANK: u32 = 2;
/// The publisher most tests have.
pub(crate) const PUBLISHER: u64 = 0xa;
/// One that is newer.
pub(crate) const NEWER: u64 = 0xb;

pub(crate) type Entry = Result<RouterEvent, RouterEventError>;

pub(crate) struct Bench {
    pub(crate) feed: PlaneFeed,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) target: Target,
    pub(crate) now: Instant,
}

pub(crate) fn config() -> PlaneConfig {
    PlaneConfig {
        label: "bench".to_owned(),
        model: "model".to_owned(),
        block_size: BlockSize::new(16),
        worker_id: WORKER,
        dp_rank: RANK,
        target: Targets::new().allocate().unwrap(),
        limits: PlaneLimits::default(),
    }
}

impl Bench {
    pub(crate) fn new(config: PlaneConfig) -> Self {
        let (catalog, target) = (Arc::new(Catalog::default()), config.target);
        Self { feed: PlaneFeed::new(config, catalog.clone()), catalog, target, now: Instant::now() }
    }

    /// Exact with events 1 to `last` of [`PUBLISHER`], by a dump, long enough ago that a gap is asked for at once.
    pub(crate) fn following(last: u64) -> Self {
        Self::following_within(config(), last)
    }

    pub(crate) fn following_within(config: PlaneConfig, last: u64) -> Self {
        let mut bench = Self::new(config);
        bench.add(PUBLISHER, true);
        let query = bench.connect(PUBLISHER).unwrap();
        assert_eq!(query.start_event_id, None);
        assert_eq!(bench.dump(query, 1..=last, last), None);
        bench.is(Trust::Exact, last as usize);
        bench.pass(Duration::from_millis(1500));
        bench
    }

    /// The same of a publisher without recovery, heard from its first event on.
    pub(crate) fn live_only(last: u64) -> Self {
        let mut bench = Self::new(config());
        bench.add(PUBLISHER, false);
        assert_eq!(bench.connect(PUBLISHER), None);
        for id in 1..=last {
            assert_eq!(bench.live(id), None);
        }
        bench
    }

    pub(crate) fn add(&mut self, publisher_id: u64, recoverable: bool) {
        self.pass(Duration::from_millis(1));
        assert_eq!(self.feed.source_added(self.now, Source { publisher_id, recoverable }), None);
    }

    pub(crate) fn remove(&mut self, publisher_id: u64) -> Option<PlaneQuery> {
        self.feed.source_removed(self.now, publisher_id)
    }

    pub(crate) fn connect(&mut self, publisher_id: u64) -> Option<PlaneQuery> {
        self.feed.connected(self.now, publisher_id)
    }

    pub(crate) fn disconnect(&mut self, publisher_id: u64) {
        assert_eq!(self.feed.disconnected(self.now, publisher_id), None);
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The event that [`numbered`] makes, of [`PUBLISHER`].
    pub(crate) fn live(&mut self, id: u64) -> Option<PlaneQuery> {
        self.live_of(PUBLISHER, numbered(id))
    }

    pub(crate) fn live_of(&mut self, publisher_id: u64, event: RouterEvent) -> Option<PlaneQuery> {
        self.feed.events(self.now, publisher_id, vec![Ok(event)])
    }

    /// Numbered events of the publisher's ring, the newest of which is `last`.
    pub(crate) fn ring(&mut self, query: PlaneQuery, ids: impl IntoIterator<Item = u64>, last: u64) -> Option<PlaneQuery> {
        self.list(query, Listing::Events, ids.into_iter().map(|id| Ok(numbered(id))).collect(), last)
    }

    /// A dump of the blocks of numbered events.
    pub(crate) fn dump(&mut self, query: PlaneQuery, ids: impl IntoIterator<Item = u64>, last: u64) -> Option<PlaneQuery> {
        self.list(query, Listing::TreeDump, ids.into_iter().map(|id| Ok(numbered(id))).collect(), last)
    }

    /// A whole answer, and whatever work it leaves.
    pub(crate) fn list(&mut self, query: PlaneQuery, listing: Listing, events: Vec<Entry>, last: u64) -> Option<PlaneQuery> {
        let next = self.page(query.id, listing, events, tail(listing, last, 0));
        next.or_else(|| self.work())
    }

    pub(crate) fn page(&mut self, id: QueryId, listing: Listing, events: Vec<Entry>, tail: Tail) -> Option<PlaneQuery> {
        let body = events.into_iter().map(Part::Event);
        let mut asked = None;
        for part in std::iter::once(Part::Begin(listing)).chain(body).chain([Part::End(tail)]) {
            asked = asked.or(self.feed.answered(self.now, id, part));
        }
        asked
    }

    pub(crate) fn answer(&mut self, query: PlaneQuery, answer: Answer) -> Option<PlaneQuery> {
        self.feed.answered(self.now, query.id, Part::Other(answer))
    }

    /// There is nothing from the start on.
    pub(crate) fn too_new(&mut self, query: PlaneQuery, newest_available: u64) -> Option<PlaneQuery> {
        let requested_start = query.start_event_id.unwrap();
        self.answer(query, Answer::TooNew { requested_start, requested_end: newest_available, newest_available })
    }

    pub(crate) fn fail(&mut self, query: PlaneQuery) -> Option<PlaneQuery> {
        self.feed.query_failed(self.now, query.id, "connection refused")
    }

    /// What is due now, such as the rest of a takeover.
    pub(crate) fn work(&mut self) -> Option<PlaneQuery> {
        while self.feed.deadline().is_some_and(|due| due <= self.now) {
            if let Some(query) = self.feed.tick(self.now) {
                return Some(query);
            }
        }
        None
    }

    /// Lets time pass to the feed's deadline. Returns how long that was and what it asks.
    pub(crate) fn wait(&mut self) -> (Duration, Option<PlaneQuery>) {
        let due = self.feed.deadline().unwrap();
        let waited = due.saturating_duration_since(self.now);
        self.now += waited;
        (waited, self.feed.tick(self.now))
    }

    pub(crate) fn stream(&self) -> StreamStatus {
        self.feed.status().stream()
    }

    pub(crate) fn rank(&self) -> RankStatus {
        self.feed.status().rank(RANK).unwrap()
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

    pub(crate) fn overlap(&self, blocks: u64) -> u32 {
        let mut levels = Levels::default();
        let chain: Vec<_> = (1..=blocks).map(local).collect();
        self.catalog.indexer("model", BlockSize::new(16).unwrap()).lookup(&chain, Lanes::ALL, &mut levels);
        levels.depth(self.target.slot)
    }
}

/// From an event on, as asked of [`PUBLISHER`].
pub(crate) fn from(query: Option<PlaneQuery>) -> Option<u64> {
    let query = query.unwrap();
    assert_eq!(query.publisher_id, PUBLISHER);
    query.start_event_id
}

pub(crate) fn tail(listing: Listing, last_event_id: u64, page: u32) -> Tail {
    Tail { listing, last_event_id, reset_scope: "all".to_owned(), page, last: true, lacking: false }
}

pub(crate) fn local(id: u64) -> LocalHash {
    LocalHash(id.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Event `id` of a stream in which each event adds one block to one chain. Its name is `id`.
pub(crate) fn numbered(id: u64) -> RouterEvent {
    event(id, stored((id > 1).then(|| id - 1), &[id]))
}

/// Blocks by their numbers; each is named by its number.
pub(crate) fn stored(parent_hash: Option<u64>, blocks: &[u64]) -> KvData {
    let block = |id: &u64| StoredBlock { block_hash: *id, tokens_hash: local(*id).0, media: None };
    KvData::Stored(StoredBlocks { parent_hash, start_position: None, blocks: blocks.iter().map(block).collect() })
}

pub(crate) fn event(event_id: u64, data: KvData) -> RouterEvent {
    RouterEvent {
        worker_id: WORKER,
        storage_tier: Tier::Device,
        domain: Domain::Worker,
        event: KvCacheEvent { event_id, data, dp_rank: RANK },
        state_source: None,
        session_id: None,
    }
}

pub(crate) fn unreadable(event_id: Option<u64>) -> Entry {
    Err(RouterEventError { event_id, fault: RouterFault::Data("warmed".to_owned()) })
}
