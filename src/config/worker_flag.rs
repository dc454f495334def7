//! `--worker URL[,key=value...]`, and the same keys as the JSON of `POST /workers`.
//!
//! One worker as its operator describes it. What is left out is asked from the engine.

use std::{fmt, num::NonZeroU32, str::FromStr};

use engine::{BaseUrl, discover::MAX_RANKS};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use transport::zmtp::Endpoint;

/// The highest number a first data-parallel rank may have: a bound against typing mistakes, far above any engine.
pub(crate) const HIGHEST_RANK: u32 = 65_535;

/// One worker as configured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerSpec {
    /// The root of its HTTP server.
    pub(crate) url: BaseUrl,
    /// Name of the worker; by default its host and port.
    pub(crate) id: String,
    /// Where its KV events are.
    pub(crate) events: Events,
    /// Replay endpoints, one per rank; empty: as the engine says, or none.
    pub(crate) replay: Vec<Endpoint>,
    /// ZMQ topic prefix; `None`: as the engine says, or all topics.
    pub(crate) topic: Option<String>,
    /// The model it serves; `None`: as the engine says.
    pub(crate) model: Option<String>,
    /// Tokens per KV block; `None`: as the engine says.
    pub(crate) block_size: Option<NonZeroU32>,
    /// Data-parallel ranks behind the URL; `None`: as the engine says, or one.
    pub(crate) dp_size: Option<NonZeroU32>,
    /// First data-parallel rank; `None`: as the engine says, or 0.
    pub(crate) dp_start: Option<u32>,
    /// What the worker does.
    pub(crate) role: Role,
    /// Adapter names of engines whose events carry numbers only.
    pub(crate) lora: Vec<(i64, String)>,
}

/// Where a worker's KV events are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Events {
    /// Ask the engine.
    Auto,
    /// It has none.
    None,
    /// Connect to these, one per rank.
    Connect(Vec<Endpoint>),
    /// Bind this one; the engine connects.
    Bind(Endpoint),
    /// On the event plane, where discovery says who publishes them. Not for the command line.
    Plane,
    /// Nobody publishes them, as discovery says and why. Not for the command line.
    Absent(String),
}

/// What a worker does. Disaggregated roles come with token-level workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Prefill and decode.
    Aggregated,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aggregated => f.write_str("aggregated"),
        }
    }
}

/// One text or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn items(self) -> Vec<String> {
        match self {
            Self::One(text) => text.split('+').map(str::to_owned).collect(),
            Self::Many(items) => items,
        }
    }
}

/// How the keys are written, for messages.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    Flag,
    Json,
}

/// The keys, as text: what both spellings are parsed into first.
#[derive(Debug, Default)]
struct Keys {
    url: String,
    id: Option<String>,
    events: Option<OneOrMany>,
    replay: Option<OneOrMany>,
    topic: Option<String>,
    model: Option<String>,
    block_size: Option<u32>,
    dp_size: Option<u32>,
    dp_start: Option<u32>,
    role: Option<String>,
    lora: Vec<String>,
}

const TEXT: &str = "a text";
const TEXTS: &str = "a text or a list of texts";
const NUMBER: &str = "a whole number";

impl FromStr for WorkerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut keys = Keys { url: parts.next().unwrap_or_default().trim().to_owned(), ..Keys::default() };
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("'{part}' is not key=value"))?;
            let text = || value.to_owned();
            match key {
                "id" => keys.id = Some(text()),
                "events" => keys.events = Some(OneOrMany::One(text())),
                "replay" => keys.replay = Some(OneOrMany::One(text())),
                "topic" => keys.topic = Some(text()),
                "model" => keys.model = Some(text()),
                "block-size" => keys.block_size = Some(number(key, value)?),
                "dp-size" => keys.dp_size = Some(number(key, value)?),
                "dp-start" => keys.dp_start = Some(number(key, value)?),
                "role" => keys.role = Some(text()),
                "lora" => keys.lora.push(text()),
                _ => {
                    return Err(format!(
                        "unknown key '{key}': known are id, events, replay, topic, model, block-size, dp-size, dp-start, role, lora"
                    ));
                }
            }
        }
        keys.validate(Spelling::Flag)
    }
}

impl WorkerSpec {
    /// Reads the JSON of `POST /workers`. The error names the key, its value and what is allowed.
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, String> {
        let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|error| format!("the body is not a JSON object: {error}"))?;
        let mut keys = Keys::default();
        for (key, value) in &fields {
            match key.as_str() {
                "url" => keys.url = field::<Option<String>>(key, value, TEXT)?.unwrap_or_default(),
                "id" => keys.id = field(key, value, TEXT)?,
                "events" => keys.events = field(key, value, TEXTS)?,
                "replay" => keys.replay = field(key, value, TEXTS)?,
                "topic" => keys.topic = field(key, value, TEXT)?,
                "model" => keys.model = field(key, value, TEXT)?,
                "block_size" => keys.block_size = field(key, value, NUMBER)?,
                "dp_size" => keys.dp_size = field(key, value, NUMBER)?,
                "dp_start" => keys.dp_start = field(key, value, NUMBER)?,
                "role" => keys.role = field(key, value, TEXT)?,
                "lora" => keys.lora = field::<Option<Vec<String>>>(key, value, "a list of ID:NAME")?.unwrap_or_default(),
                _ => {
                    return Err(format!(
                        "unknown key '{key}': known are url, id, events, replay, topic, model, block_size, dp_size, dp_start, role, lora"
                    ));
                }
            }
        }
        if keys.url.is_empty() {
            return Err("url is missing: the root of the worker's HTTP server, http://HOST:PORT".to_owned());
        }
        keys.validate(Spelling::Json)
    }
}

impl Keys {
    fn validate(self, spelling: Spelling) -> Result<WorkerSpec, String> {
        let url: BaseUrl = self.url.parse().map_err(|error: engine::UrlError| error.to_string())?;
        let events = match self.events {
            None => Events::Auto,
            Some(events) => parse_events(events.items())?,
        };
        let replay = match self.replay {
            None => Vec::new(),
            Some(replay) => endpoints("replay", replay.items())?,
        };
        if let (Events::Connect(events), false) = (&events, replay.is_empty())
            && events.len() != replay.len()
        {
            return Err(format!("replay has {} endpoints and events {}: one per rank is needed", replay.len(), events.len()));
        }
        let dp_size = positive(spelling.key("dp", "size"), self.dp_size, MAX_RANKS)?;
        if let (Events::Connect(events), Some(size)) = (&events, dp_size)
            && events.len() > 1
            && events.len() != size.get() as usize
        {
            let key = spelling.key("dp", "size");
            return Err(format!("events has {} endpoints and {key}={size}: one, or one per rank, is needed", events.len()));
        }
        let dp_start = self.dp_start.map(|start| from_zero(spelling.key("dp", "start"), start, HIGHEST_RANK)).transpose()?;
        let id = self.id.unwrap_or_else(|| format!("{}:{}", url.host(), url.port()));
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') {
            return Err(format!("id '{id}' must be visible ASCII without '/'"));
        }
        Ok(WorkerSpec {
            url,
            id,
            events,
            replay,
            topic: self.topic,
            model: self.model.filter(|model| !model.is_empty()),
            block_size: positive(spelling.key("block", "size"), self.block_size, 65_536)?,
            dp_size,
            dp_start,
            role: role(self.role.as_deref())?,
            lora: self.lora.iter().map(|text| adapter(text)).collect::<Result<_, _>>()?,
        })
    }
}

impl Spelling {
    fn key(self, first: &str, second: &str) -> String {
        match self {
            Self::Flag => format!("{first}-{second}"),
            Self::Json => format!("{first}_{second}"),
        }
    }
}

/// A value of the JSON; null where the type allows none.
fn field<T: DeserializeOwned>(key: &str, value: &Value, expected: &str) -> Result<T, String> {
    T::deserialize(value).map_err(|_| format!("{key}={value} is not {expected}"))
}

fn number(key: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{key}={value} is not a whole number"))
}

fn positive(key: String, value: Option<u32>, most: u32) -> Result<Option<NonZeroU32>, String> {
    value
        .map(|value| {
            NonZeroU32::new(value).filter(|value| value.get() <= most).ok_or_else(|| format!("{key}={value} must be from 1 to {most}"))
        })
        .transpose()
}

fn from_zero(key: String, value: u32, most: u32) -> Result<u32, String> {
    if value <= most { Ok(value) } else { Err(format!("{key}={value} must be from 0 to {most}")) }
}

fn role(text: Option<&str>) -> Result<Role, String> {
    match text {
        None | Some("aggregated") => Ok(Role::Aggregated),
        Some(other) => Err(format!("role={other} is not known: allowed is aggregated")),
    }
}

fn adapter(text: &str) -> Result<(i64, String), String> {
    let parsed = text.split_once(':').and_then(|(id, name)| Some((id.parse().ok()?, name.to_owned())));
    parsed.filter(|(_, name)| !name.is_empty()).ok_or_else(|| format!("lora={text} is not ID:NAME with a whole number as ID"))
}

fn parse_events(items: Vec<String>) -> Result<Events, String> {
    match items.as_slice() {
        [one] if one == "auto" => Ok(Events::Auto),
        [one] if one == "none" => Ok(Events::None),
        [one] if one.starts_with("bind:") => endpoint("events", &one["bind:".len()..]).map(Events::Bind),
        _ => endpoints("events", items).map(Events::Connect),
    }
}

fn endpoints(key: &str, items: Vec<String>) -> Result<Vec<Endpoint>, String> {
    items.iter().map(|item| endpoint(key, item)).collect()
}

fn endpoint(key: &str, text: &str) -> Result<Endpoint, String> {
    text.parse().map_err(|error| format!("{key}={text}: {error}; allowed are auto, none, tcp://HOST:PORT, ipc:///PATH, bind:ENDPOINT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_url_asks_the_engine_for_everything_else() {
        let spec: WorkerSpec = "http://gpu1:8000/".parse().unwrap();
        assert_eq!(spec.url.to_string(), "http://gpu1:8000");
        assert_eq!(spec.id, "gpu1:8000");
        assert_eq!(spec.events, Events::Auto);
        assert_eq!(spec.role, Role::Aggregated);
    }

    #[test]
    fn every_key_is_read_and_json_says_the_same() {
        let flag: WorkerSpec = "http://h:1,id=a,events=tcp://h:2+tcp://h:3,replay=tcp://h:4+tcp://h:5,topic=kv,model=m,\
                                block-size=16,dp-size=2,dp-start=4,role=aggregated,lora=1:sql,lora=2:chat"
            .parse()
            .unwrap();
        let json = br#"{"url":"http://h:1","id":"a","events":["tcp://h:2","tcp://h:3"],"replay":["tcp://h:4","tcp://h:5"],
            "topic":"kv","model":"m","block_size":16,"dp_size":2,"dp_start":4,"role":"aggregated","lora":["1:sql","2:chat"]}"#;
        assert_eq!(flag, WorkerSpec::from_json(json).unwrap());
        assert_eq!(flag.lora, vec![(1, "sql".to_owned()), (2, "chat".to_owned())]);
        assert!(matches!(&flag.events, Events::Connect(list) if list.len() == 2));
    }

    #[test]
    fn what_cannot_be_right_names_the_key_and_the_value() {
        for (text, named) in [
            ("gpu1:8000", "gpu1:8000"),
            ("ftp://gpu1", "ftp://gpu1"),
            ("http://h,block-size=0", "block-size=0"),
            ("http://h,block-size=x", "block-size=x"),
            ("http://h,colour=red", "colour"),
            ("http://h,events=udp://x:1", "udp://x:1"),
            ("http://h,lora=sql", "lora=sql"),
            ("http://h,role=chef", "role=chef"),
            ("http://h,dp-size=100000", "dp-size=100000"),
            ("http://h,dp-start=4294967295", "dp-start=4294967295 must be from 0 to 65535"),
            ("http://h,events=tcp://h:2+tcp://h:3,dp-size=3", "dp-size=3"),
            ("http://h,events=tcp://h:2+tcp://h:3,replay=tcp://h:4", "one per rank"),
        ] {
            let error = text.parse::<WorkerSpec>().unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
        for (json, named) in [
            (r#"{"url":"http://h","nope":1}"#, "nope"),
            (r#"{"url":"http://h","block_size":0}"#, "block_size=0"),
            (r#"{"url":"http://h","dp_size":"two"}"#, "dp_size=\"two\""),
            (r#"{"url":"http://h","lora":"1:sql"}"#, "lora="),
            (r#"{"id":"a"}"#, "url"),
            ("[]", "JSON object"),
        ] {
            let error = WorkerSpec::from_json(json.as_bytes()).unwrap_err();
            assert!(error.contains(named), "{json}: {error}");
        }
        assert!(WorkerSpec::from_json(br#"{"url":"http://h","model":null}"#).unwrap().model.is_none());
    }

    #[test]
    fn engines_that_connect_are_bound_for() {
        let spec: WorkerSpec = "http://h,events=bind:tcp://127.0.0.1:5557".parse().unwrap();
        assert!(matches!(spec.events, Events::Bind(_)));
    }
}
