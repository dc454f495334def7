//! What each message of an answer is.

use std::time::Instant;

use wire::Message;

use crate::{
    feed::{Feed, Phase},
    life::{Mark, Place},
    query::{Progress, Purpose},
    rank::Arrival,
};

impl Feed {
    /// The first message of an answer tells what the answer is worth.
    pub(super) fn first_replayed(&mut self, now: Instant, mark: Mark, message: &Message) -> Progress {
        let Phase::Querying(query) = &mut self.phase else { return Progress::Useless };
        match query.anchor {
            // More than was asked for.
            Some(anchor) if mark.seq < anchor.seq => Progress::Waiting,
            Some(anchor) if mark == anchor => {
                query.verified = true;
                Progress::Folding
            }
            Some(anchor) if mark.seq == anchor.seq => Progress::Restarted,
            Some(_) if query.purpose.missing_is_restart() && !query.verified => Progress::Restarted,
            None if query.purpose == Purpose::Heal && mark.seq != 0 => {
                self.too_old = true;
                Progress::Useless
            }
            None if query.purpose == Purpose::Heal => {
                query.purpose = Purpose::Join;
                self.begin_life();
                self.fold_replayed(now, mark, message)
            }
            Some(_) | None => match self.fold_replayed(now, mark, message) {
                Progress::Holed => {
                    // The publisher keeps nothing older, and never will again.
                    self.too_old = true;
                    self.fold_beyond_hole(now, mark, message)
                }
                progress => progress,
            },
        }
    }

    /// Folds one message of an answer in, and checks it against what came live.
    pub(super) fn fold_replayed(&mut self, now: Instant, mark: Mark, message: &Message) -> Progress {
        while let Some(front) = self.held.front().filter(|front| front.seq < mark.seq && self.life.place(*front) != Place::Ahead) {
            match self.life.place(front) {
                Place::Next => self.fold_front(now),
                Place::Foreign => return Progress::Restarted,
                Place::Ahead | Place::Duplicate | Place::Forgotten => {
                    self.held.pop();
                }
            }
        }
        match self.life.place(mark) {
            Place::Next => {}
            Place::Duplicate | Place::Forgotten => return Progress::Folding,
            Place::Foreign => return Progress::Restarted,
            Place::Ahead if self.is_last_request() => return self.fold_beyond_hole(now, mark, message),
            Place::Ahead => {
                self.open_gap();
                return Progress::Holed;
            }
        }
        match self.held.front() {
            Some(front) if front == mark => {
                self.held.pop();
            }
            Some(front) if front.seq == mark.seq => return Progress::Restarted,
            // It was missed. In an answer that lacks something the whole recovery is one gap, and counted already.
            Some(_) | None if !self.is_lacking() => self.open_gap(),
            Some(_) | None => {}
        }
        self.apply(now, mark, message, Arrival::Late);
        Progress::Folding
    }

    /// Goes on behind a hole that the replay does not fill.
    fn fold_beyond_hole(&mut self, now: Instant, mark: Mark, message: &Message) -> Progress {
        while self.held.front().is_some_and(|front| front.seq <= mark.seq) {
            self.fold_front(now);
        }
        self.apply(now, mark, message, Arrival::Late);
        if let Phase::Querying(query) = &mut self.phase {
            query.lacking = true;
        }
        Progress::Folding
    }

    pub(super) fn fold_front(&mut self, now: Instant) {
        if let Some((mark, message)) = self.held.pop() {
            self.apply(now, mark, &message, Arrival::Late);
        }
    }

    fn is_last_request(&self) -> bool {
        matches!(&self.phase, Phase::Querying(query) if query.requests >= self.config.limits.requests)
    }

    fn is_lacking(&self) -> bool {
        matches!(&self.phase, Phase::Querying(query) if query.lacking)
    }
}
