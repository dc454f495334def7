//! Whose turn it is to be replayed.

use std::sync::{Arc, LazyLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Replays under way at once in this process. A frontend that joins a fleet wants all of them together, and each may bring
/// as much as [`super::StreamOptions::max_replay_bytes`].
const REPLAYS_AT_ONCE: usize = 4;
/// Publishers that may be asked at once for each turn: some answer at once, some not at all.
const ASKED_PER_TURN: usize = 4;

/// So many replays at once, first come, first served, for all streams that share it. What a replay brings waits in memory for
/// its stream's task, so this bounds what all of them hold together (rule 16).
#[derive(Clone, Debug)]
pub struct Turns {
    replays: Arc<Semaphore>,
    asked: Arc<Semaphore>,
}

/// One replay under way; its turn ends with it.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// One publisher that is asked and has no turn yet.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Turns {
    /// `at_once` replays, at least one.
    pub fn new(at_once: usize) -> Self {
        let places = |count: usize| Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        Self { replays: places(at_once), asked: places(at_once.saturating_mul(ASKED_PER_TURN)) }
    }

    /// How many more replays may begin now.
    pub fn free(&self) -> usize {
        self.replays.available_permits()
    }

    /// A place among those that are asked, if nobody has to be waited for. Whoever is asked prepares its answer, so no more are
    /// asked than can soon be listened to.
    pub(crate) fn place_at_once(&self) -> Option<Place> {
        self.asked.clone().try_acquire_owned().ok().map(|permit| Place { _permit: permit })
    }

    /// A place, behind those who came earlier.
    pub(crate) async fn place(&self) -> Place {
        match self.asked.clone().acquire_owned().await {
            Ok(permit) => Place { _permit: permit },
            // Nobody closes it.
            Err(_) => std::future::pending().await,
        }
    }

    /// A turn, if nobody has to be waited for.
    pub(crate) fn at_once(&self) -> Option<Turn> {
        self.replays.clone().try_acquire_owned().ok().map(|permit| Turn { _permit: permit })
    }

    /// A turn, behind those who came earlier. Bounded by what they may take: each of their replays ends in time.
    pub(crate) async fn wait(&self) -> Turn {
        match self.replays.clone().acquire_owned().await {
            Ok(permit) => Turn { _permit: permit },
            // Nobody closes it.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Shared by the whole process.
impl Default for Turns {
    fn default() -> Self {
        static PROCESS: LazyLock<Turns> = LazyLock::new(|| Turns::new(REPLAYS_AT_ONCE));
        PROCESS.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::StreamOptions;

    #[test]
    fn streams_share_the_turns_of_the_process_unless_told_otherwise() {
        let (one, other) = (StreamOptions::default(), StreamOptions::default());
        assert!(Arc::ptr_eq(&one.turns.replays, &other.turns.replays));
        assert_eq!((one.turns.free(), one.turns.asked.available_permits()), (REPLAYS_AT_ONCE, 16));
    }

    #[tokio::test]
    async fn who_came_first_is_served_first() {
        let turns = Turns::new(1);
        let turn = turns.at_once().unwrap();
        let mut first = std::pin::pin!(turns.wait());
        assert!(poll_once(first.as_mut()).is_none());
        drop(turn);
        assert!(turns.at_once().is_none(), "the turn is that of the one who waits");
        assert!(poll_once(first.as_mut()).is_some());
    }

    fn poll_once<T>(work: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match work.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        }
    }
}
