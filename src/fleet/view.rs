//! What requests see of the fleet: which workers serve which model, as one snapshot.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use feed::{Demand, Trust};
use index::{BlockSize, Target, Window};

use super::{
    introspect::Card,
    names::Names,
    rank::Rank,
    reach::{Role, TokenModel, TokenWorker},
    worker::{Serving, Worker},
};

/// Block size of an engine that tells none and whose events have not come yet: for load figures and for predictions.
pub(crate) const ASSUMED_BLOCK_SIZE: u32 = 16;

/// A snapshot of the fleet. Made anew at each change.
#[derive(Default)]
pub(crate) struct View {
    /// Every worker, in the order of addition; those that were removed too, until their last request is over or their id
    /// is given anew.
    pub(crate) workers: Vec<Arc<Worker>>,
    /// By model name as clients write it. What a name means that several list: [`super::names`].
    models: BTreeMap<String, Arc<Served>>,
}

/// A model, or an adapter of one, and who serves it.
pub(crate) struct Served {
    /// As clients write it.
    pub(crate) name: String,
    /// The model itself, or the adapter's parent. The blocks of a worker belong to its own: [`Member::base`].
    pub(crate) base: String,
    /// Part of the blocks' key.
    pub(crate) adapter: Option<String>,
    /// As the engine says, in tokens.
    pub(crate) max_model_len: Option<u32>,
    /// Everyone who serves it, in the order of addition; who only prefills is in `prefill`.
    pub(crate) workers: Vec<(Arc<Worker>, Arc<Serving>)>,
    /// Workers that prefill prompts for others of `workers`, in the order of addition.
    pub(crate) prefill: Vec<(Arc<Worker>, Arc<Serving>)>,
    /// What requests to token-level workers are prepared with, once it is loaded.
    pub(crate) tokens: Option<Arc<TokenModel>>,
}

/// One rank of one worker that serves the model of a request.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) worker: Arc<Worker>,
    serving: Arc<Serving>,
    pub(crate) rank: Arc<Rank>,
    pub(crate) block_size: BlockSize,
    pub(crate) window: Window,
}

impl View {
    /// Sorts the workers by what they serve.
    pub(crate) fn of(workers: &[Arc<Worker>]) -> Self {
        // An id is shown once: by whoever was not removed, else by the last.
        let mut shown: HashMap<&str, usize> = HashMap::new();
        for (at, worker) in workers.iter().enumerate() {
            let earlier = shown.entry(worker.id()).or_insert(at);
            if !worker.is_draining() || workers[*earlier].is_draining() {
                *earlier = at;
            }
        }
        let workers: Vec<_> = workers.iter().enumerate().filter(|(at, one)| shown[one.id()] == *at).map(|(_, one)| one.clone()).collect();
        let serving: Vec<_> = present(&workers).filter_map(|worker| Some((worker.clone(), worker.serving()?))).collect();
        let names = Names::of(serving.iter().flat_map(|(_, serving)| &serving.identity.models));
        let mut models: BTreeMap<String, Served> = BTreeMap::new();
        for (worker, serving) in &serving {
            for card in &serving.identity.models {
                let Some(meaning) = names.meaning(card) else {
                    tracing::warn!(
                        model = card.name,
                        worker = worker.id(),
                        "lists an adapter under a name that means another model; it gets no requests for it"
                    );
                    continue;
                };
                let served = models.entry(card.name.clone()).or_insert_with(|| Served::by_nobody(meaning));
                served.add(worker, serving);
            }
        }
        Self { workers, models: models.into_iter().map(|(name, served)| (name, Arc::new(served))).collect() }
    }

    /// The model a client named.
    pub(crate) fn model(&self, name: &str) -> Option<&Arc<Served>> {
        self.models.get(name)
    }

    /// Every model, by name.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.models.values()
    }

    /// The worker with this id, unless it was removed.
    pub(crate) fn worker(&self, id: &str) -> Option<&Arc<Worker>> {
        present(&self.workers).find(|worker| worker.id() == id)
    }

    /// True where some request could be answered now.
    pub(crate) fn is_routable(&self) -> bool {
        self.models.values().any(|served| served.is_routable())
    }
}

/// Those that were not removed.
fn present(workers: &[Arc<Worker>]) -> impl Iterator<Item = &Arc<Worker>> {
    workers.iter().filter(|worker| !worker.is_draining())
}

impl Served {
    fn by_nobody(meaning: &Card) -> Self {
        let Card { name, base, adapter, max_model_len } = meaning.clone();
        Self { name, base, adapter, max_model_len, workers: Vec::new(), prefill: Vec::new(), tokens: None }
    }

    fn add(&mut self, worker: &Arc<Worker>, serving: &Arc<Serving>) {
        let tokens = worker.tokens();
        let members = match tokens.map(TokenWorker::role) {
            Some(Role::Prefill) => &mut self.prefill,
            Some(Role::Aggregated | Role::Decode) | None => &mut self.workers,
        };
        // Whoever lists a name twice serves it once.
        if members.last().is_none_or(|(last, _)| !Arc::ptr_eq(last, worker)) {
            members.push((worker.clone(), serving.clone()));
        }
        if self.tokens.is_none() {
            self.tokens = tokens.filter(|tokens| tokens.is_ready()).and_then(TokenWorker::model);
        }
    }

    /// True where a request for it would be sent to a worker.
    pub(crate) fn is_routable(&self) -> bool {
        self.workers.iter().any(|(worker, _)| worker.exclusion().is_none())
    }

    /// What requests to token-level workers are prepared with: also where it was loaded after this snapshot was made.
    pub(crate) fn token_model(&self) -> Option<Arc<TokenModel>> {
        let loaded = || self.workers.iter().filter_map(|(worker, _)| worker.tokens()).filter(|tokens| tokens.is_ready());
        self.tokens.clone().or_else(|| loaded().find_map(TokenWorker::model))
    }

    /// An adapter that whoever serves `of` may serve too, whether or not they list it.
    pub(crate) fn adapter_of(of: &Self, adapter: String) -> Self {
        let (base, workers, prefill) = (of.base.clone(), of.workers.clone(), of.prefill.clone());
        let (max_model_len, tokens) = (of.max_model_len, of.tokens.clone());
        Self { name: adapter.clone(), base, adapter: Some(adapter), max_model_len, workers, prefill, tokens }
    }

    /// Every rank of every worker.
    pub(crate) fn members(&self) -> Vec<Member> {
        members(&self.workers)
    }

    /// Every rank of every worker that prefills for others.
    pub(crate) fn prefill_members(&self) -> Vec<Member> {
        members(&self.prefill)
    }

    /// The distinct ways in which `members` cut prompts into blocks.
    pub(crate) fn cuts(members: &[Member]) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for member in members {
            if !cuts.contains(&member.cut()) {
                cuts.push(member.cut());
            }
        }
        cuts
    }
}

fn members(workers: &[(Arc<Worker>, Arc<Serving>)]) -> Vec<Member> {
    let assumed = BlockSize::new(ASSUMED_BLOCK_SIZE);
    let ranks = workers.iter().flat_map(|(worker, serving)| serving.ranks.iter().map(move |rank| (worker, serving, rank)));
    ranks
        .filter_map(|(worker, serving, rank)| {
            let block_size = rank.block_size().or(assumed)?;
            let (worker, serving) = (worker.clone(), serving.clone());
            Some(Member { worker, serving, rank: rank.clone(), block_size, window: rank.window() })
        })
        .collect()
}

/// How an engine cuts prompts into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) size: BlockSize,
    pub(crate) window: Window,
}

impl Member {
    /// The base model of the worker, which names its index: another than that of a request where the worker lists the name
    /// beside its own.
    pub(crate) fn base(&self) -> &str {
        self.serving.identity.models.first().map_or("", |card| &card.base)
    }

    /// How its engine cuts prompts into blocks.
    pub(crate) fn cut(&self) -> Cut {
        Cut { size: self.block_size, window: self.window }
    }

    /// A request with these demands is about to be sent there.
    pub(crate) fn demand(&self, demands: impl Iterator<Item = Demand>) {
        if let Some(source) = &self.rank.source {
            demands.for_each(|demand| source.reins().demand(self.rank.dp_rank, demand));
        }
    }

    /// The word for how far its index can be believed for a request with these demands; `none` where it has no events.
    pub(crate) fn trust_for(&self, mut demands: impl Iterator<Item = Demand>) -> &'static str {
        let Some(status) = self.rank.status() else { return "none" };
        let hidden = status.trust != Trust::Blind && demands.any(|demand| status.hides(demand));
        if hidden { Trust::Degraded.as_str() } else { status.trust.as_str() }
    }

    /// The target a candidate stands for.
    pub(crate) fn target(&self) -> Target {
        self.rank.target
    }
}
