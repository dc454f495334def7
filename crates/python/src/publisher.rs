//! `KvEventPublisher`: an engine's calls, or its raw event socket, to numbered events on the plane.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use index::BlockSize;
use pyo3::{
    exceptions::{PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyList},
};
use transport::{stream::EventSource, zmtp};
use wire::router::{MediaInfo, MediaObject};
use worker::{CallError, KvEventPublisher, KvPublisherOptions, PublishError, PublisherError, Relay, RelaySource, StoredCall};

use crate::{
    host,
    host::{Leaves, Own},
    numbers::{Hash, Numbers, Prompt, flag, number, positive, seconds, text, type_name},
    once,
    planes::{Planes, endpoint_of},
};

/// Calls of more numbers than that are read with the GIL released; for less, giving it away costs more than it saves.
const LARGE: usize = 8192;
/// What it is called in errors.
const NAME: &str = "KvEventPublisher";

/// Publishes what one rank of an engine has in its cache.
#[pyclass(frozen, subclass, name = "KvEventPublisher", module = "dynamo.llm")]
pub(crate) struct PyPublisher(Own<Arc<Publishing>>);

/// A publisher, and what reads the engine's socket for it.
struct Publishing {
    publisher: Arc<KvEventPublisher>,
    relay: Option<Relay>,
    /// Keeps the process's planes.
    _planes: Arc<Planes>,
}

impl Publishing {
    async fn shutdown(&self, within: Duration) {
        if let Some(relay) = &self.relay {
            relay.stop().await;
        }
        self.publisher.shutdown(within).await;
    }

    fn direct(&self) -> PyResult<&KvEventPublisher> {
        match &self.relay {
            None => Ok(&self.publisher),
            Some(_) => {
                Err(PyRuntimeError::new_err("zmq_endpoint was given: this publisher relays the engine's own events, publish none beside"))
            }
        }
    }
}

impl Leaves for Publishing {
    fn leave(&self, within: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.shutdown(within / 2))
    }
}

#[pymethods]
impl PyPublisher {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the call as it is documented to engine authors")]
    #[pyo3(signature = (component, kv_block_size, dp_rank = None, enable_local_indexer = None, zmq_endpoint = None, zmq_topic = None, *,
        zmq_replay_endpoint = None, worker_id = None))]
    fn new(
        py: Python<'_>,
        component: &Bound<'_, PyAny>,
        kv_block_size: &Bound<'_, PyAny>,
        dp_rank: Option<&Bound<'_, PyAny>>,
        enable_local_indexer: Option<&Bound<'_, PyAny>>,
        zmq_endpoint: Option<&Bound<'_, PyAny>>,
        zmq_topic: Option<&Bound<'_, PyAny>>,
        zmq_replay_endpoint: Option<&Bound<'_, PyAny>>,
        worker_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (planes, endpoint) = endpoint_of(component, "component")?;
        let mut options = KvPublisherOptions::new(positive(kv_block_size, "kv_block_size")?);
        options.enable_local_indexer = flag(enable_local_indexer, "enable_local_indexer")?.unwrap_or(false);
        if let Some(rank) = dp_rank {
            options.dp_rank = number(rank, "dp_rank")?;
        }
        if let Some(id) = worker_id {
            options.worker_id = Some(number::<Hash>(id, "worker_id")?.0);
            once::WORKER_ID.warn(py)?;
        }
        let source = source(
            &options,
            text(zmq_endpoint, "zmq_endpoint")?.as_deref(),
            text(zmq_topic, "zmq_topic")?.as_deref(),
            text(zmq_replay_endpoint, "zmq_replay_endpoint")?.as_deref(),
        )?;
        let dp_rank = options.dp_rank;
        let made = host::wait(py, async {
            let publisher = Arc::new(KvEventPublisher::new(endpoint, options).await?);
            let relay = source.map(|source| Relay::start(source, BTreeMap::from([(dp_rank, publisher.clone())])));
            Ok::<_, PublisherError>(Arc::new(Publishing { publisher, relay, _planes: planes }))
        });
        let made = made?.map_err(|error| match error {
            PublisherError::BlockSize => PyValueError::new_err(error.to_string()),
            PublisherError::Runtime(_) | PublisherError::Open(_) | PublisherError::Serve(_) | PublisherError::Thread(_) => {
                PyRuntimeError::new_err(error.to_string())
            }
        })?;
        let leaves: Arc<dyn Leaves> = made.clone();
        host::remember(Arc::downgrade(&leaves));
        Ok(Self(Own::new(made)))
    }

    #[expect(clippy::too_many_arguments, reason = "the call as it is documented to engine authors")]
    #[pyo3(signature = (token_ids, num_block_tokens, block_hashes, parent_hash = None, block_mm_infos = None, lora_name = None, *,
        cache_salt = None, event_id = None, lora_id = None))]
    fn publish_stored(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        num_block_tokens: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
        parent_hash: Option<&Bound<'_, PyAny>>,
        block_mm_infos: Option<&Bound<'_, PyAny>>,
        lora_name: Option<&Bound<'_, PyAny>>,
        cache_salt: Option<&Bound<'_, PyAny>>,
        event_id: Option<&Bound<'_, PyAny>>,
        lora_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let publishing = self.0.get(NAME)?;
        let publisher = publishing.direct()?;
        unused_event_id(event_id)?;
        let tokens = Numbers::<u32>::of(token_ids, "token_ids")?;
        let sizes = Numbers::<u32>::of(num_block_tokens, "num_block_tokens")?;
        let hashes = Numbers::<Hash>::of(block_hashes, "block_hashes")?;
        let is_large = tokens.len() + hashes.len() > LARGE;
        let rest = StoredCall {
            parent_hash: parent_hash.map(|hash| number::<Hash>(hash, "parent_hash")).transpose()?.map(|hash| hash.0),
            block_mm_infos: block_mm_infos.map(media).transpose()?.unwrap_or_default(),
            lora_name: adapter(text(lora_name, "lora_name")?, lora_id)?,
            cache_salt: text(cache_salt, "cache_salt")?,
            ..StoredCall::default()
        };
        let publish = move || {
            let call = StoredCall {
                token_ids: tokens.read()?,
                num_block_tokens: sizes.read()?,
                block_hashes: hashes.read()?.into_iter().map(|hash| hash.0).collect(),
                ..rest
            };
            publisher.publish_stored(call).map(drop).map_err(publish_error)
        };
        if is_large { py.detach(publish) } else { publish() }
    }

    #[pyo3(signature = (block_hashes, *, event_id = None))]
    fn publish_removed(&self, py: Python<'_>, block_hashes: &Bound<'_, PyAny>, event_id: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let publisher = self.0.get(NAME)?.direct()?;
        unused_event_id(event_id)?;
        let hashes = Numbers::<Hash>::of(block_hashes, "block_hashes")?;
        let is_large = hashes.len() > LARGE;
        let publish = move || {
            let hashes: Vec<u64> = hashes.read()?.into_iter().map(|hash| hash.0).collect();
            publisher.publish_removed(&hashes).map(drop).map_err(publish_error)
        };
        if is_large { py.detach(publish) } else { publish() }
    }

    #[pyo3(signature = (*, event_id = None))]
    fn publish_cleared(&self, event_id: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let publisher = self.0.get(NAME)?.direct()?;
        unused_event_id(event_id)?;
        publisher.publish_cleared().map(drop).map_err(publish_error)
    }

    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let publisher = &self.0.get(NAME)?.publisher;
        let within = seconds(timeout, 5.0, "timeout")?;
        let flushed = host::wait(py, async { tokio::time::timeout(within, publisher.flush()).await })?;
        match flushed {
            Ok(done) => done.map_err(publish_error),
            Err(_) => Err(PyTimeoutError::new_err(format!("not all that was queued is published after {} s", within.as_secs_f64()))),
        }
    }

    #[pyo3(signature = (token_ids, lora_name = None, *, cache_salt = None))]
    fn find_matches(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        lora_name: Option<&Bound<'_, PyAny>>,
        cache_salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u32> {
        let publisher = &self.0.get(NAME)?.publisher;
        let found = Prompt::of(token_ids, lora_name, cache_salt)?.find(py, |ids, lora, salt| publisher.find_matches(ids, lora, salt))?;
        found.ok_or_else(|| PyRuntimeError::new_err("this publisher has no index of its own: create it with enable_local_indexer=True"))
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let publishing = self.0.get(NAME)?;
        let (counters, relay) =
            py.detach(|| (publishing.publisher.counters(), publishing.relay.as_ref().map(Relay::counters).unwrap_or_default()));
        let shown = PyDict::new(py);
        shown.set_item("events", counters.events)?;
        shown.set_item("last_event_id", counters.last_event_id)?;
        shown.set_item("messages", counters.messages)?;
        shown.set_item("dropped_messages", counters.dropped_messages)?;
        shown.set_item("dropped_stores", counters.dropped_stores + relay.dropped)?;
        shown.set_item("dropped_removals", counters.dropped_removals)?;
        shown.set_item("skipped_ids", counters.missed)?;
        shown.set_item("refused_stores", counters.refused + relay.refused)?;
        shown.set_item("unknown_removals", counters.unknown_removals)?;
        shown.set_item("orphans", counters.orphans)?;
        shown.set_item("dropped_orphans", counters.orphans_dropped)?;
        shown.set_item("queued_bytes", counters.queued_bytes)?;
        Ok(shown)
    }

    #[getter]
    fn publisher_id(&self) -> PyResult<u64> {
        Ok(self.0.get(NAME)?.publisher.publisher_id())
    }

    #[pyo3(signature = (timeout = None))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let publishing = self.0.get(NAME)?;
        let within = seconds(timeout, 5.0, "timeout")?;
        host::wait(py, publishing.shutdown(within))
    }
}

/// The engine's socket, where one is given.
fn source(
    options: &KvPublisherOptions,
    endpoint: Option<&str>,
    topic: Option<&str>,
    replay: Option<&str>,
) -> PyResult<Option<RelaySource>> {
    let Some(endpoint) = endpoint else {
        return match (topic, replay) {
            (Some(_), _) => Err(PyValueError::new_err("zmq_topic is given without zmq_endpoint")),
            (None, Some(_)) => Err(PyValueError::new_err("zmq_replay_endpoint is given without zmq_endpoint")),
            (None, None) => Ok(None),
        };
    };
    let parsed = |text: &str, name: &str| {
        text.parse::<zmtp::Endpoint>().map_err(|error| PyValueError::new_err(format!("{name} is {text:?}: {error}")))
    };
    let block_size = BlockSize::new(options.kv_block_size).ok_or_else(|| PyValueError::new_err("kv_block_size is 0"))?;
    let events = EventSource::Connect(parsed(endpoint, "zmq_endpoint")?);
    Ok(Some(RelaySource {
        replay: replay.map(|replay| parsed(replay, "zmq_replay_endpoint")).transpose()?,
        topic: topic.unwrap_or_default().to_owned(),
        ..RelaySource::new(endpoint, events, block_size, options.dp_rank)
    }))
}

fn publish_error(error: PublishError) -> PyErr {
    match error {
        PublishError::Call(CallError::Full(_)) | PublishError::Closed => PyRuntimeError::new_err(error.to_string()),
        PublishError::Call(_) => PyValueError::new_err(error.to_string()),
    }
}

/// The older API's number of an event.
fn unused_event_id(event_id: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let Some(id) = event_id else { return Ok(()) };
    number::<u64>(id, "event_id")?;
    once::EVENT_ID.warn(id.py())
}

/// The adapter's name. One known by the older API's number only gets a name that no request has: never the base model's (rule 13).
fn adapter(name: Option<String>, number: Option<&Bound<'_, PyAny>>) -> PyResult<Option<String>> {
    let Some(given) = number else { return Ok(name) };
    let number: u32 = crate::numbers::number(given, "lora_id")?;
    once::LORA_ID.warn(given.py())?;
    Ok(name.or_else(|| (number != 0).then(|| feed::unnamed_adapter(number.into()))))
}

/// What lies in each block beside text: `None` or `{"mm_objects": [{"mm_hash": int, "offsets": [(start, end), ...]}, ...]}`.
fn media(infos: &Bound<'_, PyAny>) -> PyResult<Vec<Option<MediaInfo>>> {
    const NAME: &str = "block_mm_infos";
    let list = infos.cast::<PyList>().map_err(|_| PyTypeError::new_err(format!("{NAME} is a {}: expected a list", type_name(infos))))?;
    list.iter()
        .enumerate()
        .map(|(at, info)| if info.is_none() { Ok(None) } else { block(&info, &format!("{NAME}[{at}]")).map(Some) })
        .collect()
}

fn block(info: &Bound<'_, PyAny>, name: &str) -> PyResult<MediaInfo> {
    let wrong = |what: &str| PyTypeError::new_err(format!("{name}{what}"));
    let info = info.cast::<PyDict>().map_err(|_| wrong(" is neither None nor a dict"))?;
    let objects = info.get_item("mm_objects")?.ok_or_else(|| PyValueError::new_err(format!("{name} has no \"mm_objects\"")))?;
    let objects = objects.cast::<PyList>().map_err(|_| wrong("[\"mm_objects\"] is no list"))?;
    let object = |(at, object): (usize, Bound<'_, PyAny>)| {
        let name = format!("{name}[\"mm_objects\"][{at}]");
        let object = object.cast::<PyDict>().map_err(|_| PyTypeError::new_err(format!("{name} is no dict")))?;
        let hash = object.get_item("mm_hash")?.ok_or_else(|| PyValueError::new_err(format!("{name} has no \"mm_hash\"")))?;
        let offsets = match object.get_item("offsets")? {
            Some(offsets) if !offsets.is_none() => offsets
                .extract::<Vec<(u64, u64)>>()
                .map_err(|_| PyTypeError::new_err(format!("{name}[\"offsets\"] is no list of pairs of tokens")))?,
            Some(_) | None => Vec::new(),
        };
        Ok(MediaObject { hash: number::<Hash>(&hash, &format!("{name}[\"mm_hash\"]"))?.0, offsets })
    };
    Ok(MediaInfo { objects: objects.iter().enumerate().map(object).collect::<PyResult<_>>()? })
}
