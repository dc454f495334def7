//! The index of one (model, block size): who holds which blocks.
//!
//! # Picture
//!
//! ```text
//!                root                    a tree of nodes: a node is up to 248 blocks in their place after all blocks
//!              /      \                  before them, cut where prompts part; shared by every target that holds any
//!   [A B C D E]        [X Y]   1 2 7     full: who holds all of a node, as a set of bits that nodes share
//!      1 7, 2: 11010   /   \             parts: who holds some of it, one bit for each block, so holes are exact
//!                    [Z]   [V W]
//!                    {1}   {2 7}         prompt X Y V Q: 1 has depth 2, 2 and 7 have depth 3
//! ```
//!
//! - A *node* is one line of memory: where its hashes are, who holds it, what follows, what it follows, its strip.
//!   Hashes lie apart by kind (all local hashes, then all identities), so a lookup reads what it compares and nothing else.
//! - The *latest child* is in its parent; the others are in one table for all nodes, by (parent, local hash).
//! - A *strip* numbers the blocks of one store. A block's number outlives any parting of its node, so names never
//!   have to be told of it. A node is parted by putting a new one above it: what follows stays as it is.
//! - A [`Writer`] owns one lane of one target and, outside the lock, what only it needs: a table from the engine's names
//!   to the numbers of blocks, copies beyond the first, the stores whose parents it does not know. Hashing, checking and
//!   naming are done there; under the lock there is a compare, a copy of hashes and a change of a set per node.
//! - The *tables* (of names, of children) keep a byte of each key apart from the entries: whoever asks for what is not
//!   there, as nearly all stores do and most lookups at their end, reads one word of a table an eighth the size. Names are
//!   mixed with the process's secret, reversibly, so a table needs no hashing, and are prefetched some ahead.
//! - What running sequences send, one block after their last, takes a way of its own: the end of each is remembered, two to a
//!   line of the memory, as many as are asked for, and its node is lengthened where it lies.
//! - A set of holders remembers of which set above it it is a part, and who that has besides, if it is one: noted by whoever
//!   writes past both, and worth nothing once either has changed. A lookup whose targets are exactly those of one set goes on
//!   to the next by two comparisons of numbers, without looking at the sets.
//! - A [`Holder`] owns a lane in which no engine names blocks: it has no table, and hands out what it holds as rows of numbers.
//! - A *dump* is of one instant and taken in steps: as long as one is, whoever changes a node copies it before.
//!
//! # Invariants
//!
//! - Exact (rule 2): with no writer running, a target's depth is the longest run of leading blocks it holds, by
//!   definition and not by bookkeeping: the walk looks at who holds each block. There is nothing to go stale.
//! - Somebody holds the last block of a node without children: memory follows live blocks, at once. No sweep.
//! - Nobody is both full and in part in a node, and nobody is in part with all or none of its blocks.
//! - A number of a strip never means two blocks while the strip lives, and strips have births: ([`crate::node::BlockRef`])
//!   means one block for good.
//! - At most one writer or holder is in force for a (slot, lane): the newest, of the newest generation. Others change nothing.
//! - A reader that runs beside writers may under-count and never over-counts: each (target, depth) it reports was true,
//!   whole, at one instant of the lookup. Within one hold of the lock that is plain. A lookup lets writers in every
//!   [`crate::walk::CHUNK_NODES`] nodes; afterwards a target that lost any block since the lookup began is not carried
//!   on: the lookup starts again, and after [`LOOKUP_RESTARTS`] of those ends such targets at what was certain. Stores
//!   go in head first, so a half-applied one is a shorter one; a target that is being emptied is hidden at once.
//! - All shared state is behind one lock and nothing is atomic but that lock: there is no order of memory to model.
//!
//! # Complexity
//!
//! n = blocks of the argument, s = nodes they lie in (n / 248 + places where prompts part), W = targets.
//!
//! | operation | steps |
//! |---|---|
//! | lookup | compare of n hashes; per node one child look-up, and where its holders are others than its parent's and not known to be those but one, W/64 words; who holds nodes in part is looked at one by one |
//! | one block after the end of a sequence | one insertion outside the lock, a write to one node inside |
//! | store | outside the lock n hashes and n table insertions; inside a copy of n hashes, s changes of sets |
//! | remove | outside the lock n table removals; inside one change for blocks of one node named in a row |
//! | hold, give back, clear of a holder | as store, remove and clear, without a table outside the lock |
//! | drop of a holder that still holds something | all nodes (its owner clears it first) |
//! | clear, drop of a writer | hidden in one step; then the nodes of the strips in which it gained blocks (noted as it does, and thinned out once they are twice too many) |
//! | retract | names held, and the nodes above them |
//! | take-over from a writer that still lives | all nodes (rare: [`KvIndexer::writer`]) |
//! | dump | all nodes; meanwhile a writer copies each that it is the first to change |
//!
//! Memory: 16 bytes per distinct block, 15 to 26 per name (a name is a held block of one target), about 120 per node; a writer remembers up to
//! 1,024 ends of sequences in 32 KiB.
//! No hold of the lock does more than about [`crate::trie::CHUNK_BLOCKS`] steps (`cargo bench -p index --bench steps`: 0.06 to
//! 0.15 ms). What grows by copying itself behind it is a page of 256 nodes or one of 128 parts of the table of children.
//!
//! # Where a lookup's time goes
//!
//! A prompt that parts after one node of 32 blocks, which 32 targets hold, everything near: about 80 ns, 20 of them for the
//! visit of the targets. With the index out of the second-level cache 200 more: some nine reads that wait for one another
//! (part, tags, entry, page, node, hashes; part and tags of the child that is missing). With the prompt's own hashes in no
//! cache 300 more, in any index. A long prompt costs 0.2 ns a block, 0.13 of which is the compare of two arrays; beyond the
//! caches it costs what reading both arrays costs. The processor asks for the lines of a page by itself, but not for the next
//! page: so at each long node some pages ahead are touched, of the prompt and of what follows the node (a tenth of a lookup out
//! of the caches, nothing near). That has to be in the second-level cache only: in the first, one line of a page far ahead leads
//! the processor astray, and a prompt of 128k tokens takes a quarter more.
//!
//! What is near costs instructions: about 210 for a node at which one target of many ends, half of it for the child and the
//! comparison; about 900 for a store of one block, a quarter of which is its caller's. Beside those it is waiting for a value's
//! own words, where they were written in other sizes than they are read, that is dear (see `names::tails`), the taking and giving
//! back of the lock, which wait for the lines written before, and the jumps nobody can foresee.
//!
//! # What was tried and lost
//!
//! - One node per block: exact and simple, 170 bytes a block, a miss of the cache for each block of a prompt.
//! - Cutoffs per holder instead of masks: no smaller where it matters (who holds in part is rare), and blind to holes.
//! - One table of names for all targets: in a trace of 32 workers 95 % of the held blocks are held once, so it saves
//!   nothing there, ties names to the lock, and must fall back where targets name blocks differently.
//! - Names in a general hash map (17 to 34 bytes a name), in linear probing ordered by hash (dense, but moving entries
//!   cost a third of all ingest), and in buckets of one cache line (denser still, but every insertion waits for its line:
//!   1.4 times the CPU of all ingest of tags apart from entries, prefetched).
//! - Reading memory ahead of its use instead of prefetching it: needs no `unsafe`, but holds up what comes after.
//! - Tables that double: no faster than by 1.7, and larger.
//! - On the way down, prefetching the next node's hashes and holders: a little better with the index out of the
//!   caches, worse with it near (a seventh on staggered forks). Only where a node is long, the next one's line, or the first
//!   of its hashes: nothing out of the caches, 1 to 3 % worse near; all of its hashes: 28 % worse.
//! - Prefetching every line of a prompt 64 lines ahead: a tenth better out of the caches, a tenth worse near, where touching
//!   pages is as good and costs nothing. Beside that, the line of the node after the next, or five lines of the next one's hashes:
//!   nothing.
//! - Huge pages for all memory: the prompts' readers gain (a fifth at 128k tokens), the index's own reads nothing that shows.
//! - Prefetching more or fewer of a prompt's first blocks (8, 40, 96, none), or reading it in several streams: the same.
//! - For stores of one block: writing a node's hashes without asking the count of its memory, or the process's key kept in each
//!   writer: nothing that shows (a hundredth of 100 ns).
//! - Nodes of 127 blocks: an eighth more on deep prompts. Longer than 255 they no longer fit one line of memory. Of 254
//!   blocks the arrays begin within lines: 4 % more on deep prompts than of 248 that begin at one.
//! - Looking at the sets wherever targets end one by one: 200 of 530 instructions a node.
//! - A dump under one hold of the lock: from the next writer on lookups waited for all of it.
//! - A pass over all names to find the nodes a target held: four fifths of the instructions of its removal.
//! - Children in ordered maps: a wide fork cost several misses.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{
    arena::PAGE,
    cover::Seat,
    hash::{BlockSize, LocalHash, SequenceHash},
    holder::Holder,
    lane::{Copies, Lane, Lanes},
    levels::Levels,
    limits::Limits,
    near,
    seats::Owner,
    target::Target,
    trie::Trie,
    writer::Writer,
};

/// How often a lookup starts again because targets it was following lost blocks meanwhile.
const LOOKUP_RESTARTS: usize = 3;
/// How often a lookup or a writer looks whether another writer has let go before it sleeps, with so many pauses of the processor between: together about
/// as long as sleeping and being woken takes, which is longer than nearly every hold.
const LOOKS: usize = 256;
const PAUSES: usize = 2;
/// Nodes are numbered with 32 bits; half of them leaves room for stores that are checked at the same time.
const MOST_BLOCKS: usize = 1 << 31;

/// The global prefix index of one model and block size. The module text tells how it works and what it costs.
#[derive(Debug)]
pub struct KvIndexer {
    block_size: BlockSize,
    pub(crate) limits: Limits,
    /// Guards who holds what. Requests read it, writers write it, each for a bounded number of steps at a time.
    pub(crate) trie: RwLock<Trie>,
    /// Held while a writer or a holder is made, so that a take-over is over before the next begins; and while what one left is swept.
    claiming: Mutex<()>,
    /// Held while a dump is taken, so that there is one at a time.
    pub(crate) dumping: Mutex<()>,
}

impl KvIndexer {
    /// An empty index.
    pub fn new(block_size: BlockSize, mut limits: Limits) -> Arc<Self> {
        limits.index_blocks = limits.index_blocks.min(MOST_BLOCKS);
        limits.chain_blocks = limits.chain_blocks.min(MOST_BLOCKS);
        Arc::new(Self { block_size, limits, trie: RwLock::new(Trie::new()), claiming: Mutex::new(()), dumping: Mutex::new(()) })
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
        Writer::new(self.clone(), self.claim(target, lane), target, copies)
    }

    /// As [`KvIndexer::writer`], for a lane in which no engine names its blocks.
    pub fn holder(self: &Arc<Self>, target: Target, lane: Lane) -> Holder {
        Holder::new(self.clone(), self.claim(target, lane))
    }

    fn claim(&self, target: Target, lane: Lane) -> Owner {
        let _claiming = self.claiming.lock();
        let (owner, sweep) = self.trie.write().seats.claim(target, lane);
        for lane in sweep.iter() {
            self.sweep(Seat { slot: target.slot, lane });
        }
        owner
    }

    /// The owner, who holds nothing more from now on, writes no more. What it still holds is found by walking the index.
    pub(crate) fn abandon(&self, owner: Owner) {
        // Not while another sweeps, where there is nothing to sweep.
        if self.trie.read().seats.holds(owner) {
            let _claiming = self.claiming.lock();
            if self.hide(owner) {
                self.sweep(owner.seat);
            }
        }
        self.leave(owner);
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
        approach(chain);
        let mut trie = self.reading();
        let began = trie.seats.clock();
        let mut at = trie.start();
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

    /// The trie, for a lookup. Writers hold it for moments, again and again: the lock itself would soon put a reader to sleep.
    fn reading(&self) -> RwLockReadGuard<'_, Trie> {
        for _ in 0..LOOKS {
            if let Some(trie) = self.trie.try_read() {
                return trie;
            }
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
        }
        self.trie.read()
    }

    /// The trie, for a store or a removal beside other writers. Readers let go when they are done; no more come once it is waited for.
    pub(crate) fn writing(&self) -> RwLockWriteGuard<'_, Trie> {
        for _ in 0..LOOKS {
            if !self.trie.is_locked_exclusive() {
                break;
            }
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
        }
        self.trie.write()
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
                held.extend(identities.filter(|(at, _)| mask.contains(*at)).map(|(_, identity)| SequenceHash(*identity)));
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
    chain[..chain.len().min(BLOCKS)].iter().step_by(near::LINE).for_each(near::approach);
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
