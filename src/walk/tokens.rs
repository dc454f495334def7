//! Where the tokens of a request come from: its own ids, a model folder, an engine's `/tokenize`, or nowhere.
//!
//! Nothing here refuses a request: without tokens it is routed by load, which is counted and shown.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use engine::discover::{AskError, Engine};
use prompt::{Request, TokenError, Tokens, remote};
use tokio::sync::Semaphore;
use tracing::debug;

use crate::{
    app::App,
    fleet::{Served, Worker},
    metrics::TokenSource,
};

/// Requests that ask `/tokenize` at once; further ones are routed by load rather than kept waiting.
const ASKING_AT_ONCE: usize = 64;

/// How long one request may ask, for all its prompts together.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// Bounds the requests that ask engines.
pub(crate) struct Asks(Semaphore);

impl Asks {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(ASKING_AT_ONCE))
    }
}

/// Why a request has no tokens.
#[derive(Debug, thiserror::Error)]
enum Without {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("no model folder, and no worker to ask")]
    NobodyToAsk,
    #[error("too many requests ask /tokenize already")]
    TooManyAsk,
    #[error("/tokenize did not give all tokens within {ASKED_WITHIN:?}")]
    TooSlow,
    #[error(transparent)]
    Engine(#[from] AskError),
}

impl Without {
    /// A short stable name for a metric label.
    fn kind(&self) -> &'static str {
        match self {
            Self::Token(error) => error.kind(),
            Self::NobodyToAsk => "nobody_to_ask",
            Self::TooManyAsk => "too_many_ask",
            Self::TooSlow => "engine_slow",
            Self::Engine(_) => "engine_failed",
        }
    }
}

/// The tokens of each prompt of `request`, if any source has them.
pub(crate) async fn tokens(app: &App, served: &Served, request: &Arc<Request>) -> Option<Vec<Tokens>> {
    let started = Instant::now();
    let tokens = match app.config.folders.of(&served.base) {
        Some(folder) => {
            let source = if request.inputs.are_ids() { TokenSource::Ids } else { TokenSource::Folder };
            let tokens = app.pool.tokens(&folder, request, SystemTime::now()).await;
            tokens.map(|tokens| (source, tokens)).map_err(Without::from)
        }
        None => tokio::time::timeout(ASKED_WITHIN, without_folder(app, served, request)).await.unwrap_or(Err(Without::TooSlow)),
    };
    match tokens {
        Ok((source, tokens)) => {
            app.metrics.tokenized(source, tokens.len(), started.elapsed());
            Some(tokens)
        }
        Err(error) => {
            debug!(model = served.name, %error, "no tokens: the request is routed by load");
            app.metrics.untokenized(error.kind());
            app.metrics.tokenized(TokenSource::None, request.inputs.count(), started.elapsed());
            None
        }
    }
}

async fn without_folder(app: &App, served: &Served, request: &Arc<Request>) -> Result<(TokenSource, Vec<Tokens>), Without> {
    let asks = if request.inputs.are_ids() {
        remote::asks(request)?
    } else {
        let request = request.clone();
        app.pool.run_brief(move || remote::asks(&request)).await??
    };
    let mut source = TokenSource::Ids;
    let mut all = Vec::with_capacity(asks.len());
    // Found when the first question is not answered from memory; all go to one engine, one after the other.
    let mut asking = None;
    for ask in asks {
        let question = match ask {
            remote::Ask::Known(tokens) => {
                all.push(tokens);
                continue;
            }
            remote::Ask::Post(question) => question,
        };
        source = TokenSource::Engine;
        let tokens = match app.remote.get(&question) {
            Some(tokens) => tokens,
            None => {
                let (_permit, engine) = match &asking {
                    Some(asking) => asking,
                    None => asking.insert((app.asks.0.try_acquire().map_err(|_| Without::TooManyAsk)?, least_busy(app, served)?)),
                };
                let answer = engine.tokenize(question.clone()).await?;
                app.remote.answered(&question, answer.tokens)
            }
        };
        all.push(tokens);
    }
    Ok((source, all))
}

/// The engine with the most time for it.
fn least_busy(app: &App, served: &Served) -> Result<Engine, Without> {
    let up = served.workers.iter().map(|(worker, _)| worker).filter(|worker| worker.server().is_some() && worker.exclusion().is_none());
    let load = |worker: &&Arc<Worker>| {
        let serving = worker.serving();
        let ranks = serving.iter().flat_map(|serving| &serving.ranks);
        ranks.map(|rank| app.fleet.scheduler.load(Instant::now(), rank.target).active_requests).sum::<u64>()
    };
    // Ties at random: a worker that answers wrongly must not be the one that is always asked.
    let worker = up.min_by_key(|worker| (load(worker), rand::random::<u32>()));
    let server = worker.and_then(|worker| worker.server()).ok_or(Without::NobodyToAsk)?;
    Ok(app.fleet.engine(server, ASKED_WITHIN))
}
