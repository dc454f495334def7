//! Token-level workers from their records to what requests see: cards, folders, roles, refusals, and workers that go and return.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use sched::Exclusion;
use serde_json::{Value, json};
use transport::request::{Server, ServerOptions};
use wire::discovery::{Endpoint, EndpointId, Model, ModelCard, Record};

use super::tests::World;
use crate::fleet::{Role, Served, TokenWorker, Worker};

/// A process that answers pings; nothing is generated.
struct Process {
    server: Server,
}

impl Process {
    async fn start() -> Self {
        Self { server: Server::bind("127.0.0.1:0", ServerOptions::default()).await.unwrap() }
    }

    /// The records of an endpoint of it.
    fn serves(&self, id: &EndpointId, instance_id: u64, card: Value) -> Vec<Record> {
        let endpoint = Endpoint::tcp(id.clone(), instance_id, &self.server.address().to_string());
        vec![endpoint.into(), Model { id: id.clone(), instance_id, suffix: None, card: ModelCard(card) }.into()]
    }
}

fn backend() -> EndpointId {
    EndpointId::new("dynamo", "backend", "generate")
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/tiny-llama")
}

/// The card that 1.6.1 wrote for the tiny model, with the paths of this host.
fn card(name: &str, folder: &Path) -> Value {
    let documents = testkit::dynamo::records("documents");
    let texts = documents.iter().filter_map(|record| record["document"].as_str());
    let recorded = texts.map(|text| text.replace("/models/tiny-llama", folder.to_str().unwrap()));
    let mut documents = recorded.map(|text| serde_json::from_str::<Value>(&text).unwrap());
    let mut card = documents.find_map(|document| document.get("card_json").cloned()).unwrap();
    card["display_name"] = json!(name);
    card
}

/// A copy of the tiny model that a test may spoil.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(tiny()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl World {
    fn worker(&self, id: &str) -> Arc<Worker> {
        self.fleet.view().workers.iter().find(|worker| worker.id() == id).cloned().unwrap()
    }

    fn served(&self, model: &str) -> Arc<Served> {
        self.fleet.view().model(model).cloned().unwrap()
    }

    fn is_routable(&self, model: &str) -> bool {
        self.fleet.view().model(model).is_some_and(|served| served.is_routable())
    }

    /// Discovery has no records, and is looked at until that has had its effect.
    async fn forget(&mut self, lasts: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while lasts() {
            assert!(Instant::now() < deadline, "workers without records that are dead stay");
            self.tell(std::iter::empty()).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn up(&self, id: &str) -> Arc<Worker> {
        let worker = self.worker(id);
        eventually("it is up", || worker.state() == "up").await;
        eventually("requests see it", || self.fleet.view().models().any(|served| served.tokens.is_some())).await;
        worker
    }
}

fn tokens(worker: &Worker) -> &TokenWorker {
    worker.tokens().unwrap()
}

#[tokio::test]
async fn a_worker_is_routable_once_its_model_is_loaded_and_it_answers_and_its_model_vanishes_with_it() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    world.tell(process.serves(&backend(), 7, card("tiny", &tiny())).into_iter()).await;
    let worker = world.up("7").await;
    assert_eq!((worker.exclusion(), tokens(&worker).role(), world.is_routable("tiny")), (None, Role::Aggregated, true));
    let model = world.served("tiny").tokens.clone().unwrap();
    assert_eq!((model.migration_limit, model.context_length, model.eos_token_ids.is_empty()), (3, None, false));
    world.tell(std::iter::empty()).await;
    assert_eq!((worker.state(), worker.exclusion()), ("draining", Some(Exclusion::Draining)));
    assert!(tokens(&worker).gone().is_cancelled() && world.fleet.view().model("tiny").is_none());
    world.fleet.stop().await;
}

#[tokio::test]
async fn a_worker_whose_record_comes_back_is_the_same_worker() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    let records = || process.serves(&backend(), 7, card("tiny", &tiny())).into_iter();
    world.tell(records()).await;
    let worker = world.up("7").await;
    let target = worker.serving().unwrap().ranks[0].target;
    world.tell(std::iter::empty()).await;
    let gone = tokens(&worker).gone();
    world.tell(records()).await;
    assert!(gone.is_cancelled() && !tokens(&worker).gone().is_cancelled() && world.is_routable("tiny"));
    assert!(Arc::ptr_eq(&world.worker("7"), &worker));
    assert_eq!(worker.serving().unwrap().ranks[0].target, target);
    world.fleet.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_gone_and_dead_is_let_go_of() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    world.tell(process.serves(&backend(), 7, card("tiny", &tiny())).into_iter()).await;
    let worker = world.up("7").await;
    process.server.drain(Duration::ZERO).await;
    world.tell(std::iter::empty()).await;
    assert_eq!(world.fleet.view().workers.len(), 1);
    eventually("it is dead", || !worker.pulse().state().is_routable()).await;
    let fleet = world.fleet.clone();
    world.forget(|| !fleet.view().workers.is_empty()).await;
    assert!(tokens(&worker).gone().is_cancelled());
    world.fleet.stop().await;
}

#[tokio::test]
async fn what_discovery_lost_while_it_was_away_serves_as_long_as_it_answers() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    world.tell(process.serves(&backend(), 7, card("tiny", &tiny())).into_iter()).await;
    let worker = world.up("7").await;
    world.lose().await;
    assert!(world.is_routable("tiny") && worker.state() == "up" && !tokens(&worker).gone().is_cancelled());
    process.server.drain(Duration::ZERO).await;
    let fleet = world.fleet.clone();
    world.forget(|| !fleet.view().workers.is_empty()).await;
    world.fleet.stop().await;
}

#[tokio::test]
async fn workers_with_one_content_share_one_folder_that_goes_with_the_last() {
    let (mut world, process, elsewhere) = (World::with(&[]).await, Process::start().await, copy());
    let serves = |id, folder: &Path| process.serves(&backend(), id, card("tiny", folder));
    let all = [serves(1, &tiny()), serves(2, &tiny()), serves(3, elsewhere.path())];
    world.tell(all.concat().into_iter()).await;
    let workers = [world.up("1").await, world.up("2").await, world.up("3").await];
    let folders: Vec<_> = workers.iter().map(|worker| tokens(worker).model().unwrap().folder.clone()).collect();
    assert!(folders.iter().all(|folder| Arc::ptr_eq(folder, &folders[0])));
    assert_eq!(world.fleet.library.counts(), (1, 0, 1));
    let folder = Arc::downgrade(&folders[0]);
    drop((workers, folders));
    process.server.drain(Duration::ZERO).await;
    world.forget(|| folder.upgrade().is_some()).await;
    assert_eq!(world.fleet.library.counts(), (1, 0, 0));
    world.fleet.stop().await;
}

#[tokio::test]
async fn a_card_that_contradicts_the_first_is_refused_until_the_first_has_gone() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    let (mut second, mut third) = (card("tiny", &tiny()), card("tiny", &tiny()));
    second["kv_cache_block_size"] = json!(32);
    third["display_name"] = json!("other");
    third["kv_cache_block_size"] = json!(32);
    let serves = |id, card: &Value| process.serves(&backend(), id, card.clone());
    let (first, second, third) = (serves(9, &card("tiny", &tiny())), serves(4, &second), serves(5, &third));
    // Whoever was there first, whatever its number.
    world.tell(first.clone().into_iter()).await;
    world.tell([first, second.clone(), third.clone()].concat().into_iter()).await;
    world.up("9").await;
    world.up("5").await;
    let refused = world.worker("4");
    assert_eq!((refused.state(), refused.exclusion()), ("refused", Some(Exclusion::NotReady)));
    let reason = refused.reason();
    for part in ["tiny", "block size 32", "worker 9", "16"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(refused.explain(Exclusion::NotReady), reason);
    world.tell([second, third].concat().into_iter()).await;
    world.up("4").await;
    assert!(world.is_routable("tiny") && refused.exclusion().is_none());
    world.fleet.stop().await;
}

#[tokio::test]
async fn those_who_live_decide_which_card_counts_and_keep_it_when_a_dead_one_revives() {
    let (mut world, first, second) = (World::with(&[]).await, Process::start().await, Process::start().await);
    let (old, mut new) = (card("tiny", &tiny()), card("tiny", &tiny()));
    new["kv_cache_block_size"] = json!(32);
    world.tell(first.serves(&backend(), 1, old.clone()).into_iter()).await;
    world.up("1").await;
    world.tell([first.serves(&backend(), 1, old), second.serves(&backend(), 2, new)].concat().into_iter()).await;
    let [one, two] = ["1", "2"].map(|id| world.worker(id));
    eventually("it answers", || two.pulse().state().is_routable()).await;
    assert_eq!((one.state(), two.state()), ("up", "refused"));
    let address = first.server.address();
    first.server.drain(Duration::ZERO).await;
    // One request that fails says nothing of the card.
    eventually("the one that lives counts", || (one.state(), two.state()) == ("refused", "up")).await;
    assert_eq!((one.pulse().state().name(), world.is_routable("tiny")), ("dead", true));
    let _revived = Server::bind(&address.to_string(), ServerOptions::default()).await.unwrap();
    eventually("it is back", || one.pulse().state().is_routable()).await;
    assert_eq!((one.state(), two.state()), ("refused", "up"));
    second.server.drain(Duration::ZERO).await;
    eventually("the other way round", || (one.state(), two.state()) == ("up", "refused")).await;
    world.fleet.stop().await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_is_told_of_and_tried_again() {
    let (mut world, process, folder) = (World::with(&[]).await, Process::start().await, copy());
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, "{}").unwrap();
    world.tell(process.serves(&backend(), 7, card("tiny", folder.path())).into_iter()).await;
    let worker = world.worker("7");
    eventually("it is tried", || worker.state() == "unloadable").await;
    let reason = worker.reason();
    assert!(reason.contains("tokenizer.json") && reason.contains("--model-path"), "{reason}");
    assert_eq!((worker.exclusion(), world.is_routable("tiny")), (Some(Exclusion::NotReady), false));
    std::fs::copy(tiny().join("tokenizer.json"), &tokenizer).unwrap();
    world.up("7").await;
    assert!(world.is_routable("tiny"));
    world.fleet.stop().await;
}

#[tokio::test]
async fn the_operators_folder_of_a_model_counts_before_its_card_and_that_of_every_model_after_it() {
    let (given, nowhere) = (tiny(), Path::new("/nowhere"));
    let named = format!("tiny={}", given.display());
    let process = Process::start().await;
    for (args, card, loads) in [
        (["--model-path", named.as_str()], card("tiny", copy().path()), 0),
        (["--model-path", given.to_str().unwrap()], card("tiny", nowhere), 0),
        (["--model-path", given.to_str().unwrap()], card("tiny", &given), 1),
    ] {
        let mut world = World::with(&args).await;
        world.tell(process.serves(&backend(), 7, card).into_iter()).await;
        world.up("7").await;
        assert_eq!(world.fleet.library.counts().0, loads);
        world.fleet.stop().await;
    }
}

#[tokio::test]
async fn who_prefills_is_no_candidate_of_plain_requests_and_makes_no_model() {
    let (mut world, process) = (World::with(&["--migration-limit", "0"]).await, Process::start().await);
    let of = |kind: &str| {
        let mut card = card("tiny", &tiny());
        card["worker_type"] = json!(kind);
        card
    };
    let prefill = process.serves(&EndpointId::new("dynamo", "prefill", "generate"), 1, of("prefill"));
    world.tell(prefill.clone().into_iter()).await;
    world.up("1").await;
    let served = world.served("tiny");
    assert!(served.members().is_empty() && !world.is_routable("tiny"));
    let decode = process.serves(&backend(), 2, of("decode"));
    world.tell([prefill, decode].concat().into_iter()).await;
    world.up("2").await;
    let served = world.served("tiny");
    let ids = |members: Vec<crate::fleet::Member>| members.iter().map(|member| member.worker.id().to_owned()).collect::<Vec<_>>();
    assert_eq!((ids(served.members()), ids(served.prefill_members())), (vec!["2".to_owned()], vec!["1".to_owned()]));
    assert!(world.is_routable("tiny"));
    assert_eq!((tokens(&world.worker("2")).role(), served.tokens.as_ref().unwrap().migration_limit), (Role::Decode, 0));
    world.fleet.stop().await;
}

#[tokio::test]
async fn endpoints_of_one_process_are_workers_each_with_its_model() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    let other = EndpointId::new("dynamo", "backend", "generate2");
    let both = [process.serves(&backend(), 7, card("tiny", &tiny())), process.serves(&other, 7, card("other", &tiny()))];
    world.tell(both.concat().into_iter()).await;
    world.up("7").await;
    let second = world.up("7.dynamo.backend.generate2").await;
    assert!(world.is_routable("tiny") && world.is_routable("other"));
    assert_eq!(tokens(&second).endpoint().id, other);
    world.fleet.stop().await;
}

#[tokio::test]
async fn adapters_and_further_names_are_served_with_the_base_models_folder() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    let mut base = card("tiny", &tiny());
    base["aliases"] = json!(["small"]);
    let mut adapter = card("sql", &tiny());
    adapter["lora"] = json!({"name": "sql-v2"});
    let mut records = process.serves(&backend(), 7, base);
    records.push(Model { id: backend(), instance_id: 7, suffix: Some("sql".to_owned()), card: ModelCard(adapter) }.into());
    world.tell(records.into_iter()).await;
    world.up("7").await;
    let (served, alias) = (world.served("sql"), world.served("small"));
    assert_eq!((served.base.as_str(), served.adapter.as_deref(), served.tokens.is_some()), ("tiny", Some("sql-v2"), true));
    assert_eq!((alias.base.as_str(), &alias.adapter, alias.is_routable()), ("tiny", &None, true));
    world.fleet.stop().await;
}

#[tokio::test]
async fn what_no_request_can_be_sent_to_says_so_and_makes_no_model() {
    let (mut world, process) = (World::with(&[]).await, Process::start().await);
    let with = |key: &str, value: &str| {
        let mut card = card("tiny", &tiny());
        card[key] = json!(value);
        card
    };
    let cases = [("model_input", "Tensor"), ("worker_type", "encode"), ("worker_type", "new"), ("model_type", "Embedding")];
    let records = cases.iter().zip(1..).flat_map(|((key, value), id)| process.serves(&backend(), id, with(key, value)));
    world.tell(records.collect::<Vec<_>>().into_iter()).await;
    for id in ["1", "2", "3", "4"] {
        let worker = world.worker(id);
        eventually("it is looked at", || worker.state() == "unsupported").await;
        assert_eq!(worker.exclusion(), Some(Exclusion::NotReady));
    }
    assert!(world.worker("1").reason().contains("takes Tensor") && !world.is_routable("tiny"));
    world.fleet.stop().await;
}
