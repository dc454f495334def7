//! What an engine says about its cache: calls, and the checks that refuse one before it changes anything.

use std::collections::HashMap;

use index::{BlockSize, Window};
use wire::router::{MediaInfo, Tier};

/// Blocks an engine has stored, as it tells them: unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCall {
    /// The blocks' tokens: exactly `block_hashes` x block size, and one more for [`Window::Eagle`].
    pub token_ids: Vec<u32>,
    /// Tokens of each block; all must be the publisher's block size.
    pub num_block_tokens: Vec<u32>,
    /// The engine's names of the blocks, no two alike.
    pub block_hashes: Vec<u64>,
    /// The block the first one follows; `None` starts a prompt.
    pub parent_hash: Option<u64>,
    /// What lies in each block beside text; empty, or one entry for each block.
    pub block_mm_infos: Vec<Option<MediaInfo>>,
    /// The adapter of a prompt's first block. Children of a known block have that block's adapter and salt.
    pub lora_name: Option<String>,
    /// The cache salt of a prompt's first block.
    pub cache_salt: Option<String>,
    /// Where the blocks are.
    pub tier: Tier,
    /// How many tokens a block's hash covers.
    pub window: Window,
}

impl Default for StoredCall {
    fn default() -> Self {
        Self {
            token_ids: Vec::new(),
            num_block_tokens: Vec::new(),
            block_hashes: Vec::new(),
            parent_hash: None,
            block_mm_infos: Vec::new(),
            lora_name: None,
            cache_salt: None,
            tier: Tier::Device,
            window: Window::Plain,
        }
    }
}

/// Why a call was refused; each names the argument. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// One list is longer than another that it must match.
    #[error("{argument} has {given} entries where block_hashes has {expected}")]
    Count {
        /// The list that does not fit.
        argument: &'static str,
        /// Entries of `block_hashes`.
        expected: usize,
        /// Entries of the list.
        given: usize,
    },
    /// A block is not as large as the publisher's blocks are.
    #[error("num_block_tokens[{position}] is {given}, and kv_block_size is {expected}")]
    BlockTokens {
        /// Which block.
        position: usize,
        /// The publisher's block size.
        expected: u32,
        /// What the call says.
        given: u32,
    },
    /// The tokens are not those of the blocks.
    #[error("token_ids has {given} entries where the blocks take {expected}")]
    Tokens {
        /// What the blocks take.
        expected: usize,
        /// What came.
        given: usize,
    },
    /// Two blocks of one call have one name.
    #[error("block_hashes[{first}] and block_hashes[{second}] are both {hash}")]
    DuplicateHash {
        /// The name.
        hash: u64,
        /// Its first place.
        first: usize,
        /// Its second place.
        second: usize,
    },
    /// A block is said to follow itself.
    #[error("parent_hash {hash} is also block_hashes[{position}]")]
    OwnParent {
        /// The name.
        hash: u64,
        /// Its place among the blocks.
        position: usize,
    },
    /// The publisher's own index would grow beyond its bounds.
    #[error("block_hashes cannot be kept: {0}")]
    Full(index::Refusal),
}

/// A call that can be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedStore(StoredCall);

/// One call, checked: what a publisher's queue holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Blocks were stored.
    Stored(CheckedStore),
    /// One copy of each of these blocks is gone.
    Removed {
        /// The engine's names.
        hashes: Vec<u64>,
        /// Where they were.
        tier: Tier,
    },
    /// Every block is gone.
    Cleared,
}

impl StoredCall {
    /// Looks at everything that can be judged without knowing what is stored already.
    pub fn checked(self, block_size: BlockSize) -> Result<CheckedStore, CallError> {
        let expected = self.block_hashes.len();
        if self.num_block_tokens.len() != expected {
            return Err(CallError::Count { argument: "num_block_tokens", expected, given: self.num_block_tokens.len() });
        }
        if !self.block_mm_infos.is_empty() && self.block_mm_infos.len() != expected {
            return Err(CallError::Count { argument: "block_mm_infos", expected, given: self.block_mm_infos.len() });
        }
        let size = block_size.get();
        if let Some((position, given)) = self.num_block_tokens.iter().enumerate().find(|(_, given)| **given != size) {
            return Err(CallError::BlockTokens { position, expected: size, given: *given });
        }
        let take = tokens_of(expected, block_size, self.window);
        if self.token_ids.len() != take {
            return Err(CallError::Tokens { expected: take, given: self.token_ids.len() });
        }
        self.distinct()?;
        Ok(CheckedStore(self))
    }

    fn distinct(&self) -> Result<(), CallError> {
        // The engine's thread waits for this, and nearly always there is nothing to find: sorting is several times as fast as hashing.
        let mut sorted = self.block_hashes.clone();
        sorted.sort_unstable();
        let has_parent = self.parent_hash.is_some_and(|parent| sorted.binary_search(&parent).is_ok());
        if !has_parent && sorted.windows(2).all(|two| two[0] != two[1]) {
            return Ok(());
        }
        let mut places = HashMap::with_capacity(self.block_hashes.len());
        for (second, hash) in self.block_hashes.iter().enumerate() {
            if self.parent_hash == Some(*hash) {
                return Err(CallError::OwnParent { hash: *hash, position: second });
            }
            if let Some(first) = places.insert(*hash, second) {
                return Err(CallError::DuplicateHash { hash: *hash, first, second });
            }
        }
        Ok(())
    }
}

/// Tokens that `blocks` blocks take.
fn tokens_of(blocks: usize, block_size: BlockSize, window: Window) -> usize {
    let own = blocks.saturating_mul(block_size.get() as usize);
    match window {
        Window::Plain => own,
        Window::Eagle => own + usize::from(blocks > 0),
    }
}

impl CheckedStore {
    /// The call.
    pub fn call(&self) -> &StoredCall {
        &self.0
    }

    /// Bytes it takes in a queue, about.
    pub fn bytes(&self) -> usize {
        let call = &self.0;
        let media = call.block_mm_infos.iter().flatten().map(media_bytes).sum::<usize>();
        let lists = 4 * (call.token_ids.len() + call.num_block_tokens.len()) + 8 * call.block_hashes.len();
        size_of::<Self>() + lists + call.block_mm_infos.len() * size_of::<Option<MediaInfo>>() + media
    }

    /// Whether `next` goes on where this one ends, so that both can be one store of at most `most` blocks.
    fn is_continued_by(&self, next: &Self, most: usize) -> bool {
        let (call, other) = (&self.0, &next.0);
        let goes_on = other.parent_hash.is_some() && other.parent_hash == call.block_hashes.last().copied();
        let alike = call.tier == other.tier && call.window == Window::Plain && other.window == Window::Plain;
        let plain = call.block_mm_infos.is_empty() && other.block_mm_infos.is_empty();
        let small = call.block_hashes.len() + other.block_hashes.len() <= most;
        let mut names = other.block_hashes.iter();
        goes_on && alike && plain && small && names.all(|hash| !call.block_hashes.contains(hash) && call.parent_hash != Some(*hash))
    }

    fn extend(&mut self, next: Self) {
        self.0.token_ids.extend(next.0.token_ids);
        self.0.num_block_tokens.extend(next.0.num_block_tokens);
        self.0.block_hashes.extend(next.0.block_hashes);
    }
}

pub(super) fn media_bytes(media: &MediaInfo) -> usize {
    media.objects.iter().map(|object| size_of_val(object) + size_of_val(object.offsets.as_slice())).sum()
}

impl Call {
    /// Bytes it takes in a queue, about.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Stored(store) => store.bytes(),
            Self::Removed { hashes, .. } => size_of::<Self>() + 8 * hashes.len(),
            Self::Cleared => size_of::<Self>(),
        }
    }

    /// Blocks it speaks of.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Stored(store) => store.0.block_hashes.len(),
            Self::Removed { hashes, .. } => hashes.len(),
            Self::Cleared => 0,
        }
    }

    /// Makes one call of two where that says the same: stores that go on where the last one ended, and removals. At most
    /// [`super::COALESCED_BLOCKS`] blocks; what does not fit comes back.
    pub fn coalesce(&mut self, next: Call) -> Option<Call> {
        let most = super::COALESCED_BLOCKS;
        match (self, next) {
            (Self::Stored(store), Self::Stored(next)) if store.is_continued_by(&next, most) => {
                store.extend(next);
                None
            }
            (Self::Removed { hashes, tier }, Self::Removed { hashes: more, tier: other })
                if *tier == other && hashes.len() + more.len() <= most =>
            {
                hashes.extend(more);
                None
            }
            (Self::Stored(_) | Self::Removed { .. } | Self::Cleared, next) => Some(next),
        }
    }
}
