//! The indexes of all models: engines whose block sizes differ cannot share one.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;

use crate::{hash::BlockSize, indexer::KvIndexer, limits::Limits};

/// (model, block size) -> index. One per process.
#[derive(Debug)]
pub struct Catalog {
    limits: Limits,
    /// Guards the map only, never an index; held for one look-up or insertion.
    models: RwLock<BTreeMap<String, BTreeMap<BlockSize, Arc<KvIndexer>>>>,
}

impl Catalog {
    /// No index yet; `limits` hold for each one made.
    pub fn new(limits: Limits) -> Self {
        Self { limits, models: RwLock::default() }
    }

    /// The index of `model` with this block size, made if there is none. Whoever writes asks once and keeps it. Making
    /// one forgets those of the catalog that are empty and that nobody else keeps, so sizes and models that came and
    /// went leave nothing behind.
    pub fn indexer(&self, model: &str, block_size: BlockSize) -> Arc<KvIndexer> {
        if let Some(indexer) = self.models.read().get(model).and_then(|sizes| sizes.get(&block_size)) {
            return indexer.clone();
        }
        let mut models = self.models.write();
        models.retain(|_, sizes| {
            sizes.retain(|_, indexer| Arc::strong_count(indexer) > 1 || indexer.distinct_blocks() > 0);
            !sizes.is_empty()
        });
        let sizes = models.entry(model.to_owned()).or_default();
        sizes.entry(block_size).or_insert_with(|| KvIndexer::new(block_size, self.limits)).clone()
    }

    /// The indexes of `model`, by block size ascending: a request is looked up in each.
    pub fn of_model(&self, model: &str) -> Vec<Arc<KvIndexer>> {
        self.models.read().get(model).map(|sizes| sizes.values().cloned().collect()).unwrap_or_default()
    }

    /// Every index with its model, by model and block size ascending.
    pub fn all(&self) -> Vec<(String, Arc<KvIndexer>)> {
        let models = self.models.read();
        models.iter().flat_map(|(model, sizes)| sizes.values().map(|indexer| (model.clone(), indexer.clone()))).collect()
    }
}

impl Default for Catalog {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;
    use crate::{Blocks, Copies, EngineHash, Lane, LocalHash, Parent, Seed, Targets};

    #[test]
    fn indexes_are_kept_while_they_hold_or_are_held() {
        let (catalog, size) = (Catalog::default(), |tokens| BlockSize::new(tokens).unwrap());
        let kept = catalog.indexer("a", size(16));
        assert!(Arc::ptr_eq(&kept, &catalog.indexer("a", size(16))));
        drop(catalog.indexer("a", size(32)));
        assert_eq!(catalog.of_model("a").len(), 2);
        let target = Targets::new().allocate().unwrap();
        let mut writer = catalog.indexer("b", size(16)).writer(target, Lane::Device, Copies::Set);
        let block = Blocks::LocalHashes { locals: &[LocalHash(1)], hashes: &[EngineHash(1)] };
        writer.store(Parent::Root(Seed::BASE), block);

        catalog.indexer("c", size(16));
        let names: Vec<_> = catalog.all().into_iter().map(|(model, indexer)| (model, indexer.block_size().get())).collect();
        assert_eq!(names, [("a".into(), 16), ("b".into(), 16), ("c".into(), 16)]);
        assert!(catalog.of_model("unknown").is_empty());
    }
}
