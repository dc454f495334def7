//! One lane of a rank that no event fills: what is held in it, and how it is emptied.
//!
//! A lane may hold a million blocks. Whoever waits for its lock waits for one prompt, or for 512 blocks that run out;
//! a lane with more is taken apart on a thread for blocking work, and holds nothing new until that is done.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use feed::{Added, Leases};
use index::{BlockSize, Catalog, Lane, LocalHash, Target};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// A lane of at most so many blocks is emptied where it stands (rule 16).
const EMPTIED_AT_ONCE_BLOCKS: usize = 512;

/// The predicted or the confirmed lane of one rank.
pub(super) struct Leased {
    target: Target,
    lane: Lane,
    /// Held for the blocks of one prompt, or for 512 that run out.
    state: Mutex<State>,
}

enum State {
    Empty,
    Held(Box<Held>),
    /// Cancelled once its blocks are gone.
    Emptying(CancellationToken),
    /// The rank is gone.
    Closed,
}

struct Held {
    leases: Leases,
    size: BlockSize,
}

/// Where a rank's lanes are written.
#[derive(Clone, Copy)]
pub(crate) struct Indexes<'a> {
    pub(crate) catalog: &'a Catalog,
    /// The base model.
    pub(crate) base: &'a str,
    /// In which the chains are cut.
    pub(crate) block_size: BlockSize,
    /// Blocks one lane of one rank may hold.
    pub(crate) capacity: NonZeroUsize,
}

impl Leased {
    pub(super) fn new(target: Target, lane: Lane) -> Arc<Self> {
        Arc::new(Self { target, lane, state: Mutex::new(State::Empty) })
    }

    /// Holds the blocks of `chain` for `ttl`, and tells what that added; nothing while the lane is being emptied.
    pub(super) fn hold(self: &Arc<Self>, indexes: Indexes<'_>, ttl: Duration, chain: &[LocalHash]) -> Option<Added> {
        if chain.is_empty() {
            return None;
        }
        let mut state = self.state.lock();
        if matches!(&*state, State::Held(held) if held.size != indexes.block_size) {
            // The engine has blocks of another size now: what was held is of its last life.
            self.empty(&mut state);
        }
        if let State::Empty = &*state {
            let indexer = indexes.catalog.indexer(indexes.base, indexes.block_size);
            let leases = Leases::new(&indexer, self.target, self.lane, ttl, indexes.capacity);
            *state = State::Held(Box::new(Held { leases, size: indexes.block_size }));
        }
        match &mut *state {
            State::Held(held) => Some(held.leases.hold(Instant::now(), chain)),
            State::Empty | State::Emptying(_) | State::Closed => None,
        }
    }

    /// Gives back what a hold of `chain` added.
    pub(super) fn give_back(&self, chain: &[LocalHash], added: Added) {
        match &mut *self.state.lock() {
            State::Held(held) => held.leases.give_back(chain, added),
            State::Empty | State::Emptying(_) | State::Closed => {}
        }
    }

    /// Lets go of what was held long enough, of at most 512 blocks: call again until it was none. Returns how many.
    pub(super) fn expire(&self, now: Instant) -> usize {
        match &mut *self.state.lock() {
            State::Held(held) if held.leases.next_expiry().is_some_and(|due| due <= now) => held.leases.expire(now),
            State::Held(_) | State::Empty | State::Emptying(_) | State::Closed => 0,
        }
    }

    /// Gives everything back. What is returned is cancelled once it is gone; `None`: it is gone already.
    pub(super) fn forget(self: &Arc<Self>) -> Option<CancellationToken> {
        let mut state = self.state.lock();
        self.empty(&mut state);
        match &*state {
            State::Emptying(gone) => Some(gone.clone()),
            State::Empty | State::Held(_) | State::Closed => None,
        }
    }

    /// Gives everything back and holds nothing any more. Once this returns nothing of it is in the index.
    pub(super) async fn close(self: &Arc<Self>) {
        let last = {
            let mut state = self.state.lock();
            self.empty(&mut state);
            std::mem::replace(&mut *state, State::Closed)
        };
        match last {
            State::Emptying(gone) => gone.cancelled().await,
            State::Empty | State::Held(_) | State::Closed => {}
        }
    }

    /// Blocks in the lane.
    pub(super) fn blocks(&self) -> usize {
        match &*self.state.lock() {
            State::Held(held) => held.leases.blocks(),
            State::Empty | State::Emptying(_) | State::Closed => 0,
        }
    }

    /// Takes apart what is held: here if it is little, else on another thread.
    fn empty(self: &Arc<Self>, state: &mut State) {
        let State::Held(held) = state else { return };
        let runtime = Handle::try_current().ok().filter(|_| held.leases.blocks() > EMPTIED_AT_ONCE_BLOCKS);
        let Some(runtime) = runtime else {
            *state = State::Empty;
            return;
        };
        let gone = CancellationToken::new();
        let held = std::mem::replace(state, State::Emptying(gone.clone()));
        let (lane, gone) = (self.clone(), gone.drop_guard());
        runtime.spawn_blocking(move || {
            drop(held);
            let mut state = lane.state.lock();
            if let State::Emptying(_) = &*state {
                *state = State::Empty;
            }
            drop(gone);
        });
    }
}

#[cfg(test)]
mod tests {
    use index::{Levels, Targets};

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    struct World {
        catalog: Catalog,
        target: Target,
        lane: Arc<Leased>,
    }

    impl World {
        fn new() -> Self {
            let target = Targets::new().allocate().unwrap();
            Self { catalog: Catalog::default(), target, lane: Leased::new(target, Lane::Predicted) }
        }

        fn hold(&self, size: u32, chain: &[LocalHash]) {
            let capacity = NonZeroUsize::new(1_000_000).unwrap();
            let indexes = Indexes { catalog: &self.catalog, base: "m", block_size: BlockSize::new(size).unwrap(), capacity };
            self.lane.hold(indexes, TTL, chain);
        }

        fn seen(&self, size: u32, chain: &[LocalHash]) -> u32 {
            let mut levels = Levels::default();
            self.catalog.indexer("m", BlockSize::new(size).unwrap()).lookup(chain, index::Lanes::PREDICTED, &mut levels);
            levels.depth(self.target.slot)
        }
    }

    fn chain(blocks: u64) -> Vec<LocalHash> {
        (0..blocks).map(LocalHash).collect()
    }

    #[test]
    fn a_small_lane_is_empty_when_forget_returns() {
        let world = World::new();
        world.hold(16, &chain(8));
        assert_eq!(world.seen(16, &chain(8)), 8);
        assert!(world.lane.forget().is_none());
        assert_eq!((world.lane.blocks(), world.seen(16, &chain(8))), (0, 0));
    }

    #[tokio::test]
    async fn a_large_lane_is_emptied_elsewhere_and_then_holds_again() {
        let world = World::new();
        let long = chain(100_000);
        world.hold(16, &long);
        let gone = world.lane.forget().expect("not on this thread");
        gone.cancelled().await;
        assert_eq!(world.seen(16, &long), 0);
        world.hold(16, &long);
        assert_eq!((world.lane.blocks(), world.seen(16, &long)), (long.len(), 100_000));
    }

    #[tokio::test]
    async fn a_closed_lane_holds_nothing_any_more() {
        let world = World::new();
        world.hold(16, &chain(1_000));
        world.lane.close().await;
        world.hold(16, &chain(8));
        assert_eq!((world.lane.blocks(), world.seen(16, &chain(8))), (0, 0));
    }

    #[test]
    fn blocks_of_another_size_replace_those_held() {
        let world = World::new();
        world.hold(16, &chain(8));
        world.hold(32, &chain(4));
        assert_eq!((world.seen(16, &chain(8)), world.seen(32, &chain(4)), world.lane.blocks()), (0, 4, 4));
    }

    #[test]
    fn everything_due_runs_out_a_few_blocks_at_a_time() {
        let world = World::new();
        let long = chain(2_000);
        world.hold(16, &long);
        assert_eq!((world.lane.expire(Instant::now()), world.lane.blocks()), (0, long.len()));
        let due = Instant::now() + TTL + Duration::from_secs(1);
        let steps: Vec<usize> = std::iter::repeat_with(|| world.lane.expire(due)).take_while(|blocks| *blocks > 0).collect();
        assert_eq!(steps, [512, 512, 512, 464]);
        assert_eq!((world.lane.blocks(), world.seen(16, &long)), (0, 0));
    }
}
