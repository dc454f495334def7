//! A deterministic world for one feed: an engine with a true cache, sockets that fail, and a clock that only this module
//! moves.
//!
//! [`World::run`] lets an engine store, evict, clear and restart while its link drops, repeats, delays and cuts and its
//! replay socket truncates, loses and falls silent. Whenever all is quiet, each target that the feed shows as exact must
//! hold what the engine truly holds, block for block; and where the replay socket works and reaches back to the start,
//! every target must be exact, unless requests asked the engine for what its events do not tell.

mod check;
mod link;
pub mod plane;
mod publisher;
mod seeds;

use std::{collections::BTreeMap, ops::AddAssign, sync::Arc, time::Duration};

use feed::{Feed, FeedConfig, Heeds, Limits, RankRange, ReplayMode};
use index::{BlockSize, Catalog, Targets};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use wire::encode::{Encoder, Generation, Hashes};

pub use seeds::run_all;

use check::Must;
use link::{Link, ReplayService};
use publisher::Publisher;

/// What happened in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Gaps by how they ended.
    pub replayed: u64,
    /// Likewise.
    pub rebuilt: u64,
    /// Likewise.
    pub degraded: u64,
    /// Restarts the feed noticed.
    pub restarts: u64,
    /// Stores that had to wait for their parents.
    pub orphans: u64,
    /// Live messages that found no room while a replay was pending.
    pub overflows: u64,
    /// Messages known as duplicates.
    pub duplicates: u64,
    /// Requests that asked for what events may not tell.
    pub demands: u64,
    /// Times a target was exact when all was quiet, of `checks`.
    pub exact: u64,
    /// Times a target was looked at when all was quiet.
    pub checks: u64,
}

impl AddAssign for Report {
    fn add_assign(&mut self, more: Self) {
        self.replayed += more.replayed;
        self.rebuilt += more.rebuilt;
        self.degraded += more.degraded;
        self.restarts += more.restarts;
        self.orphans += more.orphans;
        self.overflows += more.overflows;
        self.duplicates += more.duplicates;
        self.demands += more.demands;
        self.exact += more.exact;
        self.checks += more.checks;
    }
}

/// One engine, one link, one feed.
#[derive(Debug)]
pub struct World {
    rng: SmallRng,
    publisher: Publisher,
    link: Link,
    feed: Feed,
    catalog: Arc<Catalog>,
    config: FeedConfig,
    /// Nothing was lost that a replay from the start would not bring back, and nothing happened that events do not tell.
    intact: bool,
    /// Something was demanded whose effect the events do not tell. A restart ends that if both lives' starts are known.
    untold: bool,
    report: Report,
}

impl World {
    /// Runs the world of this seed. The error names the time and what is wrong.
    pub fn run(seed: u64) -> Result<Report, String> {
        let mut world = Self::new(seed);
        world.certain_faults()?;
        for _ in 0..3 {
            for _ in 0..world.rng.random_range(10..40) {
                world.act();
            }
            world.quiet()?;
        }
        Ok(world.report)
    }

    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let ranks = if rng.random_bool(0.25) { 2 } else { 1 };
        let service = match rng.random_range(0..10) {
            0..5 => ReplayService::Sound,
            5..8 => ReplayService::Flaky,
            _ => ReplayService::None,
        };
        let buffer = if rng.random_bool(0.7) { 10_000 } else { rng.random_range(1..30) };
        let generations = [Generation::Vllm016, Generation::Vllm023, Generation::Vllm024, Generation::Vllm026, Generation::Vllm033];
        let mut encoder = Encoder::new(generations[rng.random_range(0..generations.len())]);
        encoder.hashes = if rng.random_bool(0.3) { Hashes::Binary } else { Hashes::Integer };
        let targets = Targets::new();
        let config = FeedConfig {
            label: "world".to_owned(),
            model: "model".to_owned(),
            block_size: BlockSize::new(publisher::BLOCK_SIZE).filter(|_| rng.random_bool(0.5)),
            ranks: RankRange { start: 0, size: ranks },
            socket_rank: 0,
            targets: (0..ranks).filter_map(|_| targets.allocate()).collect(),
            adapters: BTreeMap::new(),
            replay: if service == ReplayService::None { ReplayMode::Unavailable } else { ReplayMode::Available },
            limits: Limits { held_bytes: if rng.random_bool(0.2) { 2_000 } else { 64 << 20 }, ..Limits::default() },
        };
        let catalog = Arc::new(Catalog::default());
        Self {
            publisher: Publisher::new(&mut rng, ranks as usize, buffer, encoder),
            link: Link::new(service),
            feed: Feed::new(config.clone(), catalog.clone()),
            catalog,
            config,
            intact: true,
            untold: false,
            report: Report::default(),
            rng,
        }
    }

    /// What every run contains: a gap, a parent that comes late, and a restart, in some order.
    fn certain_faults(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.random_range(0..5) {
            // The engine may be older than we are.
            self.publisher.step(&mut self.rng);
        }
        self.quiet()?;
        let mut faults = [0, 1, 2];
        rand::seq::SliceRandom::shuffle(&mut faults[..], &mut self.rng);
        for fault in faults {
            match fault {
                0 => {
                    self.publisher.step(&mut self.rng);
                    self.step();
                }
                1 => {
                    for message in self.publisher.late_parent(&mut self.rng) {
                        self.link.send(&mut self.rng, message);
                    }
                }
                _ => self.restart(),
            }
            self.quiet()?;
        }
        Ok(())
    }

    /// One random thing happens.
    fn act(&mut self) {
        match self.rng.random_range(0..100) {
            0..60 => self.step(),
            60..70 => {
                // Lost without a word, as beyond a high-water mark.
                self.publisher.step(&mut self.rng);
            }
            70..74 => self.link.repeat(&mut self.rng),
            74..80 => self.link.cut(&mut self.rng),
            80..84 => self.restart(),
            84..88 => {
                let [early, late] = self.publisher.late_parent(&mut self.rng);
                self.link.send(&mut self.rng, early);
                self.step();
                self.link.send(&mut self.rng, late);
            }
            // A clear event that is still on its way would be taken for the answer to this reset.
            88..90 if !self.publisher.cleared => {
                self.publisher.reset();
                self.feed.reset(self.link.now());
            }
            90 if self.rng.random_bool(0.3) => {
                let garbage = self.publisher.garbage(&mut self.rng);
                self.link.send(&mut self.rng, garbage);
                self.intact = false;
            }
            91..93 => {
                // Dropped on our side, and we are told.
                self.publisher.step(&mut self.rng);
                let replay = self.feed.dropped(self.link.now(), 1);
                self.link.ask(&mut self.rng, replay);
            }
            93..95 => {
                let replay = self.feed.poll(self.link.now());
                self.link.ask(&mut self.rng, replay);
            }
            95..98 => self.observe(),
            98..100 => self.demand(),
            _ => {}
        }
        let pause = Duration::from_millis(self.rng.random_range(0..400));
        self.link.run(&mut self.rng, &mut self.feed, &self.publisher, Some(pause));
    }

    fn step(&mut self) {
        let message = self.publisher.step(&mut self.rng);
        self.link.send(&mut self.rng, message);
    }

    /// A request is dispatched of which we say so first; what the engine makes of it may get lost.
    fn demand(&mut self) {
        let (rank, demand, message) = self.publisher.demanding(&mut self.rng);
        self.feed.demanded(self.link.now(), rank as u32, demand);
        if self.rng.random_bool(0.9) {
            self.link.send(&mut self.rng, message);
        }
        self.report.demands += 1;
        if !self.publisher.tells(demand) {
            self.untold = true;
            self.intact = false;
        }
    }

    /// Mostly the connection breaks with the process. A process that is replaced without our noticing must show by its
    /// first message, so there must have been one before.
    fn restart(&mut self) {
        self.publisher.restart(&mut self.rng);
        self.intact = !self.untold;
        if self.feed.status().stream().last_seq.is_none() || self.rng.random_bool(0.8) {
            self.link.cut(&mut self.rng);
        } else {
            self.step();
            self.quieten();
        }
    }

    /// All faults end, everything on its way arrives, and what a look at a quiet stream would find is found.
    fn quieten(&mut self) {
        self.link.heal();
        self.link.run(&mut self.rng, &mut self.feed, &self.publisher, None);
        for _ in 0..2 {
            let replay = self.feed.poll(self.link.now());
            self.link.ask(&mut self.rng, replay);
            self.link.run(&mut self.rng, &mut self.feed, &self.publisher, None);
        }
        self.link.break_again();
    }

    /// Looks twice: at a stream that has just become still, with clears unsaid and parents unannounced, and after the engine
    /// has said all.
    fn quiet(&mut self) -> Result<(), String> {
        self.link.heal();
        self.link.run(&mut self.rng, &mut self.feed, &self.publisher, None);
        if self.link.service() != ReplayService::None {
            self.quieten();
            self.check(Must::BeSound)?;
        }
        // Without a replay socket, a loss at the very end shows only by what follows it; and what follows long after a reset
        // shows whether its clear event will come.
        self.link.heal();
        self.link.run(&mut self.rng, &mut self.feed, &self.publisher, Some(Duration::from_secs(11)));
        for _ in 0..16 {
            self.step();
        }
        self.quieten();
        self.publisher.cleared = false;
        self.check(Must::BeExact)
    }
}
