//! A deterministic world for the feed of one rank on the event plane: engine processes with true caches and their publishers,
//! discovery, links that fail, and a clock that only this module moves.
//!
//! [`PlaneWorld::run`] lets processes store, evict, clear, freeze, die and be replaced, one after the other or both at once, while
//! events are dropped, doubled, delayed and reordered, connections cut, records withdrawn and put again, and queries wait, fail, fall
//! silent or break off. Whenever the target is shown as exact it must hold what a process held at that very event; and once
//! all is quiet, what the newest process holds.

mod check;
mod link;
mod process;

use std::{ops::AddAssign, sync::Arc, time::Duration};

use feed::{
    Heeds,
    plane::{PlaneConfig, PlaneFeed, PlaneLimits},
};
use index::{BlockSize, Catalog, Target, Targets};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::publisher::BLOCK_SIZE;
use link::Link;
use process::{Process, RANK, WORKER};

/// What happened in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaneReport {
    /// Gaps by how they ended.
    pub replayed: u64,
    /// Likewise.
    pub rebuilt: u64,
    /// Likewise.
    pub degraded: u64,
    /// Complete states taken over.
    pub dumps: u64,
    /// Publishers replaced.
    pub restarts: u64,
    /// Queries asked.
    pub queries: u64,
    /// Queries that came to nothing.
    pub failures: u64,
    /// Events that found no room.
    pub overflows: u64,
    /// Events known as duplicates.
    pub duplicates: u64,
    /// Times the target was exact when all was quiet, of `checks`.
    pub exact: u64,
    /// Times it was looked at when all was quiet.
    pub checks: u64,
    /// Times it was compared with a process while things went on.
    pub comparisons: u64,
}

impl AddAssign for PlaneReport {
    fn add_assign(&mut self, more: Self) {
        self.replayed += more.replayed;
        self.rebuilt += more.rebuilt;
        self.degraded += more.degraded;
        self.dumps += more.dumps;
        self.restarts += more.restarts;
        self.queries += more.queries;
        self.failures += more.failures;
        self.overflows += more.overflows;
        self.duplicates += more.duplicates;
        self.exact += more.exact;
        self.checks += more.checks;
        self.comparisons += more.comparisons;
    }
}

/// One rank, its processes, one feed.
#[derive(Debug)]
pub struct PlaneWorld {
    rng: SmallRng,
    /// The newest last. Those that are gone answer nothing.
    processes: Vec<Process>,
    link: Link,
    feed: PlaneFeed,
    catalog: Arc<Catalog>,
    target: Target,
    recoverable: bool,
    report: PlaneReport,
}

impl PlaneWorld {
    /// Runs the world of this seed. The error names what is wrong.
    pub fn run(seed: u64) -> Result<PlaneReport, String> {
        let mut world = Self::new(seed);
        for _ in 0..3 {
            for _ in 0..world.rng.random_range(10..50) {
                world.act()?;
            }
            world.quiet()?;
        }
        Ok(world.report)
    }

    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let target = Targets::new().allocate().unwrap_or_else(|| unreachable!("the first slot is free"));
        let held_bytes = if rng.random_bool(0.2) { 3_000 } else { 64 << 20 };
        let config = PlaneConfig {
            label: "world".to_owned(),
            model: "model".to_owned(),
            block_size: BlockSize::new(BLOCK_SIZE),
            worker_id: WORKER,
            dp_rank: RANK,
            target,
            limits: PlaneLimits { held_bytes, ..PlaneLimits::default() },
        };
        let catalog = Arc::new(Catalog::default());
        let mut world = Self {
            processes: Vec::new(),
            link: Link::new(rng.random_bool(0.5)),
            feed: PlaneFeed::new(config, catalog.clone()),
            catalog,
            target,
            recoverable: rng.random_bool(0.8),
            report: PlaneReport::default(),
            rng,
        };
        world.start(Duration::ZERO);
        for _ in 0..world.rng.random_range(0..6) {
            // The first process is older than we are.
            world.processes[0].step(&mut world.rng);
        }
        if world.rng.random_bool(0.05) {
            // And so is its successor.
            world.start(Duration::ZERO);
        }
        world
    }

    fn start(&mut self, after: Duration) {
        let recoverable = self.recoverable != self.rng.random_bool(0.05);
        let process = Process::new(&mut self.rng, recoverable);
        self.link.add(&mut self.rng, &process, after);
        self.processes.push(process);
    }

    /// One random thing happens.
    fn act(&mut self) -> Result<(), String> {
        let at = self.pick();
        let id = self.processes[at].id;
        match self.rng.random_range(0..100) {
            0..55 => self.step(at),
            55..65 => {
                // Lost without a word.
                self.processes[at].step(&mut self.rng);
            }
            65..69 => self.link.repeat(&mut self.rng, id),
            69..74 => self.link.cut(&mut self.rng, id),
            74..77 => {
                self.processes[at].step(&mut self.rng);
                self.link.drop_told(id);
            }
            77..81 => self.restart(),
            81..84 => self.freeze(at),
            84..87 => self.flap(at),
            87 => self.processes[at].miss(),
            88 => {
                let events = self.processes[at].step(&mut self.rng);
                self.processes[at].has_holes |= !events.is_empty();
                self.link.send_odd(&mut self.rng, id, events);
            }
            89..91 => {
                // It reaches every process that is there.
                self.processes.iter_mut().for_each(Process::reset);
                self.feed.reset(self.link.now());
            }
            91..95 => self.observe(),
            _ => {}
        }
        let longest = if self.rng.random_bool(0.1) { 20_000 } else { 600 };
        let pause = Duration::from_millis(self.rng.random_range(0..longest));
        self.pass(pause)
    }

    /// Mostly the newest process that is there.
    fn pick(&mut self) -> usize {
        let newest = self.processes.len() - 1;
        let older = newest.saturating_sub(1);
        if self.processes[older].is_alive && self.rng.random_bool(0.3) { older } else { newest }
    }

    fn step(&mut self, at: usize) {
        if self.processes[at].is_alive && !self.processes[at].is_frozen {
            let events = self.processes[at].step(&mut self.rng);
            self.link.send(&mut self.rng, self.processes[at].id, events);
        }
    }

    /// A process dies and is replaced, with its record gone at once or much later; or its successor is there before it goes.
    fn restart(&mut self) {
        let old = self.processes.len() - 1;
        let (id, now_or_later) = (self.processes[old].id, Duration::from_millis(self.rng.random_range(0..30_000)));
        if self.rng.random_bool(0.6) {
            self.die(old);
            let lease = if self.rng.random_bool(0.3) { Duration::ZERO } else { now_or_later };
            self.link.remove(id, lease);
            let start = Duration::from_millis(self.rng.random_range(0..20_000));
            self.start(start);
        } else {
            let start = Duration::from_millis(self.rng.random_range(0..2_000));
            self.start(start);
        }
    }

    fn die(&mut self, at: usize) {
        self.processes[at].is_alive = false;
        self.processes[at].is_frozen = false;
        self.link.cut(&mut self.rng, self.processes[at].id);
    }

    fn freeze(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.is_frozen = !process.is_frozen;
        if !process.is_frozen {
            self.link.thaw(process.id);
        }
    }

    /// Its record is gone for a while, and with it the subscription.
    fn flap(&mut self, at: usize) {
        if self.processes[at].is_alive {
            self.link.cut(&mut self.rng, self.processes[at].id);
            self.link.remove(self.processes[at].id, Duration::ZERO);
            let back = Duration::from_millis(self.rng.random_range(0..40_000));
            self.link.add(&mut self.rng, &self.processes[at], back);
        }
    }

    fn pass(&mut self, pause: Duration) -> Result<(), String> {
        let (catalog, target, comparisons) = (&self.catalog, self.target, &mut self.report.comparisons);
        let look = |feed: &PlaneFeed, processes: &[Process]| check::always(feed, processes, (catalog, target), comparisons);
        self.link.run(&mut self.rng, (&mut self.feed, &mut self.processes), pause, look)
    }

    /// All faults end: old processes are gone, the newest goes on.
    fn quiet(&mut self) -> Result<(), String> {
        self.link.faults = false;
        // Whatever is still on its way comes.
        self.pass(Duration::from_secs(60))?;
        let newest = self.processes.len() - 1;
        for at in 0..newest {
            if self.processes[at].is_alive {
                self.die(at);
            }
            self.link.remove(self.processes[at].id, Duration::ZERO);
        }
        if self.processes[newest].is_frozen {
            self.freeze(newest);
        }
        self.pass(Duration::from_secs(40))?;
        for _ in 0..3 {
            for _ in 0..4 {
                self.step(newest);
                self.pass(Duration::from_millis(200))?;
            }
            self.pass(Duration::from_secs(45))?;
        }
        self.check()?;
        self.link.faults = true;
        Ok(())
    }
}
