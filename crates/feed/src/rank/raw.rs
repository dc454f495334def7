//! What the events of an engine's own stream do to a target: they name tokens, and copies of blocks (rule 4).

use std::{sync::Arc, time::Instant};

use index::{BlockSize, EngineHash, LocalHash, Parent, Window};
use wire::{Batch, Event, EventError, Removed, Stored, Tokens};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Arrival, Rank, Written};
use crate::{
    fold::{Admitted, Fold, Size},
    fresh::{Content, Prepared},
    relay::{self, Relayed},
    status::Ignored,
};

/// Seed of the stand-in local hashes of blocks with media.
const MEDIA: u64 = u64::from_be_bytes(*b"\0\0\0media");

impl Rank {
    /// A batch of this target.
    pub(crate) fn apply(&mut self, now: Instant, batch: Batch, arrival: Arrival, fold: &mut Fold) {
        self.status.last_timestamp = batch.timestamp.or(self.status.last_timestamp);
        let clears = batch.events.iter().any(|event| matches!(event, Ok(Event::Cleared)));
        self.match_reset(now, clears, arrival);
        for event in batch.events {
            self.apply_event(now, event, arrival, fold);
        }
    }

    fn apply_event(&mut self, now: Instant, event: Result<Event, EventError>, arrival: Arrival, fold: &mut Fold) {
        match event {
            Ok(Event::Stored(stored)) => {
                fold.groups.learn(&stored.group);
                self.status.learn(stored.carries);
                if let Err(reason) = self.store(now, stored, fold) {
                    self.status.ignored.count(reason);
                }
                self.keep_untold(now);
            }
            Ok(Event::Removed(removed)) => {
                if let Err(reason) = self.remove(&removed, fold) {
                    self.status.ignored.count(reason);
                }
            }
            Ok(Event::Cleared) => self.cleared(now, arrival),
            Ok(Event::Unknown(_)) => self.status.ignored.count(Ignored::UnknownType),
            Err(error) => {
                self.status.event_errors += 1;
                self.lack(now, &Arc::from(format!("an event could not be read: {error}")));
            }
        }
    }

    fn store(&mut self, now: Instant, stored: Stored, fold: &mut Fold) -> Result<(), Ignored> {
        let Admitted { lane, group } = fold.admit(&stored.medium, stored.locality, &stored.group)?;
        let (Tokens::Plain(tokens) | Tokens::Pairs(tokens)) = &stored.tokens;
        let size = BlockSize::new(stored.block_size).ok_or(Ignored::Placeholder)?;
        if tokens.is_empty() || stored.block_hashes.is_empty() {
            return Err(Ignored::Placeholder);
        }
        match fold.size(lane, size) {
            Size::Fits => {}
            Size::Partial => return Err(Ignored::PartialBlock),
            Size::Other => return Err(Ignored::BlockSize),
            Size::Conflicts { expected } => {
                let reason = || Arc::from(format!("events have blocks of {size} tokens, expected {expected}"));
                self.conflict.get_or_insert_with(reason);
                return Err(Ignored::BlockSize);
            }
        }
        self.status.eagle = matches!(stored.tokens, Tokens::Pairs(_));
        self.status.stores += 1;
        if let Some(passed) = &mut self.relayed {
            passed.push(Relayed::Stored(relay::stored(stored, relay::tier(lane), group, size, fold)));
            return Ok(());
        }
        for part in prepare(stored, group, size, fold).into_iter().flatten() {
            if self.write(now, lane, part, fold) == Written::Refused {
                break;
            }
        }
        self.notice_dropped_orphans(now);
        Ok(())
    }

    fn remove(&mut self, removed: &Removed, fold: &Fold) -> Result<(), Ignored> {
        let Admitted { lane, group } = fold.admit(&removed.medium, removed.locality, &removed.group)?;
        self.give_up(lane, &in_group(&removed.block_hashes, group), fold);
        Ok(())
    }
}

/// A store as the index takes it: its text, and behind it in the same chain what begins with media. Blocks from there on get
/// stand-in local hashes made of the engine's own hash: the chain through them exists, and what follows finds its parent, but
/// no text prompt can reach it (rule 9).
fn prepare(stored: Stored, group: u32, size: BlockSize, fold: &Fold) -> [Option<Prepared>; 2] {
    let mut parent = match stored.parent {
        Some(hash) => Parent::Block(EngineHash(hash).in_group(group)),
        None => Parent::Root(fold.seed(&stored.adapter, stored.salt.as_deref())),
    };
    let mut hashes = in_group(&stored.block_hashes, group);
    // Blocks of pairs take one token of the block behind them.
    let (mut tokens, window, more) = match stored.tokens {
        Tokens::Plain(tokens) => (tokens, Window::Plain, 0),
        Tokens::Pairs(tokens) => (tokens, Window::Eagle, 1),
    };
    let Some(from) = stored.media_from.map(|from| from.min(hashes.len())) else {
        return [Some(Prepared { parent, hashes, content: Content::Tokens { tokens, window } }), None];
    };
    let behind = hashes.split_off(from);
    let stand_in = |hash: &u64| LocalHash(xxh3_64_with_seed(&hash.to_le_bytes(), MEDIA));
    let locals = stored.block_hashes[from..].iter().map(stand_in).collect();
    let text = hashes.last().copied().map(|last| {
        tokens.truncate(from.saturating_mul(size.get() as usize).saturating_add(more));
        let text = Prepared { parent, hashes, content: Content::Tokens { tokens, window } };
        parent = Parent::Block(last);
        text
    });
    [text, Some(Prepared { parent, hashes: behind, content: Content::Locals(locals) })]
}

fn in_group(hashes: &[u64], group: u32) -> Vec<EngineHash> {
    hashes.iter().map(|hash| EngineHash(*hash).in_group(group)).collect()
}
