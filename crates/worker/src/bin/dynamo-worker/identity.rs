//! What the engine is: the operator's word first, then the engine's own.

use std::num::NonZeroU32;

use anyhow::{Context, bail};
use engine::discover::{AskError, Engine, EventSources, MAX_RANKS, Metrics, Side};
use http::StatusCode;
use index::BlockSize;
use transport::{stream::EventSource, zmtp::Endpoint};

use crate::flags::{Events, Settings};

/// An engine as far as routers need to know it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    pub(crate) model: String,
    pub(crate) block_size: Option<BlockSize>,
    pub(crate) dp_start: u32,
    pub(crate) dp_size: u32,
    /// Where its events are, or why nothing is relayed.
    pub(crate) events: Result<Vec<Socket>, String>,
}

/// One event socket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Socket {
    /// The rank it speaks for; `None`: all of them.
    pub(crate) rank: Option<u32>,
    pub(crate) source: EventSource,
    pub(crate) replay: Option<Endpoint>,
    pub(crate) topic: String,
}

/// An answer that engines need not have: `None` where this one says that it does not, now and later.
pub(crate) fn optional<T>(answer: Result<T, AskError>) -> Result<Option<T>, AskError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(AskError::Send(error)) => Err(error.into()),
        Err(AskError::Status { asked, status, message }) if is_passing(status) => Err(AskError::Status { asked, status, message }),
        Err(AskError::Status { .. } | AskError::Shape { .. }) => Ok(None),
    }
}

fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// What the engine says beside its models.
#[derive(Debug, Default)]
struct Told {
    sources: Option<EventSources>,
    block_size: Option<u32>,
    dp_size: Option<u32>,
}

impl Identity {
    /// Asks the engine whatever the operator did not say. `metrics` is what its page says, if it has one.
    pub(crate) async fn ask(engine: &Engine, settings: &Settings, metrics: Option<&Metrics>) -> anyhow::Result<Self> {
        // Also where the operator named the model: only a list proves that an engine answers, and frontends want it there.
        let models = engine.models().await.context("the engine does not list its models")?;
        let model = match &settings.model {
            Some(model) if models.iter().any(|listed| listed.id == *model) => model.clone(),
            Some(model) => {
                let names: Vec<_> = models.iter().map(|model| model.id.as_str()).collect();
                bail!("the engine does not serve {model} (--model-name), it lists {}", names.join(", "))
            }
            None => {
                let base = models.into_iter().find(|model| model.parent.is_none());
                base.context("the engine lists adapters only; give --model-name")?.id
            }
        };
        let mut told = Told { block_size: metrics.and_then(|metrics| metrics.block_size), ..Told::default() };
        if settings.events == Events::Auto {
            told.sources = optional(engine.kv_event_sources().await)?;
        }
        if told.block_size.is_none() || (settings.events == Events::Auto && told.sources.is_none()) {
            told.info(optional(engine.server_info().await)?);
        }
        let block_size = settings.block_size.or(told.block_size.and_then(BlockSize::new));
        let events = sockets(settings, told.sources);
        let events = match block_size {
            Some(_) => events,
            None => events.and(Err("the engine does not tell the size of its blocks; give --kv-cache-block-size".to_owned())),
        };
        let (dp_start, dp_size) = ranks(settings, events.as_deref().unwrap_or_default(), told.dp_size)?;
        let events = events.map(|sockets| of_ranks(sockets, dp_start));
        Ok(Self { model, block_size, dp_start, dp_size, events })
    }
}

impl Told {
    fn info(&mut self, info: Option<engine::discover::ServerInfo>) {
        let Some(info) = info else { return };
        self.block_size = self.block_size.or(info.block_size);
        self.dp_size = info.dp_size;
        self.sources.get_or_insert(info.events);
    }
}

fn sockets(settings: &Settings, told: Option<EventSources>) -> Result<Vec<Socket>, String> {
    match (&settings.events, told) {
        (Events::None, _) => Err("--kv-events=none".to_owned()),
        (Events::Sockets(sockets, topic), _) => {
            let socket = |(rank, (source, replay)): (u32, &(EventSource, Option<Endpoint>))| Socket {
                rank: Some(rank),
                source: source.clone(),
                replay: replay.clone(),
                topic: topic.clone(),
            };
            Ok((0..).zip(sockets).map(socket).collect())
        }
        (Events::Auto, None) => Err("the engine does not say where its events are; give --kv-events ENDPOINT".to_owned()),
        (Events::Auto, Some(EventSources::Off)) => {
            Err("the engine publishes no KV events over ZMQ (vLLM, SGLang: --kv-events-config)".to_owned())
        }
        (Events::Auto, Some(EventSources::On(sources))) => sources.into_iter().map(told_socket).collect(),
    }
}

fn told_socket(source: engine::discover::EventSource) -> Result<Socket, String> {
    let parse = |text: &str| text.parse::<Endpoint>().map_err(|error| format!("the engine names an invalid endpoint: {error}"));
    let endpoint = parse(&source.endpoint)?;
    Ok(Socket {
        rank: Some(source.rank),
        source: match source.side {
            Side::Engine => EventSource::Connect(endpoint),
            Side::Us => EventSource::Bind(endpoint),
        },
        replay: source.replay.as_deref().map(parse).transpose()?,
        topic: source.topic,
    })
}

/// First rank and number of ranks: as the operator says, else the engine, else as many as there are sockets.
fn ranks(settings: &Settings, sockets: &[Socket], told: Option<u32>) -> anyhow::Result<(u32, u32)> {
    let named = || sockets.iter().filter_map(|socket| socket.rank);
    let lowest = match settings.events {
        Events::Auto => named().min().unwrap_or(0),
        Events::None | Events::Sockets(..) => 0,
    };
    let start = settings.dp_start.unwrap_or(lowest);
    let spanned = named().max().map_or(1, |highest| highest.saturating_sub(lowest).saturating_add(1));
    let size = settings.dp_size.map(NonZeroU32::get).or(told).unwrap_or(spanned);
    if start > u32::MAX - MAX_RANKS {
        bail!("the engine says that its first rank is {start}; give --dp-start");
    }
    if spanned > MAX_RANKS || (sockets.len() > 1 && spanned > size) {
        bail!(
            "{} event sockets, spanning {spanned} ranks, for {size} data-parallel ranks: one, or one for each rank, is needed (--kv-events, --dp-size)",
            sockets.len()
        );
    }
    Ok((start, size))
}

/// One socket alone speaks for every rank; several speak for one each, counted from the first rank.
fn of_ranks(mut sockets: Vec<Socket>, dp_start: u32) -> Vec<Socket> {
    let alone = sockets.len() == 1;
    let lowest = sockets.iter().filter_map(|socket| socket.rank).min().unwrap_or(0);
    for socket in &mut sockets {
        socket.rank = socket.rank.filter(|_| !alone).map(|rank| dp_start + (rank - lowest));
    }
    sockets
}
