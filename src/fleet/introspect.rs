//! What a worker serves: the operator's word first, then the engine's own.

use std::time::Duration;

use anyhow::{Context, anyhow};
use engine::discover::{self, EventSources, Model, Side};
use index::BlockSize;
use transport::{stream::EventSource, zmtp::Endpoint};

use super::Fleet;
use crate::config::worker_flag::{Events, WorkerSpec};

/// How long one question may take.
const QUESTION_WITHIN: Duration = Duration::from_secs(5);

/// A worker as far as routing needs to know it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    /// The base model first, then its adapters.
    pub(crate) models: Vec<Card>,
    /// `None`: its events will tell.
    pub(crate) block_size: Option<BlockSize>,
    pub(crate) dp_start: u32,
    pub(crate) dp_size: u32,
    pub(crate) events: EventPlan,
    /// Another value is another process.
    process_start: Option<f64>,
}

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
    /// One socket for all ranks, or one for each.
    Listen(Vec<Socket>),
}

/// One event socket with its replay socket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Socket {
    pub(crate) source: EventSource,
    pub(crate) replay: Option<Endpoint>,
    pub(crate) topic: String,
}

impl Identity {
    /// Whether the ranks and their streams can stay as they are.
    pub(crate) fn same_ranks(&self, other: &Self) -> bool {
        let base = |identity: &Self| identity.models.first().map(|card| card.name.clone());
        (self.block_size, self.dp_start, self.dp_size, &self.events, base(self))
            == (other.block_size, other.dp_start, other.dp_size, &other.events, base(other))
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

/// Asks the engine whatever the operator did not say.
pub(super) async fn ask(fleet: &Fleet, spec: &WorkerSpec) -> anyhow::Result<Identity> {
    let engine = discover::Engine::new(fleet.client.clone(), spec.url.clone(), fleet.headers(), QUESTION_WITHIN);
    let listed = engine.models().await;
    let models = match (listed, &spec.model) {
        (Ok(listed), model) => cards(listed, model.as_deref(), &spec.url.to_string())?,
        (Err(_), Some(model)) => vec![Card { name: model.clone(), base: model.clone(), adapter: None, max_model_len: None }],
        (Err(error), None) => return Err(error).context("the worker does not list its models; give model=NAME"),
    };
    let metrics = engine.metrics().await.ok();
    let wants_events = fleet.config.listens_to_events();
    let mut told = Told { block_size: metrics.as_ref().and_then(|metrics| metrics.block_size), ..Told::default() };
    if fleet.config.routes_by_prefix() || spec.dp_size.is_none() {
        told.ask(&engine, wants_events && spec.events == Events::Auto, spec).await;
    }
    let events = match (&spec.events, wants_events) {
        (_, false) => EventPlan::Off,
        (Events::None, true) => EventPlan::None("events=none".to_owned()),
        (Events::Auto, true) => {
            told.events.take().unwrap_or_else(|| EventPlan::None("the engine does not say where its events are".to_owned()))
        }
        (Events::Connect(endpoints), true) => EventPlan::Listen(
            endpoints.iter().cloned().map(EventSource::Connect).enumerate().map(|(at, source)| socket(source, at, spec)).collect(),
        ),
        (Events::Bind(endpoint), true) => EventPlan::Listen(vec![socket(EventSource::Bind(endpoint.clone()), 0, spec)]),
    };
    let sockets = match &events {
        EventPlan::Listen(sockets) => sockets.len() as u32,
        EventPlan::Off | EventPlan::None(_) => 1,
    };
    let dp_size = spec.dp_size.map(|size| size.get()).or(told.dp_size).unwrap_or(sockets).max(1);
    if sockets > 1 && sockets != dp_size {
        return Err(anyhow!(
            "{sockets} event endpoints for {dp_size} data-parallel ranks: one, or one per rank, is needed (events=, dp-size=)"
        ));
    }
    let block_size = spec.block_size.map(|size| size.get()).or(told.block_size).and_then(BlockSize::new);
    Ok(Identity {
        models,
        block_size,
        dp_start: spec.dp_start,
        dp_size,
        events,
        process_start: metrics.and_then(|metrics| metrics.process_start_seconds),
    })
}

/// What the engine itself says of its events, blocks and ranks.
#[derive(Default)]
struct Told {
    events: Option<EventPlan>,
    block_size: Option<u32>,
    dp_size: Option<u32>,
}

impl Told {
    /// vLLM answers the first question, SGLang the second; others neither.
    async fn ask(&mut self, engine: &discover::Engine, events: bool, spec: &WorkerSpec) {
        if events && let Ok(sources) = engine.kv_event_sources().await {
            self.events = Some(plan(sources, spec));
        }
        if ((events && self.events.is_none()) || self.block_size.is_none())
            && let Ok(info) = engine.server_info().await
        {
            self.block_size = self.block_size.or(info.block_size);
            self.dp_size = info.dp_size;
            if events && self.events.is_none() {
                self.events = Some(plan(info.events, spec));
            }
        }
    }
}

fn plan(sources: EventSources, spec: &WorkerSpec) -> EventPlan {
    let EventSources::On(ranks) = sources else {
        return EventPlan::None(
            "the engine publishes no KV events over ZMQ (vLLM: --kv-events-config, SGLang: --kv-events-config)".to_owned(),
        );
    };
    let sockets = ranks.into_iter().enumerate().map(|(at, rank)| {
        let endpoint: Endpoint = rank.endpoint.parse()?;
        let source = match rank.side {
            Side::Engine => EventSource::Connect(endpoint),
            Side::Us => EventSource::Bind(endpoint),
        };
        let told = Socket { source, replay: rank.replay.as_deref().map(str::parse).transpose()?, topic: rank.topic };
        let given = socket(told.source.clone(), at, spec);
        Ok(Socket { replay: given.replay.or(told.replay), topic: spec.topic.clone().unwrap_or(told.topic), source: told.source })
    });
    match sockets.collect::<Result<Vec<_>, transport::zmtp::EndpointError>>() {
        Ok(sockets) => EventPlan::Listen(sockets),
        Err(error) => EventPlan::None(format!("the engine names an event endpoint that cannot be used: {error}")),
    }
}

fn socket(source: EventSource, at: usize, spec: &WorkerSpec) -> Socket {
    Socket { source, replay: spec.replay.get(at).cloned(), topic: spec.topic.clone().unwrap_or_default() }
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
