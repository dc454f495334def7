//! The command line and the environment, to settings that cannot be wrong.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;
use engine::{Authorities, BaseUrl, Client, Options, discover::MAX_RANKS};
use http::HeaderValue;
use index::BlockSize;
use transport::{stream::EventSource, zmtp::Endpoint};
use wire::discovery::EndpointId;
use worker::{FlagError, PlaneFlags, RuntimeConfig};

/// A sidecar beside a stock vLLM or SGLang server: registers it in discovery, relays its KV events onto the event plane, publishes its
/// load. The engine itself is not touched: frontends send it OpenAI HTTP as before.
///
/// Try it:
///   vllm serve MODEL --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}'
///   dynamo-worker --engine http://127.0.0.1:8000
#[derive(Debug, Parser)]
#[command(name = "dynamo-worker", version, verbatim_doc_comment)]
pub(crate) struct Flags {
    /// The engine's address, as this process reaches it.
    #[arg(long, env = "DYN_WORKER_ENGINE", value_name = "URL")]
    engine: String,
    /// The engine's address as frontends reach it, if that is another one.
    #[arg(long, env = "DYN_WORKER_ADVERTISE_URL", value_name = "URL")]
    advertise_url: Option<String>,
    /// Where the engine publishes its events: auto asks the engine, none relays nothing; else ENDPOINT, or several separated by +, one
    /// for each rank. bind:ENDPOINT for an engine that connects.
    #[arg(long, env = "DYN_WORKER_KV_EVENTS", value_name = "auto|none|ENDPOINT", default_value = "auto")]
    kv_events: String,
    /// The engine's replay sockets, where --kv-events names endpoints; separated by +.
    #[arg(long, env = "DYN_WORKER_KV_REPLAY", value_name = "ENDPOINT")]
    kv_replay: Option<String>,
    /// Topic of the events, where --kv-events names endpoints; empty: all.
    #[arg(long, env = "DYN_WORKER_KV_TOPIC", value_name = "TOPIC")]
    kv_topic: Option<String>,
    /// The model, if the engine does not list it.
    #[arg(long, env = "DYN_MODEL_NAME", value_name = "NAME")]
    model_name: Option<String>,
    /// Tokens per block, if the engine does not tell.
    #[arg(long, env = "DYN_KV_CACHE_BLOCK_SIZE", value_name = "TOKENS")]
    kv_cache_block_size: Option<String>,
    /// Data-parallel ranks, if the engine does not tell.
    #[arg(long, env = "DYN_WORKER_DP_SIZE", value_name = "RANKS")]
    dp_size: Option<String>,
    /// The first data-parallel rank, if the engine does not tell.
    #[arg(long, env = "DYN_WORKER_DP_START", value_name = "RANK")]
    dp_start: Option<String>,
    /// Name of a LoRA adapter that the engine's events know by its number only; repeatable.
    #[arg(long = "lora", value_name = "ID:NAME")]
    lora: Vec<String>,
    /// Authorization header for requests to the engine.
    #[arg(long, env = "DYN_ENGINE_AUTHORIZATION", value_name = "VALUE", hide_env_values = true)]
    engine_authorization: Option<String>,
    /// PEM file with certificate authorities to trust for an https engine, beside the system's.
    #[arg(long, env = "DYN_ENGINE_CA_FILE", value_name = "FILE")]
    engine_ca_file: Option<PathBuf>,
    /// Seconds without any answer after which the engine counts as dead; one that refuses connections does at once.
    #[arg(long, env = "DYN_WORKER_SILENCE_SECS", value_name = "SECONDS", default_value = "30")]
    silence_secs: String,
    /// Component to register as.
    #[arg(long, env = "DYN_COMPONENT", value_name = "NAME", default_value = "backend")]
    component: String,
    /// Endpoint to register as.
    #[arg(long, env = "DYN_ENDPOINT", value_name = "NAME", default_value = "generate")]
    endpoint: String,
    #[command(flatten)]
    planes: PlaneFlags,
}

/// What the sidecar does.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The engine.
    pub(crate) url: BaseUrl,
    /// The engine as others reach it.
    pub(crate) advertised: String,
    pub(crate) events: Events,
    pub(crate) model: Option<String>,
    pub(crate) block_size: Option<BlockSize>,
    pub(crate) dp_size: Option<NonZeroU32>,
    pub(crate) dp_start: Option<u32>,
    /// Adapter names by number.
    pub(crate) adapters: BTreeMap<i64, String>,
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) authorities: Authorities,
    /// How long an engine may be silent.
    pub(crate) silence: Duration,
    pub(crate) id: EndpointId,
    pub(crate) runtime: RuntimeConfig,
}

/// Where the engine's events are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Events {
    /// Where the engine says.
    Auto,
    /// Nowhere.
    None,
    /// There: one socket for all ranks, or one for each.
    Sockets(Vec<(EventSource, Option<Endpoint>)>, String),
}

fn wrong(name: &str, value: &str, allowed: impl Into<String>) -> FlagError {
    FlagError { name: name.to_owned(), value: value.to_owned(), allowed: allowed.into() }
}

impl Settings {
    /// Flags win over `variable`.
    pub(crate) fn new(flags: Flags, variable: impl Fn(&str) -> Option<String>) -> Result<Self, FlagError> {
        const ENGINE: &str = "--engine (DYN_WORKER_ENGINE)";
        const ADVERTISE: &str = "--advertise-url (DYN_WORKER_ADVERTISE_URL)";
        let parse = |name, text: &str| text.parse::<BaseUrl>().map_err(|error| wrong(name, text, error.to_string()));
        let url = parse(ENGINE, &flags.engine)?;
        let advertised = match given(flags.advertise_url.as_deref()) {
            Some(text) => parse(ADVERTISE, text)?.to_string(),
            None => url.to_string(),
        };
        let size = whole("--kv-cache-block-size (DYN_KV_CACHE_BLOCK_SIZE)", flags.kv_cache_block_size.as_deref(), 1, 65_536)?;
        let dp_size = whole("--dp-size (DYN_WORKER_DP_SIZE)", flags.dp_size.as_deref(), 1, MAX_RANKS)?;
        let silence = whole("--silence-secs (DYN_WORKER_SILENCE_SECS)", Some(&flags.silence_secs), 1, 86_400)?;
        let authorization = match given(flags.engine_authorization.as_deref()) {
            Some(text) => {
                let refused = |_| wrong("--engine-authorization (DYN_ENGINE_AUTHORIZATION)", "...", "is not a valid header value");
                Some(HeaderValue::from_str(text).map_err(refused)?)
            }
            None => None,
        };
        let runtime = flags.planes.config(variable)?;
        let name = |flag: &str, text: &str| match text.is_empty() || text.contains('/') {
            true => Err(wrong(flag, text, "is not a valid name: it is empty or has a slash in it")),
            false => Ok(text.to_owned()),
        };
        Ok(Self {
            url,
            advertised,
            events: events(&flags)?,
            model: given(flags.model_name.as_deref()).map(str::to_owned),
            block_size: size.and_then(BlockSize::new),
            dp_size: dp_size.and_then(NonZeroU32::new),
            dp_start: whole("--dp-start (DYN_WORKER_DP_START)", flags.dp_start.as_deref(), 0, u32::MAX - MAX_RANKS)?,
            adapters: flags.lora.iter().map(|text| adapter(text)).collect::<Result<_, _>>()?,
            authorization,
            authorities: flags.engine_ca_file.as_deref().map(authorities).transpose()?.unwrap_or_default(),
            silence: Duration::from_secs(silence.unwrap_or(30).into()),
            id: EndpointId::new(
                name("--namespace (DYN_NAMESPACE)", &runtime.namespace)?,
                name("--component (DYN_COMPONENT)", &flags.component)?,
                name("--endpoint (DYN_ENDPOINT)", &flags.endpoint)?,
            ),
            runtime,
        })
    }
}

/// A value that is set to nothing is not set.
fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

fn whole(name: &str, text: Option<&str>, least: u32, most: u32) -> Result<Option<u32>, FlagError> {
    let Some(text) = given(text) else { return Ok(None) };
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
        Ok(_) | Err(_) => Err(wrong(name, text, format!("allowed are {least} to {most}"))),
    }
}

fn authorities(file: &Path) -> Result<Authorities, FlagError> {
    let refused = |why: String| wrong("--engine-ca-file (DYN_ENGINE_CA_FILE)", &file.display().to_string(), why);
    let pem = std::fs::read(file).map_err(|error| refused(error.to_string()))?;
    let authorities = Authorities::SystemAnd(pem);
    // Whether they can be used is seen by using them.
    Client::new(Options { authorities: authorities.clone(), ..Options::default() }).map_err(|error| refused(error.to_string()))?;
    Ok(authorities)
}

fn adapter(text: &str) -> Result<(i64, String), FlagError> {
    let apart = text.split_once(':').and_then(|(id, name)| Some((id.parse().ok()?, name.to_owned())));
    apart.filter(|(_, name)| !name.is_empty()).ok_or_else(|| wrong("--lora", text, "expected ID:NAME, such as 1:sql"))
}

const KV_EVENTS: &str = "--kv-events (DYN_WORKER_KV_EVENTS)";
const KV_REPLAY: &str = "--kv-replay (DYN_WORKER_KV_REPLAY)";

fn events(flags: &Flags) -> Result<Events, FlagError> {
    let replays = match given(flags.kv_replay.as_deref()) {
        Some(text) => text.split('+').map(|part| endpoint(KV_REPLAY, part)).collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    let text = given(Some(&flags.kv_events)).unwrap_or("auto");
    if matches!(text, "auto" | "none") {
        if let Some(replay) = given(flags.kv_replay.as_deref()) {
            return Err(wrong(KV_REPLAY, replay, format!("needs the endpoints of --kv-events, which is {text}")));
        }
        return Ok(if text == "auto" { Events::Auto } else { Events::None });
    }
    let sockets: Vec<EventSource> = text.split('+').map(source).collect::<Result<_, _>>()?;
    if !replays.is_empty() && replays.len() != sockets.len() {
        return Err(wrong(
            KV_REPLAY,
            flags.kv_replay.as_deref().unwrap_or_default(),
            format!("{} endpoints for {} of --kv-events", replays.len(), sockets.len()),
        ));
    }
    let mut replays = replays.into_iter();
    let sockets = sockets.into_iter().map(|source| (source, replays.next())).collect();
    Ok(Events::Sockets(sockets, flags.kv_topic.clone().unwrap_or_default()))
}

fn source(text: &str) -> Result<EventSource, FlagError> {
    match text.strip_prefix("bind:") {
        Some(bound) => endpoint(KV_EVENTS, bound).map(EventSource::Bind),
        None => endpoint(KV_EVENTS, text).map(EventSource::Connect),
    }
}

fn endpoint(name: &str, text: &str) -> Result<Endpoint, FlagError> {
    text.parse().map_err(|error: transport::zmtp::EndpointError| wrong(name, text, error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn settings(line: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let words = ["dynamo-worker"].into_iter().chain(line.split_whitespace());
        let flags = Flags::try_parse_from(words).map_err(|error| error.to_string())?;
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::new(flags, lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_is_enough() {
        let settings = settings("--engine http://127.0.0.1:8000/", &[]).unwrap();
        assert_eq!((settings.advertised.as_str(), settings.events), ("http://127.0.0.1:8000", Events::Auto));
        assert_eq!(settings.id, EndpointId::new("dynamo", "backend", "generate"));
        assert_eq!(settings.silence, Duration::from_secs(30));
    }

    #[test]
    fn endpoints_come_one_for_each_rank_with_their_replays() {
        let line = "--engine http://e:1 --kv-events tcp://e:5557+bind:tcp://*:5558 --kv-replay tcp://e:5657+tcp://e:5658 --kv-topic kv";
        let Events::Sockets(sockets, topic) = settings(line, &[]).unwrap().events else { panic!() };
        assert_eq!((sockets.len(), topic.as_str()), (2, "kv"));
        assert!(matches!(sockets[0], (EventSource::Connect(_), Some(_))));
        assert!(matches!(sockets[1], (EventSource::Bind(_), Some(_))));
    }

    #[test]
    fn flags_win_over_variables_and_what_is_wrong_is_named_as_it_was_given() {
        let line = "--engine http://e:1 --namespace green";
        assert_eq!(settings(line, &[("DYN_NAMESPACE", "blue")]).unwrap().id.namespace, "green");
        let refused = |line: &str, variables: &[(&str, &str)]| settings(&format!("--engine http://e:1 {line}"), variables).unwrap_err();
        assert_eq!(refused("", &[("DYN_EVENT_PLANE", "kafka")]), "DYN_EVENT_PLANE=kafka: allowed are nats and zmq");
        assert_eq!(refused("--event-plane kafka", &[]), "--event-plane=kafka: allowed are nats and zmq");
        assert!(refused("--discovery-backend mem", &[]).starts_with("--discovery-backend=mem: is within one process"));
        assert!(refused("--dp-size 0", &[]).starts_with("--dp-size (DYN_WORKER_DP_SIZE)=0: allowed are 1 to"));
        assert!(refused("--kv-cache-block-size sixteen", &[]).contains("=sixteen: allowed are 1 to 65536"));
        assert!(refused("--kv-events 5557", &[]).starts_with("--kv-events (DYN_WORKER_KV_EVENTS)=5557: "));
        assert!(refused("--kv-replay tcp://e:1", &[]).contains("needs the endpoints of --kv-events"));
        assert!(refused("--kv-events tcp://e:1+tcp://e:2 --kv-replay tcp://e:3", &[]).contains("1 endpoints for 2"));
        assert!(refused("--lora sql", &[]).starts_with("--lora=sql: expected ID:NAME"));
        assert!(refused("--component a/b", &[]).contains("has a slash"));
        assert!(settings("--engine 8000", &[]).unwrap_err().starts_with("--engine (DYN_WORKER_ENGINE)=8000: "));
    }
}
