//! The process that publishes: one publisher of an engine's cache that is kept full, told by lines what to do. It is this test
//! binary run for one test, so that it is always of the same build as what it is tested with.

use std::{
    collections::VecDeque,
    io::{BufRead, Write},
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::runtime::Runtime as Tokio;
use transport::discovery::Options;
use worker::{KvEventPublisher, KvPublisherOptions, Runtime, RuntimeConfig, StoredCall, Taken};

use super::publisher::{ANSWER, PLAN};
use crate::support::simulated::{BLOCK, prompt};

/// Blocks of one sequence.
const CHAIN: usize = 64;
/// Sequences that grow at once, so that no two events in a row could be told as one.
const OPEN: usize = 16;
/// Between two looks at the clock while events flow.
const TICK: Duration = Duration::from_millis(2);
/// What is made up for at once where the process was kept from running: a fiftieth of a second.
const BEHIND: f64 = 0.02;

/// Does nothing unless it is started by [`super::publisher::Publisher`].
#[test]
#[ignore = "a process of other tests"]
fn publishes_as_told() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let publisher = tokio.block_on(open(plan["worker_id"].as_u64().unwrap(), plan["ttl_ms"].as_u64().map(Duration::from_millis)));
    let load = Load {
        cache: Cache { seed: plan["worker_id"].as_u64().unwrap(), limit: plan["blocks"].as_u64().unwrap() as usize, ..Cache::default() },
        publisher,
        tokio,
        events_per_second: plan["events_per_second"].as_f64().unwrap(),
        due: 0.0,
        dropped_calls: 0,
    };
    load.run();
}

async fn open(worker_id: u64, ttl: Option<Duration>) -> KvEventPublisher {
    let planes = RuntimeConfig::from_env().unwrap();
    let discovery_options = Options { ttl, ..Options::default() };
    let runtime = Runtime::start(RuntimeConfig { discovery_options, ..planes }).await.unwrap();
    let endpoint = runtime.component("backend").endpoint("generate");
    let options = KvPublisherOptions { enable_local_indexer: true, worker_id: Some(worker_id), ..KvPublisherOptions::new(BLOCK as u32) };
    KvEventPublisher::new(endpoint, options).await.unwrap()
}

struct Load {
    cache: Cache,
    publisher: KvEventPublisher,
    tokio: Tokio,
    events_per_second: f64,
    /// Events that are due, in parts of one.
    due: f64,
    dropped_calls: u64,
}

impl Load {
    /// Until nobody tells it anything any more.
    fn run(mut self) {
        let orders = orders();
        let mut flows: Option<Instant> = None;
        loop {
            match orders.recv_timeout(if flows.is_some() { TICK } else { Duration::from_secs(3600) }) {
                Ok(order) => {
                    flows = match &*order {
                        "fill" => {
                            self.fill();
                            None
                        }
                        "flow" => Some(Instant::now()),
                        "pause" => None,
                        "tell" => flows,
                        other => panic!("what is {other}?"),
                    };
                    self.answer();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Some(since) = &mut flows {
                self.due += since.elapsed().as_secs_f64().min(BEHIND) * self.events_per_second;
                *since = Instant::now();
                while self.due >= 1.0 {
                    self.due -= 1.0;
                    self.step();
                }
            }
        }
        self.tokio.block_on(self.publisher.shutdown(Duration::from_secs(5)));
    }

    /// One event: a block more, or, where the cache is full, every second time one less.
    fn step(&mut self) {
        let taken = match self.cache.next() {
            Change::Stored(call) => self.publisher.publish_stored(call),
            Change::Removed(name) => self.publisher.publish_removed(&[name]),
        };
        self.dropped_calls += u64::from(taken.unwrap() == Taken::Dropped);
    }

    fn fill(&mut self) {
        while let Some(call) = self.cache.fill() {
            assert_eq!(self.publisher.publish_stored(call).unwrap(), Taken::Queued);
            if self.publisher.counters().queued_bytes > 16 << 20 {
                self.tokio.block_on(self.publisher.flush()).unwrap();
            }
        }
    }

    /// What is published, once all that was done before is.
    fn answer(&self) {
        self.tokio.block_on(self.publisher.flush()).unwrap();
        let (standing, counters) = (self.publisher.standing(), self.publisher.counters());
        let answer = json!({
            "last_event_id": standing.last_event_id,
            "digest": format!("{:016x}", standing.digest.unwrap()),
            "blocks": standing.blocks,
            "events": counters.events,
            "messages": counters.messages,
            "dropped_messages": counters.dropped_messages,
            "dropped_calls": self.dropped_calls,
        });
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{ANSWER}{answer}").unwrap();
        out.flush().unwrap();
    }
}

/// Lines as they come; it ends with the process that writes them.
fn orders() -> mpsc::Receiver<String> {
    let (told, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_ok_and(|line| told.send(line).is_ok()) {
                continue;
            }
            break;
        }
    });
    orders
}

/// Blocks of sequences, the oldest sequence the first to go.
#[derive(Default)]
struct Cache {
    seed: u64,
    /// Blocks held at most.
    limit: usize,
    blocks: usize,
    /// Sequences begun so far.
    begun: u32,
    growing: VecDeque<Chain>,
    /// Whole ones; the first may be gone in part.
    whole: VecDeque<Chain>,
    stored_last: bool,
}

struct Chain {
    number: u32,
    /// Blocks held, from the first on.
    blocks: usize,
}

enum Change {
    Stored(StoredCall),
    Removed(u64),
}

impl Cache {
    fn next(&mut self) -> Change {
        if self.blocks >= self.limit && self.stored_last && !self.whole.is_empty() {
            self.stored_last = false;
            return Change::Removed(self.remove());
        }
        self.stored_last = true;
        if self.growing.len() < OPEN {
            self.begun += 1;
            self.growing.push_back(Chain { number: self.begun, blocks: 0 });
        }
        let mut chain = self.growing.pop_front().unwrap();
        let call = self.call(&chain, chain.blocks + 1);
        chain.blocks += 1;
        self.blocks += 1;
        if chain.blocks == CHAIN {
            self.whole.push_back(chain)
        } else {
            self.growing.push_back(chain)
        }
        Change::Stored(call)
    }

    /// The last block of the oldest sequence goes.
    fn remove(&mut self) -> u64 {
        let chain = self.whole.front_mut().unwrap();
        chain.blocks -= 1;
        let name = name(self.seed, chain.number, chain.blocks);
        if chain.blocks == 0 {
            self.whole.pop_front();
        }
        self.blocks -= 1;
        name
    }

    /// A whole sequence, while there is room.
    fn fill(&mut self) -> Option<StoredCall> {
        if self.blocks + CHAIN > self.limit {
            return None;
        }
        self.begun += 1;
        let call = self.call(&Chain { number: self.begun, blocks: 0 }, CHAIN);
        self.whole.push_back(Chain { number: self.begun, blocks: CHAIN });
        self.blocks += CHAIN;
        Some(call)
    }

    /// Those blocks of a sequence that come behind what is held.
    fn call(&self, chain: &Chain, until: usize) -> StoredCall {
        let new = chain.blocks..until;
        StoredCall {
            token_ids: prompt(chain.number, until * BLOCK).split_off(new.start * BLOCK),
            num_block_tokens: vec![BLOCK as u32; new.len()],
            parent_hash: new.start.checked_sub(1).map(|parent| name(self.seed, chain.number, parent)),
            block_hashes: new.map(|block| name(self.seed, chain.number, block)).collect(),
            ..StoredCall::default()
        }
    }
}

/// What this engine calls a block.
fn name(seed: u64, chain: u32, block: usize) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(chain) << 8) ^ block as u64;
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}
