//! `--no-router-kv-events`: no event socket, and the router's own memory of what it sent where.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    engine::{ScriptedEngine, Setup},
    eventually,
    frontend::Frontend,
    seen,
    simulated::{self, prompt},
};

/// Tokens per block.
const BLOCK: usize = 16;

/// A port where an engine could publish; it counts who comes.
struct Port {
    port: u16,
    connections: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Port {
    async fn open() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                drop(stream);
            }
        }));
        Self { port, connections, _task: task }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn engine() -> ScriptedEngine {
    let engine = ScriptedEngine::start(Setup { block_size: BLOCK as u32, ..Setup::default() }).await;
    engine.reply("/v1/completions", 200, &json!({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "a"}]}));
    engine
}

/// An answer to a prompt of four blocks and a token, so many of which were cached.
fn answer(cached_blocks: usize) -> Value {
    json!({
        "id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "a"}],
        "usage": {
            "prompt_tokens": 4 * BLOCK + 1, "completion_tokens": 1, "total_tokens": 4 * BLOCK + 2,
            "prompt_tokens_details": {"cached_tokens": cached_blocks * BLOCK},
        },
    })
}

async fn fleet(count: usize) -> Vec<ScriptedEngine> {
    let mut fleet = Vec::new();
    for _ in 0..count {
        fleet.push(engine().await);
    }
    fleet
}

async fn start(fleet: &[ScriptedEngine], options: &[&str]) -> Frontend {
    let workers: Vec<String> = fleet.iter().map(ScriptedEngine::url).collect();
    let mut args = vec!["--router-mode", "kv"];
    args.extend(options);
    args.extend(workers.iter().flat_map(|worker| ["--worker", worker]));
    let frontend = Frontend::start(&args);
    eventually("the workers serve", async || {
        let ready = frontend.get("/workers").await.json();
        let workers = ready["workers"].as_array().unwrap();
        seen(workers.iter().all(|worker| worker["state"] == "up" && worker["ranks"][0].is_object()), &ready)
    })
    .await;
    frontend
}

fn body(number: u32, blocks: usize) -> Value {
    json!({"model": "tiny", "prompt": prompt(number, blocks * BLOCK + 1), "max_tokens": 1})
}

async fn predicted_blocks(frontend: &Frontend, engine: &ScriptedEngine) -> u64 {
    frontend.rank(&engine.address.to_string()).await["predicted_blocks"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_socket_is_opened_and_no_engine_asked_for_one() {
    for (options, listens) in [(&["--no-router-kv-events"][..], false), (&[], true)] {
        let (events, replay, engine) = (Port::open().await, Port::open().await, engine().await);
        let source = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "topic": "",
            "endpoint": format!("tcp://*:{}", events.port), "replay_endpoint": format!("tcp://*:{}", replay.port),
        });
        engine.reply("/kv_event_sources", 200, &json!({"0": source}));
        let fleet = [engine];
        let frontend = start(&fleet, options).await;
        for number in 0..3 {
            frontend.complete(&body(number, 4)).await;
        }
        let [engine] = &fleet;
        if listens {
            // The same set-up with events: what is counted below is what would be opened.
            eventually("it connects", async || seen(events.connections() > 0, "no connection")).await;
            assert_eq!(engine.asked("/kv_event_sources"), 1);
        } else {
            assert_eq!((events.connections(), replay.connections()), (0, 0));
            assert_eq!((engine.asked("/kv_event_sources"), engine.asked("/server_info")), (0, 0));
        }
        assert!(engine.asked("/metrics") > 0, "the block size is asked for");
        assert_eq!(engine.asked("/v1/completions"), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_goes_back_to_where_it_was_sent_until_its_time_is_over() {
    let fleet = fleet(3).await;
    let frontend = start(&fleet, &["--no-router-kv-events", "--router-ttl-secs", "2"]).await;
    // Eight prompts land right by chance once in 6561 times.
    for number in 0..8 {
        let first = frontend.complete(&body(number, 4)).await.worker().to_owned();
        let shown = frontend.candidate(&first, &body(number, 4)).await;
        // Nothing is known, all is predicted.
        assert_eq!((&shown["overlap_blocks"], &shown["predicted_blocks"]), (&json!(0), &json!(4)), "{shown}");
        let second = frontend.complete(&body(number, 4)).await;
        assert_eq!((second.worker(), second.header("x-dynamo-overlap-blocks")), (first.as_str(), "0"));
    }
    for engine in &fleet {
        eventually("its predictions run out", async || {
            let blocks = predicted_blocks(&frontend, engine).await;
            seen(blocks == 0, blocks)
        })
        .await;
    }
    let gone = frontend.route(&body(0, 4)).await;
    assert!(gone["candidates"].as_array().unwrap().iter().all(|candidate| candidate["predicted_blocks"] == 0), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predictions_are_flat_at_their_capacity_and_the_oldest_leave_first() {
    let fleet = fleet(1).await;
    let frontend = start(&fleet, &["--no-router-kv-events", "--router-predicted-blocks", "40"]).await;
    let mut most = 0;
    for number in 0..50 {
        frontend.complete(&body(number, 4)).await;
        let blocks = predicted_blocks(&frontend, &fleet[0]).await;
        assert!(blocks <= 40, "{blocks} after {number}");
        most = most.max(blocks);
    }
    assert_eq!(most, 40);
    let worker = fleet[0].address.to_string();
    assert_eq!(frontend.candidate(&worker, &body(49, 4)).await["predicted_blocks"], 4);
    assert_eq!(frontend.candidate(&worker, &body(0, 4)).await["predicted_blocks"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_no_worker_took_is_not_predicted() {
    let fleet = fleet(2).await;
    let frontend = start(&fleet, &["--no-router-kv-events"]).await;
    frontend.complete(&body(0, 4)).await;
    let mut before = Vec::new();
    for engine in &fleet {
        engine.reply("/v1/completions", 500, &json!({"error": {"message": "no"}}));
        before.push(predicted_blocks(&frontend, engine).await);
    }
    // The second prompt shares nothing with the first, the third all of it.
    for prompt in [body(1, 4), body(0, 6)] {
        assert_eq!(frontend.post("/v1/completions", &prompt).await.status, 500);
        let mut after = Vec::new();
        for engine in &fleet {
            after.push(predicted_blocks(&frontend, engine).await);
        }
        assert_eq!(after, before, "what was predicted before stays, and nothing else");
    }
    assert!(fleet.iter().all(|engine| engine.asked("/v1/completions") >= 2), "each was tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_events_an_engines_word_adds_nothing_to_what_was_predicted() {
    let fleet = [engine().await];
    fleet[0].reply("/v1/completions", 200, &answer(4));
    let frontend = start(&fleet, &["--no-router-kv-events", "--router-predicted-blocks", "2"]).await;
    frontend.complete(&body(0, 4)).await;
    let known = frontend.metric("dynamo_frontend_cached_tokens_total").await;
    assert_eq!(known, Some((4 * BLOCK) as f64), "the answer was read");
    assert_eq!(predicted_blocks(&frontend, &fleet[0]).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engines_word_is_taken_where_its_events_do_not_tell_unless_the_cache_was_emptied_meanwhile() {
    for emptied in [false, true] {
        // Nothing to replay, and no event comes: what the engine holds is not known.
        let fleet = [ScriptedEngine::start(Setup { block_size: BLOCK as u32, replay_frames: None, ..Setup::default() }).await];
        fleet[0].reply("/v1/completions", 200, &answer(4));
        fleet[0].reply("/reset_prefix_cache", 200, &json!({}));
        let frontend = start(&fleet, &["--router-predicted-ttl-secs", "0"]).await;
        fleet[0].subscribed().await;
        let gate = fleet[0].gate("/v1/completions");
        let prompt = body(0, 4);
        let reset = async {
            eventually("the request is at the engine", async || seen(fleet[0].asked("/v1/completions") == 1, "not yet")).await;
            if emptied {
                assert_eq!(frontend.post("/reset_prefix_cache", &Value::Null).await.status, 200);
            }
            gate.add_permits(1);
        };
        tokio::join!(frontend.complete(&prompt), reset);
        let held = predicted_blocks(&frontend, &fleet[0]).await;
        assert_eq!(held, if emptied { 0 } else { 4 }, "emptied meanwhile: {emptied}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_whose_events_tell_everything_is_not_second_guessed() {
    let engine = simulated::quick().await;
    let frontend = Frontend::start(&["--router-mode", "kv", "--router-predicted-ttl-secs", "0", "--worker", &engine.url()]);
    frontend.serves(1, "exact").await;
    let prompt = prompt(0, 8 * BLOCK);
    // Many at once: the later ones hit what the events of the first have not told yet.
    let body = simulated::completion(&prompt);
    futures_util::future::join_all((0..16).map(|_| frontend.complete(&body))).await;
    simulated::applied(&frontend, &engine).await;
    let rank = frontend.rank(&simulated::id(&engine)).await;
    assert_eq!((&rank["trust"], &rank["predicted_blocks"]), (&json!("exact"), &json!(0)), "{rank}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_moves_sees_what_its_next_worker_holds_by_then() {
    let stuck = ScriptedEngine::start(Setup { model: "mock-model".to_owned(), block_size: BLOCK as u32, ..Setup::default() }).await;
    stuck.reply("/v1/completions", 503, &json!({"error": {"message": "no"}}));
    let gate = stuck.gate("/v1/completions");
    let other = simulated::quick().await;
    let (first, second) = (format!("{},id=stuck", stuck.url()), format!("{},id=other", other.url()));
    let frontend = Frontend::start(&["--router-mode", "kv", "--worker", &first, "--worker", &second]);
    eventually("both serve", async || {
        let view = frontend.get("/workers").await.json();
        let workers = view["workers"].as_array().unwrap();
        seen(workers.iter().all(|worker| worker["state"] == "up" && worker["ranks"][0].is_object()), &view)
    })
    .await;
    for number in 0..64 {
        let body = simulated::completion(&prompt(number, 8 * BLOCK));
        let mut request = Box::pin(frontend.complete(&body));
        let waits = eventually("it is at one of them", async || {
            // A request that goes to the other worker is answered at once.
            if let Some(answer) = futures_util::FutureExt::now_or_never(&mut request) {
                return Ok((Some(answer), false));
            }
            if stuck.asked("/v1/completions") > 0 { Ok((None, true)) } else { Err("neither".to_owned()) }
        })
        .await;
        if !waits.1 {
            continue;
        }
        let pin = [("x-dynamo-worker-instance-id", "other")];
        frontend.open("/v1/completions", &pin, &body).await.whole().await;
        eventually("the other holds it", async || {
            let candidate = frontend.candidate("other", &body).await;
            seen(candidate["overlap_blocks"] == 8, &candidate)
        })
        .await;
        gate.add_permits(1);
        let answer = request.await;
        assert_eq!((answer.worker(), answer.header("x-dynamo-overlap-blocks")), ("other", "8"));
        return;
    }
    panic!("of 64 prompts none went to the first worker");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_of_many_blocks_is_routed_and_freed_like_any_other() {
    let fleet = fleet(3).await;
    let frontend = start(&fleet, &["--no-router-kv-events"]).await;
    for number in 0..4 {
        let body = body(number, 6_000);
        let first = frontend.complete(&body).await.worker().to_owned();
        assert_eq!(frontend.candidate(&first, &body).await["predicted_blocks"], 6_000);
        assert_eq!(frontend.complete(&body).await.worker(), first);
    }
    for engine in &fleet {
        eventually("its load is freed", async || {
            let rank = frontend.rank(&engine.address.to_string()).await;
            seen(rank["decode_blocks"] == 0 && rank["active_requests"] == 0, &rank)
        })
        .await;
    }
}

/// Without the capacity this would add 600,000 blocks, some 60 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_flat_at_capacity() {
    let fleet = fleet(1).await;
    let frontend = start(&fleet, &["--no-router-kv-events", "--router-predicted-blocks", "20000"]).await;
    let fill = async |numbers: std::ops::Range<u32>| {
        for number in numbers {
            frontend.complete(&body(number, 2000)).await;
        }
        frontend.resident_bytes()
    };
    // Fills the predictions and the memory of recent prompts, which has a bound of its own.
    let before = fill(0..120).await;
    assert!(predicted_blocks(&frontend, &fleet[0]).await > 16_000);
    let after = fill(120..420).await;
    let grown = after.saturating_sub(before);
    assert!(grown < 12 << 20, "{grown} bytes more than before, {before}");
    assert!(predicted_blocks(&frontend, &fleet[0]).await <= 20_000);
}
