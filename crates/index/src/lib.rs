//! The global prefix index: which worker holds which blocks of which prompts.
//!
//! Owns block hashing (bit-exact with the hashes other routers and publishers compute), the numbering of targets, and
//! [`KvIndexer`], which answers "how many leading blocks of this prompt does each target hold now". It knows nothing of
//! sockets, sequence numbers or trust (those are the feed's) and nothing of cost (the scheduler's). No clock, no I/O.
//!
//! [`KvIndexer`] is the entry: [`KvIndexer::writer`] for whoever folds a stream into it, [`KvIndexer::holder`] for whoever
//! keeps a lane that no stream fills, [`KvIndexer::lookup`] for whoever routes a request.

mod arena;
mod beneath;
mod catalog;
mod cover;
mod cut;
mod dump;
mod hash;
mod hold;
mod holder;
mod indexer;
mod keyed;
mod kids;
mod lane;
mod levels;
mod limits;
mod mask;
mod names;
mod near;
mod node;
mod parked;
mod prefixes;
mod seats;
mod slots;
mod steps;
mod store;
mod table;
mod target;
mod trie;
mod walk;
mod writer;

pub use catalog::Catalog;
pub use dump::{Dump, DumpEvent};
pub use hash::{
    BlockSize, EngineHash, Hashed, LocalHash, RecentPrompts, Recipe, Seed, SequenceHash, Window, local_hashes, sequence_hashes,
};
pub use holder::{Held, Holder};
pub use indexer::{KvIndexer, digest_of};
pub use lane::{Copies, Lane, Lanes};
pub use levels::Levels;
pub use limits::Limits;
pub use parked::Parked;
pub use prefixes::{Piece, Prefixes};
pub use slots::SlotSet;
pub use store::{Blocks, Parent, Refusal, Removed, Stored};
pub use target::{Slot, Target, Targets};
pub use writer::Writer;
