//! The fleet in front of a small engine that answers what it is told to.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::Request};
use clap::Parser;
use engine::{Options, discover, health::Fault};
use http::StatusCode;
use index::BlockSize;
use parking_lot::Mutex;
use prompt::PoolOptions;
use sched::{Answer, Ask, Candidate, Label, Overlap, Prompt, Ticket};
use tokio::{net::TcpListener, runtime};
use tokio_util::task::AbortOnDropHandle;

use super::{
    introspect::{self, EventPlan, Identity, Silence, Wants},
    keeper, *,
};
use crate::config::cli::Cli;

const METRICS: &str = "vllm:cache_config_info{block_size=\"32\",engine=\"0\"} 1.0\nprocess_start_time_seconds 7.0\n";
const MODELS: &str = r#"{"data":[{"id":"m","parent":null},{"id":"sql","parent":"m"}]}"#;

#[derive(Default)]
struct Pages {
    answers: HashMap<&'static str, (u16, String)>,
    asked: Vec<String>,
}

/// Answers by path; 404 elsewhere.
struct Server {
    url: String,
    pages: Arc<Mutex<Pages>>,
    _task: AbortOnDropHandle<()>,
}

impl Server {
    async fn start() -> Self {
        let pages = Arc::<Mutex<Pages>>::default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(answer).with_state(pages.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() }));
        let server = Self { url, pages, _task: task };
        for (path, body) in [("/health", ""), ("/v1/models", MODELS), ("/metrics", METRICS)] {
            server.set(path, 200, body);
        }
        server
    }

    fn set(&self, path: &'static str, status: u16, body: &str) {
        self.pages.lock().answers.insert(path, (status, body.to_owned()));
    }

    fn asked(&self, path: &str) -> usize {
        self.pages.lock().asked.iter().filter(|asked| *asked == path).count()
    }

    async fn ask(&self, keys: &str, silence: Silence) -> anyhow::Result<Identity> {
        let spec: WorkerSpec = format!("{}{keys}", self.url).parse().unwrap();
        let client = Client::new(Options::default()).unwrap();
        let engine = discover::Engine::new(client, spec.url.clone(), http::HeaderMap::new(), Duration::from_secs(5));
        introspect::ask(&engine, &spec, Wants { events: true, blocks: true, silence }).await
    }

    /// What the engine is as far as its event sockets say.
    async fn identity(&self, sources: &str, keys: &str) -> Identity {
        self.set("/kv_event_sources", 200, sources);
        self.ask(keys, Silence::Unknown).await.unwrap()
    }
}

async fn answer(State(pages): State<Arc<Mutex<Pages>>>, request: Request<axum::body::Body>) -> (StatusCode, String) {
    let mut pages = pages.lock();
    pages.asked.push(request.uri().path().to_owned());
    let found = pages.answers.get(request.uri().path()).cloned();
    found.map_or((StatusCode::NOT_FOUND, String::new()), |(status, body)| (StatusCode::from_u16(status).unwrap(), body))
}

/// A rank's entry of `/kv_event_sources`. Nothing listens there.
fn source(port: u16) -> String {
    format!(r#"{{"publisher":"zmq","endpoint":"tcp://*:{port}","topic":"kv"}}"#)
}

fn socket_ranks(plan: &EventPlan) -> Vec<Option<u32>> {
    match plan {
        EventPlan::Listen(sockets) => sockets.iter().map(|socket| socket.rank).collect(),
        EventPlan::Off | EventPlan::None(_) | EventPlan::Plane(_) => panic!("{plan}"),
    }
}

fn reason(plan: &EventPlan) -> &str {
    match plan {
        EventPlan::None(reason) => reason,
        EventPlan::Off | EventPlan::Listen(_) | EventPlan::Plane(_) => panic!("{plan}"),
    }
}

#[tokio::test]
async fn a_question_without_an_answer_is_asked_again_and_one_the_engine_does_not_know_is_not() {
    let server = Server::start().await;
    for path in ["/metrics", "/kv_event_sources"] {
        for (status, known) in [(500, false), (503, false), (429, false), (404, true), (401, true), (501, true)] {
            server.set("/metrics", 200, METRICS);
            server.set("/kv_event_sources", 200, r#"{"0":null}"#);
            server.set(path, status, "no");
            assert_eq!(server.ask("", Silence::Unknown).await.is_ok(), known, "{path} {status}");
            assert!(server.ask("", Silence::Nothing).await.is_ok(), "{path} {status}");
        }
    }
    // A page of that name that is about something else.
    server.set("/metrics", 404, "");
    server.set("/kv_event_sources", 404, "");
    server.set("/server_info", 200, r#"{"vllm_config":{}}"#);
    let identity = server.ask("", Silence::Unknown).await.unwrap();
    assert_eq!((identity.block_size, reason(&identity.events)), (None, "the engine does not say where its events are"));
}

#[tokio::test]
async fn adapters_are_not_dropped_when_the_list_of_models_fails() {
    let server = Server::start().await;
    assert_eq!(server.ask(",model=m", Silence::Unknown).await.unwrap().models.len(), 2);
    server.set("/v1/models", 500, "");
    assert!(server.ask(",model=m", Silence::Unknown).await.is_err());
    server.set("/v1/models", 404, "");
    assert_eq!(server.ask(",model=m", Silence::Unknown).await.unwrap().models.len(), 1);
    assert!(server.ask("", Silence::Nothing).await.is_err(), "nobody says what it serves");
}

#[tokio::test]
async fn sockets_belong_to_the_rank_they_are_named_for() {
    let server = Server::start().await;
    let hole = format!(r#"{{"0":{},"1":null,"2":{}}}"#, source(1), source(3));
    let identity = server.identity(&hole, "").await;
    assert_eq!((identity.dp_start, identity.dp_size), (0, 3));
    assert_eq!(socket_ranks(&identity.events), [Some(0), Some(2)]);

    let later = format!(r#"{{"2":{},"3":{}}}"#, source(1), source(2));
    let identity = server.identity(&later, "").await;
    assert_eq!((identity.dp_start, identity.dp_size), (2, 2));
    assert_eq!(socket_ranks(&identity.events), [Some(2), Some(3)]);
    assert!(identity.has_ranks());
    // The operator's numbers count.
    let identity = server.identity(&later, ",dp-start=6,dp-size=4").await;
    assert_eq!((identity.dp_start, identity.dp_size), (6, 4));
    assert_eq!(socket_ranks(&identity.events), [Some(6), Some(7)]);
    // One socket alone is every rank's.
    let identity = server.identity(&format!(r#"{{"0":{}}}"#, source(1)), ",dp-size=2").await;
    assert_eq!((identity.dp_size, socket_ranks(&identity.events)), (2, vec![None]));
    let refused = server.ask(",events=tcp://h:1+tcp://h:2+tcp://h:3", Silence::Unknown).await.unwrap();
    assert_eq!((refused.dp_size, socket_ranks(&refused.events)), (3, vec![Some(0), Some(1), Some(2)]));
    server.set("/kv_event_sources", 200, &later);
    let refused = server.ask(",dp-size=1", Silence::Unknown).await.unwrap_err().to_string();
    assert!(refused.contains("up to rank 3") && refused.contains("dp-size"), "{refused}");
}

#[tokio::test]
async fn an_engine_cannot_make_itself_more_ranks_than_there_can_be() {
    let server = Server::start().await;
    let many: Vec<_> = (0..2_000).map(|rank| format!(r#""{rank}":{}"#, source(1))).collect();
    for sources in [
        format!("{{{}}}", many.join(",")),
        format!(r#"{{"0":{},"4294967295":{}}}"#, source(1), source(2)),
        format!(r#"{{"4294967295":{}}}"#, source(1)),
        format!(r#"{{"0":{},"00":{}}}"#, source(1), source(2)),
    ] {
        let identity = server.identity(&sources, "").await;
        assert!(reason(&identity.events).contains("1024"), "{identity:?}");
        assert_eq!((identity.dp_start, identity.dp_size), (0, 1));
    }
}

#[tokio::test]
async fn an_engines_answer_makes_this_process_listen_nowhere() {
    let server = Server::start().await;
    let sources = r#"{"0":{"publisher":"zmq","endpoint":"tcp://10.0.0.9:5557"}}"#;
    let identity = server.identity(sources, "").await;
    assert!(reason(&identity.events).contains("add events=bind:tcp://10.0.0.9:5557"), "{}", identity.events);
    let identity = server.identity(sources, ",events=bind:tcp://127.0.0.1:5557").await;
    assert_eq!(identity.events.to_string(), "bind:tcp://127.0.0.1:5557 without replay");
}

/// A fleet without workers, in kv mode.
fn fleet(events: runtime::Handle) -> Arc<Fleet> {
    let args = Cli::try_parse_from(["dynamo-frontend", "--router-mode", "kv"]).unwrap().serve;
    let config = Arc::new(Config::from_args(args).unwrap());
    let scheduler = Scheduler::new(config.sched.clone()).unwrap();
    let client = Client::new(Options::default()).unwrap();
    let pool = Arc::new(Pool::new(PoolOptions { threads: 1, queue: 1 }).unwrap());
    Fleet::start(config, Parts { client, tokens: None, scheduler, pool, events, plane: None }).unwrap()
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn serving(fleet: &Arc<Fleet>, spec: &str) -> Arc<Worker> {
    let worker = fleet.add(spec.parse().unwrap()).unwrap();
    eventually("it serves", || worker.serving().is_some()).await;
    worker
}

/// A request that runs on a rank.
fn run(fleet: &Fleet, rank: &Rank) -> Ticket {
    let prompts = [Prompt { tokens: 64, chains: Vec::new() }];
    let ask = Ask { prompts: &prompts, answers_per_prompt: 1, answer: Answer::Stream, label: Label::Decode, pinned: false };
    let block_size = BlockSize::new(16).unwrap();
    let candidate = Candidate { target: rank.target, block_size, overlap: Overlap::default(), preference: 0.0, excluded: None };
    fleet.scheduler.reserve(Instant::now(), &ask, &[candidate], &mut rand::rng()).unwrap()
}

fn active(fleet: &Fleet, rank: &Rank) -> u64 {
    fleet.scheduler.load(Instant::now(), rank.target).active_requests
}

#[tokio::test]
async fn what_runs_on_a_rank_stays_booked_when_the_worker_says_something_new() {
    let (server, fleet) = (Server::start().await, fleet(runtime::Handle::current()));
    server.set("/kv_event_sources", 200, &format!(r#"{{"0":{}}}"#, source(1)));
    let worker = serving(&fleet, &server.url).await;
    let ticket = run(&fleet, &worker.serving().unwrap().ranks[0]);
    for (sources, ranks) in [(format!(r#"{{"0":{}}}"#, source(2)), 1), (format!(r#"{{"0":{},"1":{}}}"#, source(1), source(2)), 2)] {
        let identity = server.identity(&sources, "").await;
        keeper::apply(&fleet, &worker, identity).await;
        let serving = worker.serving().unwrap();
        assert_eq!((serving.ranks.len(), fleet.targets.len()), (ranks, ranks));
        assert_eq!(active(&fleet, &serving.ranks[0]), 1);
    }
    drop(ticket);
    fleet.stop().await;
    assert!(fleet.targets.is_empty());
}

#[tokio::test]
async fn a_worker_removed_while_its_ranks_change_gives_every_slot_back() {
    let server = Server::start().await;
    // Streams do not end before this runtime runs.
    let events = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fleet = fleet(events.handle().clone());
    server.set("/kv_event_sources", 200, &format!(r#"{{"0":{}}}"#, source(1)));
    let worker = serving(&fleet, &server.url).await;
    server.set("/kv_event_sources", 200, &format!(r#"{{"0":{},"1":{}}}"#, source(2), source(3)));
    for _ in 0..5 {
        worker.server().unwrap().pulse().failed(Fault::Answer, "a failure");
    }
    eventually("its stream is being closed", || fleet.targets.len() == 2).await;
    assert!(fleet.remove(worker.id()));
    let over = CancellationToken::new();
    let until = over.clone();
    let thread = std::thread::spawn(move || events.block_on(until.cancelled()));
    eventually("it is gone", || fleet.view().workers.is_empty()).await;
    assert!(fleet.targets.is_empty());
    over.cancel();
    thread.join().unwrap();
    fleet.stop().await;
}

#[tokio::test]
async fn a_worker_that_fails_to_answer_again_keeps_its_ranks_and_streams() {
    let (server, fleet) = (Server::start().await, fleet(runtime::Handle::current()));
    server.set("/kv_event_sources", 200, &format!(r#"{{"0":{}}}"#, source(1)));
    let worker = serving(&fleet, &server.url).await;
    let before = worker.serving().unwrap();
    for path in ["/metrics", "/kv_event_sources"] {
        server.set(path, 500, "");
    }
    let asked = server.asked("/v1/models");
    for _ in 0..5 {
        worker.server().unwrap().pulse().failed(Fault::Answer, "a failure");
    }
    eventually("it is asked again and again", || server.asked("/v1/models") > asked + 1).await;
    assert!(Arc::ptr_eq(&before, &worker.serving().unwrap()));
    fleet.stop().await;
}

#[tokio::test]
async fn a_removed_worker_is_shown_until_its_last_request_is_over_and_serves_nothing() {
    let (server, fleet) = (Server::start().await, fleet(runtime::Handle::current()));
    let spec = format!("{},events=none", server.url);
    let worker = serving(&fleet, &spec).await;
    let ticket = run(&fleet, &worker.serving().unwrap().ranks[0]);
    assert!(fleet.remove(worker.id()) && !fleet.remove(worker.id()));
    let view = fleet.view();
    assert_eq!((view.workers[0].id(), view.workers[0].state()), (worker.id(), "draining"));
    assert!(view.worker(worker.id()).is_none() && view.model("m").is_none());
    // Its id and URL may be given anew, and are then the new worker's alone.
    let again = serving(&fleet, &spec).await;
    assert!(matches!(&fleet.view().workers[..], [shown] if Arc::ptr_eq(shown, &again)));
    assert!(fleet.remove(again.id()));
    eventually(
        "the second is gone, and the first is seen again",
        || matches!(&fleet.view().workers[..], [shown] if Arc::ptr_eq(shown, &worker)),
    )
    .await;
    drop(ticket);
    eventually("both are gone", || fleet.view().workers.is_empty()).await;
    assert!(fleet.targets.is_empty());
    fleet.stop().await;
}

#[tokio::test]
async fn a_reset_counts_once_for_ranks_that_share_a_stream() {
    let (server, fleet) = (Server::start().await, fleet(runtime::Handle::current()));
    server.set("/reset_prefix_cache", 200, "");
    let worker = serving(&fleet, &format!("{},events=tcp://127.0.0.1:1,dp-size=2", server.url)).await;
    fleet.reset(&worker).await.unwrap();
    let resets: Vec<_> = worker.serving().unwrap().ranks.iter().map(|rank| rank.status().unwrap().resets).collect();
    assert_eq!(resets, [1, 1]);
    fleet.stop().await;
}

/// Which words `/workers` has for a worker, once it was asked and not believed.
async fn disbelieved(worker: &Worker) -> String {
    eventually("it is asked and not believed", || worker.reason().contains("cannot tell what it serves")).await;
    assert_eq!((worker.state(), worker.exclusion()), ("unproven", Some(sched::Exclusion::NotReady)));
    worker.reason()
}

#[tokio::test]
async fn who_answers_and_is_no_engine_gets_no_requests_whoever_names_its_model() {
    let fleet = fleet(runtime::Handle::current());
    let cases = [("/v1/models", 404, ""), ("/v1/models", 401, "no"), ("/v1/models", 302, ""), ("/v1/models", 200, "<html>hello</html>")];
    for (path, status, body) in cases {
        for keys in ["", ",model=m"] {
            let server = Server::start().await;
            server.set(path, status, body);
            server.set("/health", if status == 200 { 200 } else { status }, "");
            let worker = fleet.add(format!("{},id={status}{keys}", server.url).parse().unwrap()).unwrap();
            let reason = disbelieved(&worker).await;
            assert!(reason.contains("/v1/models of worker http://") && worker.serving().is_none(), "{reason}");
            assert!(fleet.remove(worker.id()));
        }
    }
    // Its list of models is missing, and it is well: the operator's word counts.
    let server = Server::start().await;
    server.set("/v1/models", 404, "");
    let worker = serving(&fleet, &format!("{},model=m", server.url)).await;
    assert_eq!((worker.state(), worker.exclusion()), ("up", None));
    fleet.stop().await;
}

#[tokio::test]
async fn an_engine_that_became_a_stranger_gets_no_requests_until_it_is_an_engine_again() {
    let (server, fleet) = (Server::start().await, fleet(runtime::Handle::current()));
    let worker = serving(&fleet, &server.url).await;
    server.set("/v1/models", 200, "<html>hello</html>");
    for _ in 0..5 {
        worker.server().unwrap().pulse().failed(Fault::Answer, "a failure");
    }
    disbelieved(&worker).await;
    server.set("/v1/models", 200, MODELS);
    eventually("it is believed again", || worker.exclusion().is_none()).await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_discovered_engine_serves_the_model_of_its_record_or_nothing() {
    let server = Server::start().await;
    let mut spec: WorkerSpec = format!("{},model=other", server.url).parse().unwrap();
    spec.events = crate::config::worker_flag::Events::Plane;
    let fleet = fleet(runtime::Handle::current());
    let worker = fleet.add(spec.clone()).unwrap();
    let reason = disbelieved(&worker).await;
    assert!(reason.ends_with("its record names the model 'other', and it lists m, sql"), "{reason}");
    assert!(fleet.remove(worker.id()));
    // Good health is no proof of an engine that nobody has listed by hand.
    server.set("/v1/models", 404, "");
    disbelieved(&fleet.add(spec).unwrap()).await;
    fleet.stop().await;
}
