//! A worker that takes token ids, or text, on the request plane: where it is reached, what part of a request it does, and the model
//! that requests to it are prepared with.

use std::{fmt, sync::Arc};

use engine::{Probe, Pulse};
use index::BlockSize;
use parking_lot::{Mutex, RwLock};
use prompt::{Folder, Request};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::discovery::{Endpoint, Model, ModelCard};

use super::{card, standing::Standing};
use crate::fleet::{
    introspect::{EventPlan, Identity},
    library::Shelf,
    records::Edition,
};

/// A worker that takes token ids, or text.
pub(crate) struct TokenWorker {
    /// Where it is reached. A worker whose record names another place is another worker.
    endpoint: Endpoint,
    probe: Probe,
    /// What its records say, and each change of that.
    told: watch::Sender<Told>,
    /// What requests ask of it, as far as `gone`, `model` and `refused` tell it.
    standing: Standing,
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
    /// What part of requests it does, or why it can be sent none.
    pub(in crate::fleet) role: Result<Role, String>,
    /// Of its base model.
    pub(in crate::fleet) card: Arc<ModelCard>,
    edition: Edition,
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

/// What a worker that takes text answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    pub(in crate::fleet) chat: bool,
    pub(in crate::fleet) completions: bool,
}

impl Text {
    /// One prompt a request is what such workers expect.
    pub(crate) fn takes(self, request: &Request) -> bool {
        let answers = match request.endpoint {
            prompt::Endpoint::Chat => self.chat,
            prompt::Endpoint::Completions => self.completions,
        };
        answers && request.inputs.count() == 1
    }
}

/// A model that requests to token-level workers are prepared with.
pub(crate) struct TokenModel {
    /// Tokenizer, chat template and special tokens.
    pub(crate) folder: Arc<Folder>,
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

/// How often a request that has begun to answer may move where neither the operator nor the card says more: a worker that dies
/// should be no client's concern.
const MIGRATION_LIMIT: u32 = 3;

/// How far the model of a worker is loaded.
pub(in crate::fleet) enum Loaded {
    /// Its folder is being read.
    Loading,
    /// Requests can be prepared. The shelf is where others find the same folder.
    Ready { model: Arc<TokenModel>, _shelf: Option<Arc<Shelf>> },
    /// There is none: it takes text, and is sent the client's body.
    Text(Text),
    /// Why its folder cannot be read; it will be tried again.
    Failed(String),
    /// Why it can be sent no requests.
    Unsupported(String),
}

impl Told {
    /// By the cards of one instance: the base model's, and those of its adapters. `events` makes the plan of the block size.
    ///
    /// # Errors
    /// Why there is no model in them.
    pub(in crate::fleet) fn of(models: &[&Model], edition: Edition, events: fn(Option<BlockSize>) -> EventPlan) -> Result<Self, String> {
        let base = models.iter().find(|model| model.suffix.is_none()).ok_or("it has cards of adapters and none of their model")?;
        let identity = Identity::of_cards(models, events).ok_or("its model card has no display_name")?;
        Ok(Self { identity, role: card::role(&base.card), card: Arc::new(base.card.clone()), edition })
    }
}

impl TokenModel {
    /// Made of a card and the folder it means. `migration_limit` is the operator's word.
    pub(in crate::fleet) fn new(card: &ModelCard, folder: Arc<Folder>, migration_limit: Option<u32>) -> Self {
        Self {
            context_length: card.context_length(),
            tool_parser: card.tool_call_parser().map(str::to_owned),
            reasoning_parser: card.reasoning_parser().map(str::to_owned),
            migration_limit: migration_limit.unwrap_or_else(|| card.migration_limit().max(MIGRATION_LIMIT)),
            eos_token_ids: folder.eos_token_ids().to_vec(),
            folder,
        }
    }
}

impl TokenWorker {
    /// What one lacks whose model is about to be loaded.
    pub(in crate::fleet) const LOADING: &'static str = "loading";

    pub(in crate::fleet) fn new(endpoint: Endpoint, probe: Probe, told: Told) -> Self {
        Self {
            endpoint,
            probe,
            told: watch::Sender::new(told),
            standing: Standing::default(),
            gone: Mutex::default(),
            model: RwLock::new(Loaded::Loading),
            refused: Mutex::default(),
        }
    }

    /// Where it is reached.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What part of a request it does; of one that can be sent none, all of it.
    pub(crate) fn role(&self) -> Role {
        self.told.borrow().role.clone().unwrap_or(Role::Aggregated)
    }

    /// The card of its base model.
    pub(crate) fn card(&self) -> Arc<ModelCard> {
        self.told.borrow().card.clone()
    }

    /// Its health, for its requests and for readers.
    pub(crate) fn pulse(&self) -> &Pulse {
        self.probe.pulse()
    }

    /// Cancelled when discovery has no record of it any more: streams from it are then let go of once they are silent.
    pub(crate) fn gone(&self) -> CancellationToken {
        self.gone.lock().clone()
    }

    /// Whether discovery has no record of it. Every request asks.
    pub(in crate::fleet) fn is_gone(&self) -> bool {
        self.standing.is_gone()
    }

    /// Discovery has no record of it any more.
    pub(in crate::fleet) fn leave(&self) {
        let gone = self.gone.lock();
        self.standing.set_gone(true);
        gone.cancel();
    }

    /// Discovery has a record of it again.
    pub(in crate::fleet) fn come_back(&self) {
        let mut gone = self.gone.lock();
        *gone = CancellationToken::new();
        self.standing.set_gone(false);
    }

    /// The model that requests to it are prepared with, once it is loaded.
    pub(crate) fn model(&self) -> Option<Arc<TokenModel>> {
        match &*self.model.read() {
            Loaded::Ready { model, .. } => Some(model.clone()),
            Loaded::Text(_) | Loaded::Loading | Loaded::Failed(_) | Loaded::Unsupported(_) => None,
        }
    }

    /// What it answers, if it takes text. Every request asks.
    pub(crate) fn text(&self) -> Option<Text> {
        self.standing.text()
    }

    pub(in crate::fleet) fn set_model(&self, model: Loaded) {
        let mut loaded = self.model.write();
        *loaded = model;
        self.standing.set_model(&loaded);
    }

    /// Takes over whether its card can be served together with those of others, and why not. Returns whether that is news.
    pub(in crate::fleet) fn set_refused(&self, reason: Option<String>) -> bool {
        let mut refused = self.refused.lock();
        let is_news = *refused != reason;
        *refused = reason;
        self.standing.set_refused(refused.is_some());
        is_news
    }

    /// Why its card cannot be served together with those of others, if so.
    pub(crate) fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    /// Each change of what its records say.
    pub(in crate::fleet) fn told(&self) -> watch::Receiver<Told> {
        self.told.subscribe()
    }

    /// Whether it was told of this edition of its cards.
    pub(in crate::fleet) fn was_told(&self, edition: Edition) -> bool {
        self.told.borrow().edition == edition
    }

    /// Its model by name, and the card of that, unless it can be sent no requests, or takes text: then nothing is prepared by it.
    pub(in crate::fleet) fn stated(&self) -> Option<(String, Arc<ModelCard>)> {
        let told = self.told.borrow();
        let model = told.identity.models.first().filter(|_| told.role.is_ok() && !card::takes_text(&told.card))?;
        Some((model.base.clone(), told.card.clone()))
    }

    /// Takes over what its records say now.
    pub(in crate::fleet) fn tell(&self, now: Told) {
        self.told.send_if_modified(|told| {
            let changed = *told != now;
            *told = now;
            changed
        });
    }

    /// In one word why it gets no requests although it is there and well, if so.
    pub(in crate::fleet) fn lack(&self) -> Option<&'static str> {
        if self.refused.lock().is_some() {
            return Some("refused");
        }
        match &*self.model.read() {
            Loaded::Loading => Some(Self::LOADING),
            Loaded::Failed(_) => Some("unloadable"),
            Loaded::Unsupported(_) => Some("unsupported"),
            Loaded::Ready { .. } | Loaded::Text(_) => None,
        }
    }

    /// The same with its reason.
    pub(in crate::fleet) fn unready(&self) -> Option<String> {
        if let Some(refused) = &*self.refused.lock() {
            return Some(refused.clone());
        }
        match &*self.model.read() {
            Loaded::Ready { .. } | Loaded::Text(_) => None,
            Loaded::Loading => Some("its model's tokenizer is being loaded".to_owned()),
            Loaded::Failed(reason) | Loaded::Unsupported(reason) => Some(reason.clone()),
        }
    }

    /// Whether nothing but its health may keep requests from it. Every request asks.
    pub(in crate::fleet) fn is_ready(&self) -> bool {
        self.standing.is_ready()
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
