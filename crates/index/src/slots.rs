//! Sets of slots as bit words: one operation handles 64 targets.

use crate::target::Slot;

const WORD_BITS: usize = u64::BITS as usize;

/// A set of slots. Operations keep the memory they have, so a set used as scratch stops allocating once warm.
#[derive(Clone, Default)]
pub struct SlotSet {
    /// Bit `i % 64` of word `i / 64` is slot `i`; words beyond the end are zero.
    words: Vec<u64>,
}

impl SlotSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds `slot`; whether it was new.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Takes `slot` out; whether it was in.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        let Some(word) = self.words.get_mut(word) else { return false };
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Whether `slot` is in.
    pub fn contains(&self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Empties the set and keeps its memory.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Becomes equal to `other` and keeps its memory.
    pub fn copy_from(&mut self, other: &Self) {
        self.words.clear();
        self.words.extend_from_slice(&other.words);
    }

    /// Keeps what is also in `other`.
    pub fn and(&mut self, other: &Self) {
        self.words.truncate(other.words.len());
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Takes out what is in `other`.
    pub fn and_not(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Adds what is in `other`.
    pub fn or(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// How many slots are in.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no slot is in.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        self.words.iter().enumerate().flat_map(|(index, word)| Bits(*word).map(move |bit| slot_at(index * WORD_BITS + bit)))
    }
}

fn place(slot: Slot) -> (usize, u64) {
    (slot.index() / WORD_BITS, 1 << (slot.index() % WORD_BITS))
}

fn slot_at(index: usize) -> Slot {
    // A set holds only slots that were inserted, so every index fits the type slots are made of.
    Slot::new(index as u16)
}

/// The positions of the ones of a word, ascending.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

impl PartialEq for SlotSet {
    /// Equal as sets: words of zero at the end do not matter.
    fn eq(&self, other: &Self) -> bool {
        let (short, long) = if self.words.len() <= other.words.len() { (self, other) } else { (other, self) };
        let (same, rest) = long.words.split_at(short.words.len());
        short.words == same && rest.iter().all(|word| *word == 0)
    }
}

impl Eq for SlotSet {}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::new();
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(Slot::index)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::btree_set, prelude::*};

    use super::*;

    fn set(indices: &BTreeSet<u16>) -> SlotSet {
        indices.iter().map(|index| Slot::new(*index)).collect()
    }

    fn indices(set: &SlotSet) -> Vec<u16> {
        set.iter().map(|slot| slot.index() as u16).collect()
    }

    proptest! {
        #[test]
        fn operations_are_those_of_sets(one in btree_set(0..300_u16, 0..80), other in btree_set(any::<u16>(), 0..20), more in 0..300_u16) {
            let other: BTreeSet<_> = other.into_iter().chain(one.iter().copied().filter(|index| index % 3 == 0)).collect();
            let (mut a, b) = (set(&one), set(&other));
            prop_assert_eq!(indices(&a), one.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!((a.count(), a.is_empty()), (one.len(), one.is_empty()));
            prop_assert_eq!(a.contains(Slot::new(more)), one.contains(&more));
            let mut and = a.clone();
            and.and(&b);
            prop_assert_eq!(indices(&and), one.intersection(&other).copied().collect::<Vec<_>>());
            let mut and_not = a.clone();
            and_not.and_not(&b);
            prop_assert_eq!(indices(&and_not), one.difference(&other).copied().collect::<Vec<_>>());
            let mut or = a.clone();
            or.or(&b);
            prop_assert_eq!(indices(&or), one.union(&other).copied().collect::<Vec<_>>());
            let mut copy = or.clone();
            copy.copy_from(&a);
            prop_assert_eq!(&copy, &a);
            prop_assert_eq!(a.insert(Slot::new(more)), !one.contains(&more));
            prop_assert!(a.remove(Slot::new(more)) && !a.contains(Slot::new(more)) && !a.remove(Slot::new(more)));
        }
    }

    #[test]
    fn equality_ignores_how_much_room_a_set_has() {
        let mut roomy = set(&BTreeSet::from([3, 60_000]));
        roomy.remove(Slot::new(60_000));
        assert_eq!(roomy, set(&BTreeSet::from([3])));
        assert_ne!(roomy, SlotSet::new());
    }
}
