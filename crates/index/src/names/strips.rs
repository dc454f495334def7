//! Where a writer's blocks lie, roughly.

use crate::{
    node::{BlockId, StripId},
    table::Table,
};

/// So many strips are kept without asking whether they are needed.
const FEW_STRIPS: usize = 64;

/// The strips in which the lane gained blocks, for when all are given up at once: a look at each name would cost more than
/// all the rest of that. Some are in it twice, and some from which the blocks have gone.
#[derive(Debug, Default)]
pub(super) struct Strips {
    gained_in: Vec<StripId>,
    /// How many there were when those without names were left out for the last time.
    settled: usize,
}

impl Strips {
    /// Adds one, whose blocks have names in `held`.
    pub(super) fn add(&mut self, strip: StripId, held: &Table) {
        let Self { gained_in, settled } = self;
        if gained_in.last() == Some(&strip) {
            return;
        }
        gained_in.push(strip);
        // So a look at each name is paid for by as many strips as it leaves.
        if gained_in.len() > 2 * *settled + FEW_STRIPS {
            *gained_in = strips_of(held);
            *settled = gained_in.len();
        }
    }

    pub(super) fn into_list(self) -> Vec<StripId> {
        self.gained_in
    }
}

/// The strips of the blocks that have names, once each.
fn strips_of(held: &Table) -> Vec<StripId> {
    let strips = held.values().map(|block| BlockId(block).strip().0 as usize);
    // A bit for each strip from the first to the last: cheaper than sorting them, and small beside the table.
    let (first, last) = strips.clone().fold((usize::MAX, 0), |(first, last), strip| (first.min(strip), last.max(strip)));
    let mut bits = vec![0_u64; last.saturating_sub(first.min(last)) / 64 + 1];
    for strip in strips {
        bits[(strip - first) / 64] |= 1 << ((strip - first) % 64);
    }
    let words = bits.iter().enumerate().filter(|(_, word)| **word != 0);
    let strips = words.flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + at * 64 + bit));
    strips.map(|strip| StripId(strip as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::Key;

    #[test]
    fn the_strips_of_all_names_are_known_and_not_many_more() {
        let (mut strips, mut held) = (Strips::default(), Table::default());
        let name = |at: u64| Key::of_process().mix(at);
        // Names for blocks in turn of 1,000 strips, of which a quarter go again and come back.
        for round in 0..5 {
            for at in (0..4000).filter(|at| round == 0 || at % 4 == 0) {
                let strip = StripId(at as u32 % 1000 * 3);
                held.insert(name(at), BlockId::new(strip, at as usize / 1000).0);
                strips.add(strip, &held);
            }
            assert!(strips.gained_in.len() <= 2 * 1000 + FEW_STRIPS);
            for at in (0..4000).filter(|at| at % 4 == 0) {
                assert!(held.remove(name(at), |_| true).is_some());
            }
        }
        let needed: std::collections::BTreeSet<_> = strips_of(&held).into_iter().collect();
        let known: std::collections::BTreeSet<_> = strips.into_list().into_iter().collect();
        assert_eq!(needed.len(), 750);
        assert!(needed.is_subset(&known));
    }
}
