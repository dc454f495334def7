//! Which blocks of one node: a bit for each.

use std::ops::{BitAnd, BitOr, Not};

const WORDS: usize = 4;
const WORD_BITS: usize = u64::BITS as usize;

/// Bit `i` is the node's block `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask([u64; WORDS]);

impl Mask {
    /// Blocks it can tell apart.
    pub(crate) const BITS: usize = WORDS * WORD_BITS;
    pub(crate) const NONE: Self = Self([0; WORDS]);
    pub(crate) const ALL: Self = Self([u64::MAX; WORDS]);

    /// The first `len` blocks.
    #[inline]
    pub(crate) fn first(len: usize) -> Self {
        Self(std::array::from_fn(|at| match len.saturating_sub(at * WORD_BITS) {
            0 => 0,
            bits => u64::MAX >> (WORD_BITS - bits.min(WORD_BITS)),
        }))
    }

    /// Adds a block.
    #[inline]
    pub(crate) fn add(&mut self, at: usize) {
        self.0[at / WORD_BITS] |= 1 << (at % WORD_BITS);
    }

    #[inline]
    pub(crate) fn contains(self, at: usize) -> bool {
        self.0[at / WORD_BITS] >> (at % WORD_BITS) & 1 == 1
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// How many blocks.
    #[inline]
    pub(crate) fn count(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// How many leading blocks there are before the first that is not in.
    pub(crate) fn leading(self) -> usize {
        let whole = self.0.iter().take_while(|word| **word == u64::MAX).count();
        whole * WORD_BITS + self.0.get(whole).map_or(0, |word| word.trailing_ones() as usize)
    }

    /// How many leading blocks there are up to the last that is in.
    pub(crate) fn reach(self) -> usize {
        let last = self.0.iter().rposition(|word| *word != 0);
        last.map_or(0, |last| (last + 1) * WORD_BITS - self.0[last].leading_zeros() as usize)
    }

    /// Each block moved `by` places on; those beyond the last are lost.
    pub(crate) fn up(self, by: usize) -> Self {
        let (words, bits) = (by / WORD_BITS, by % WORD_BITS);
        let word = |at: Option<usize>| at.map_or(0, |at| self.0[at]);
        Self(std::array::from_fn(|at| match (word(at.checked_sub(words)), word(at.checked_sub(words + 1))) {
            (whole, _) if bits == 0 => whole,
            (high, low) => high << bits | low >> (WORD_BITS - bits),
        }))
    }

    /// Each block moved `by` places back; those before the first are lost.
    pub(crate) fn down(self, by: usize) -> Self {
        let (words, bits) = (by / WORD_BITS, by % WORD_BITS);
        let word = |at: usize| self.0.get(at).copied().unwrap_or(0);
        Self(std::array::from_fn(|at| match (word(at + words), word(at + words + 1)) {
            (whole, _) if bits == 0 => whole,
            (low, high) => low >> bits | high << (WORD_BITS - bits),
        }))
    }
}

impl BitAnd for Mask {
    type Output = Self;

    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }
}

impl BitOr for Mask {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }
}

impl Not for Mask {
    type Output = Self;

    #[inline]
    fn not(self) -> Self {
        Self(self.0.map(|word| !word))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::btree_set, prelude::*};

    use super::*;

    fn mask(blocks: &BTreeSet<usize>) -> Mask {
        let mut mask = Mask::NONE;
        blocks.iter().for_each(|at| mask.add(*at));
        mask
    }

    fn blocks(mask: Mask) -> BTreeSet<usize> {
        (0..Mask::BITS).filter(|at| mask.contains(*at)).collect()
    }

    proptest! {
        #[test]
        fn a_mask_is_a_set(
            some in btree_set(0..Mask::BITS, 0..40),
            gaps in btree_set(0..Mask::BITS, 0..3),
            by in 0..Mask::BITS,
        ) {
            let many: BTreeSet<_> = (0..by).filter(|at| !gaps.contains(at)).collect();
            for set in [&some, &many] {
                let one = mask(set);
                prop_assert_eq!(&blocks(one), set);
                prop_assert_eq!((one.count(), one.is_empty()), (set.len(), set.is_empty()));
                prop_assert_eq!(one.leading(), (0..).take_while(|at| set.contains(at)).count());
                prop_assert_eq!(one.reach(), set.last().map_or(0, |last| last + 1));
                prop_assert_eq!(blocks(one.up(by)), set.iter().map(|at| at + by).filter(|at| *at < Mask::BITS).collect());
                prop_assert_eq!(blocks(one.down(by)), set.iter().filter_map(|at| at.checked_sub(by)).collect());
            }
            prop_assert_eq!(blocks(mask(&some) & mask(&many)), &some & &many);
            prop_assert_eq!(blocks(mask(&some) | mask(&many)), &some | &many);
            prop_assert_eq!(blocks(mask(&some) & !mask(&many)), &some - &many);
            prop_assert_eq!(Mask::first(by), mask(&(0..by).collect()));
            prop_assert_eq!(Mask::first(Mask::BITS), Mask::ALL);
        }
    }
}
