//! A worker that takes token ids on the request plane: where it is reached, what part of a request it does, and the model that
//! requests to it are prepared with.

use std::{fmt, sync::Arc};

use engine::{
    Pulse,
    health::{Down, Limits, State},
};
use parking_lot::{Mutex, RwLock};
use prompt::Folder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::discovery::{Endpoint, Model, ModelCard};

use crate::fleet::introspect::Identity;

/// A worker that takes token ids.
pub(crate) struct TokenWorker {
    /// Where it is reached. A worker whose record names another place is another worker.
    endpoint: Endpoint,
    role: Role,
    pulse: Pulse,
    /// What its records say, and each change of that.
    told: watch::Sender<Told>,
    /// Cancelled while discovery has no record of it. Held for a copy.
    gone: Mutex<CancellationToken>,
    /// Guards a pointer.
    model: RwLock<Loaded>,
    /// Why its card cannot be served together with those of others, if so. Held for a copy.
    refused: Mutex<Option<String>>,
}

/// What the records of a worker say.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::fleet) struct Told {
    pub(in crate::fleet) identity: Identity,
    /// The base model's card first, then those of its adapters.
    pub(in crate::fleet) cards: Arc<[Model]>,
}

/// What part of a request a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// All of it.
    Aggregated,
    /// The prompt, for a decode worker that goes on from there.
    Prefill,
    /// The answer, with the prompt prefilled elsewhere or, where nobody does that, here.
    Decode,
}

/// A model that requests to token-level workers are prepared with.
pub(crate) struct TokenModel {
    /// Tokenizer, chat template and special tokens.
    pub(crate) folder: Arc<Folder>,
    /// The card of the base model.
    pub(crate) card: ModelCard,
    /// Tokens that prompt and answer may have together; `None`: nobody says.
    pub(crate) context_length: Option<u32>,
    /// The name of the parser of tool calls, as 1.6.1 has it.
    pub(crate) tool_parser: Option<String>,
    /// The name of the parser of reasoning.
    pub(crate) reasoning_parser: Option<String>,
    /// How often a request may move to another worker once it has begun to answer.
    pub(crate) migration_limit: u32,
    /// Tokens that end an answer.
    pub(crate) eos_token_ids: Vec<u32>,
}

/// How far the model of a worker is loaded.
#[derive(Clone)]
pub(in crate::fleet) enum Loaded {
    /// Its folder is being read.
    Loading,
    /// Requests can be prepared.
    Ready(Arc<TokenModel>),
    /// Why they cannot.
    Failed(String),
}

impl TokenWorker {
    pub(in crate::fleet) fn new(endpoint: Endpoint, told: Told) -> Self {
        Self {
            endpoint,
            role: Role::Aggregated,
            pulse: Pulse::new(Limits::default()),
            told: watch::Sender::new(told),
            gone: Mutex::default(),
            model: RwLock::new(Loaded::Loading),
            refused: Mutex::default(),
        }
    }

    /// Where it is reached.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What part of a request it does.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Its health, for its requests and for readers.
    pub(crate) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Cancelled when discovery has no record of it any more: streams from it are then let go of once they are silent.
    pub(crate) fn gone(&self) -> CancellationToken {
        self.gone.lock().clone()
    }

    /// The model that requests to it are prepared with, once it is loaded.
    pub(crate) fn model(&self) -> Option<Arc<TokenModel>> {
        match &*self.model.read() {
            Loaded::Ready(model) => Some(model.clone()),
            Loaded::Loading | Loaded::Failed(_) => None,
        }
    }

    /// Each change of what its records say.
    pub(in crate::fleet) fn told(&self) -> watch::Receiver<Told> {
        self.told.subscribe()
    }

    /// Takes over what its records say now.
    pub(in crate::fleet) fn tell(&self, now: Told) {
        self.told.send_if_modified(|told| {
            let changed = *told != now;
            *told = now;
            changed
        });
    }

    /// One word for people.
    pub(in crate::fleet) fn state(&self) -> &'static str {
        if self.refused.lock().is_some() {
            return "refused";
        }
        match &*self.model.read() {
            Loaded::Loading => "loading",
            Loaded::Failed(_) => "unloadable",
            Loaded::Ready(_) => match self.pulse.state() {
                State::Down(Down::BreakerOpen | Down::Failing) => "quarantined",
                health @ (State::Up | State::Suspect | State::Down(Down::Unproven | Down::Dead)) => health.name(),
            },
        }
    }

    /// Why it gets no requests although it is there and well, if so.
    pub(in crate::fleet) fn unready(&self) -> Option<String> {
        if let Some(refused) = &*self.refused.lock() {
            return Some(refused.clone());
        }
        match &*self.model.read() {
            Loaded::Ready(_) => None,
            Loaded::Loading => Some("its model's folder is being loaded".to_owned()),
            Loaded::Failed(reason) => Some(reason.clone()),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}
