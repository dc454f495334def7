//! The bounds of one index (rule 16).

/// Bounds of a [`crate::KvIndexer`] and of each writer of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest chain, in blocks: deeper stores are refused, longer prompts are looked up to here.
    pub chain_blocks: usize,
    /// Names of blocks one writer may hold: as many blocks, fewer where blocks have several names.
    pub writer_blocks: usize,
    /// Distinct blocks in the index, over all writers. However many are allowed, there is room for about 16 million
    /// pieces of up to 248 blocks that were stored apart.
    pub index_blocks: usize,
    /// Stores one writer may have parked (rule 6); with none allowed they are refused.
    pub parked_stores: usize,
    /// Bytes one writer's parked stores may take.
    pub parked_bytes: usize,
    /// Parents one writer remembers by confirmation alone ([`crate::Writer::adopt`]).
    pub anchors: usize,
}

impl Default for Limits {
    /// Room for engines with one token per block, too. A distinct block takes about 20 bytes, each name a writer holds
    /// about 20.
    fn default() -> Self {
        Self {
            chain_blocks: 1 << 20,
            writer_blocks: 1 << 23,
            index_blocks: 1 << 26,
            parked_stores: 4096,
            parked_bytes: 4 << 20,
            anchors: 1024,
        }
    }
}
