//! Many requests at once: events are on their way while the next request is routed, so a prediction may be below what the
//! engine then finds, and never above it.

use futures_util::{StreamExt, future, stream};
use serde_json::json;

use super::{
    ask::{Ask, Words, turn},
    figures::Figures,
    fleet::{Answered, Fleet},
};
use crate::support::{eventually, frontend::Frontend, seen};

/// Requests on each shared prefix.
const ON_EACH: usize = 20;

/// Questions on shared prefixes, from clean caches that are large enough: an eviction that is still on its way to the
/// frontend would be a reason to predict too much.
pub(super) async fn shared_prefixes(fleet: &mut Fleet) -> Figures {
    fleet.reset().await;
    let removals = fleet.removals().await;
    let figures = at_once(&fleet.frontend, 8, asks()).await;
    fleet.settled().await;
    assert_eq!(fleet.removals().await, removals, "the caches are large enough for this");
    figures
}

/// More than the caches hold: evictions, copies, preemptions, answers nobody waits for, prompts in lists, and another
/// frontend that joins in the middle. What is predicted meanwhile may be out of date; what is known once it is over may not.
pub(super) async fn churn(fleet: &mut Fleet, start: impl Fn() -> Frontend + Send + 'static) -> Figures {
    let removals = fleet.removals().await;
    let prefixes: Vec<Vec<u32>> = (0..6).map(|at| Words::new(120 + at).ids(256)).collect();
    let mut words = Words::new(130);
    let mut prompt = |at: usize| [&prefixes[at % prefixes.len()][..], &words.ids(8 * (at % 30))].concat();
    let whole = (0..96).map(|at| Ask::completion("tiny", prompt(at)).with("max_tokens", 60 + at % 90).streamed_if(at % 3 == 0)).collect();
    let lists: Vec<Ask> =
        (0..4).map(|at| Ask::completion("tiny", vec![prompt(at), prompt(at + 1)]).with("n", 2).with("temperature", 1)).collect();
    let left: Vec<Ask> = (0..12).map(|at| Ask::completion("chat", prompt(at)).with("max_tokens", 400).streamed_if(true)).collect();
    let frontend = &fleet.frontend;
    let lists = future::join_all(lists.iter().map(async |ask| frontend.open(ask.path, &[], &ask.body).await.whole().await.status));
    let left = future::join_all(left.iter().map(async |ask| {
        let mut answer = frontend.open(ask.path, &[], &ask.body).await;
        answer.next().await;
        answer.status
    }));
    let late = async {
        eventually("evictions are under way", async || {
            let removed = fleet.removals().await - removals;
            seen(removed > 20.0, removed)
        })
        .await;
        tokio::task::spawn_blocking(start).await.unwrap()
    };
    let (figures, lists, left, late) = future::join4(at_once(frontend, 40, whole), lists, left, late).await;
    assert!(lists.iter().chain(&left).all(|status| *status == 200), "{lists:?} {left:?}");
    assert!(fleet.removals().await > removals + 200.0);

    eventually("no request is under way", async || {
        let load = fleet.frontend.metric("dynamo_frontend_worker_active_requests").await;
        seen(load == Some(0.0), load)
    })
    .await;
    fleet.settled().await;
    late.serves(2, "exact").await;
    let indexes = fleet.indexes(&fleet.frontend).await;
    eventually("the one that joined late knows the same", async || {
        let joined = fleet.indexes(&late).await;
        seen(joined == indexes, (joined, &indexes))
    })
    .await;
    for prefix in &prefixes {
        for engine in 0..2 {
            fleet.ask_engine(engine, &Ask::completion("tiny", [&prefix[..], &[7; 3]].concat())).await;
        }
    }
    figures
}

/// Sends everything, `most` requests at a time.
async fn at_once(frontend: &Frontend, most: usize, asks: Vec<Ask>) -> Figures {
    let mut figures = Figures::default();
    let answers = asks.into_iter().map(async |ask| {
        let answer = frontend.open(ask.path, &[], &ask.body).await.whole().await;
        (ask, answer)
    });
    let mut answers = stream::iter(answers).buffer_unordered(most);
    while let Some((ask, answer)) = answers.next().await {
        if answer.status == 200 {
            let answered = Answered::of(&answer);
            figures.compare(&ask, answered.overlap_blocks, &answered.said);
        } else {
            figures.failed(&ask, answer.status);
        }
    }
    figures
}

/// By turns on four prefixes: a document of the base model, one of an adapter, one with a salt, and a system prompt.
fn asks() -> Vec<Ask> {
    let prefixes: Vec<String> = (0..4).map(|at| Words::new(100 + at).text(150)).collect();
    let mut words = Words::new(110);
    let mut asks = Vec::new();
    for round in 0..ON_EACH {
        for (at, prefix) in prefixes.iter().enumerate() {
            let question = words.text(5 + round);
            let ask = match at {
                0 => Ask::completion("tiny", format!("{prefix} {question}")),
                1 => Ask::completion("sql", format!("{prefix} {question}")),
                2 => Ask::completion("tiny", format!("{prefix} {question}")).salted("a tenant"),
                _ => Ask::chat("tiny", &[turn("system", json!(prefix)), turn("user", question)]),
            };
            asks.push(ask.streamed_if((round + at) % 2 == 0));
        }
    }
    asks
}
