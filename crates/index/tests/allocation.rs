//! Memory: a warm lookup allocates nothing, and what is not held any more is given back.
#![allow(unsafe_code, reason = "counting allocations takes an allocator, and that trait is unsafe")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use index::{BlockSize, Blocks, Copies, EngineHash, KvIndexer, Lane, Lanes, Levels, Limits, LocalHash, Parent, Seed, Targets, Writer};

/// The system's allocator, counting what this thread does.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        BYTES.set(BYTES.get() + layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn store(writer: &mut Writer, salt: u64, blocks: u64) {
    let locals: Vec<_> = (0..blocks).map(|at| LocalHash(at * 31 + salt)).collect();
    let hashes: Vec<_> = (0..blocks).map(|at| EngineHash(salt << 32 | at)).collect();
    writer.store(Parent::Root(Seed::BASE), Blocks::LocalHashes { locals: &locals, hashes: &hashes });
}

#[test]
fn a_warm_lookup_allocates_nothing() {
    let indexer = KvIndexer::new(BlockSize::new(16).unwrap(), Limits::default());
    let targets = Targets::new();
    let mut writers: Vec<_> = (0..300).map(|_| indexer.writer(targets.allocate().unwrap(), Lane::Device, Copies::Set)).collect();
    for (index, writer) in writers.iter_mut().enumerate() {
        store(writer, 0, 5 * index as u64 + 1);
    }
    let chain: Vec<_> = (0..2000).map(|at| LocalHash(at * 31)).collect();
    let mut levels = Levels::new();
    let ask = |levels: &mut Levels| {
        for blocks in [1, 2000, 700, 1300] {
            indexer.lookup(&chain[..blocks], Lanes::DEVICE, levels);
        }
        indexer.lookup(&chain, Lanes::ALL, levels);
        assert_eq!(levels.iter().count(), 300);
    };
    ask(&mut levels);
    let before = CALLS.get();
    ask(&mut levels);
    assert_eq!(CALLS.get() - before, 0);
}

#[test]
fn memory_follows_live_blocks() {
    let indexer = KvIndexer::new(BlockSize::new(16).unwrap(), Limits::default());
    let target = Targets::new().allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Counted);
    let start = BYTES.get();
    let mut after_first = 0;
    for round in 0..20 {
        store(&mut writer, round, 8192);
        assert!(BYTES.get() - start > 8192 * (16 + 12), "the round holds something");
        let names: Vec<_> = (0..8192).map(|at| EngineHash(round << 32 | at)).collect();
        assert_eq!(writer.remove(&names).removed, 8192);
        drop(names);
        assert_eq!(indexer.distinct_blocks(), 0);
        if round == 0 {
            after_first = BYTES.get();
        }
    }
    assert!(BYTES.get() - after_first < 4096, "{} bytes grew over the rounds", BYTES.get() - after_first);
    drop(writer);
    assert!(BYTES.get() - start < 32 * 1024, "{} bytes are left of an empty index", BYTES.get() - start);
}
