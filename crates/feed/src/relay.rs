//! A stream that is passed on instead of being indexed: what a publisher of its own is to say for an engine that speaks raw events.
//!
//! The [`Feed`] decides as ever what each message and event is; what it would have written to the index comes out as [`Relayed`], in order,
//! for one [`PublisherState`](crate::publisher::PublisherState) for each rank, which counts copies, keeps orphans and inherits salts.

use index::{BlockSize, EngineHash, Lane, Window};
use wire::{
    Adapter, Stored, Tokens,
    router::{MediaInfo, MediaObject, Tier},
};

use crate::{Feed, fold::Fold, publisher::StoredCall};

/// Something to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relayed {
    /// Blocks were stored. Not checked yet: engines say odd things.
    Stored(StoredCall),
    /// One copy of each of these blocks is gone.
    Removed {
        /// The engine's names.
        hashes: Vec<u64>,
        /// Where they were.
        tier: Tier,
    },
    /// Every block is gone, or the engine restarted, or all of its life is told anew.
    Cleared,
    /// Something is missing for good, or may be: an id is to be skipped.
    Missed,
}

impl Feed {
    /// From now on events are passed on and not indexed.
    #[must_use]
    pub fn relaying(mut self) -> Self {
        self.each(crate::rank::Rank::relay);
        self
    }

    /// What is to be published since the last time, with its rank, in the order of each rank. Call it after each message; it returns
    /// what that message changed.
    pub fn relayed(&mut self) -> impl Iterator<Item = (u32, Relayed)> + '_ {
        self.ranks.iter_mut().flat_map(|rank| {
            let (number, relayed) = rank.relayed();
            relayed.into_iter().map(move |relayed| (number, relayed))
        })
    }
}

/// The tier of a lane that raw events fill.
pub(crate) fn tier(lane: Lane) -> Tier {
    match lane {
        Lane::Device => Tier::Device,
        Lane::Host => Tier::HostPinned,
        Lane::Disk => Tier::Disk,
        // No raw event is admitted there.
        Lane::Predicted | Lane::Confirmed => Tier::External,
    }
}

/// An admitted store as a publisher's call.
///
/// A block whose key names media says which only in ways that differ by engine, and blocks behind it are as bound to them. Each gets a
/// stand-in object that carries the block's own name, so that its local hash is one that no prompt has, and its children find a parent
/// (rule 9).
pub(crate) fn stored(stored: Stored, tier: Tier, group: u32, size: BlockSize, fold: &Fold) -> StoredCall {
    let named = |hash: u64| EngineHash(hash).in_group(group).0;
    let block_hashes: Vec<u64> = stored.block_hashes.iter().copied().map(named).collect();
    let (token_ids, window) = match stored.tokens {
        Tokens::Plain(tokens) => (tokens, Window::Plain),
        Tokens::Pairs(tokens) => (tokens, Window::Eagle),
    };
    let stand_in = |hash: &u64| MediaInfo { objects: vec![MediaObject { hash: *hash, offsets: Vec::new() }] };
    let block_mm_infos = stored.media_from.map(|from| {
        let with = |(at, hash): (usize, &u64)| (at >= from).then(|| stand_in(hash));
        block_hashes.iter().enumerate().map(with).collect()
    });
    let lora_name = match stored.adapter {
        Adapter::Base => None,
        Adapter::Named(name) => Some(name),
        Adapter::Numbered(number) => Some(fold.adapter(number).map_or_else(|| unnamed_adapter(number), str::to_owned)),
    };
    StoredCall {
        num_block_tokens: vec![size.get(); block_hashes.len()],
        parent_hash: stored.parent.map(named),
        block_mm_infos: block_mm_infos.unwrap_or_default(),
        cache_salt: stored.salt,
        block_hashes,
        token_ids,
        lora_name,
        tier,
        window,
    }
}

/// A name that no request has, for an adapter known only by number (rule 13: never the base model).
pub fn unnamed_adapter(number: i64) -> String {
    format!("\0adapter {number}")
}
