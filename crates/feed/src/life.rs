//! One engine life as seen through its numbers: where the cursor stands, and what was seen of late.

use std::collections::VecDeque;

use wire::Message;
use xxhash_rust::xxh3::xxh3_64;

/// Messages of one life that are remembered by hash. A replay may overtake the live socket by as much as a publisher's
/// buffer holds (10,000 by default), and what then still comes live must be known as a duplicate, not taken for a restart.
/// 256 KiB at most.
const REMEMBERED_MESSAGES: usize = 16_384;

/// What is kept of a message to know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) seq: u64,
    digest: u64,
}

impl Mark {
    pub(crate) fn of(message: &Message) -> Self {
        Self { seq: message.seq, digest: xxh3_64(&message.payload) }
    }
}

/// Where a message stands in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The one expected.
    Next,
    /// Beyond the one expected.
    Ahead,
    /// Seen already, byte for byte.
    Duplicate,
    /// Its number was another message's: it is of another life.
    Foreign,
    /// Its number has passed, and what it belonged to is no longer remembered.
    Forgotten,
}

/// The cursor of one engine life.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// Ascending by number; the last one is the cursor.
    seen: VecDeque<Mark>,
}

impl Life {
    /// The last message folded in.
    pub(crate) fn last(&self) -> Option<Mark> {
        self.seen.back().copied()
    }

    /// The number expected next. Nothing follows the last possible one, so whatever comes after it is a restart.
    pub(crate) fn next(&self) -> Option<u64> {
        self.last().map_or(Some(0), |last| last.seq.checked_add(1))
    }

    pub(crate) fn place(&self, mark: Mark) -> Place {
        match self.next() {
            Some(next) if mark.seq == next => Place::Next,
            Some(next) if mark.seq > next => Place::Ahead,
            Some(_) | None => match self.seen.binary_search_by_key(&mark.seq, |seen| seen.seq) {
                Ok(at) if self.seen[at] == mark => Place::Duplicate,
                Ok(_) => Place::Foreign,
                Err(_) => Place::Forgotten,
            },
        }
    }

    /// Moves the cursor to `mark`, which is beyond it.
    pub(crate) fn advance(&mut self, mark: Mark) {
        if self.seen.len() == REMEMBERED_MESSAGES {
            self.seen.pop_front();
        }
        self.seen.push_back(mark);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn mark(seq: u64, text: &'static str) -> Mark {
        Mark::of(&Message { seq, payload: Bytes::from_static(text.as_bytes()) })
    }

    #[test]
    fn a_new_life_expects_zero() {
        let life = Life::default();
        assert_eq!(life.place(mark(0, "a")), Place::Next);
        assert_eq!(life.place(mark(7, "a")), Place::Ahead);
    }

    #[test]
    fn numbers_that_passed_are_told_apart_by_their_bytes() {
        let mut life = Life::default();
        life.advance(mark(3, "c"));
        life.advance(mark(4, "d"));
        assert_eq!(life.place(mark(5, "e")), Place::Next);
        assert_eq!(life.place(mark(4, "d")), Place::Duplicate);
        assert_eq!(life.place(mark(3, "c")), Place::Duplicate);
        assert_eq!(life.place(mark(3, "x")), Place::Foreign);
        assert_eq!(life.place(mark(2, "b")), Place::Forgotten);
    }

    #[test]
    fn memory_stays_flat_and_the_last_number_has_no_successor() {
        let mut life = Life::default();
        for seq in 0..=REMEMBERED_MESSAGES as u64 {
            life.advance(mark(seq, "same"));
        }
        assert_eq!(life.seen.len(), REMEMBERED_MESSAGES);
        assert_eq!(life.place(mark(0, "same")), Place::Forgotten);
        assert_eq!(life.place(mark(1, "same")), Place::Duplicate);
        life.advance(mark(u64::MAX, "end"));
        assert_eq!(life.place(mark(0, "same")), Place::Forgotten);
        assert_eq!(life.place(mark(u64::MAX, "end")), Place::Duplicate);
    }
}
