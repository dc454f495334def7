//! A wire between publishers and frontends that loses and doubles messages: it copies the publishers' records to where the
//! frontends look, with a socket of its own in place of theirs. What it does follows from a seed, which is printed;
//! `WIRE_SEED=N` gives another.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio_util::task::AbortOnDropHandle;
use transport::{
    discovery::{Backend, Change, Discovery, MemStore, Options, Registration},
    zmtp::{self, Endpoint, Pub, Sub, SubEvent},
};
use wire::discovery::{ChannelTransport, Key, Record};

/// What the wire does to messages.
pub(super) struct Faults {
    /// Drawn from once for each message.
    draws: Mutex<StdRng>,
    /// So many of a hundred are lost.
    pub(super) lost_percent: AtomicU32,
    /// So many of a hundred come twice.
    pub(super) doubled_percent: AtomicU32,
    /// Messages lost so far.
    pub(super) lost: AtomicU64,
}

impl Default for Faults {
    fn default() -> Self {
        let seed = std::env::var("WIRE_SEED").map_or(1, |seed| seed.parse().expect("WIRE_SEED is a number"));
        // Shown where the test fails.
        println!("the wire's faults follow from WIRE_SEED={seed}");
        let draws = Mutex::new(StdRng::seed_from_u64(seed));
        Self { draws, lost_percent: AtomicU32::new(0), doubled_percent: AtomicU32::new(0), lost: AtomicU64::new(0) }
    }
}

impl Faults {
    pub(super) fn set(&self, lost_percent: u32, doubled_percent: u32) {
        self.lost_percent.store(lost_percent, Ordering::Relaxed);
        self.doubled_percent.store(doubled_percent, Ordering::Relaxed);
    }

    /// How often the next message arrives.
    pub(super) fn copies(&self) -> usize {
        let drawn = self.draws.lock().unwrap().random_range(0..100);
        let lost = self.lost_percent.load(Ordering::Relaxed);
        if drawn < lost {
            self.lost.fetch_add(1, Ordering::Relaxed);
            0
        } else if drawn < lost + self.doubled_percent.load(Ordering::Relaxed) {
            2
        } else {
            1
        }
    }
}

/// The wire. It ends when it is dropped.
pub(super) struct Wire {
    pub(super) faults: Arc<Faults>,
    _task: AbortOnDropHandle<()>,
}

/// What is done for one record.
struct Copied {
    _registration: Registration,
    _carrier: Option<AbortOnDropHandle<()>>,
}

impl Wire {
    /// Between those who register in `from` and those who look in `to`.
    pub(super) fn between(from: &MemStore, to: Discovery) -> Self {
        let from = Discovery::open(Backend::Mem(from.clone()), Options::default()).unwrap();
        Self::with(Arc::default(), from, to)
    }

    pub(super) fn with(faults: Arc<Faults>, from: Discovery, to: Discovery) -> Self {
        let task = AbortOnDropHandle::new(tokio::spawn(copy(from, to, faults.clone())));
        Self { faults, _task: task }
    }

    pub(super) fn set(&self, lost_percent: u32, doubled_percent: u32) {
        self.faults.set(lost_percent, doubled_percent);
    }
}

async fn copy(from: Discovery, to: Discovery, faults: Arc<Faults>) {
    let mut watch = from.watch("v1/");
    let mut copied: BTreeMap<Key, Copied> = BTreeMap::new();
    while let Some(change) = watch.next().await {
        let added = match change {
            Change::Reset(all) => {
                copied.retain(|key, _| all.iter().any(|(there, _)| there == key));
                all
            }
            Change::Add(key, document) => vec![(key, document)],
            Change::Remove(key) => {
                copied.remove(&key);
                Vec::new()
            }
        };
        for (key, document) in added {
            if copied.contains_key(&key) {
                continue;
            }
            let (record, carrier) = through(Record::from_json(&document).unwrap(), &faults).await;
            let registration = to.register(record.key(), record.to_json());
            copied.insert(key, Copied { _registration: registration, _carrier: carrier });
        }
    }
}

/// The record as those at the other end shall see it, and what carries its messages.
async fn through(record: Record, faults: &Arc<Faults>) -> (Record, Option<AbortOnDropHandle<()>>) {
    let Record::EventChannel(mut channel) = record else { return (record, None) };
    let ChannelTransport::Zmq { endpoint } = &channel.transport else { panic!("{channel:?}") };
    let options = zmtp::Options::default();
    let from = Sub::connect(endpoint.parse().unwrap(), channel.topic.as_bytes(), options.clone());
    let to = Pub::bind(&"tcp://127.0.0.1:0".parse::<Endpoint>().unwrap(), options).await.unwrap();
    channel.transport = ChannelTransport::Zmq { endpoint: to.endpoint().to_string() };
    let carrier = tokio::spawn(carry(from, to, faults.clone()));
    (channel.into(), Some(AbortOnDropHandle::new(carrier)))
}

async fn carry(mut from: Sub, to: Pub, faults: Arc<Faults>) {
    loop {
        let SubEvent::Message(frames) = from.next().await else { continue };
        let frames: Vec<bytes::Bytes> = frames.into_iter().collect();
        for _ in 0..faults.copies() {
            to.send(frames.clone());
        }
    }
}
