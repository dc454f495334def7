//! Index work in steps that other tasks of the runtime do not feel: an engine may put any number of blocks into one message,
//! and a dump has millions.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{block_in_place, coop::consume_budget, yield_now};

/// Blocks of work between two chances for others (rule 16): less than a millisecond, and more than the message of one long prompt
/// has, for which going elsewhere would cost more than the work.
pub(crate) const STEP_BLOCKS: usize = 2048;
/// Bytes of an engine's message that count as a block: a hash and the tokens of a small one. Of blocks of one token these are
/// five, with as much work as their bytes.
const BLOCK_BYTES: usize = 64;

/// Work done since others last had their chance.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    blocks: usize,
}

impl Steps {
    /// So many blocks were worked on.
    pub(crate) fn did(&mut self, blocks: usize) {
        self.blocks = self.blocks.saturating_add(blocks);
    }

    /// Lets others in where it is time. A task that always finds something to do must call it after each thing.
    pub(crate) async fn rest(&mut self) {
        if self.blocks >= STEP_BLOCKS {
            self.blocks = 0;
            yield_now().await;
        } else {
            consume_budget().await;
        }
    }
}

/// Blocks that a message of an engine may have, by its size: those it has are fewer.
pub(crate) fn blocks_in(bytes: usize) -> usize {
    bytes / BLOCK_BYTES
}

/// Does work that cannot be divided. Where it is more than a step, the other tasks of this thread go on elsewhere meanwhile; a
/// runtime of one thread has no elsewhere.
pub(crate) fn undivided<T>(blocks: usize, work: impl FnOnce() -> T) -> T {
    let elsewhere = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if blocks > STEP_BLOCKS && elsewhere() { block_in_place(work) } else { work() }
}
