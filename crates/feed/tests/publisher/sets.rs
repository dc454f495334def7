//! What is published is the set of what the engine holds, whatever it calls.

use std::collections::BTreeSet;

use feed::publisher::{Call, PublisherState};
use index::LocalHash;
use proptest::prelude::*;
use wire::router::{RouterEvent, Tier};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::model::{Consumer, Engine, block_size, call, state};

/// One call. A prompt is a way of choices; its blocks are named by that way and by a variant, so one block may have two
/// names.
#[derive(Clone, Debug)]
enum Op {
    Store { way: Vec<u8>, from: usize, variant: u8 },
    Remove { ways: Vec<(Vec<u8>, u8)> },
    Clear,
}

fn name(way: &[u8], variant: u8) -> u64 {
    xxh3_64_with_seed(way, u64::from(variant))
}

fn way() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..2_u8, 1..6)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (way(), 0..6_usize, 0..2_u8).prop_map(|(way, from, variant)| {
            let from = from % way.len();
            Op::Store { way, from, variant }
        }),
        8 => prop::collection::vec((way(), 0..2_u8), 1..5).prop_map(|ways| Op::Remove { ways }),
        1 => Just(Op::Clear),
    ]
}

fn blocks(way: &[u8], from: usize, variant: u8) -> (Option<u64>, Vec<(u64, u32)>) {
    let parent = (from > 0).then(|| name(&way[..from], variant));
    (parent, (from..way.len()).map(|at| (name(&way[..=at], variant), u32::from(way[at]))).collect())
}

fn run(op: &Op, state: &mut PublisherState, engine: &mut Engine) -> Vec<RouterEvent> {
    match op {
        Op::Store { way, from, variant } => {
            let (parent, blocks) = blocks(way, *from, *variant);
            engine.store(parent, &blocks.iter().map(|(name, _)| *name).collect::<Vec<_>>());
            state.stored(&call(parent, &blocks)).unwrap()
        }
        Op::Remove { ways } => {
            let names: Vec<_> = ways.iter().map(|(way, variant)| name(way, *variant)).collect();
            names.iter().for_each(|name| engine.remove(*name));
            state.removed(&names, Tier::Device)
        }
        Op::Clear => {
            engine.clear();
            vec![state.cleared()]
        }
    }
}

/// Leading blocks of a prompt that are held, by definition.
fn depth(held: &BTreeSet<u64>, way: &[u8]) -> u32 {
    let held = |at: &usize| (0..2).any(|variant| held.contains(&name(&way[..=*at], variant)));
    (0..way.len()).take_while(held).count() as u32
}

fn chain(way: &[u8]) -> Vec<LocalHash> {
    let mut locals = Vec::new();
    let tokens: Vec<_> = way.iter().flat_map(|choice| [u32::from(*choice), u32::from(*choice) + 1]).collect();
    index::local_hashes(&tokens, block_size(), index::Seed::BASE, index::Window::Plain, &mut locals);
    locals
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_consumer_ends_with_what_the_engine_holds(ops in prop::collection::vec(op(), 1..60), asked in way(), dump_at in 0..60_usize) {
        let (mut state, mut engine, mut consumer) = (state(), Engine::default(), Consumer::new());
        let mut late: Option<Consumer> = None;
        for (at, op) in ops.iter().enumerate() {
            for event in run(op, &mut state, &mut engine) {
                consumer.live(&event);
                if let Some(late) = &mut late {
                    late.fold(&event);
                }
            }
            prop_assert_eq!(&consumer.names, &engine.held());
            prop_assert_eq!(Some(consumer.digest()), state.digest());
            prop_assert_eq!(state.find_matches(&chain(&asked)), Some(depth(&engine.held(), &asked)));
            if at == dump_at {
                let mut fresh = Consumer::new();
                crate::answers::dump(&mut state).iter().for_each(|event| fresh.fold(event));
                late = Some(fresh);
            }
            if let Some(late) = &late {
                prop_assert_eq!(&late.names, &engine.held());
                prop_assert_eq!(Some(late.digest()), state.digest());
            }
        }
        prop_assert_eq!(state.names(), engine.held().len());
    }

    /// Names that come to mean other blocks: no model but the fold, which dumps and live events must agree on.
    #[test]
    fn names_that_change_their_meaning_change_it_everywhere(ops in prop::collection::vec((way(), 0..6_usize, 0..12_u64), 1..40)) {
        let (mut state, mut consumer) = (state(), Consumer::new());
        let small = |way: &[u8], salt: u64| xxh3_64_with_seed(way, salt) % 12;
        for (way, from, salt) in ops {
            let from = from % way.len();
            let events = if salt % 3 == 0 {
                state.removed(&[small(&way, salt)], Tier::Device)
            } else {
                let parent = (from > 0).then(|| small(&way[..from], salt));
                let blocks: Vec<_> = (from..way.len()).map(|at| (small(&way[..=at], salt), u32::from(way[at]))).collect();
                // Some name one block twice, and are refused.
                state.stored(&call(parent, &blocks)).unwrap_or_default()
            };
            events.iter().for_each(|event| consumer.live(event));
            prop_assert_eq!(Some(consumer.digest()), state.digest());
            let mut late = Consumer::new();
            crate::answers::dump(&mut state).iter().for_each(|event| late.fold(event));
            prop_assert_eq!(&late.names, &consumer.names);
            prop_assert_eq!(late.digest(), consumer.digest());
        }
    }

    /// Where parents are held. With one that is not, a call that goes on from another waits with it.
    #[test]
    fn calls_made_one_say_the_same(ops in prop::collection::vec(op(), 1..40)) {
        let (mut one_by_one, mut engine) = (state(), Engine::default());
        let mut calls: Vec<Call> = Vec::new();
        for op in &ops {
            if matches!(op, Op::Store { way, from, variant } if *from > 0 && !engine.held().contains(&name(&way[..*from], *variant))) {
                continue;
            }
            run(op, &mut one_by_one, &mut engine);
            let next = match op {
                Op::Store { way, from, variant } => {
                    let (parent, blocks) = blocks(way, *from, *variant);
                    Call::Stored(call(parent, &blocks).checked(block_size()).unwrap())
                }
                Op::Remove { ways } => {
                    Call::Removed { hashes: ways.iter().map(|(way, variant)| name(way, *variant)).collect(), tier: Tier::Device }
                }
                Op::Clear => Call::Cleared,
            };
            let rest = match calls.last_mut() {
                Some(last) => last.coalesce(next),
                None => Some(next),
            };
            calls.extend(rest);
        }
        let mut together = state();
        for call in &calls {
            together.apply(call).unwrap();
        }
        prop_assert_eq!(together.digest(), one_by_one.digest());
        prop_assert_eq!(together.names(), one_by_one.names());
    }
}
