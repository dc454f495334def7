//! Stores of late, kept so that a retraction does not take back what the engine has stored since.
//!
//! An answer that reports less than was predicted (rule 11) comes after the engine's own stores for that prompt: it had to
//! compute those blocks. What must go is what was believed when the request was sent. So the chain is retracted, and stores
//! that came after the dispatch are written again.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use index::{Blocks, EngineHash, LocalHash, Parent, Stored, Window, Writer};

/// Bytes of stores kept per target; only targets that are not whole keep any. About a minute of a busy engine.
const FRESH_BYTES: usize = 1 << 20;

/// A store, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) parent: Parent,
    pub(crate) hashes: Vec<EngineHash>,
    pub(crate) content: Content,
}

/// What the blocks of a store are made of.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Tokens { tokens: Vec<u32>, window: Window },
    Locals(Vec<LocalHash>),
}

impl Prepared {
    pub(crate) fn write(&self, writer: &mut Writer) -> Stored {
        let hashes = &self.hashes;
        let blocks = match &self.content {
            Content::Tokens { tokens, window } => Blocks::Tokens { tokens, window: *window, hashes },
            Content::Locals(locals) => Blocks::LocalHashes { locals, hashes },
        };
        writer.store(self.parent, blocks)
    }

    fn bytes(&self) -> usize {
        let content = match &self.content {
            Content::Tokens { tokens, .. } => size_of_val(&tokens[..]),
            Content::Locals(locals) => size_of_val(&locals[..]),
        };
        // Each hash is in the look-up table as well.
        size_of::<(Instant, Self)>() + 4 * size_of_val(&self.hashes[..]) + content
    }
}

/// The stores, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    stores: VecDeque<(Instant, Prepared)>,
    /// How many of `stores` name a hash.
    names: HashMap<EngineHash, u32>,
    bytes: usize,
    /// Stores up to this time may be missing.
    since: Option<Instant>,
}

impl Fresh {
    /// Begins to keep stores, at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: Some(now), ..Self::default() }
    }

    /// A store was written.
    pub(crate) fn stored(&mut self, now: Instant, store: Prepared) {
        self.bytes += store.bytes();
        for hash in &store.hashes {
            *self.names.entry(*hash).or_default() += 1;
        }
        self.stores.push_back((now, store));
        while self.bytes > FRESH_BYTES {
            self.drop_oldest();
        }
    }

    /// Blocks were removed: they are not to be written again. Engines evict what was used longest ago, so the stores that
    /// have to be forgotten with them are old ones.
    pub(crate) fn removed(&mut self, hashes: &[EngineHash]) {
        for hash in hashes {
            while self.names.contains_key(hash) {
                self.drop_oldest();
            }
        }
    }

    /// Whether every store since `dispatched` is here.
    pub(crate) fn covers(&self, dispatched: Instant) -> bool {
        self.since.is_none_or(|since| dispatched > since)
    }

    /// Writes the stores since `dispatched` again. A block that is still held is taken away first, so that no copy is
    /// counted twice.
    pub(crate) fn restore(&self, writer: &mut Writer, dispatched: Instant) {
        for (_, store) in self.stores.iter().filter(|(at, _)| *at >= dispatched) {
            writer.remove(&store.hashes);
            store.write(writer);
        }
    }

    fn drop_oldest(&mut self) {
        let Some((at, store)) = self.stores.pop_front() else { return };
        self.bytes -= store.bytes();
        self.since = Some(at);
        for hash in &store.hashes {
            if let Some(count) = self.names.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(hash);
                }
            }
        }
    }
}
