//! The index of one (model, block size): who holds which blocks.
//!
//! # Picture
//!
//! ```text
//!            root                  a trie keyed by local hash: a node is one block in its place after all blocks
//!          /      \                before it, shared by every target that holds it
//!     [A] 1,2,7   [X] 7            each node: who holds it, as (slot, lane) entries
//!       |
//!     [B] 2,7                      prompt A B C D: {1} has depth 1, {2,7} continue
//!       |
//!     [C] 7                        {2} has depth 2, {7} continues
//!     /   \
//!  [D] 2  [E] 7                    {7} has depth 3; that 2 holds D counts again when 2 stores C again: a hole
//! ```
//!
//! A [`Writer`] owns one lane of one target and, outside the shared lock, what only it needs: the engine's name for
//! each block, how many copies are counted, the stores whose parents it does not know.
//!
//! # Invariants
//!
//! - Exact (rule 2): with no writer running, a target's depth is the longest run of leading blocks it holds, by
//!   definition and not by bookkeeping: the walk looks at each block's holders. There is nothing to go stale.
//! - A node lives while somebody holds it or a node beneath it, and not an instant longer: memory follows live blocks.
//! - At most one writer is in force for a (slot, lane): the newest, of the newest generation. Others change nothing.
//! - A reader that runs beside writers may under-count and never over-counts: each (target, depth) it reports was true,
//!   whole, at one instant of the lookup. Within one hold of the lock that is plain. A long lookup lets writers in
//!   every [`CHUNK_BLOCKS`] blocks; afterwards a target that lost any block since the lookup began is not carried on:
//!   the lookup starts again, and after [`LOOKUP_RESTARTS`] of those ends such targets at what was certain. Stores
//!   go in head first, so a half-applied one is a shorter one; a target that is being emptied is hidden at once.
//!
//! # Complexity
//!
//! | operation | steps, n = blocks of the argument |
//! |---|---|
//! | store | n child look-ups, n map insertions |
//! | remove | n map look-ups, and one step per node freed |
//! | clear, drop of a writer | blocks held |
//! | retract | blocks held and the unheld ones above them |
//! | lookup | one child look-up and one set operation over targets/64 words per block held by anyone |
//! | take-over from a writer that still lives | all blocks in memory (rare: [`KvIndexer::writer`]) |
//!
//! No hold of the lock does more than [`CHUNK_BLOCKS`] steps, and nothing that grows by copying itself is behind it.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::{
    arena::PAGE,
    cover::Seat,
    hash::{BlockSize, LocalHash, SequenceHash},
    lane::{Copies, Lane, Lanes},
    levels::Levels,
    limits::Limits,
    target::Target,
    trie::Trie,
    writer::Writer,
};

/// How often a lookup starts again because targets it was following lost blocks meanwhile.
const LOOKUP_RESTARTS: usize = 3;
/// Nodes are numbered with 32 bits; half of them leaves room for stores that are checked at the same time.
const MOST_BLOCKS: usize = 1 << 31;

/// The global prefix index of one model and block size. The module text tells how it works and what it costs.
#[derive(Debug)]
pub struct KvIndexer {
    block_size: BlockSize,
    pub(crate) limits: Limits,
    /// Guards who holds what. Requests read it, writers write it, each for at most [`CHUNK_BLOCKS`] steps at a time.
    pub(crate) trie: RwLock<Trie>,
    /// Held while a writer is made, so that a take-over is over before the next begins.
    claiming: Mutex<()>,
}

impl KvIndexer {
    /// An empty index.
    pub fn new(block_size: BlockSize, mut limits: Limits) -> Arc<Self> {
        limits.index_blocks = limits.index_blocks.min(MOST_BLOCKS);
        limits.chain_blocks = limits.chain_blocks.min(MOST_BLOCKS);
        Arc::new(Self { block_size, limits, trie: RwLock::new(Trie::new()), claiming: Mutex::new(()) })
    }

    /// Tokens per block of everything in it.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The bounds it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The hand that writes one lane of one target.
    ///
    /// At most one is in force. A newer one for the same lane takes it over, and one for a later target in the same
    /// slot takes over all lanes of the slot: what the writers before it left is gone when this returns, and what they
    /// still try is refused ([`crate::Refusal::Superseded`]). For a target older than the newest its slot has had, the writer
    /// that is returned is never in force. Taking over from a writer that was not dropped first walks the whole index.
    pub fn writer(self: &Arc<Self>, target: Target, lane: Lane, copies: Copies) -> Writer {
        let claiming = self.claiming.lock();
        let (owner, sweep) = self.trie.write().seats.claim(target, lane);
        for lane in sweep.iter() {
            self.sweep(Seat { slot: target.slot, lane });
        }
        drop(claiming);
        Writer::new(self.clone(), owner, target, copies)
    }

    /// Fills `levels` with how many leading blocks of `chain` each target holds. A block counts if it is held in any of
    /// `lanes`. Blocks beyond [`Limits::chain_blocks`] are not looked at. Allocates nothing once `levels` is warm.
    ///
    /// Beside running writers it may under-count and never over-counts. A target that is being emptied in one of `lanes`
    /// is not seen until that is done.
    pub fn lookup(&self, chain: &[LocalHash], lanes: Lanes, levels: &mut Levels) {
        let chain = &chain[..chain.len().min(self.limits.chain_blocks)];
        for _ in 0..LOOKUP_RESTARTS {
            if self.try_lookup(chain, lanes, levels, Doubt::StartAgain) {
                return;
            }
        }
        self.try_lookup(chain, lanes, levels, Doubt::EndThere);
    }

    /// `false`: it is to start again.
    fn try_lookup(&self, chain: &[LocalHash], lanes: Lanes, levels: &mut Levels, doubt: Doubt) -> bool {
        levels.clear();
        let mut trie = self.trie.read();
        let began = trie.seats.clock();
        let mut at = trie.start();
        approach(chain);
        loop {
            // Whoever is active holds the block before `at` and lost nothing since it was read, so its node lives.
            let Some(next) = trie.descend(at, chain, lanes, levels) else { return true };
            at = next;
            RwLockReadGuard::bump(&mut trie);
            if trie.seats.clock() == began {
                continue;
            }
            let (active, lost) = levels.active_and_scratch();
            trie.seats.lost_since(began, lanes, active, lost);
            match doubt {
                Doubt::StartAgain if !lost.is_empty() => return false,
                Doubt::StartAgain | Doubt::EndThere => levels.cut(at.depth as u32),
            }
            if levels.nobody_left() {
                return true;
            }
        }
    }

    /// The lanes in which any target holds a block now.
    pub fn lanes_in_use(&self) -> Lanes {
        self.trie.read().seats.lanes_in_use()
    }

    /// Blocks `target` holds in `lane`.
    pub fn blocks(&self, target: Target, lane: Lane) -> usize {
        self.trie.read().seats.blocks(target, lane)
    }

    /// Distinct blocks in memory: those that anyone holds in any lane, and those above them.
    pub fn distinct_blocks(&self) -> usize {
        self.trie.read().len()
    }

    /// [`digest_of`] the blocks `target` holds in the device lane, kept up to date with each change.
    pub fn digest(&self, target: Target) -> u64 {
        self.trie.read().seats.digest(target)
    }

    /// The identities of the blocks `target` holds in `lane`, in no order. Walks the whole index: for tests and
    /// debugging.
    pub fn held(&self, target: Target, lane: Lane) -> Vec<SequenceHash> {
        let seat = Seat { slot: target.slot, lane };
        let mut held = Vec::new();
        let mut trie = self.trie.read();
        let mut number = 0;
        while number < trie.bound() && trie.seats.blocks(target, lane) > 0 {
            for node in (number..number + PAGE).filter_map(|number| trie.numbered(number)) {
                let mask = node.cover.held(seat, node.blocks.len());
                let identities = node.blocks.identities().iter().enumerate();
                held.extend(identities.filter(|(at, _)| mask >> at & 1 == 1).map(|(_, identity)| SequenceHash(*identity)));
            }
            number += PAGE;
            RwLockReadGuard::bump(&mut trie);
        }
        held
    }
}

/// Has the memory of the first blocks come near while the index's own does: most prompts part within them.
fn approach(chain: &[LocalHash]) {
    const BLOCKS: usize = 96;
    const LINE: usize = 64 / size_of::<LocalHash>();
    let lines = chain[..chain.len().min(BLOCKS)].iter().step_by(LINE);
    std::hint::black_box(lines.fold(0, |all, local| all | local.0));
}

/// What to do about a target that lost blocks while a lookup followed it.
#[derive(Clone, Copy)]
enum Doubt {
    StartAgain,
    EndThere,
}

/// An order-free fingerprint of a set of blocks: the wrapping sum of each identity, mixed (the finalizer of splitmix64)
/// so that sums of related hashes do not cancel.
pub fn digest_of(blocks: impl IntoIterator<Item = SequenceHash>) -> u64 {
    blocks.into_iter().map(mixed).fold(0, u64::wrapping_add)
}

/// One block's part of [`digest_of`].
pub(crate) fn mixed(block: SequenceHash) -> u64 {
    let mut x = block.0;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
