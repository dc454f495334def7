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
    simulated::prompt,
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
    let before = fill(0..60).await;
    assert!(predicted_blocks(&frontend, &fleet[0]).await > 16_000);
    let after = fill(60..360).await;
    let grown = after.saturating_sub(before);
    assert!(grown < 12 << 20, "{grown} bytes more than before, {before}");
    assert!(predicted_blocks(&frontend, &fleet[0]).await <= 20_000);
}
