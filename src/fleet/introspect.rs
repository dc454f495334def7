//! What a worker serves: the operator's word first, then the engine's own.
//!
//! A question that has no answer at the moment is told apart from one the engine does not know: only the second means
//! that it has no such thing. Who asks again keeps what was known until all questions are answered.

use std::{collections::BTreeSet, ops::Range};

use anyhow::{Context, anyhow};
use engine::discover::{self, AskError, Engine, EventSources, MAX_RANKS, Model, Side};
use http::StatusCode;
use index::BlockSize;
use transport::{stream::EventSource, zmtp::Endpoint};

use crate::config::worker_flag::{Events, HIGHEST_RANK, WorkerSpec};

/// A worker as far as routing needs to know it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    /// The base model first, then its adapters.
    pub(crate) models: Vec<Card>,
    /// As the operator says, else the engine. `None`: neither does; its events may.
    pub(crate) block_size: Option<BlockSize>,
    pub(crate) dp_start: u32,
    pub(crate) dp_size: u32,
    pub(crate) events: EventPlan,
    /// Another value is another process.
    process_start: Option<f64>,
}

/// Most further names of one model that are taken from its card.
const MOST_ALIASES: usize = 64;

/// A model or adapter as clients name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) name: String,
    pub(crate) base: String,
    pub(crate) adapter: Option<String>,
    pub(crate) max_model_len: Option<u32>,
}

/// What is done about the worker's events.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EventPlan {
    /// The router does not use events.
    Off,
    /// The worker has none, or cannot be asked; why.
    None(String),
    /// Publishers on the event plane, as discovery says. Blocks come hashed, so that their size is part of the plan.
    Plane(Option<BlockSize>),
    /// One socket for all ranks, or one for each that has one.
    Listen(Vec<Socket>),
}

/// One event socket with its replay socket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Socket {
    /// The rank it speaks for; `None`: all of them.
    pub(crate) rank: Option<u32>,
    pub(crate) source: EventSource,
    pub(crate) replay: Option<Endpoint>,
    pub(crate) topic: String,
}

impl Identity {
    /// Of a worker that takes token ids, by its cards: the base model first, under each of its names, then its adapters. `events`
    /// makes the plan of the block size.
    pub(super) fn of_cards(models: &[&wire::discovery::Model], events: fn(Option<BlockSize>) -> EventPlan) -> Option<Self> {
        let base = models.iter().copied().find(|model| model.suffix.is_none())?;
        let name = base.card.display_name()?.to_owned();
        let block_size = base.card.block_size().and_then(BlockSize::new);
        let max_model_len = base.card.context_length();
        let card = |own: &str, adapter: Option<String>| Card { name: own.to_owned(), base: name.clone(), adapter, max_model_len };
        let aliases = base.card.aliases().into_iter().take(MOST_ALIASES);
        let adapters = models.iter().filter(|model| model.suffix.is_some()).filter_map(|model| {
            let own = model.card.display_name()?;
            // The engine's name for it, which its blocks are hashed with.
            let adapter = model.card.lora().map_or(own, |lora| lora.name);
            Some(card(own, Some(adapter.to_owned())))
        });
        let names = std::iter::once(name.as_str()).chain(aliases).map(|own| card(own, None));
        Some(Self {
            models: names.chain(adapters).collect(),
            block_size,
            dp_start: base.card.rank_start().min(HIGHEST_RANK),
            dp_size: base.card.ranks().clamp(1, MAX_RANKS),
            events: match (events(block_size), base.card.kv_event_publishing_enabled()) {
                (EventPlan::Plane(_), Some(false)) => EventPlan::None("its card says that it publishes none".to_owned()),
                (plan, _) => plan,
            },
            process_start: None,
        })
    }

    /// Whether the ranks and their streams can stay as they are. Block sizes may change under them.
    pub(crate) fn same_ranks(&self, other: &Self) -> bool {
        let base = |identity: &Self| identity.models.first().map(|card| card.name.clone());
        (self.dp_start, self.dp_size, &self.events, base(self)) == (other.dp_start, other.dp_size, &other.events, base(other))
    }

    /// Its ranks, ascending.
    pub(crate) fn dp_ranks(&self) -> Range<u32> {
        self.dp_start..self.dp_start + self.dp_size
    }

    /// False for a worker that knows no ranks: it gets no rank header.
    pub(crate) fn has_ranks(&self) -> bool {
        self.dp_size > 1 || self.dp_start > 0
    }

    /// Whether the engine was started anew since `other` was asked: its cache is then empty.
    pub(crate) fn restarted_since(&self, other: &Self) -> bool {
        matches!((self.process_start, other.process_start), (Some(now), Some(then)) if now != then)
    }
}

/// What is asked of an engine beyond what the operator said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wants {
    /// The router listens to events.
    pub(super) events: bool,
    /// The router needs to know how prompts are cut into blocks.
    pub(super) blocks: bool,
    pub(super) silence: Silence,
}

/// What it means that a question has no answer at the moment: a time-out, a 5xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing. What was known stays, and the engine is asked again later.
    Unknown,
    /// It was asked often enough, and nothing is known of it that could stay: it serves without what it does not tell.
    Nothing,
}

impl Silence {
    /// The answer to a question that engines need not know; `None` where this one says that it does not, now and later.
    fn optional<T>(self, answer: Result<T, AskError>) -> Result<Option<T>, AskError> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if self == Self::Nothing || is_lasting(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether the engine will answer no better later: it has no such page, keeps it from us, or has another of that name.
fn is_lasting(error: &AskError) -> bool {
    let passing = |status| matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
    match error {
        AskError::Status { status, .. } => error.is_absent() || (status.is_client_error() && !passing(*status)),
        AskError::Shape { .. } => true,
        AskError::Send(_) => false,
    }
}

/// Somebody answers at the worker's address, and it is not the engine that is looked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoEngine(String);

/// The models it lists. A list proves that it is an engine; of one that the operator listed and told the model of, good health
/// proves as much where it has no list.
async fn listed(engine: &Engine, spec: &WorkerSpec) -> anyhow::Result<Vec<Model>> {
    let is_discovered = match spec.events {
        Events::Plane | Events::Absent(_) => true,
        Events::Auto | Events::None | Events::Connect(_) | Events::Bind(_) => false,
    };
    let listed = match &spec.model {
        Some(_) if !is_discovered => engine.models_if_listed().await,
        Some(_) | None => engine.models().await,
    };
    let listed = listed.map_err(|error| match error.is_no_engines() {
        true => anyhow!(NoEngine(error.to_string())),
        false => error.into(),
    });
    let listed = match spec.model {
        Some(_) => listed?,
        None => listed.context("the worker does not list its models; give model=NAME")?,
    };
    match &spec.model {
        Some(model) if is_discovered && listed.iter().all(|known| known.id != *model) => {
            let names: Vec<_> = listed.iter().map(|model| model.id.as_str()).collect();
            Err(anyhow!(NoEngine(format!("its record names the model '{model}', and it lists {}", names.join(", ")))))
        }
        _ => Ok(listed),
    }
}

/// Asks the engine whatever the operator did not say.
pub(super) async fn ask(engine: &Engine, spec: &WorkerSpec, wants: Wants) -> anyhow::Result<Identity> {
    let models = cards(listed(engine, spec).await?, spec.model.as_deref(), &spec.url.to_string())?;
    let metrics = wants.silence.optional(engine.metrics().await)?;
    let mut told = Told { block_size: metrics.as_ref().and_then(|metrics| metrics.block_size), ..Told::default() };
    if wants.blocks || spec.dp_size.is_none() {
        told.ask(engine, spec, wants).await?;
    }
    let events = match (&spec.events, wants.events) {
        (_, false) => EventPlan::Off,
        (Events::None, true) => EventPlan::None("events=none".to_owned()),
        (Events::Absent(reason), true) => EventPlan::None(reason.clone()),
        (Events::Auto, true) => {
            told.events.take().unwrap_or_else(|| EventPlan::None("the engine does not say where its events are".to_owned()))
        }
        (Events::Connect(endpoints), true) => EventPlan::Listen(by_position(endpoints, spec)),
        (Events::Plane, true) => EventPlan::Plane(spec.block_size.map(|size| size.get()).or(told.block_size).and_then(BlockSize::new)),
        (Events::Bind(endpoint), true) => EventPlan::Listen(vec![socket(EventSource::Bind(endpoint.clone()), None, 0, spec)]),
    };
    let (dp_start, dp_size) = ranks(spec, &told, &events)?;
    Ok(Identity {
        models,
        block_size: spec.block_size.map(|size| size.get()).or(told.block_size).and_then(BlockSize::new),
        dp_start,
        dp_size,
        events,
        process_start: metrics.and_then(|metrics| metrics.process_start_seconds),
    })
}

/// First rank and number of ranks: as the operator says, else the engine, else as many as there are sockets.
fn ranks(spec: &WorkerSpec, told: &Told, events: &EventPlan) -> anyhow::Result<(u32, u32)> {
    let sockets = match events {
        EventPlan::Listen(sockets) => sockets.as_slice(),
        EventPlan::Off | EventPlan::None(_) | EventPlan::Plane(_) => &[],
    };
    let start = spec.dp_start.or(told.dp_start).unwrap_or(0);
    let spanned = sockets.iter().filter_map(|socket| socket.rank).max().map_or(1, |highest| highest - start + 1);
    let size = spec.dp_size.map(|size| size.get()).or(told.dp_size).unwrap_or(spanned);
    let given = matches!(spec.events, Events::Connect(_)) && sockets.len() > 1 && size != spanned;
    if size < spanned || given {
        let count = sockets.len();
        return Err(anyhow!(
            "{count} event endpoints, up to rank {}, for {size} data-parallel ranks from {start} on: one, or one per rank, is needed (events=, dp-size=)",
            start + spanned - 1
        ));
    }
    Ok((start, size))
}

/// What the engine itself says of its events, blocks and ranks.
#[derive(Default)]
struct Told {
    events: Option<EventPlan>,
    block_size: Option<u32>,
    dp_start: Option<u32>,
    dp_size: Option<u32>,
}

impl Told {
    /// vLLM answers the first question, SGLang the second; others neither.
    async fn ask(&mut self, engine: &Engine, spec: &WorkerSpec, wants: Wants) -> Result<(), AskError> {
        let events = wants.events && spec.events == Events::Auto;
        if events && let Some(sources) = wants.silence.optional(engine.kv_event_sources().await)? {
            self.hear(sources, spec);
        }
        if ((events && self.events.is_none()) || self.block_size.is_none())
            && let Some(info) = wants.silence.optional(engine.server_info().await)?
        {
            self.block_size = self.block_size.or(info.block_size);
            self.dp_size = info.dp_size;
            if events && self.events.is_none() {
                self.hear(info.events, spec);
            }
        }
        Ok(())
    }

    fn hear(&mut self, sources: EventSources, spec: &WorkerSpec) {
        let plan = match sources {
            EventSources::Off => {
                Err("the engine publishes no KV events over ZMQ (vLLM: --kv-events-config, SGLang: --kv-events-config)".to_owned())
            }
            EventSources::On(sources) => self.plan(sources, spec),
        };
        self.events = Some(plan.unwrap_or_else(EventPlan::None));
    }

    /// A socket for each rank that has one. What cannot be followed makes no worker unusable, it says why (rule 14).
    fn plan(&mut self, sources: Vec<discover::EventSource>, spec: &WorkerSpec) -> Result<EventPlan, String> {
        let all: BTreeSet<u32> = sources.iter().map(|source| source.rank).collect();
        let (Some(&lowest), Some(&highest)) = (all.first(), all.last()) else {
            return Err("the engine names no event socket".to_owned());
        };
        if highest > HIGHEST_RANK || highest - lowest >= MAX_RANKS || all.len() < sources.len() {
            return Err(format!(
                "the engine names {} event sockets for ranks {lowest} to {highest}: at most {MAX_RANKS} ranks, one socket each, can be followed",
                sources.len()
            ));
        }
        (self.dp_start, self.dp_size) = (Some(lowest), Some(highest - lowest + 1));
        // One socket alone speaks for every rank the operator says there is.
        let alone = sources.len() == 1;
        let start = spec.dp_start.unwrap_or(lowest);
        let sockets = sources.into_iter().map(|source| {
            let at = source.rank - lowest;
            let rank = (!alone).then_some(start + at);
            told_socket(source, rank, at as usize, spec)
        });
        sockets.collect::<Result<_, _>>().map(EventPlan::Listen)
    }
}

/// A socket as the engine says, unless the operator says otherwise.
fn told_socket(told: discover::EventSource, rank: Option<u32>, at: usize, spec: &WorkerSpec) -> Result<Socket, String> {
    let endpoint =
        |text: &str| text.parse::<Endpoint>().map_err(|error| format!("the engine names an event endpoint that cannot be used: {error}"));
    match told.side {
        Side::Engine => {}
        // What this process listens at is the operator's to say, never a worker's.
        Side::Us => {
            return Err(format!(
                "the engine does not listen for event subscribers, it connects to {0}: if that is this process, add events=bind:{0}",
                told.endpoint
            ));
        }
    }
    let given = socket(EventSource::Connect(endpoint(&told.endpoint)?), rank, at, spec);
    let replay = told.replay.as_deref().map(endpoint).transpose()?;
    Ok(Socket { replay: given.replay.or(replay), topic: spec.topic.clone().unwrap_or(told.topic), ..given })
}

/// The operator's endpoints: one for all ranks, or one for each in their order.
fn by_position(endpoints: &[Endpoint], spec: &WorkerSpec) -> Vec<Socket> {
    let start = spec.dp_start.unwrap_or(0);
    let sockets = endpoints.iter().zip(0..).map(|(endpoint, at)| {
        let rank = (endpoints.len() > 1).then_some(start + at);
        socket(EventSource::Connect(endpoint.clone()), rank, at as usize, spec)
    });
    sockets.collect()
}

fn socket(source: EventSource, rank: Option<u32>, at: usize, spec: &WorkerSpec) -> Socket {
    Socket { rank, source, replay: spec.replay.get(at).cloned(), topic: spec.topic.clone().unwrap_or_default() }
}

/// The model that is served, and its adapters. `wanted` picks the base where several are listed.
fn cards(listed: Vec<Model>, wanted: Option<&str>, url: &str) -> anyhow::Result<Vec<Card>> {
    let mut bases = listed.iter().filter(|model| model.parent.is_none());
    let base = match wanted {
        Some(wanted) => listed.iter().find(|model| model.id == wanted),
        None => bases.next(),
    };
    let name = match (base, wanted) {
        (Some(base), _) => base.id.clone(),
        // A server that lists its model under another name: requests still carry the operator's.
        (None, Some(wanted)) => wanted.to_owned(),
        (None, None) => return Err(anyhow!("{url} lists no model")),
    };
    let mut cards =
        vec![Card { name: name.clone(), base: name.clone(), adapter: None, max_model_len: base.and_then(|base| base.max_model_len) }];
    for model in &listed {
        if model.id == name {
            continue;
        }
        let adapter = model.parent.is_some();
        // Names without a parent are aliases of one model, as engines serve a single base.
        cards.push(Card {
            name: model.id.clone(),
            base: name.clone(),
            adapter: adapter.then(|| model.id.clone()),
            max_model_len: model.max_model_len.or(base.and_then(|base| base.max_model_len)),
        });
    }
    Ok(cards)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str, parent: Option<&str>) -> Model {
        Model { id: id.to_owned(), parent: parent.map(str::to_owned), root: None, max_model_len: Some(10) }
    }

    #[test]
    fn adapters_are_models_of_their_base_and_aliases_are_the_base_itself() {
        let cards = cards(vec![model("m", None), model("m-alias", None), model("sql", Some("m"))], None, "u").unwrap();
        let seen: Vec<_> = cards.iter().map(|card| (card.name.as_str(), card.base.as_str(), card.adapter.as_deref())).collect();
        assert_eq!(seen, [("m", "m", None), ("m-alias", "m", None), ("sql", "m", Some("sql"))]);
    }

    #[test]
    fn adapters_are_found_also_when_the_model_is_named() {
        let cards = cards(vec![model("a", None), model("sql", Some("a"))], Some("a"), "u").unwrap();
        assert_eq!(cards[1].adapter.as_deref(), Some("sql"));
    }

    #[test]
    fn a_server_without_models_is_an_error_unless_one_is_named() {
        assert!(cards(Vec::new(), None, "http://w").unwrap_err().to_string().contains("http://w"));
        assert_eq!(cards(Vec::new(), Some("m"), "u").unwrap()[0].name, "m");
    }
}
