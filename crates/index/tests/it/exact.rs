//! Rules 1, 2, 4, 5, 6 and 11 at once: whatever is done, in whatever order, the index answers as the model does.

use index::{Copies, Lane};
use proptest::{collection::vec, option, prelude::*, sample::select};

use crate::{
    model::Chain,
    world::{From, Key, LANES, Naming, Op, SLOTS, StoreOp, World},
};

/// Few symbols and short chains, so that equal content at other places, shared prefixes and orphans are common.
const SYMBOLS: u8 = 3;

fn key() -> impl Strategy<Value = Key> {
    (prop_oneof![3 => Just(0), 2 => 0..SLOTS], prop_oneof![8 => Just(Lane::Device), 1 => select(&LANES[1..])])
}

fn symbols(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(0..SYMBOLS, 1..=most)
}

fn chain(most: usize) -> impl Strategy<Value = Chain> {
    (prop_oneof![4 => Just(0), 1 => Just(1_u8)], symbols(most))
        .prop_map(|(seed, symbols)| symbols.into_iter().map(|symbol| (seed, symbol)).collect())
}

fn from() -> impl Strategy<Value = From> {
    prop_oneof![
        6 => prop_oneof![4 => Just(0), 1 => Just(1_u8)].prop_map(From::Root),
        2 => chain(4).prop_map(From::Chain),
        8 => any::<u8>().prop_map(From::Known),
        1 => (0..12_u8).prop_map(From::Wild),
    ]
}

fn naming() -> impl Strategy<Value = Naming> {
    prop_oneof![
        6 => Just(Naming::Chained { group: 0 }),
        2 => (1..3_u32).prop_map(|group| Naming::Chained { group }),
        1 => (0..24_u8).prop_map(Naming::Wild),
    ]
}

fn store() -> impl Strategy<Value = Op> {
    (key(), from(), symbols(4), naming(), option::weighted(0.3, 0..2_u8))
        .prop_map(|(key, from, symbols, naming, hashed)| Op::Store(StoreOp { key, from, symbols, naming, hashed }))
}

fn op() -> impl Strategy<Value = Op> {
    let copies = prop_oneof![Just(Copies::Counted), Just(Copies::Set)];
    prop_oneof![
        10 => store(),
        6 => (key(), vec(any::<u8>(), 1..5)).prop_map(|(key, picks)| Op::Remove { key, picks }),
        1 => key().prop_map(|key| Op::Clear { key }),
        1 => (key(), copies.clone()).prop_map(|(key, copies)| Op::Reopen { key, copies }),
        1 => (key(), copies).prop_map(|(key, copies)| Op::TakeOver { key, copies }),
        1 => (0..SLOTS, any::<bool>()).prop_map(|(slot, old_lives)| Op::Reslot { slot, old_lives }),
        2 => (key(), chain(5), 0..5_usize).prop_map(|(key, chain, keep)| Op::Retract { key, chain, keep }),
        3 => (key(), chain(6), 0..6_usize).prop_map(|(key, chain, known)| Op::Adopt { key, chain, known }),
        1 => key().prop_map(|key| Op::CountAsSet { key }),
        1 => (key(), any::<u8>()).prop_map(|(key, salt)| Op::Keep { key, salt }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_index_equals_a_plain_set_per_target(ops in vec(op(), 1..90), queries in vec(chain(6), 4)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
        for query in &queries {
            world.compare_lookup(query);
        }
        world.compare_rebuilt(&queries);
        world.end();
    }
}
