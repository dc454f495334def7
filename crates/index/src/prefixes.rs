//! Prefixes of prompts with a value each: what is booked, what is leased. Unlike the index it knows nothing of targets, and
//! whoever uses it sees to it that nothing is kept without what comes before it.
//!
//! A chained hash names a block together with all before it, so a piece of a prompt is found by the hash of its first
//! block alone. Pieces are cut where prompts part or a value begins to differ, and never joined again: a prompt of any
//! length costs about as much as the places where others left it, and one compare of its hashes.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::hash::SequenceHash;

/// Blocks in a row that have one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<V> {
    blocks: Box<[SequenceHash]>,
    /// What is kept of them.
    pub value: V,
}

impl<V> Piece<V> {
    /// At least one.
    pub fn blocks(&self) -> &[SequenceHash] {
        &self.blocks
    }

    /// How many blocks of it `rest` begins with.
    pub fn agrees(&self, rest: &[SequenceHash]) -> usize {
        let both = self.blocks.len().min(rest.len());
        if self.blocks[..both] == rest[..both] {
            return both;
        }
        self.blocks.iter().zip(rest).take_while(|(one, other)| one == other).count()
    }
}

/// A set of prefixes. Memory follows the largest number of pieces since the last [`Prefixes::drain`]: tables do not shrink.
#[derive(Debug)]
pub struct Prefixes<V> {
    tables: Box<[HashMap<SequenceHash, Piece<V>, Keyed>]>,
    blocks: usize,
}

impl<V> Prefixes<V> {
    /// An empty set, in so many hash tables, at least one. When a table grows, it moves all its entries: small ones keep that short.
    pub fn new(tables: usize) -> Self {
        let keyed = Keyed::new();
        Self { tables: (0..tables.max(1)).map(|_| HashMap::with_hasher(keyed)).collect(), blocks: 0 }
    }

    /// The piece that begins with this block.
    pub fn get(&self, first: SequenceHash) -> Option<&Piece<V>> {
        self.tables[self.table(first)].get(&first)
    }

    /// The same, for its value to be changed.
    pub fn get_mut(&mut self, first: SequenceHash) -> Option<&mut Piece<V>> {
        let at = self.table(first);
        self.tables[at].get_mut(&first)
    }

    /// Adds a piece. One that begins with the same block is replaced; of no blocks there is none.
    pub fn insert(&mut self, blocks: &[SequenceHash], value: V) {
        let Some(first) = blocks.first() else { return };
        self.blocks += blocks.len();
        let at = self.table(*first);
        let replaced = self.tables[at].insert(*first, Piece { blocks: blocks.into(), value });
        self.blocks -= replaced.map_or(0, |piece| piece.blocks.len());
    }

    /// Takes a piece out.
    pub fn remove(&mut self, first: SequenceHash) -> Option<Piece<V>> {
        let at = self.table(first);
        let piece = self.tables[at].remove(&first)?;
        self.blocks -= piece.blocks.len();
        Some(piece)
    }

    /// Shortens a piece to its first `keep` blocks, at least one, and hands out the others.
    pub fn cut(&mut self, first: SequenceHash, keep: usize) -> Option<Box<[SequenceHash]>> {
        let piece = self.get_mut(first)?;
        let keep = keep.max(1);
        if keep >= piece.blocks.len() {
            return None;
        }
        let rest: Box<[SequenceHash]> = piece.blocks[keep..].into();
        piece.blocks = piece.blocks[..keep].into();
        self.blocks -= rest.len();
        Some(rest)
    }

    /// Blocks of all pieces.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    fn table(&self, block: SequenceHash) -> usize {
        (block.0 % self.tables.len() as u64) as usize
    }

    /// Takes all out; what is not asked for is dropped.
    pub fn drain(&mut self) -> impl Iterator<Item = Piece<V>> {
        let all = std::mem::replace(self, Self::new(self.tables.len()));
        all.tables.into_iter().flatten().map(|(_, piece)| piece)
    }
}

impl<V: Clone> Prefixes<V> {
    /// Parts a piece in two with the same value, the second from its block number `at` on. Nothing where that is no
    /// place within it.
    pub fn part(&mut self, first: SequenceHash, at: usize) {
        if at == 0 {
            return;
        }
        if let Some(value) = self.get(first).map(|piece| piece.value.clone())
            && let Some(rest) = self.cut(first, at)
        {
            self.insert(&rest, value);
        }
    }
}

/// A hash for keys that are hashes already, but of text that anyone can send: one product with a secret factor keeps
/// others from aiming at one bucket.
#[derive(Clone, Copy, Debug)]
struct Keyed {
    start: u64,
    factor: u64,
}

impl Keyed {
    fn new() -> Self {
        let random = RandomState::new();
        Keyed { start: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1 }
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { state: self.start, factor: self.factor }
    }
}

struct KeyedHasher {
    state: u64,
    factor: u64,
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(blocks: &[u64]) -> Vec<SequenceHash> {
        blocks.iter().copied().map(SequenceHash).collect()
    }

    #[test]
    fn a_piece_that_is_parted_is_two_with_its_value() {
        let mut prefixes = Prefixes::new(4);
        prefixes.insert(&chain(&[1, 2, 3, 4]), 'a');
        prefixes.part(SequenceHash(1), 0);
        prefixes.part(SequenceHash(1), 4);
        assert_eq!(prefixes.get(SequenceHash(1)).unwrap().blocks(), chain(&[1, 2, 3, 4]));
        prefixes.part(SequenceHash(1), 3);
        assert_eq!(prefixes.get(SequenceHash(1)).unwrap().blocks(), chain(&[1, 2, 3]));
        assert_eq!(prefixes.get(SequenceHash(4)), Some(&Piece { blocks: chain(&[4]).into(), value: 'a' }));
        assert_eq!((prefixes.blocks(), prefixes.get(SequenceHash(2))), (4, None));
    }

    #[test]
    fn blocks_are_counted_through_every_change() {
        let mut prefixes = Prefixes::new(4);
        prefixes.insert(&chain(&[1, 2, 3]), ());
        prefixes.insert(&chain(&[1, 2]), ());
        prefixes.insert(&[], ());
        assert_eq!(prefixes.blocks(), 2);
        assert_eq!(prefixes.cut(SequenceHash(1), 0).unwrap()[..], chain(&[2]));
        assert_eq!((prefixes.cut(SequenceHash(1), 1), prefixes.blocks()), (None, 1));
        prefixes.insert(&chain(&[7, 8]), ());
        assert_eq!(prefixes.remove(SequenceHash(7)).unwrap().agrees(&chain(&[7, 9])), 1);
        assert_eq!((prefixes.remove(SequenceHash(7)), prefixes.blocks()), (None, 1));
        assert_eq!(prefixes.drain().map(|piece| piece.blocks().len()).sum::<usize>(), 1);
        assert_eq!((prefixes.blocks(), prefixes.get(SequenceHash(1))), (0, None));
    }
}
