//! Two engines behind a frontend, and requests to them one after the other.

use futures_util::future;
use serde_json::Value;

use super::{
    ask::{Ask, Said},
    figures::Figures,
    vllm::Vllm,
};
use crate::support::{eventually, frontend::Frontend, http::Answer, seen};

/// A rank's figures that tell its index apart from any other.
const OF_INDEX: [&str; 3] = ["blocks", "digest", "last_seq"];

/// The whole.
pub(super) struct Fleet {
    pub(super) frontend: Frontend,
    pub(super) engines: [Vllm; 2],
    /// Of requests sent one after the other.
    pub(super) figures: Figures,
    /// Such requests, at most, whose answers the frontend leaves out of its own checks.
    pub(super) unchecked: u64,
}

/// A request that was answered well.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) worker: String,
    pub(super) overlap_blocks: u64,
    pub(super) said: Said,
}

impl Answered {
    /// What a successful answer says.
    pub(super) fn of(answer: &Answer) -> Self {
        let overlap_blocks = answer.header("x-dynamo-overlap-blocks").parse().unwrap();
        Self { worker: answer.worker().to_owned(), overlap_blocks, said: Said::of(answer) }
    }
}

impl Fleet {
    /// Waits until every event that belongs to what was answered so far is applied.
    pub(super) async fn settled(&mut self) {
        let frontend = &self.frontend;
        let settle = async |engine: &mut Vllm| {
            let published = engine.published().await;
            eventually("the last event is applied", async || {
                let rank = frontend.rank(&engine.id()).await;
                seen(rank["last_seq"].as_u64() == published, (published, &rank))
            })
            .await;
        };
        future::join_all(self.engines.iter_mut().filter(|engine| engine.is_running()).map(settle)).await;
    }

    /// Asks once everything has settled, and compares the prediction made before with the answer. An idle engine that holds
    /// most of the prompt must be the one that answers.
    pub(super) async fn ask(&mut self, ask: &Ask) -> Answered {
        let (answered, route) = self.ask_with(ask, &[]).await;
        let running = self.engines.iter().filter(|engine| engine.is_running());
        let most = running.map(|engine| candidate(&route, &engine.id())["overlap_blocks"].as_u64().unwrap()).max();
        assert_eq!(Some(answered.overlap_blocks), most, "{ask}: {route}");
        answered
    }

    /// As [`ask`](Self::ask), of one engine.
    pub(super) async fn ask_engine(&mut self, engine: usize, ask: &Ask) -> Answered {
        let id = self.engines[engine].id();
        self.ask_with(ask, &[("x-dynamo-worker-instance-id", &id)]).await.0
    }

    async fn ask_with(&mut self, ask: &Ask, headers: &[(&str, &str)]) -> (Answered, Value) {
        self.settled().await;
        let route = self.frontend.route(&ask.body).await;
        let answer = self.frontend.open(ask.path, headers, &ask.body).await.whole().await;
        if answer.status != 200 {
            self.figures.failed(ask, answer.status);
            panic!("{}: {}; {ask}", answer.status, answer.text());
        }
        let answered = Answered::of(&answer);
        assert_eq!((answered.said.is_complete, answered.said.errors), (true, 0), "{}", answer.text());
        let overlap = candidate(&route, &answered.worker)["overlap_blocks"].as_u64().unwrap();
        assert_eq!(overlap, answered.overlap_blocks, "the header says what /route said: {route}");
        self.figures.compare(ask, overlap, &answered.said);
        self.figures.counted(ask, route["prompt_tokens"].as_u64().unwrap(), answered.said.prompt_tokens);
        (answered, route)
    }

    /// Leading blocks of a prompt that are known on one engine.
    pub(super) async fn overlap(&self, engine: usize, ask: &Ask) -> u64 {
        self.frontend.candidate(&self.engines[engine].id(), &ask.body).await["overlap_blocks"].as_u64().unwrap()
    }

    /// Empties every cache through the frontend.
    pub(super) async fn reset(&mut self) {
        self.settled().await;
        let answer = self.frontend.post("/reset_prefix_cache", &Value::Null).await.json();
        for worker in answer["workers"].as_array().unwrap() {
            assert_eq!(worker["reset"], true, "{answer}");
        }
    }

    /// What tells each engine's index apart from any other, as a frontend has it.
    pub(super) async fn indexes(&self, frontend: &Frontend) -> Vec<[Value; 3]> {
        let mut indexes = Vec::new();
        for engine in &self.engines {
            let rank = frontend.rank(&engine.id()).await;
            indexes.push(OF_INDEX.map(|figure| rank[figure].clone()));
        }
        indexes
    }

    /// Blocks that were removed, so far and on all engines.
    pub(super) async fn removals(&self) -> f64 {
        self.frontend.metric("dynamo_router_kv_removals_total").await.unwrap()
    }

    /// Every answer so far was as predicted.
    pub(super) fn assert_exact(&self) {
        assert_eq!(self.figures.differences, Vec::<String>::new(), "{}", self.figures);
    }

    /// The frontend's own checks of its predictions found what this test found.
    pub(super) async fn assert_self_checks(&self) {
        eventually("the frontend has compared every answer", async || {
            let answer = self.frontend.get("/workers").await.json();
            let sum = |figure: &str| {
                let workers = answer["workers"].as_array().unwrap().iter();
                workers.map(|worker| worker["ranks"][0]["accuracy"][figure].as_u64().unwrap()).sum::<u64>()
            };
            let found = [sum("observations"), sum("equal"), sum("over"), sum("under")];
            let checked = self.figures.requests - self.unchecked..=self.figures.requests;
            seen(checked.contains(&found[0]) && found == [found[0], found[0], 0, 0], &answer)
        })
        .await;
        let answer = self.frontend.get("/workers").await.json();
        for worker in answer["workers"].as_array().unwrap() {
            let rank = &worker["ranks"][0];
            assert_eq!((&rank["trust"], rank["gaps"].as_u64(), rank["decode_errors"].as_u64()), (&"exact".into(), Some(0), Some(0)));
            assert_eq!(worker["prompt_token_mismatches"], 0, "{worker}");
        }
    }
}

/// A worker's entry in the answer of `/route`.
pub(super) fn candidate<'a>(route: &'a Value, worker: &str) -> &'a Value {
    let found = route["candidates"].as_array().unwrap().iter().find(|candidate| candidate["worker_id"] == worker);
    found.unwrap_or_else(|| panic!("{worker} is no candidate: {route}"))
}
