//! `/server_info`: SGLang's event sockets, page size and ranks.

use serde::Deserialize;

use super::{
    MAX_RANKS,
    events::{EventSource, EventSources, Side, reachable},
};

/// What SGLang says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// Where its ranks publish their events.
    pub events: EventSources,
    /// Tokens in a block; its page size. 1 means a hash for each token.
    pub block_size: Option<u32>,
    /// Data-parallel ranks.
    pub dp_size: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct Info {
    #[serde(default)]
    kv_events: Option<KvEvents>,
    #[serde(default)]
    page_size: Option<u32>,
    #[serde(default)]
    dp_size: Option<u32>,
}

#[derive(Deserialize)]
struct KvEvents {
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint_host: Option<String>,
    #[serde(default)]
    endpoint_port_base: Option<u16>,
    #[serde(default)]
    replay_endpoint_port_base: Option<u16>,
    #[serde(default)]
    topic: Option<String>,
    #[serde(default)]
    block_size: Option<u32>,
    #[serde(default)]
    dp_size: Option<u32>,
}

pub(super) fn read(info: Info, host: &str) -> Result<ServerInfo, String> {
    if info.kv_events.is_none() && info.page_size.is_none() {
        return Err("neither kv_events nor page_size is in it".to_owned());
    }
    let events = info.kv_events.as_ref();
    let dp_size = events.and_then(|events| events.dp_size).or(info.dp_size);
    let block_size = events.and_then(|events| events.block_size).or(info.page_size);
    if dp_size.is_some_and(|size| size == 0 || size > MAX_RANKS) {
        return Err(format!("dp_size {} is not in 1..={MAX_RANKS}", dp_size.unwrap_or_default()));
    }
    let events = match events {
        Some(events) => sources(events, dp_size.unwrap_or(1), host)?,
        None => EventSources::Off,
    };
    Ok(ServerInfo { events, block_size: block_size.filter(|size| *size > 0), dp_size })
}

/// Rank r publishes at the base port plus r.
fn sources(events: &KvEvents, ranks: u32, host: &str) -> Result<EventSources, String> {
    let publishes = events.publisher.as_deref() == Some("zmq");
    let Some(base) = events.endpoint_port_base.filter(|_| publishes) else { return Ok(EventSources::Off) };
    let named = events.endpoint_host.as_deref().unwrap_or("*");
    let at = |base: u16, rank: u32| {
        let port = u32::from(base) + rank;
        match u16::try_from(port) {
            Ok(port) => Ok(reachable(&format!("tcp://{named}:{port}"), host)),
            Err(_) => Err(format!("port {port} of rank {rank} does not exist")),
        }
    };
    let mut sources = Vec::new();
    for rank in 0..ranks {
        sources.push(EventSource {
            rank,
            endpoint: at(base, rank)?,
            side: Side::Engine,
            replay: events.replay_endpoint_port_base.map(|base| at(base, rank)).transpose()?,
            topic: events.topic.clone().unwrap_or_default(),
        });
    }
    Ok(EventSources::On(sources))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Result<ServerInfo, String> {
        read(serde_json::from_str(text).expect("JSON of the right shape"), "gpu1")
    }

    #[test]
    fn sglang_ranks_publish_at_consecutive_ports() {
        let text = r#"{"model_path":"m","page_size":16,"dp_size":2,"kv_events":{"publisher":"zmq","endpoint_host":"*",
            "endpoint_port_base":5557,"topic":"kv","block_size":16,"dp_size":2,"load_topic":"load",
            "replay_endpoint_port_base":5657}}"#;
        let found = info(text).expect("readable");
        assert_eq!((found.block_size, found.dp_size), (Some(16), Some(2)));
        let EventSources::On(sources) = found.events else { panic!("events are on") };
        let sockets: Vec<_> = sources.iter().map(|s| (s.rank, s.endpoint.as_str(), s.replay.as_deref(), s.topic.as_str())).collect();
        assert_eq!(
            sockets,
            [(0, "tcp://gpu1:5557", Some("tcp://gpu1:5657"), "kv"), (1, "tcp://gpu1:5558", Some("tcp://gpu1:5658"), "kv"),]
        );
    }

    #[test]
    fn without_events_page_size_and_ranks_are_still_told() {
        let found = info(r#"{"page_size":1,"dp_size":4,"kv_events":{"publisher":"null"}}"#).expect("readable");
        assert_eq!(found, ServerInfo { events: EventSources::Off, block_size: Some(1), dp_size: Some(4) });
        assert!(info(r#"{"vllm_config":{"cache_config":{"block_size":32}}}"#).is_err(), "another engine's page of that name");
    }

    #[test]
    fn impossible_numbers_are_errors() {
        assert!(info(r#"{"page_size":1,"dp_size":4000000000}"#).is_err());
        assert!(info(r#"{"dp_size":2,"kv_events":{"publisher":"zmq","endpoint_port_base":65535}}"#).is_err());
    }
}
