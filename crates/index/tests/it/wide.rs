//! Many targets: up to 1,100 of them, holding prefixes and pieces of the same prompts.

use std::collections::{BTreeMap, BTreeSet};

use index::{Blocks, Copies, EngineHash, Lane, Lanes, Levels, Limits, LocalHash, Parent, Seed, Target, Targets, Writer, sequence_hashes};
use proptest::{collection::vec, prelude::*};

use crate::{long::indexer, world::check_levels};

const DEPTH: usize = 12;
const PROMPTS: usize = 3;

/// Prompts that part after three and after six blocks.
fn prompt(index: usize) -> Vec<LocalHash> {
    (0..DEPTH).map(|at| LocalHash((at + if at >= 3 * index { 100 * index } else { 0 }) as u64)).collect()
}

fn names(prompt: &[LocalHash]) -> Vec<EngineHash> {
    let mut sequences = Vec::new();
    sequence_hashes(prompt, &mut sequences);
    sequences.into_iter().map(|sequence| EngineHash(sequence.0)).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Store { prompt: usize, blocks: usize },
    Remove { prompt: usize, at: usize },
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..PROMPTS, 1..=DEPTH).prop_map(|(prompt, blocks)| Op::Store { prompt, blocks }),
        5 => (0..PROMPTS, 0..DEPTH).prop_map(|(prompt, at)| Op::Remove { prompt, at }),
        1 => Just(Op::Clear),
    ]
}

struct One {
    target: Target,
    writer: Writer,
    held: BTreeSet<EngineHash>,
}

fn overlap(one: &One, names: &[EngineHash]) -> u32 {
    names.iter().take_while(|name| one.held.contains(name)).count() as u32
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_thousand_targets_are_told_apart(width in 1..1100_usize, ops in vec((any::<u16>(), op()), 200..1200)) {
        let (indexer, targets) = (indexer(Limits::default()), Targets::new());
        let mut all: Vec<_> = (0..width).map(|_| targets.allocate().unwrap()).map(|target| {
            One { target, writer: indexer.writer(target, Lane::Device, Copies::Set), held: BTreeSet::new() }
        }).collect();
        let prompts: Vec<_> = (0..PROMPTS).map(|index| (prompt(index), names(&prompt(index)))).collect();
        let mut levels = Levels::new();
        for (step, (who, op)) in ops.iter().enumerate() {
            let one = &mut all[*who as usize % width];
            match *op {
                Op::Store { prompt, blocks } => {
                    let (locals, names) = &prompts[prompt];
                    let stored = Blocks::LocalHashes { locals: &locals[..blocks], hashes: &names[..blocks] };
                    one.writer.store(Parent::Root(Seed::BASE), stored);
                    one.held.extend(&names[..blocks]);
                }
                Op::Remove { prompt, at } => {
                    one.writer.remove(&prompts[prompt].1[at..=at]);
                    one.held.remove(&prompts[prompt].1[at]);
                }
                Op::Clear => {
                    one.writer.clear();
                    one.held.clear();
                }
            }
            if step % 64 == 0 || step + 1 == ops.len() {
                for (locals, names) in &prompts {
                    indexer.lookup(locals, Lanes::DEVICE, &mut levels);
                    check_levels(&levels);
                    let mut expected: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
                    for one in &all {
                        expected.entry(overlap(one, names)).or_default().push(one.target.slot.index());
                    }
                    expected.remove(&0);
                    let found: BTreeMap<_, Vec<_>> = levels.iter().map(|(depth, slots)| (depth, slots.iter().map(|slot| slot.index()).collect())).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
        all.clear();
        prop_assert_eq!(indexer.distinct_blocks(), 0);
    }
}
