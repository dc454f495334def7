//! A hash for maps keyed by hashes that others chose: a few multiplications, and a key drawn once per process so that
//! nobody outside can aim at one bucket.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::LazyLock,
};

pub(crate) type KeyedMap<K, V> = HashMap<K, V, Keyed>;

static KEYS: LazyLock<(u64, u64)> = LazyLock::new(|| {
    let random = RandomState::new();
    (random.hash_one(0_u8), random.hash_one(1_u8) | 1)
});

/// The fractional part of the golden ratio: words that follow one another fall far apart. The process's factor alone would
/// leave some such rows in clusters, and an engine may well number its blocks.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The process's key, at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    start: u64,
    factor: u64,
}

impl Key {
    pub(crate) fn of_process() -> Self {
        let (start, factor) = *KEYS;
        Self { start, factor }
    }

    /// One word, scrambled: all its bits are of use, the high ones first.
    pub(crate) fn scramble(self, word: u64) -> u64 {
        fold(fold(self.start ^ word, SPREAD), self.factor)
    }

    /// One word, mixed: another for each, and all its bits are of use. [`Key::unmix`] is the way back.
    pub(crate) fn mix(self, word: u64) -> u64 {
        halves((halves((word ^ self.start).wrapping_mul(SPREAD))).wrapping_mul(self.factor))
    }

    /// The word that was mixed.
    pub(crate) fn unmix(self, word: u64) -> u64 {
        halves(halves(word).wrapping_mul(inverse(self.factor))).wrapping_mul(inverse(SPREAD)) ^ self.start
    }

    /// Two words, scrambled.
    pub(crate) fn scramble_pair(self, one: u64, other: u64) -> u64 {
        fold(self.scramble(one) ^ other, self.factor)
    }
}

/// Its own inverse.
fn halves(word: u64) -> u64 {
    word ^ (word >> 32)
}

/// What an odd factor is undone by: each step doubles how many of the low bits are right.
fn inverse(factor: u64) -> u64 {
    (0..5).fold(factor, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(inverse))))
}

fn fold(word: u64, factor: u64) -> u64 {
    let product = u128::from(word) * u128::from(factor);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Makes [`KeyedHasher`]s, all with the process's key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed {
    start: u64,
    factor: u64,
}

impl Default for Keyed {
    fn default() -> Self {
        let (start, factor) = *KEYS;
        Self { start, factor }
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { state: self.start, factor: self.factor }
    }
}

/// Folds each word in by a full 128-bit product.
pub(crate) struct KeyedHasher {
    state: u64,
    factor: u64,
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(size_of::<u64>()) {
            let mut word = [0; size_of::<u64>()];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.factor);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmixing_is_the_way_back() {
        for key in [Key::of_process(), Key { start: 7, factor: 1 }, Key { start: u64::MAX, factor: u64::MAX }] {
            for word in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef].into_iter().flat_map(|word| (0..64).map(move |bit| word ^ (1 << bit))) {
                assert_eq!(key.unmix(key.mix(word)), word);
            }
        }
    }
}
