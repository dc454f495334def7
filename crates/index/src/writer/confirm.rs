//! What the engine's answers say of what it holds: more than we knew a place of, or less than we knew.

use super::{Writer, attach::Found};
use crate::{
    beneath::Beneath,
    hash::{LocalHash, Seed, sequence_hashes},
    names::Place,
    parked::Confirmed,
};

impl Writer {
    /// Rule 11, the engine holds less than we knew: drops this writer's blocks of `chain` from position `keep` on, and
    /// every block of this writer beneath them, whatever their copies. Returns how many blocks. Parked stores stay;
    /// places known by confirmation alone are forgotten.
    pub fn retract(&mut self, chain: &[LocalHash], keep: usize) -> usize {
        let Some(chain) = chain.get(..=keep) else { return 0 };
        let Some(top) = self.indexer.path(chain).get(keep) else { return 0 };
        self.names.unanchor_all();
        let mut beneath = Beneath::new(top);
        let names = self.names.iter();
        let gone: Vec<_> = names.filter(|(_, block)| beneath.contains(&self.indexer, self.owner, *block)).collect();
        let before = self.names.blocks();
        self.forget_all(gone);
        before - self.names.blocks()
    }

    /// Rules 6 and 11, the engine confirmed that it holds `chain[..known]` (hashed under `seed`): gives parked stores
    /// their place if that tells it. Returns how many blocks are held now that were not.
    ///
    /// A store whose blocks are those of `chain` from `known` on, for as long as both last, has its place there. Failing
    /// that, a store whose blocks are those of `chain` from exactly one position inside the known part. The parent such a
    /// store names is then known to be the block before it, for other stores too, without being held: a hole in this
    /// lane, which a lookup over the lane that holds what was confirmed closes. So that lane must hold `chain[..known]`
    /// before: where nobody in the index holds the parent's place, nothing is attached.
    pub fn adopt(&mut self, chain: &[LocalHash], known: usize, seed: Seed) -> usize {
        let known = known.min(chain.len());
        if known == 0 || self.parked.is_empty() {
            return 0;
        }
        let confirmed = Confirmed { locals: chain, known, seed, block_size: self.indexer.block_size() };
        let parents = self.parked.parents_on(&confirmed);
        if parents.is_empty() {
            return 0;
        }
        let path = self.indexer.path(&chain[..known]);
        let mut sequences = Vec::new();
        sequence_hashes(&chain[..known], &mut sequences);
        let mut found = Found::new();
        for (parent, position) in parents {
            let Some(block) = path.get(position - 1) else { continue };
            let place = Place { block: Some(block), sequence: Some(sequences[position - 1]), seed };
            self.names.anchor(parent, place, self.indexer.limits().anchors);
            found.extend(self.parked.take_waiting(parent).into_iter().map(|orphan| (place, orphan)));
        }
        self.attach_all(found)
    }
}
