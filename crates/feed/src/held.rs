//! Live messages held while a replay is pending.

use std::collections::VecDeque;

use wire::Message;

use crate::life::{Life, Mark, Place};

/// What became of a live message that came while a replay is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Held.
    Held,
    /// Held or folded already; dropped.
    Duplicate,
    /// Of a later life than those before it; not held.
    Restart,
    /// No room; dropped, so the stream has a gap here.
    Overflow,
}

/// A queue of one life's messages, ascending, bounded in bytes.
#[derive(Debug)]
pub(crate) struct Held {
    queue: VecDeque<(Mark, Message)>,
    bytes: usize,
    limit: usize,
    /// The newest live message since the queue was last empty for good, held or not.
    newest: Option<u64>,
}

impl Held {
    pub(crate) fn new(limit: usize) -> Self {
        Self { queue: VecDeque::new(), bytes: 0, limit, newest: None }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The newest live message that came while holding, dropped ones included.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// The oldest one held.
    pub(crate) fn front(&self) -> Option<Mark> {
        self.queue.front().map(|(mark, _)| *mark)
    }

    pub(crate) fn push(&mut self, mark: Mark, message: Message, life: &Life) -> Kept {
        if self.newest.is_some_and(|newest| mark.seq <= newest) {
            let at = self.queue.binary_search_by_key(&mark.seq, |(held, _)| held.seq);
            let again = at.is_ok_and(|at| self.queue[at].0 == mark) || life.place(mark) == Place::Duplicate;
            return if again { Kept::Duplicate } else { Kept::Restart };
        }
        match life.place(mark) {
            Place::Duplicate => return Kept::Duplicate,
            Place::Foreign | Place::Forgotten => return Kept::Restart,
            Place::Next | Place::Ahead => {}
        }
        self.newest = Some(mark.seq);
        let bytes = cost(&message);
        if self.bytes + bytes > self.limit {
            return Kept::Overflow;
        }
        self.bytes += bytes;
        self.queue.push_back((mark, message));
        Kept::Held
    }

    pub(crate) fn pop(&mut self) -> Option<(Mark, Message)> {
        let (mark, message) = self.queue.pop_front()?;
        self.bytes -= cost(&message);
        Some((mark, message))
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
        self.newest = None;
    }
}

/// Bytes a held message takes.
fn cost(message: &Message) -> usize {
    message.payload.len() + size_of::<(Mark, Message)>()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn message(seq: u64, text: &'static str) -> (Mark, Message) {
        let message = Message { seq, payload: Bytes::from_static(text.as_bytes()) };
        (Mark::of(&message), message)
    }

    fn push(held: &mut Held, seq: u64, text: &'static str) -> Kept {
        let (mark, message) = message(seq, text);
        held.push(mark, message, &Life::default())
    }

    #[test]
    fn ascending_is_held_same_is_dropped_and_lower_is_a_restart() {
        let mut held = Held::new(1 << 20);
        assert_eq!(push(&mut held, 5, "five"), Kept::Held);
        assert_eq!(push(&mut held, 8, "eight"), Kept::Held);
        assert_eq!(push(&mut held, 5, "five"), Kept::Duplicate);
        assert_eq!(push(&mut held, 8, "other"), Kept::Restart);
        assert_eq!(push(&mut held, 0, "zero"), Kept::Restart);
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let one = cost(&message(0, "four").1);
        let mut held = Held::new(2 * one);
        assert_eq!(push(&mut held, 1, "four"), Kept::Held);
        assert_eq!(push(&mut held, 2, "four"), Kept::Held);
        assert_eq!(push(&mut held, 3, "four"), Kept::Overflow);
        assert_eq!((held.bytes(), held.newest()), (2 * one, Some(3)));
        held.pop();
        assert_eq!(held.bytes(), one);
        assert_eq!(push(&mut held, 4, "four"), Kept::Held);
    }
}
