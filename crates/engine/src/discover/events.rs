//! `/kv_event_sources`: vLLM's event sockets, one entry per data-parallel rank.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Who opens the event socket's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The engine listens; we connect.
    Engine,
    /// The engine connects; we have to listen at that address.
    Us,
}

/// The event sockets of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSource {
    /// The data-parallel rank.
    pub rank: u32,
    /// The event socket, with the engine's wildcard replaced by the worker's host.
    pub endpoint: String,
    /// Who listens at it.
    pub side: Side,
    /// The replay socket, if there is one; the engine always listens there.
    pub replay: Option<String>,
    /// The topic of its messages; may be empty.
    pub topic: String,
}

/// What an engine says about its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSources {
    /// It publishes none: events are switched off, or not sent over ZMQ.
    Off,
    /// Its ranks, in order.
    On(Vec<EventSource>),
}

#[derive(Deserialize)]
pub(super) struct Rank {
    #[serde(default)]
    enable_kv_cache_events: Option<bool>,
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: Option<String>,
}

/// Reads the answer, a map from rank to its sockets; a rank without sockets is null.
pub(super) fn read(ranks: &BTreeMap<String, Option<Rank>>, host: &str) -> Result<EventSources, String> {
    let mut sources = Vec::new();
    for (rank, sockets) in ranks {
        let rank = rank.parse().map_err(|_| format!("`{rank}` is not a rank"))?;
        let Some(sockets) = sockets else { continue };
        let publishes = sockets.enable_kv_cache_events != Some(false) && sockets.publisher.as_deref().is_none_or(|name| name == "zmq");
        let Some(endpoint) = sockets.endpoint.as_deref().filter(|_| publishes) else { continue };
        sources.push(EventSource {
            rank,
            endpoint: reachable(endpoint, host),
            side: if engine_binds(endpoint) { Side::Engine } else { Side::Us },
            replay: sockets.replay_endpoint.as_deref().filter(|replay| !replay.is_empty()).map(|replay| reachable(replay, host)),
            topic: sockets.topic.clone().unwrap_or_default(),
        });
    }
    sources.sort_by_key(|source| source.rank);
    Ok(if sources.is_empty() { EventSources::Off } else { EventSources::On(sources) })
}

const WILDCARDS: [&str; 4] = ["*", "0.0.0.0", "[::]", "::"];

/// The endpoint as it is reached from elsewhere: a wildcard means the worker's host.
pub(super) fn reachable(endpoint: &str, host: &str) -> String {
    let Some((address, port)) = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':')) else {
        return endpoint.to_owned();
    };
    if WILDCARDS.contains(&address) { format!("tcp://{host}:{port}") } else { endpoint.to_owned() }
}

/// vLLM listens at wildcards and local sockets, and connects to anything else.
fn engine_binds(endpoint: &str) -> bool {
    !endpoint.starts_with("tcp://") || endpoint.contains('*') || endpoint.contains("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> Result<EventSources, String> {
        read(&serde_json::from_str(text).expect("JSON of the right shape"), "gpu1")
    }

    #[test]
    fn vllm_sockets_are_found_at_the_workers_host() {
        let expected = EventSource {
            rank: 0,
            endpoint: "tcp://gpu1:19100".into(),
            side: Side::Engine,
            replay: Some("tcp://gpu1:20100".into()),
            topic: "kv-events".into(),
        };
        assert_eq!(sources(include_str!("../../tests/data/kv_event_sources.json")), Ok(EventSources::On(vec![expected])));
    }

    #[test]
    fn ranks_come_in_order_and_by_number() {
        let rank = |port| format!(r#"{{"publisher":"zmq","endpoint":"tcp://*:{port}"}}"#);
        let text = format!(r#"{{"10":{},"2":{},"3":null}}"#, rank(5010), rank(5002));
        let Ok(EventSources::On(found)) = sources(&text) else { panic!("sources") };
        let found: Vec<_> = found.iter().map(|source| (source.rank, source.endpoint.as_str())).collect();
        assert_eq!(found, [(2, "tcp://gpu1:5002"), (10, "tcp://gpu1:5010")]);
    }

    #[test]
    fn events_that_are_off_or_elsewhere_are_off() {
        assert_eq!(sources(r#"{"0":{"enable_kv_cache_events":false,"publisher":"zmq","endpoint":"tcp://*:1"}}"#), Ok(EventSources::Off));
        assert_eq!(sources(r#"{"0":{"enable_kv_cache_events":true,"publisher":"null"}}"#), Ok(EventSources::Off));
        assert_eq!(sources("{}"), Ok(EventSources::Off));
        assert!(sources(r#"{"zero":null}"#).is_err());
    }

    #[test]
    fn wildcards_become_the_host_and_other_endpoints_stay() {
        for (endpoint, reached, binds) in [
            ("tcp://*:5557", "tcp://gpu1:5557", true),
            ("tcp://0.0.0.0:5557", "tcp://gpu1:5557", false),
            ("tcp://[::]:5557", "tcp://gpu1:5557", true),
            ("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5557", false),
            ("ipc:///tmp/kv", "ipc:///tmp/kv", true),
            ("nonsense", "nonsense", true),
        ] {
            assert_eq!((reachable(endpoint, "gpu1").as_str(), engine_binds(endpoint)), (reached, binds), "{endpoint}");
        }
        assert_eq!(reachable("tcp://*:5557", "[fe80::1]"), "tcp://[fe80::1]:5557");
    }
}
