//! What each live message is, and what becomes of it (rule 7).

use std::{sync::Arc, time::Instant};

use wire::Message;

use super::{Feed, Phase};
use crate::{
    held::Kept,
    life::{Life, Mark, Place},
    query::Replay,
    rank::{Arrival, Rank},
    trust::Reason,
};

impl Feed {
    /// Rule 7, outside of a replay.
    pub(crate) fn follow(&mut self, now: Instant, mark: Mark, message: Message) -> Option<Replay> {
        match self.life.place(mark) {
            Place::Next => self.apply(now, mark, &message, Arrival::Live),
            Place::Ahead => return self.jumped(now, mark, message),
            Place::Duplicate => self.counters.duplicates += 1,
            Place::Foreign | Place::Forgotten => {
                self.restarted(now, "its sequence numbers began anew");
                self.held.clear();
                return self.follow(now, mark, message);
            }
        }
        None
    }

    fn jumped(&mut self, now: Instant, mark: Mark, message: Message) -> Option<Replay> {
        if !self.may_ask(now) {
            self.apply(now, mark, &message, Arrival::Live);
            return None;
        }
        self.open_gap();
        match self.held.push(mark, message, &self.life) {
            Kept::Held | Kept::Duplicate | Kept::Restart => {}
            Kept::Overflow => self.overflowed(),
        }
        Some(self.ask_for_gap(now))
    }

    /// Rule 7, while a replay is pending.
    pub(super) fn hold(&mut self, now: Instant, mark: Mark, message: Message) -> Option<Replay> {
        match self.held.push(mark, message.clone(), &self.life) {
            Kept::Held => {}
            Kept::Duplicate => self.counters.duplicates += 1,
            Kept::Overflow => self.overflowed(),
            Kept::Restart => {
                // The pending replay, of whichever life, is replaced or ignored; so is what was held.
                self.restarted(now, "its sequence numbers began anew");
                self.held.clear();
                self.lost = false;
                self.phase = Phase::Following;
                return self.follow(now, mark, message);
            }
        }
        None
    }

    /// Folds one message in. A jump that comes here is one that nothing fills: it ends as degraded.
    pub(crate) fn apply(&mut self, now: Instant, mark: Mark, message: &Message, arrival: Arrival) {
        match (self.life.place(mark), self.life.last()) {
            (Place::Next, None) => {
                self.begun(mark);
                self.each(Rank::begin_whole);
                if matches!(self.phase, Phase::Following) {
                    self.close_rebuilt();
                }
            }
            (Place::Next, Some(_)) => {}
            (Place::Ahead, last) => self.lack_jump(now, last, mark),
            (Place::Duplicate | Place::Foreign | Place::Forgotten, _) => return,
        }
        self.life.advance(mark);
        self.counters.messages += 1;
        match wire::batch(&message.payload) {
            Ok(batch) => self.apply_batch(now, batch, arrival),
            Err(error) => {
                self.counters.undecodable += 1;
                let reason: Reason = Arc::from(format!("batch {} could not be read: {error}", mark.seq));
                self.each(|rank| rank.lack(now, &reason));
            }
        }
    }

    fn apply_batch(&mut self, now: Instant, batch: wire::Batch, arrival: Arrival) {
        let socket = self.position(self.config.socket_rank).unwrap_or(0);
        let named = batch.rank.map(|rank| self.position(rank));
        let Some(rank) = self.ranks.get_mut(named.flatten().unwrap_or(socket)) else { return };
        if named == Some(None) {
            rank.mismatched();
        }
        rank.apply(now, batch, arrival, &mut self.fold);
    }

    fn lack_jump(&mut self, now: Instant, last: Option<Mark>, mark: Mark) {
        let reason: Reason = match last {
            Some(last) => Arc::from(format!("messages {} to {} are missing", last.seq.saturating_add(1), mark.seq - 1)),
            None => Arc::from(format!("joined at message {}; the ones before it are gone", mark.seq)),
        };
        self.open_gap();
        self.close_degraded(now, &reason);
    }

    /// Another engine life begins; what was known of the last one is void.
    pub(crate) fn restarted(&mut self, now: Instant, why: &str) {
        self.counters.restarts += 1;
        self.journal.restarted(now, why);
        // The new life may be as old as the lost connection, and requests may have reached it since.
        let ended = self.unsure_since.take().unwrap_or(now);
        if let Some(first) = self.first.take() {
            self.former.get_or_insert((first, ended));
        }
        self.each(|rank| rank.restarted(now));
        self.begin_life();
    }

    /// Message 0 of a life. Another one than the last life's proves that the cache is another.
    fn begun(&mut self, first: Mark) {
        self.first = Some(first);
        if let Some((_, ended)) = self.former.take().filter(|(former, _)| *former != first) {
            self.each(|rank| rank.settle_demands(ended));
        }
    }

    pub(crate) fn begin_life(&mut self) {
        self.life = Life::default();
        self.too_old = false;
        self.unverified = None;
        self.fold.begin_life();
        for rank in &mut self.ranks {
            rank.begin_life(&self.fold);
        }
    }

    fn overflowed(&mut self) {
        self.counters.held_overflow += 1;
        self.lost = true;
    }
}
