//! Memory and directory against a model: who holds which key, and what every participant sees of it.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng};
use transport::discovery::{Backend, Discovery, MemStore, Registration, Standing};
use wire::discovery::{Bucket, Key};

use crate::support::{Records, Seen, eventually, key, open, value};

const PARTICIPANTS: usize = 3;
const KEYS: usize = 4;

/// The model: of each key the participants that want it with their values; the first of them holds it.
#[derive(Default)]
struct Model(BTreeMap<Key, Vec<(usize, String)>>);

impl Model {
    fn records(&self) -> Records {
        let held = self.0.iter().filter_map(|(key, wanted)| wanted.first().map(|(_, text)| (key.to_string(), value(text))));
        held.collect()
    }
}

struct World {
    participants: Vec<(Discovery, Seen)>,
    registrations: BTreeMap<(usize, Key), Registration>,
    model: Model,
}

impl World {
    /// At most two want a key, so that it is known who gets it next. An older registration of the same participant gives way.
    async fn register(&mut self, who: usize, key: Key, text: String) {
        let wanted = self.model.0.entry(key.clone()).or_default();
        let registration = self.participants[who].0.register(key.clone(), value(&text));
        match wanted.iter().position(|(other, _)| *other == who) {
            Some(own) => wanted[own].1 = text,
            None if wanted.len() < 2 => wanted.push((who, text)),
            None => return registration.withdraw().await,
        }
        let is_first = wanted[0].0 == who;
        let expected = if is_first { Standing::Held } else { Standing::Contested };
        eventually("a registration stands as it should", || registration.standing() == expected).await;
        self.registrations.insert((who, key), registration);
    }

    async fn withdraw(&mut self, who: usize, key: Key) {
        if let Some(registration) = self.registrations.remove(&(who, key.clone())) {
            registration.withdraw().await;
            self.model.0.get_mut(&key).unwrap().retain(|(other, _)| *other != who);
        }
    }

    async fn agree(&mut self, seed: u64, step: usize) {
        let expected = self.model.records();
        for (_, seen) in &mut self.participants {
            seen.until(&format!("seed {seed}, step {step}: {expected:?}"), |records| *records == expected).await;
        }
    }
}

async fn run(backend: Backend, seed: u64, steps: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let participants = (0..PARTICIPANTS).map(|_| open(backend.clone()));
    let participants = participants.map(|discovery| (discovery.clone(), Seen::of(&discovery))).collect();
    let mut world = World { participants, registrations: BTreeMap::new(), model: Model::default() };
    for step in 0..steps {
        let who = random.random_range(0..PARTICIPANTS);
        let key = key(&format!("key-{}/%", random.random_range(0..KEYS)));
        if random.random_bool(0.6) {
            world.register(who, key, format!("{who} at step {step}")).await;
        } else {
            world.withdraw(who, key).await;
        }
        world.agree(seed, step).await;
    }
    // Nobody flickered: what a step does not touch is told once.
    let adds = world.participants[0].1.told.len();
    assert!(adds <= 2 * steps + 1, "seed {seed}: {adds} changes in {steps} steps");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn participants_in_memory_see_what_the_model_holds() {
    for seed in 0..20 {
        run(Backend::Mem(MemStore::new()), seed, 40).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn participants_in_a_directory_see_what_the_model_holds() {
    let runs = (0..4).map(|seed| {
        tokio::spawn(async move {
            let root = tempfile::tempdir().unwrap();
            run(Backend::File { root: root.path().to_owned() }, seed, 12).await;
        })
    });
    for run in runs.collect::<Vec<_>>() {
        run.await.unwrap();
    }
}

fn backends(root: PathBuf) -> [Backend; 2] {
    [Backend::Mem(MemStore::new()), Backend::File { root }]
}

#[tokio::test]
async fn a_watch_sees_its_prefix_only_and_what_was_there_before_it() {
    let root = tempfile::tempdir().unwrap();
    for backend in backends(root.path().to_owned()) {
        let discovery = open(backend);
        let channel = Key::new(Bucket::EventChannels, "namespace/dynamo/topic/kv-events/a1");
        let registrations = [discovery.register(key("a1"), value("one")), discovery.register(channel.clone(), value("two"))];
        for registration in &registrations {
            registration.held().await.unwrap();
        }
        let mut seen = Seen::below(&discovery, &Bucket::EventChannels.prefix());
        seen.next().await.unwrap();
        assert_eq!(seen.records, Records::from([(channel.to_string(), value("two"))]));
        let mut narrow = Seen::below(&discovery, "v1/instances/dynamo/backend/");
        narrow.next().await.unwrap();
        assert_eq!(narrow.records, Records::from([(key("a1").to_string(), value("one"))]));
    }
}

#[tokio::test]
async fn closing_removes_what_was_registered_and_ends_the_watches() {
    let root = tempfile::tempdir().unwrap();
    for backend in backends(root.path().to_owned()) {
        let (leaving, staying) = (open(backend.clone()), open(backend));
        let mut seen = Seen::of(&staying);
        let registration = leaving.register(key("a1"), value("one"));
        seen.until("the key", |records| records.len() == 1).await;
        let mut own = Seen::of(&leaving);
        own.next().await.unwrap();
        leaving.close().await;
        assert_eq!(registration.standing(), Standing::Withdrawn);
        while own.next().await.is_some() {}
        seen.until("no key", Records::is_empty).await;
    }
}

#[tokio::test]
async fn the_last_handle_that_is_dropped_withdraws() {
    let store = MemStore::new();
    let staying = open(Backend::Mem(store.clone()));
    let mut seen = Seen::of(&staying);
    let leaving = open(Backend::Mem(store));
    let registration = leaving.register(key("a1"), value("one"));
    drop(leaving);
    seen.until("the key", |records| records.len() == 1).await;
    drop(registration);
    seen.until("no key", Records::is_empty).await;
}

#[tokio::test]
async fn a_watch_nobody_reads_keeps_one_change_per_key() {
    let discovery = open(Backend::Mem(MemStore::new()));
    let mut seen = Seen::of(&discovery);
    seen.next().await.unwrap();
    let mut last = None;
    for turn in 0..50 {
        let registration = discovery.register(key("a1"), value(&turn.to_string()));
        registration.held().await.unwrap();
        last = Some(registration);
    }
    seen.until("the last value", |records| records.values().eq([&value("49")])).await;
    // A few while the test itself was slow; never all of them.
    assert!(seen.told.len() < 10, "{:?}", seen.told);
    drop(last);
    seen.during(Duration::from_millis(1)).await;
}
