//! Event streams that lose messages or break, in front of simulated engines.

use mocker::{Config, EventsConfig, Handle};
use serde_json::{Value, json};

use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{BLOCK, all_applied, applied, cached_tokens, completion, fleet, id, kv, prompt, start},
};

/// Waits until every event of the engine is applied and the trust is this.
async fn settled(frontend: &Frontend, engine: &Handle, trust: &str) -> Value {
    applied(frontend, engine).await;
    eventually(trust, async || {
        let rank = frontend.rank(&id(engine)).await;
        seen(rank["trust"] == trust, &rank).map(|()| rank)
    })
    .await
}

/// Passes a cache reset on.
async fn reset(frontend: &Frontend) {
    let answer = frontend.post("/reset_prefix_cache", &Value::Null).await.json();
    assert_eq!(answer["workers"][0]["reset"], true, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_lost_is_replayed() {
    let fleet = fleet(1).await;
    let [engine] = &fleet[..] else { unreachable!() };
    let frontend = kv(&fleet).await;
    frontend.complete(&completion(&prompt(1, 4 * BLOCK + 1))).await;
    all_applied(&frontend, &fleet).await;
    engine.set_faults(|faults| faults.drop_batches = 1);
    frontend.complete(&completion(&prompt(2, 4 * BLOCK + 1))).await;
    assert_eq!(engine.counters().unsent_batches, 1);
    frontend.complete(&completion(&prompt(3, 4 * BLOCK + 1))).await;
    let rank = settled(&frontend, engine, "exact").await;
    for number in 1..=3 {
        let candidate = frontend.candidate(&id(engine), &completion(&prompt(number, 4 * BLOCK + 1))).await;
        assert_eq!((&candidate["overlap_blocks"], &candidate["trust"]), (&json!(4), &json!("exact")), "{number}: {candidate}");
    }
    assert_eq!((&rank["gaps"], &rank["replays"], &rank["degraded_gaps"]), (&json!(1), &json!(1), &json!(0)), "{rank}");
}

/// What cannot be replayed costs trust, not service: later events count, an answer gives back what was missed, and a clear
/// ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_gone_for_good_degrades_until_a_clear() {
    let fleet =
        [start(Config { speedup: 0.0, events: Some(EventsConfig { replay: None, ..EventsConfig::default() }), ..Config::default() }).await];
    let [engine] = &fleet;
    let workers = ["--router-mode", "kv", "--router-predicted-ttl-secs", "0", "--worker", &engine.url()];
    let frontend = Frontend::start(&workers);
    frontend.serves(1, "blind").await;
    let body = |number| completion(&prompt(number, 4 * BLOCK + 1));
    // Without replay only a message tells that the connection stands.
    let mut number = 100;
    eventually("a message arrives", async || {
        number += 1;
        frontend.complete(&body(number)).await;
        seen(frontend.rank(&id(engine)).await["last_seq"].is_u64(), number)
    })
    .await;
    reset(&frontend).await;
    frontend.complete(&body(1)).await;
    settled(&frontend, engine, "exact").await;

    engine.set_faults(|faults| faults.lose_batches = 1);
    frontend.complete(&body(2)).await;
    frontend.complete(&body(3)).await;
    let rank = settled(&frontend, engine, "degraded").await;
    assert_eq!(rank["gaps"], rank["degraded_gaps"], "{rank}");
    let shown = |number| {
        let frontend = &frontend;
        async move {
            let candidate = frontend.candidate(&id(engine), &body(number)).await;
            (candidate["overlap_blocks"].as_u64().unwrap(), candidate["predicted_blocks"].as_u64().unwrap())
        }
    };
    assert_eq!((shown(1).await, shown(2).await, shown(3).await), ((4, 0), (0, 0), (4, 0)));

    // Rule 11: the engine's own answer confirms the blocks that no event told of.
    let second = frontend.complete(&body(2)).await;
    assert_eq!((second.header("x-dynamo-overlap-blocks"), cached_tokens(&second)), ("0", 4 * BLOCK as u64));
    eventually("its word is taken", async || seen(shown(2).await == (0, 4), shown(2).await)).await;

    reset(&frontend).await;
    let all = (shown(1).await, shown(2).await, shown(3).await);
    assert_eq!(all, ((0, 0), (0, 0), (0, 0)), "a reset clears at once, before the engine's own event");
    frontend.complete(&body(1)).await;
    settled(&frontend, engine, "exact").await;
    assert_eq!(shown(1).await, (4, 0));
}
