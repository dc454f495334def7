//! Sets of slots as bit words: one operation handles 64 targets.

use smallvec::SmallVec;

use crate::target::Slot;

const WORD_BITS: usize = u64::BITS as usize;

/// A set of slots. Operations keep the memory they have, so a set used as scratch stops allocating once warm. Only the
/// words from the first to the last slot are kept: few neighbours, or one slot anywhere, need no memory of their own.
#[derive(Clone, Default)]
pub struct SlotSet {
    /// Which word `words[0]` is.
    first: usize,
    /// Bit `i % 64` of word `i / 64` is slot `i`; words before and beyond are zero.
    words: SmallVec<[u64; 2]>,
}

impl SlotSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { first: 0, words: SmallVec::new_const() }
    }

    /// Adds `slot`; whether it was new.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        self.cover(word, word + 1);
        let word = &mut self.words[word - self.first];
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Takes `slot` out; whether it was in.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        let Some(word) = word.checked_sub(self.first).and_then(|at| self.words.get_mut(at)) else { return false };
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Whether `slot` is in.
    pub fn contains(&self, slot: Slot) -> bool {
        let (word, bit) = place(slot);
        self.word(word) & bit != 0
    }

    /// Empties the set and keeps its memory.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Becomes equal to `other` and keeps its memory.
    pub fn copy_from(&mut self, other: &Self) {
        self.first = other.first;
        self.words.clear();
        match *other.words.as_slice() {
            [] => {}
            [one] => self.words.push(one),
            ref more => self.words.extend_from_slice(more),
        }
    }

    /// Keeps what is also in `other`.
    pub fn and(&mut self, other: &Self) {
        let (before, shared) = self.shared(other);
        self.words[..before].fill(0);
        self.words[before + shared.len()..].fill(0);
        for (word, other) in self.words[before..].iter_mut().zip(shared) {
            *word &= other;
        }
    }

    /// Takes out what is in `other`.
    pub fn and_not(&mut self, other: &Self) {
        let (before, shared) = self.shared(other);
        for (word, other) in self.words[before..].iter_mut().zip(shared) {
            *word &= !other;
        }
    }

    /// Adds what is in `other`.
    pub fn or(&mut self, other: &Self) {
        if other.words.is_empty() {
            return;
        }
        self.cover(other.first, other.first + other.words.len());
        let before = other.first - self.first;
        for (word, other) in self.words[before..].iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// How many slots are in.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no slot is in.
    pub fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |all, word| all | word) == 0
    }

    /// The slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        Ones { words: self.words.iter(), base: self.first * WORD_BITS, word: 0 }
    }

    /// Keeps what is also in `other`, and makes `gone` what was not; whether there is any. Words at the ends that become
    /// zero are given up.
    pub(crate) fn narrow(&mut self, other: &Self, gone: &mut Self) -> bool {
        gone.words.clear();
        let first = self.first;
        let words = self.words.as_mut_slice();
        let within = first.checked_sub(other.first).and_then(|from| other.words.get(from..from + words.len()));
        if let Some(kept) = within {
            lose(words, kept, first, gone);
        } else {
            let (before, shared) = self.shared(other);
            for (at, word) in self.words.iter_mut().enumerate() {
                let kept = at.checked_sub(before).and_then(|at| shared.get(at)).copied().unwrap_or(0);
                lose(std::slice::from_mut(word), &[kept], first + at, gone);
            }
        }
        if gone.words.is_empty() {
            return false;
        }
        if self.words.first() == Some(&0) || self.words.last() == Some(&0) {
            self.trim();
        }
        true
    }

    /// Becomes `slot` alone and keeps its memory.
    #[inline]
    pub(crate) fn become_one(&mut self, slot: Slot) {
        let (word, bit) = place(slot);
        self.first = word;
        if let [only] = self.words.as_mut_slice() {
            *only = bit;
        } else {
            self.words.clear();
            self.words.push(bit);
        }
    }

    /// The first slot that is not in `other`.
    pub(crate) fn first_beyond(&self, other: &Self) -> Option<Slot> {
        let (before, shared) = self.shared(other);
        let kept = std::iter::repeat_n(&0, before).chain(shared).chain(std::iter::repeat(&0));
        let mut words = self.words.iter().zip(kept).enumerate();
        let (at, (word, kept)) = words.find(|(_, (word, kept))| *word & !*kept != 0)?;
        Some(slot_at((self.first + at) * WORD_BITS + (word & !kept).trailing_zeros() as usize))
    }

    /// Gives up words of zero at the ends.
    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        let zeros = self.words.iter().take_while(|word| **word == 0).count();
        if zeros > 0 {
            self.words.drain(..zeros);
            self.first += zeros;
        }
    }

    /// Adds the slots of a word beyond the last that has any.
    #[inline]
    fn append(&mut self, at: usize, word: u64) {
        if self.words.is_empty() {
            self.first = at;
        } else {
            self.words.resize(at - self.first, 0);
        }
        self.words.push(word);
    }

    fn word(&self, word: usize) -> u64 {
        word.checked_sub(self.first).and_then(|at| self.words.get(at)).copied().unwrap_or(0)
    }

    /// The words of `other` that this set has too, and how many of its own lie before them.
    fn shared<'a>(&self, other: &'a Self) -> (usize, &'a [u64]) {
        let end = self.first + self.words.len();
        let from = other.first.clamp(self.first, end);
        let to = (other.first + other.words.len()).clamp(from, end);
        if from == to {
            return (from - self.first, &[]);
        }
        (from - self.first, &other.words[from - other.first..to - other.first])
    }

    /// Makes room for the words from `from` up to `to`.
    fn cover(&mut self, from: usize, to: usize) {
        if self.words.is_empty() {
            self.first = from;
        }
        if from < self.first {
            self.words.insert_many(0, std::iter::repeat_n(0, self.first - from));
            self.first = from;
        }
        if to > self.first + self.words.len() {
            self.words.resize(to - self.first, 0);
        }
    }
}

/// Takes out of `words`, the first of which is word `first` of its set, what is not in `kept`, and adds it to `gone`.
#[inline]
fn lose(words: &mut [u64], kept: &[u64], first: usize, gone: &mut SlotSet) {
    let mut from = 0;
    while let Some(at) = first_lost(&words[from..], &kept[from..]) {
        let at = from + at;
        gone.append(first + at, words[at] & !kept[at]);
        words[at] &= kept[at];
        from = at + 1;
    }
}

/// Where the first word is that has what is not in `kept`. Mostly none has, or one: rows of words are looked at at once.
#[inline]
fn first_lost(words: &[u64], kept: &[u64]) -> Option<usize> {
    const ROW: usize = 4;
    let ((rows, rest), (kept_rows, kept_rest)) = (words.as_chunks::<ROW>(), kept.as_chunks::<ROW>());
    let is_less = |(word, kept): (&u64, &u64)| word & !kept != 0;
    for (row, (words, kept)) in rows.iter().zip(kept_rows).enumerate() {
        if words.iter().zip(kept).fold(0, |all, (word, kept)| all | (word & !kept)) != 0 {
            return words.iter().zip(kept).position(is_less).map(|at| row * ROW + at);
        }
    }
    rest.iter().zip(kept_rest).position(is_less).map(|at| rows.len() * ROW + at)
}

fn place(slot: Slot) -> (usize, u64) {
    (slot.index() / WORD_BITS, 1 << (slot.index() % WORD_BITS))
}

fn slot_at(index: usize) -> Slot {
    // A set holds only slots that were inserted, so every index fits the type slots are made of.
    Slot::new(index as u16)
}

/// The ones of words, ascending.
struct Ones<'a> {
    words: std::slice::Iter<'a, u64>,
    /// The number of the first bit of the next word.
    base: usize,
    /// What is left of the word before.
    word: u64,
}

impl Iterator for Ones<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        while self.word == 0 {
            self.word = *self.words.next()?;
            self.base += WORD_BITS;
        }
        let bit = self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        Some(slot_at(self.base - WORD_BITS + bit))
    }

    /// Faster than one at a time: a word of ones is a row of numbers.
    fn fold<B, F: FnMut(B, Slot) -> B>(self, init: B, mut add: F) -> B {
        let Self { words, mut base, word } = self;
        let mut all = ones(init, base.wrapping_sub(WORD_BITS), word, &mut add);
        for word in words {
            all = ones(all, base, *word, &mut add);
            base += WORD_BITS;
        }
        all
    }
}

/// Adds the slots of one word, whose first bit is `base`.
fn ones<B>(mut all: B, base: usize, mut word: u64, add: &mut impl FnMut(B, Slot) -> B) -> B {
    if word == u64::MAX {
        return (base..base + WORD_BITS).fold(all, |all, index| add(all, slot_at(index)));
    }
    while word != 0 {
        all = add(all, slot_at(base.wrapping_add(word.trailing_zeros() as usize)));
        word &= word - 1;
    }
    all
}

impl PartialEq for SlotSet {
    /// Equal as sets: words of zero at the ends do not matter.
    fn eq(&self, other: &Self) -> bool {
        let from = self.first.min(other.first);
        let to = (self.first + self.words.len()).max(other.first + other.words.len());
        (from..to).all(|word| self.word(word) == other.word(word))
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
        fn operations_are_those_of_sets(one in btree_set(0..300_u16, 0..80), other in btree_set(any::<u16>(), 0..20), more in 0..300_u16, full: bool) {
            let one: BTreeSet<_> = one.into_iter().chain(if full { 64..128 } else { 0..0 }).collect();
            let other: BTreeSet<_> = other.into_iter().chain(one.iter().copied().filter(|index| index % 3 == 0)).collect();
            let (mut a, b) = (set(&one), set(&other));
            prop_assert_eq!(indices(&a), one.iter().copied().collect::<Vec<_>>());
            let (mut begun, mut folded) = (a.iter(), Vec::new());
            folded.extend(begun.next());
            begun.for_each(|slot| folded.push(slot));
            prop_assert_eq!(folded, a.iter().collect::<Vec<_>>());
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
            let (mut kept, mut gone) = (a.clone(), set(&BTreeSet::from([7])));
            let any = kept.narrow(&b, &mut gone);
            prop_assert_eq!((&kept, &gone, any), (&and, &and_not, !and_not.is_empty()));
            prop_assert_eq!(a.first_beyond(&b).map(|slot| slot.index() as u16), one.difference(&other).next().copied());
            let mut copy = or.clone();
            copy.copy_from(&a);
            prop_assert_eq!(&copy, &a);
            prop_assert_eq!(a.insert(Slot::new(more)), !one.contains(&more));
            copy.become_one(Slot::new(more));
            prop_assert_eq!(indices(&copy), [more]);
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
