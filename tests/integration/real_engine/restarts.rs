//! An engine that is killed and comes back, and a frontend that starts anew before engines that have been serving.

use futures_util::future;
use serde_json::{Value, json};

use super::{
    ask::{Ask, Said, Words, turn},
    figures::{Figures, usable_tokens},
    fleet::{Answered, Fleet, candidate},
    vllm::{BLOCK_TOKENS, Vllm},
};
use crate::support::{eventually, frontend::Frontend, http::Ending, seen};

/// Prompts that both engines have seen.
fn hot() -> Vec<Ask> {
    let mut words = Words::new(200);
    let ids = words.ids(200);
    let system = [turn("system", words.text(100)), turn("user", words.text(30))];
    vec![
        Ask::completion("tiny", ids.clone()),
        Ask::completion("sql", ids.clone()),
        Ask::completion("tiny", ids).salted("a tenant"),
        Ask::chat("tiny", &system),
        Ask::chat("chat", &system),
    ]
}

/// Makes them hot on both engines.
pub(super) async fn warm(fleet: &mut Fleet) {
    for ask in hot() {
        for engine in 0..2 {
            fleet.ask_engine(engine, &ask).await;
        }
    }
}

/// Kills the first engine under load and starts it again. Returns the figures of the requests that were under way.
pub(super) async fn engine(fleet: &mut Fleet) -> Figures {
    let [id, other] = [0, 1].map(|engine| fleet.engines[engine].id());
    let figures = killed_under_load(fleet, &other).await;
    // Nothing reaches the client of the engine that is down.
    for ask in hot() {
        assert_eq!(fleet.ask(&ask).await.worker, other);
    }
    eventually("the frontend shows it down", async || {
        let worker = fleet.frontend.worker(&id).await;
        let rank = &worker["ranks"][0];
        seen(["failing", "dead"].iter().any(|down| worker["state"] == *down) && rank["trust"] != "exact", &worker)
    })
    .await;

    fleet.engines[0].restart();
    fleet.engines[0].ready().await;
    fleet.frontend.serves(2, "exact").await;
    let rank = fleet.frontend.rank(&id).await;
    assert_eq!((&rank["blocks"], &rank["last_seq"], &rank["restarts"]), (&json!(0), &Value::Null, &json!(1)), "{rank}");
    for ask in hot() {
        assert_eq!(fleet.overlap(0, &ask).await, 0);
        let cold = fleet.ask_engine(0, &ask).await;
        let warm = fleet.ask_engine(0, &ask).await;
        assert!(cold.said.cached_tokens < warm.said.cached_tokens, "{cold:?} {warm:?}");
    }
    figures
}

/// Two streams that have begun on the engine that is killed then, and requests on both engines that have not.
async fn killed_under_load(fleet: &mut Fleet, other: &str) -> Figures {
    fleet.settled().await;
    let mut words = Words::new(300);
    let mut asks = |count, max_tokens| -> Vec<Ask> {
        (0..count).map(|at| Ask::completion("tiny", words.ids(100)).with("max_tokens", max_tokens).streamed_if(at % 2 == 0)).collect()
    };
    let Fleet { frontend, engines: [engine, _], .. } = fleet;
    let id = engine.id();
    let pin = [("x-dynamo-worker-instance-id", id.as_str())];
    // An answer's head comes with its first event.
    let begun = asks(2, 1500).into_iter().map(|ask| ask.streamed_if(true));
    let begun = future::join_all(begun.map(async |ask| frontend.open(ask.path, &pin, &ask.body).await)).await;
    let asks = asks(12, 300);
    let send = asks.iter().map(async |ask| frontend.open(ask.path, &[], &ask.body).await.ending().await);
    let kill = async {
        eventually("it is busy", async || {
            let rank = frontend.rank(&id).await;
            seen(rank["active_requests"].as_u64() >= Some(4), &rank)
        })
        .await;
        engine.kill();
    };
    let (answers, ()) = future::join(future::join_all(send), kill).await;
    let mut figures = Figures { requests: 2, ..Figures::default() };
    for begun in begun {
        assert_broken_well(&begun.ending().await, &id);
    }
    let mut broken = 0;
    for (ask, ending) in asks.iter().zip(&answers) {
        figures.requests += 1;
        if ending.answer.status != 200 {
            figures.failed(ask, ending.answer.status);
        } else if ending.whole {
            assert!(Said::of(&ending.answer).is_complete, "{}", ending.answer.text());
            assert_eq!(ending.answer.worker(), other, "a whole answer of an engine that was killed in the middle");
        } else {
            // It began after all. A plain answer cannot.
            assert_eq!(ask.body["stream"], true);
            assert_broken_well(ending, &id);
            broken += 1;
        }
    }
    assert_eq!(figures.differences, Vec::<String>::new());
    println!("engine killed under {} requests: {} streams had begun there and broke off", figures.requests, 2 + broken);
    figures
}

/// What had begun ends with one error event, and the connection is cut.
fn assert_broken_well(ending: &Ending, id: &str) {
    assert_eq!(ending.answer.worker(), id);
    let said = Said::of(&ending.answer);
    assert_eq!((said.errors, said.is_complete, ending.whole), (1, false, false), "{}", ending.answer.text());
}

/// Another frontend in place of the first: it asks for what was published, and knows what the first one knew.
pub(super) async fn frontend(fleet: &mut Fleet, start: impl Fn() -> Frontend) {
    fleet.settled().await;
    let before = fleet.indexes(&fleet.frontend).await;
    fleet.frontend = start();
    fleet.frontend.serves(2, "exact").await;
    fleet.settled().await;
    assert_eq!(fleet.indexes(&fleet.frontend).await, before, "blocks, digest and last number");
    for ask in hot() {
        for engine in 0..2 {
            assert!(fleet.ask_engine(engine, &ask).await.said.cached_tokens > 0);
        }
    }
}

/// A frontend without a model folder has an engine count the tokens.
pub(super) async fn frontend_without_folder(fleet: &mut Fleet) {
    let [one, other] = fleet.engines.each_ref().map(Vllm::url);
    fleet.frontend = Frontend::start(&["--router-mode", "kv", "--worker", &one, "--worker", &other]);
    fleet.frontend.serves(2, "exact").await;
    for ask in hot() {
        for engine in 0..2 {
            assert!(fleet.ask_engine(engine, &ask).await.said.cached_tokens > 0);
        }
    }
    // Two chats, on two engines, for `/route` and for themselves.
    let asked = fleet.frontend.metric("dynamo_frontend_prompts_total{source=\"engine\"}").await;
    assert_eq!(asked, Some(8.0));
}

/// A frontend that cannot ask for what was published: answers tell it what is hot (rule 11). Returns figures of its own,
/// as it cannot but predict too little at first.
pub(super) async fn frontend_without_replay(fleet: &mut Fleet) -> Figures {
    let workers = fleet.engines.each_ref().map(|engine| format!("{},events={}", engine.url(), engine.events()));
    let mut args = super::FLAGS.to_vec();
    // Without predictions what is shown can come from answers alone.
    args.extend(["--router-predicted-ttl-secs", "0", "--worker", &workers[0], "--worker", &workers[1]]);
    fleet.frontend = Frontend::start(&args);
    fleet.frontend.serves(2, "blind").await;
    let mut figures = Figures::default();
    for engine in 0..2 {
        let id = fleet.engines[engine].id();
        let pin = [("x-dynamo-worker-instance-id", id.as_str())];
        for ask in hot() {
            let before = fleet.frontend.candidate(&id, &ask.body).await;
            assert_eq!((&before["overlap_blocks"], &before["predicted_blocks"]), (&json!(0), &json!(0)));
            let answer = fleet.frontend.open(ask.path, &pin, &ask.body).await.whole().await;
            let cached = Answered::of(&answer).said.cached_tokens;
            assert!(cached > 0, "it is hot");
            eventually("what the answer told is credited", async || {
                let after = fleet.frontend.candidate(&id, &ask.body).await;
                let credited = after["predicted_blocks"] == cached / BLOCK_TOKENS && after["cached_tokens"] == cached;
                seen(credited && after["overlap_blocks"] == 0, &after)
            })
            .await;
            // With what was confirmed counted, the next answer is as predicted.
            let route = fleet.frontend.route(&ask.body).await;
            let near = candidate(&route, &id);
            let blocks = near["overlap_blocks"].as_u64().unwrap() + near["predicted_blocks"].as_u64().unwrap();
            let answer = fleet.frontend.open(ask.path, &pin, &ask.body).await.whole().await;
            let said = Answered::of(&answer).said;
            assert_eq!(usable_tokens(blocks, said.prompt_tokens), said.cached_tokens);
            figures.compare(&ask, blocks, &said);
        }
        // The first event from the middle of a stream says that there was something before it.
        let cold = Ask::completion("tiny", Words::new(400 + engine as u64).ids(100));
        let answer = fleet.frontend.open(cold.path, &pin, &cold.body).await.whole().await;
        figures.compare(&cold, 0, &Answered::of(&answer).said);
    }
    fleet.frontend.serves(2, "degraded").await;
    figures
}
