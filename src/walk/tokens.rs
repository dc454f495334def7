//! Where the tokens of a request come from: its own ids, a model folder, an engine's `/tokenize`, or nowhere.
//!
//! Nothing here refuses a request: without tokens it is routed by load, which is counted and shown.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use prompt::{Request, TokenError, Tokens, remote};
use tokio::sync::Semaphore;
use tracing::debug;

use crate::{app::App, fleet::Served, metrics::TokenSource};

/// Questions to `/tokenize` under way at once; further requests are routed by load rather than kept waiting.
const ASKS_AT_ONCE: usize = 64;

/// How long one such question may take.
const TOKENIZE_WITHIN: Duration = Duration::from_secs(5);

/// Bounds the questions to engines.
pub(crate) struct Asks(Semaphore);

impl Asks {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(ASKS_AT_ONCE))
    }
}

/// Why a request has no tokens.
#[derive(Debug, thiserror::Error)]
enum Without {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("no model folder, and no worker to ask")]
    NobodyToAsk,
    #[error("too many questions to /tokenize are under way")]
    TooManyAsks,
    #[error(transparent)]
    Engine(#[from] engine::discover::AskError),
}

/// The tokens of each prompt of `request`, if any source has them.
pub(crate) async fn tokens(app: &App, served: &Served, request: &Arc<Request>) -> Option<Vec<Tokens>> {
    let started = Instant::now();
    let (source, tokens) = match app.folders.of(&served.base) {
        Some(folder) => (TokenSource::Folder, app.pool.tokens(&folder, request, SystemTime::now()).await.map_err(Without::from)),
        None => match ask_engine(app, served, request).await {
            Ok((source, tokens)) => (source, Ok(tokens)),
            Err(error) => (TokenSource::Engine, Err(error)),
        },
    };
    match tokens {
        Ok(tokens) => {
            app.metrics.tokenized(source, started.elapsed());
            Some(tokens)
        }
        Err(error) => {
            debug!(model = served.name, %error, "no tokens: the request is routed by load");
            app.metrics.tokenized(TokenSource::None, started.elapsed());
            None
        }
    }
}

async fn ask_engine(app: &App, served: &Served, request: &Request) -> Result<(TokenSource, Vec<Tokens>), Without> {
    let mut source = TokenSource::Ids;
    let mut all = Vec::new();
    for ask in remote::asks(request)? {
        all.push(match ask {
            remote::Ask::Known(tokens) => tokens,
            remote::Ask::Post(body) => {
                source = TokenSource::Engine;
                match app.remote.get(&body) {
                    Some(tokens) => tokens,
                    None => post(app, served, body).await?,
                }
            }
        });
    }
    Ok((source, all))
}

async fn post(app: &App, served: &Served, body: bytes::Bytes) -> Result<Tokens, Without> {
    let _permit = app.asks.0.try_acquire().map_err(|_| Without::TooManyAsks)?;
    let up = served.workers.iter().map(|(worker, _)| worker).filter(|worker| worker.exclusion().is_none());
    // The least busy engine has the most time for it.
    let load = |worker: &&Arc<crate::fleet::Worker>| {
        let serving = worker.serving();
        let ranks = serving.iter().flat_map(|serving| &serving.ranks);
        ranks.map(|rank| app.fleet.scheduler.load(Instant::now(), rank.target).active_requests).sum::<u64>()
    };
    let worker = up.min_by_key(load).ok_or(Without::NobodyToAsk)?;
    let answer = app.fleet.engine(worker, TOKENIZE_WITHIN).tokenize(body.clone()).await?;
    Ok(app.remote.answered(&body, answer.tokens))
}
