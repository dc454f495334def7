//! How requests get to a worker: to an OpenAI server over HTTP, or to one that takes token ids, or text, over the request plane.

pub(super) mod card;
mod open_ai;
mod standing;
mod tokens;

use std::time::Instant;

use engine::health::{Down, State};
use sched::Exclusion;

pub(crate) use open_ai::OpenAi;
pub(super) use tokens::{Loaded, Told};
pub(crate) use tokens::{Role, Text, TokenModel, TokenWorker};

/// Why a worker that takes text is not sent a request.
const UNFIT: &str = "takes text: one prompt a request, at an endpoint that its card names";

/// How requests get to a worker.
pub(crate) enum Reach {
    /// It is an OpenAI server.
    OpenAi(Box<OpenAi>),
    /// It takes token ids on the request plane, or text.
    Tokens(Box<TokenWorker>),
}

impl Reach {
    /// A state of health in one word. One request that failed takes a token-level worker out, until our probe has seen it well: that
    /// is no breaker.
    pub(super) fn health(&self, state: State) -> &'static str {
        match (self, state) {
            (Self::Tokens(_), State::Down(Down::BreakerOpen | Down::Failing)) => "quarantined",
            (Self::Tokens(_) | Self::OpenAi(_), state) => state.name(),
        }
    }

    /// What `/route` says of an exclusion of this worker.
    pub(super) fn explain(&self, excluded: Exclusion) -> String {
        let why = match (self, excluded) {
            (Self::OpenAi(server), Exclusion::NotReady) => server.circle(Instant::now()).map(str::to_owned),
            (Self::Tokens(tokens), Exclusion::NotReady) => tokens.unready(),
            (Self::Tokens(tokens), Exclusion::Unfit) if tokens.text().is_some() => Some(UNFIT.to_owned()),
            (Self::Tokens(_) | Self::OpenAi(_), _) => None,
        };
        why.unwrap_or_else(|| excluded.as_str().to_owned())
    }
}
