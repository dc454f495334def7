//! Rule 6: stores with unknown parents are parked within bounds, attached when their place is known, never credited
//! before. Rule 11: what an engine confirms gives parked stores their place.

use std::sync::Arc;

use index::{
    BlockSize, Blocks, Copies, EngineHash, KvIndexer, Lane, Lanes, Levels, Limits, LocalHash, Parent, Refusal, Removed, Seed, Stored,
    Target, Targets, Window, Writer, local_hashes,
};

const SIZE: u32 = 4;

struct Fixture {
    indexer: Arc<KvIndexer>,
    target: Target,
    writer: Writer,
}

impl Fixture {
    fn new(limits: Limits) -> Self {
        let indexer = KvIndexer::new(BlockSize::new(SIZE).unwrap(), limits);
        let target = Targets::new().allocate().unwrap();
        let writer = indexer.writer(target, Lane::Device, Copies::Counted);
        Self { indexer, target, writer }
    }

    fn store(&mut self, parent: Parent, tokens: &[u32], names: &[u64]) -> Stored {
        self.writer.store(parent, Blocks::Tokens { tokens, window: Window::Plain, hashes: &named(names) })
    }

    fn depth(&self, prompt: &[u32], lanes: Lanes) -> u32 {
        let mut levels = Levels::new();
        self.indexer.lookup(&hashed(prompt, Seed::BASE), lanes, &mut levels);
        levels.depth(self.target.slot)
    }
}

fn named(names: &[u64]) -> Vec<EngineHash> {
    names.iter().map(|name| EngineHash(*name)).collect()
}

fn hashed(tokens: &[u32], seed: Seed) -> Vec<LocalHash> {
    let mut locals = Vec::new();
    local_hashes(tokens, BlockSize::new(SIZE).unwrap(), seed, Window::Plain, &mut locals);
    locals
}

/// Tokens of blocks `from..to` of one prompt; every block differs.
fn tokens(from: u32, to: u32) -> Vec<u32> {
    (from * SIZE..to * SIZE).collect()
}

const UNKNOWN: Parent = Parent::Block(EngineHash(999));

#[test]
fn a_late_joiner_credits_what_follows_a_confirmed_prefix() {
    let mut fixture = Fixture::new(Limits::default());
    // Blocks 0..3 were stored before we listened; what the engine stores now follows block 2, which it calls 102.
    assert_eq!(fixture.store(Parent::Block(EngineHash(102)), &tokens(3, 6), &[103, 104, 105]), Stored::Parked);
    assert_eq!(fixture.store(Parent::Block(EngineHash(105)), &tokens(6, 7), &[106]), Stored::Parked);
    let prompt = tokens(0, 8);
    assert_eq!(fixture.depth(&prompt, Lanes::ALL), 0);

    // Its answer says that three blocks were cached.
    let chain = hashed(&prompt, Seed::BASE);
    let mut confirmed = fixture.indexer.writer(fixture.target, Lane::Confirmed, Copies::Set);
    let names: Vec<_> = chain[..3].iter().map(|local| EngineHash(local.0)).collect();
    confirmed.store(Parent::Root(Seed::BASE), Blocks::LocalHashes { locals: &chain[..3], hashes: &names });
    assert_eq!(fixture.writer.adopt(&chain, 3, Seed::BASE), 4);
    assert_eq!(fixture.writer.parked().stores, 0);
    assert_eq!(fixture.depth(&prompt, Lanes::DEVICE | Lanes::CONFIRMED), 7);
    assert_eq!(fixture.depth(&prompt, Lanes::DEVICE), 0, "the device lane alone has a hole at the start");

    // The name of block 2 is known now, so another branch after it needs no parking.
    let other = [tokens(0, 3), vec![7, 7, 7, 7]].concat();
    assert_eq!(fixture.store(Parent::Block(EngineHash(102)), &[7, 7, 7, 7], &[203]), Stored::Applied { added: 1 });
    assert_eq!(fixture.depth(&other, Lanes::DEVICE | Lanes::CONFIRMED), 4);

    // Removing the block that was only confirmed is no surprise, and it takes nothing from the lane.
    assert_eq!(fixture.writer.remove(&named(&[102])), Removed { removed: 1, unknown: 0 });
    assert_eq!(fixture.writer.blocks(), 5);
    assert_eq!(fixture.store(Parent::Block(EngineHash(102)), &[8, 8, 8, 8], &[204]), Stored::Parked);
}

#[test]
fn a_retraction_forgets_what_was_only_confirmed() {
    let mut fixture = Fixture::new(Limits::default());
    let prompt = tokens(0, 5);
    let chain = hashed(&prompt, Seed::BASE);
    let mut confirmed = fixture.indexer.writer(fixture.target, Lane::Confirmed, Copies::Set);
    confirmed.store(Parent::Root(Seed::BASE), Blocks::LocalHashes { locals: &chain[..2], hashes: &named(&[0, 1]) });
    fixture.store(UNKNOWN, &tokens(2, 4), &[102, 103]);
    assert_eq!(fixture.writer.adopt(&chain, 2, Seed::BASE), 2);
    assert_eq!(fixture.writer.retract(&chain, 1), 2);
    assert_eq!(fixture.store(UNKNOWN, &tokens(2, 3), &[104]), Stored::Parked);
    assert_eq!(fixture.store(Parent::Block(EngineHash(103)), &tokens(4, 5), &[105]), Stored::Parked);
}

#[test]
fn no_more_confirmed_parents_are_remembered_than_allowed() {
    let mut fixture = Fixture::new(Limits { anchors: 1, ..Limits::default() });
    let chain = hashed(&tokens(0, 4), Seed::BASE);
    let mut confirmed = fixture.indexer.writer(fixture.target, Lane::Confirmed, Copies::Set);
    confirmed.store(Parent::Root(Seed::BASE), Blocks::LocalHashes { locals: &chain[..3], hashes: &named(&[0, 1, 2]) });
    for (parent, at) in [(900, 1), (901, 2)] {
        fixture.store(Parent::Block(EngineHash(parent)), &tokens(at, at + 1), &[100 + u64::from(at)]);
        assert_eq!(fixture.writer.adopt(&chain, 3, Seed::BASE), 1);
    }
    assert_eq!(fixture.store(Parent::Block(EngineHash(901)), &[5; 4], &[200]), Stored::Applied { added: 1 });
    assert_eq!(fixture.store(Parent::Block(EngineHash(900)), &[5; 4], &[201]), Stored::Parked);
}

#[test]
fn a_store_inside_the_confirmed_part_is_attached_where_it_fits_only_once() {
    let mut fixture = Fixture::new(Limits::default());
    let prompt = [tokens(0, 3), tokens(1, 2), tokens(5, 6)].concat(); // A B C B E
    let chain = hashed(&prompt, Seed::BASE);
    let mut confirmed = fixture.indexer.writer(fixture.target, Lane::Confirmed, Copies::Set);
    let names: Vec<_> = (0..5).map(EngineHash).collect();
    confirmed.store(Parent::Root(Seed::BASE), Blocks::LocalHashes { locals: &chain, hashes: &names });

    assert_eq!(fixture.store(Parent::Block(EngineHash(900)), &tokens(1, 2), &[101]), Stored::Parked);
    assert_eq!(fixture.store(Parent::Block(EngineHash(901)), &tokens(2, 3), &[102]), Stored::Parked);
    // C is at one place, B at two: which of them the store means cannot be told.
    assert_eq!(fixture.writer.adopt(&chain, 5, Seed::BASE), 1);
    assert_eq!(fixture.indexer.held(fixture.target, Lane::Device).len(), 1);
    assert_eq!(fixture.writer.parked().stores, 1);
}

#[test]
fn nothing_is_adopted_under_another_seed_or_a_prefix_nobody_holds() {
    let mut fixture = Fixture::new(Limits::default());
    let prompt = tokens(0, 4);
    fixture.store(UNKNOWN, &tokens(2, 4), &[102, 103]);
    assert_eq!(fixture.writer.adopt(&hashed(&prompt, Seed::BASE), 2, Seed::BASE), 0, "nobody holds the first two blocks");
    let adapter = Seed::new(Some("adapter"), None);
    fixture.store(Parent::Root(Seed::BASE), &tokens(0, 2), &[100, 101]);
    assert_eq!(fixture.writer.adopt(&hashed(&prompt, Seed::BASE), 2, adapter), 0);
    assert_eq!(fixture.writer.adopt(&hashed(&prompt, Seed::BASE), 0, Seed::BASE), 0);
    assert_eq!(fixture.writer.adopt(&[], 3, Seed::BASE), 0);
    assert_eq!(fixture.writer.adopt(&hashed(&prompt, Seed::BASE), 2, Seed::BASE), 2);
    assert_eq!(fixture.depth(&prompt, Lanes::DEVICE), 4);
}

#[test]
fn parents_that_arrive_bring_a_whole_family_and_removed_blocks_stay_removed() {
    let mut fixture = Fixture::new(Limits::default());
    assert_eq!(fixture.store(Parent::Block(EngineHash(102)), &tokens(3, 5), &[103, 104]), Stored::Parked);
    assert_eq!(fixture.store(Parent::Block(EngineHash(100)), &tokens(1, 3), &[101, 102]), Stored::Parked);
    assert_eq!(fixture.writer.remove(&named(&[101, 104, 555])), Removed { removed: 2, unknown: 1 });
    assert_eq!(fixture.writer.parked().blocks, 2);
    assert_eq!(fixture.store(Parent::Root(Seed::BASE), &tokens(0, 1), &[100]), Stored::Applied { added: 3 });
    assert_eq!(fixture.depth(&tokens(0, 5), Lanes::DEVICE), 1, "block 1 was removed while it was parked");
    assert_eq!(fixture.store(Parent::Block(EngineHash(100)), &tokens(1, 2), &[777]), Stored::Applied { added: 1 });
    assert_eq!(fixture.depth(&tokens(0, 5), Lanes::DEVICE), 4, "the hole is filled, under another name");
}

#[test]
fn a_childs_seed_is_its_parents_even_after_parking() {
    let mut fixture = Fixture::new(Limits::default());
    let salted = Seed::new(None, Some("tenant"));
    assert_eq!(fixture.store(Parent::Block(EngineHash(100)), &tokens(1, 3), &[101, 102]), Stored::Parked);
    fixture.store(Parent::Root(salted), &tokens(0, 1), &[100]);
    let mut levels = Levels::new();
    fixture.indexer.lookup(&hashed(&tokens(0, 3), salted), Lanes::DEVICE, &mut levels);
    assert_eq!(levels.depth(fixture.target.slot), 3);
    assert_eq!(fixture.depth(&tokens(0, 3), Lanes::DEVICE), 0);
}

#[test]
fn the_oldest_go_when_there_are_too_many_or_too_large() {
    let mut fixture = Fixture::new(Limits { parked_stores: 3, ..Limits::default() });
    for name in 0..5 {
        assert_eq!(fixture.store(Parent::Block(EngineHash(900 + name)), &tokens(1, 2), &[name]), Stored::Parked);
    }
    let parked = fixture.writer.parked();
    assert_eq!((parked.stores, parked.blocks, parked.total, parked.dropped), (3, 3, 5, 2));
    assert_eq!(fixture.store(Parent::Root(Seed::BASE), &tokens(0, 1), &[901]), Stored::Applied { added: 1 }, "901's child is gone");
    assert_eq!(fixture.writer.remove(&named(&[0, 1, 2])), Removed { removed: 1, unknown: 2 });

    let limit = 10_000;
    let mut fixture = Fixture::new(Limits { parked_bytes: limit, ..Limits::default() });
    let large: Vec<_> = (0..200).collect();
    assert_eq!(fixture.store(UNKNOWN, &tokens(0, 200), &large), Stored::Refused(Refusal::TooLargeToPark { limit }));
    for name in 0..100 {
        fixture.store(UNKNOWN, &tokens(0, 1), &[name]);
    }
    let stores = fixture.writer.parked().stores;
    assert!((10..100).contains(&stores), "{stores} stores in {limit} bytes");
    fixture.writer.clear();
    assert_eq!((fixture.writer.parked().stores, fixture.writer.parked().total), (0, 100));
}
