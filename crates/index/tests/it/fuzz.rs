//! Differential fuzz target: any bytes are a script of what streams may do to an index, and the index answers as plain
//! sets do. A failing script is printed as operations, as short as it gets, with a seed that runs it again.
//!
//! A few seconds in `cargo test`; as long as wished with `BOLERO_RANDOM_TEST_TIME_MS=600000` or
//! `BOLERO_RANDOM_ITERATIONS=100000 cargo test -p index --test it fuzz`. Guided by coverage, where cargo-bolero is
//! installed: `cargo bolero test -p index --test it fuzz::scripts`.

use std::{fmt, mem::ManuallyDrop};

use bolero::{ValueGenerator as _, produce};
use index::{Copies, Lane};

use crate::{
    model::{Block, Chain},
    world::{From, Key, LANES, Naming, Op, StoreOp, World},
};

const ITERATIONS: usize = 300;
/// The longest script: about 150 operations.
const MAX_BYTES: usize = 600;
/// The longest where chains are long.
const LONG_BYTES: usize = 100;
/// Few symbols and mostly short chains, so that equal content at other places, shared prefixes and orphans are common.
const SYMBOLS: u8 = 3;
/// Targets of most worlds, and of the widest.
const NARROW: usize = 4;
const WIDE: usize = 1_100;

/// What a script is made of.
#[derive(Clone)]
struct Script {
    slots: usize,
    steps: Vec<Step>,
}

/// One operation, by one target or by many one after the other.
#[derive(Clone, Debug)]
struct Step {
    op: Op,
    /// How many more targets do the same, and how far apart they are.
    more: (usize, usize),
}

/// Reads a script; where bytes end it ends.
struct Bytes<'a> {
    rest: std::slice::Iter<'a, u8>,
    slots: usize,
    /// How many more chains of hundreds of blocks may come.
    long: usize,
}

impl fmt::Debug for Script {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{} targets", self.slots)?;
        self.steps.iter().try_for_each(|Step { op, more: (more, far) }| match more {
            0 => writeln!(to, "{op:?}"),
            _ => writeln!(to, "{op:?}, and {more} more, {far} apart"),
        })
    }
}

impl Script {
    fn decode(bytes: &[u8]) -> Self {
        let mut bytes = Bytes { rest: bytes.iter(), slots: NARROW, long: 0 };
        match bytes.next().unwrap_or(0) {
            0..8 => bytes.slots = WIDE - bytes.below(WIDE - 100).unwrap_or(0),
            8..24 => bytes.slots = 1 + bytes.below(150).unwrap_or(0),
            24..32 => {
                bytes.long = 2;
                bytes.rest = bytes.rest.as_slice()[..bytes.rest.len().min(LONG_BYTES)].iter();
            }
            32.. => {}
        }
        let slots = bytes.slots;
        let steps = std::iter::from_fn(|| bytes.step()).collect();
        Self { slots, steps }
    }

    fn is_small(&self) -> bool {
        let blocks = |step: &Step| if let Op::Store(store) = &step.op { store.symbols.len() } else { 0 };
        self.slots <= NARROW && self.steps.iter().all(|step| blocks(step) < 10)
    }
}

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        self.rest.next().copied()
    }

    fn below(&mut self, most: usize) -> Option<usize> {
        let number = if most > 256 { u16::from_le_bytes([self.next()?, self.next()?]).into() } else { usize::from(self.next()?) };
        Some(number % most)
    }

    fn step(&mut self) -> Option<Step> {
        let op = self.op()?;
        let more = match op {
            Op::Store(_) | Op::Remove { .. } if self.slots > NARROW => {
                let far = 1 + self.below(7)?;
                let many = [0, 1, 3, 40, self.slots / far][self.below(5)?];
                (many.min(self.slots), far)
            }
            _ => (0, 0),
        };
        Some(Step { op, more })
    }

    fn op(&mut self) -> Option<Op> {
        Some(match self.next()? {
            // So that what was made as short as it gets is short to read.
            0 => return None,
            kind => self.op_of(kind % 32)?,
        })
    }

    fn op_of(&mut self, kind: u8) -> Option<Op> {
        Some(match kind {
            0..14 => Op::Store(self.store()?),
            14..20 => Op::Remove { key: self.key()?, picks: self.picks()? },
            20 => Op::Clear { key: self.key()? },
            21 => Op::Reopen { key: self.key()?, copies: self.copies()? },
            22 => Op::TakeOver { key: self.key()?, copies: self.copies()? },
            23 => Op::Reslot { slot: self.below(self.slots)?, old_lives: self.next()?.is_multiple_of(2) },
            24..27 => Op::Retract { key: self.key()?, chain: self.chain()?, keep: self.below(5)? },
            27..30 => Op::Adopt { key: self.key()?, chain: self.chain()?, known: self.below(6)? },
            30 => Op::CountAsSet { key: self.key()? },
            _ => Op::Keep { key: self.key()?, salt: self.next()? },
        })
    }

    fn key(&mut self) -> Option<Key> {
        let lane = match self.next()? % 10 {
            0 => LANES[1],
            1 => LANES[2],
            _ => Lane::Device,
        };
        let slot = if self.next()? % 2 == 0 { 0 } else { self.below(self.slots)? };
        Some((slot, lane))
    }

    fn copies(&mut self) -> Option<Copies> {
        Some(if self.next()? % 2 == 0 { Copies::Counted } else { Copies::Set })
    }

    fn picks(&mut self) -> Option<Vec<u8>> {
        (0..=self.below(5)?).map(|_| self.next()).collect()
    }

    fn seed(&mut self) -> Option<u8> {
        Some(u8::from(self.next()? % 5 == 0))
    }

    /// One to five symbols, or some hundreds that come again after a few.
    fn symbols(&mut self) -> Option<Vec<u8>> {
        let bits = self.next()?;
        let few: Vec<_> = [1, 3, 9, 27, 81].iter().take(1 + self.below(5)?).map(|power| bits / power % SYMBOLS).collect();
        if self.long == 0 || self.next()? % 4 > 0 {
            return Some(few);
        }
        self.long -= 1;
        let len = 200 + self.below(400)?;
        Some(few.into_iter().cycle().take(len).collect())
    }

    fn chain(&mut self) -> Option<Chain> {
        let seed = self.seed()?;
        Some(self.symbols()?.into_iter().map(|symbol| (seed, symbol)).collect())
    }

    fn store(&mut self) -> Option<StoreOp> {
        let key = self.key()?;
        let from = match self.next()? % 16 {
            0..5 => From::Root(self.seed()?),
            5..7 => From::Chain(self.chain()?),
            7 => From::Wild(self.next()? % 12),
            _ => From::Known(self.next()?),
        };
        let symbols = self.symbols()?;
        let naming = match self.next()? % 16 {
            0 => Naming::Wild(self.next()? % 24),
            1..5 => Naming::Chained { group: 1 + u32::from(self.next()? % 2) },
            _ => Naming::Chained { group: 0 },
        };
        let hashed = match self.next()? % 8 {
            0..6 => None,
            hashed => Some(hashed - 6),
        };
        Some(StoreOp { key, from, symbols, naming, hashed })
    }
}

/// What is looked up after each step: prompts that begin as stores do.
fn queries() -> Vec<Chain> {
    let chain = |symbols: [u8; 6]| symbols.iter().map(|symbol| (0, *symbol)).collect::<Vec<Block>>();
    vec![chain([0, 0, 0, 0, 0, 0]), chain([0, 1, 2, 0, 1, 2]), chain([1, 0, 0, 1, 0, 0])]
}

fn run(script: &Script) {
    // Not dropped by a panic: an index that is broken would panic once more, and nothing would be printed.
    let (mut world, queries) = (ManuallyDrop::new(World::of(script.slots)), queries());
    let small = script.is_small();
    for (at, step) in script.steps.iter().enumerate() {
        let Step { op, more: (more, far) } = step;
        for other in 0..=*more {
            world.act(&op.by((op.slot() + other * far) % script.slots));
        }
        if small {
            world.compare_lookup(&queries[at % queries.len()]);
        }
        if small && at % 8 == 7 {
            world.compare();
        }
    }
    world.compare();
    queries.iter().for_each(|query| world.compare_lookup(query));
    world.compare_rebuilt(&queries);
    ManuallyDrop::into_inner(world).end();
}

#[test]
fn scripts() {
    let scripts = produce::<Vec<u8>>().with().len(0..MAX_BYTES).map_gen(|bytes| Script::decode(&bytes));
    bolero::check!().with_iterations(ITERATIONS).with_generator(scripts).for_each(run);
}
