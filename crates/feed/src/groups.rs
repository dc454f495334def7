//! Which cache groups of a hybrid model count (rule 9).

use std::collections::BTreeMap;

use wire::{Group, Kind};

use crate::status::Ignored;

/// Groups whose kind is remembered. Engines have a handful; a stream that names more does not get to fill our memory.
const LEARNED_GROUPS: usize = 256;

/// The kinds of an engine's groups, learned from stores that name them: removals name only the index.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    full: BTreeMap<u32, bool>,
}

impl Groups {
    /// Remembers what a store says, whatever becomes of that store.
    pub(crate) fn learn(&mut self, group: &Group) {
        if let (Some(idx), Some(kind)) = (group.idx, &group.kind)
            && (self.full.len() < LEARNED_GROUPS || self.full.contains_key(&idx))
        {
            self.full.insert(idx, *kind == Kind::FullAttention);
        }
    }

    /// The number that scopes hashes of this group, if the group makes prefix hits; else why it is left out.
    pub(crate) fn admit(&self, group: &Group) -> Result<u32, Ignored> {
        let idx = group.idx.unwrap_or(0);
        let full = match &group.kind {
            Some(kind) => Some(*kind == Kind::FullAttention),
            None => self.full.get(&idx).copied(),
        };
        match full {
            Some(true) => Ok(idx),
            Some(false) => Err(Ignored::OtherAttention),
            None if idx == 0 => Ok(idx),
            None => Err(Ignored::UnlearnedGroup),
        }
    }

    pub(crate) fn forget(&mut self) {
        self.full.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(idx: Option<u32>, kind: Option<Kind>) -> Group {
        Group { idx, kind }
    }

    #[test]
    fn kinds_are_learned_for_removals() {
        let mut groups = Groups::default();
        let window = Kind::Other("sliding_window".to_owned());
        assert_eq!(groups.admit(&group(None, None)), Ok(0));
        assert_eq!(groups.admit(&group(Some(0), None)), Ok(0));
        assert_eq!(groups.admit(&group(Some(2), None)), Err(Ignored::UnlearnedGroup));
        groups.learn(&group(Some(0), Some(window.clone())));
        groups.learn(&group(Some(2), Some(Kind::FullAttention)));
        assert_eq!(groups.admit(&group(Some(0), Some(window))), Err(Ignored::OtherAttention));
        assert_eq!(groups.admit(&group(Some(0), None)), Err(Ignored::OtherAttention));
        assert_eq!(groups.admit(&group(Some(2), None)), Ok(2));
        groups.forget();
        assert_eq!(groups.admit(&group(Some(0), None)), Ok(0));
    }

    #[test]
    fn a_stream_cannot_fill_the_memory() {
        let mut groups = Groups::default();
        for idx in 0..10_000 {
            groups.learn(&group(Some(idx), Some(Kind::FullAttention)));
        }
        assert_eq!(groups.full.len(), LEARNED_GROUPS);
    }
}
