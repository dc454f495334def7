//! Event streams that lose messages or break, in front of simulated engines.

use mocker::{Config, EventsConfig};
use serde_json::json;

use crate::support::{
    eventually, seen,
    simulated::{BLOCK, all_applied, applied, cached_tokens, completion, fleet, id, kv, prompt, start},
};

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
    applied(&frontend, engine).await;
    for number in 1..=3 {
        let candidate = frontend.candidate(&id(engine), &completion(&prompt(number, 4 * BLOCK + 1))).await;
        assert_eq!((&candidate["overlap_blocks"], &candidate["trust"]), (&json!(4), &json!("exact")), "{number}: {candidate}");
    }
    let rank = frontend.rank(&id(engine)).await;
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
    let frontend = crate::support::frontend::Frontend::start(&workers);
    frontend.serves(1, "blind").await;
    let body = |number| completion(&prompt(number, 4 * BLOCK + 1));
    frontend.complete(&body(1)).await;
    all_applied(&frontend, &fleet).await;
    assert_eq!(frontend.rank(&id(engine)).await["trust"], "exact");

    engine.set_faults(|faults| faults.lose_batches = 1);
    frontend.complete(&body(2)).await;
    frontend.complete(&body(3)).await;
    all_applied(&frontend, &fleet).await;
    let rank = frontend.rank(&id(engine)).await;
    assert_eq!((&rank["trust"], &rank["degraded_gaps"]), (&json!("degraded"), &json!(1)), "{rank}");
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

    let reset = frontend.post("/reset_prefix_cache", &serde_json::Value::Null).await.json();
    assert_eq!(reset["workers"][0]["reset"], true, "{reset}");
    eventually("a reset clears, before the engine's own event", async || {
        let all = (shown(1).await, shown(2).await, shown(3).await);
        seen(all == ((0, 0), (0, 0), (0, 0)), all)
    })
    .await;
    frontend.complete(&body(1)).await;
    all_applied(&frontend, &fleet).await;
    assert_eq!((shown(1).await, frontend.rank(&id(engine)).await["trust"].as_str().unwrap()), ((4, 0), "exact"));
}
