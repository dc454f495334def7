//! The other end: `KvIndexer`, an index of what every worker holds, and what `KvEventSubscriber` hears and asks for.

use std::{collections::BTreeMap, sync::Arc};

use index::BlockSize;
use pyo3::{
    exceptions::{PyRuntimeError, PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyList},
};
use wire::router::{KvData, RouterEvent};
use worker::{Followed, KvFollower, KvNotice, KvSubscriber, Recovered};

use crate::{
    bell, host,
    host::Own,
    numbers::{Hash, Prompt, number, positive, type_name},
    planes::{Planes, PyComponent, PyRuntime, runtime_error},
};

/// Whose events are followed: a component's, or those of a runtime's namespace.
fn followed(of: &Bound<'_, PyAny>) -> PyResult<(Arc<Planes>, Followed)> {
    if let Ok(component) = of.cast::<PyComponent>() {
        let component = component.get();
        let (namespace, name) = component.names();
        return Ok((component.planes()?.clone(), Followed { namespace: namespace.to_owned(), component: Some(name.to_owned()) }));
    }
    match of.cast::<PyRuntime>() {
        Ok(runtime) => {
            let planes = runtime.get().planes()?.clone();
            let namespace = planes.namespace.clone();
            Ok((planes, Followed { namespace, component: None }))
        }
        Err(_) => Err(PyTypeError::new_err(format!("component is a {}: expected a Component or a Runtime", type_name(of)))),
    }
}

/// An index of what every worker of a component holds.
#[pyclass(frozen, name = "KvIndexer", module = "dynamo.llm")]
pub(crate) struct PyIndexer {
    follower: Own<Arc<KvFollower>>,
    /// Keeps the process's planes.
    _planes: Own<Arc<Planes>>,
}

const INDEXER: &str = "KvIndexer";

#[pymethods]
impl PyIndexer {
    #[new]
    #[pyo3(signature = (component, kv_block_size))]
    fn new(py: Python<'_>, component: &Bound<'_, PyAny>, kv_block_size: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (planes, of) = followed(component)?;
        let block_size = BlockSize::new(positive(kv_block_size, "kv_block_size")?);
        let block_size = block_size.ok_or_else(|| PyValueError::new_err("kv_block_size is too large"))?;
        let follower = host::wait(py, KvFollower::start(&planes.runtime, of, block_size))?.map_err(|error| runtime_error(&error))?;
        Ok(Self { follower: Own::new(Arc::new(follower)), _planes: Own::new(planes) })
    }

    #[pyo3(signature = (token_ids, lora_name = None, *, cache_salt = None))]
    fn find_matches(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        lora_name: Option<&Bound<'_, PyAny>>,
        cache_salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BTreeMap<(u64, u32), u32>> {
        let follower = self.follower.get(INDEXER)?;
        Prompt::of(token_ids, lora_name, cache_salt)?.find(py, |ids, lora, salt| follower.find_matches(ids, lora, salt))
    }

    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let follower = self.follower.get(INDEXER)?;
        let workers = PyList::empty(py);
        for holder in follower.holders() {
            let shown = PyDict::new(py);
            shown.set_item("worker_id", holder.worker_id)?;
            shown.set_item("dp_rank", holder.dp_rank)?;
            shown.set_item("connected", holder.connected)?;
            shown.set_item("trust", holder.trust)?;
            shown.set_item("reason", holder.reason)?;
            shown.set_item("blocks", holder.blocks)?;
            shown.set_item("last_event_id", holder.last_event_id)?;
            workers.append(shown)?;
        }
        Ok(workers)
    }

    #[getter]
    fn blocks(&self) -> PyResult<usize> {
        Ok(self.follower.get(INDEXER)?.blocks())
    }

    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let follower = self.follower.get(INDEXER)?;
        host::wait(py, follower.stop())
    }
}

/// The native half of `KvEventSubscriber`.
#[pyclass(frozen, name = "Subscriber", module = "dynamo.llm")]
pub(crate) struct PySubscriber {
    subscriber: Own<Arc<KvSubscriber>>,
    /// Keeps the process's planes.
    _planes: Own<Arc<Planes>>,
}

const SUBSCRIBER: &str = "KvEventSubscriber";

#[pymethods]
impl PySubscriber {
    #[new]
    fn new(py: Python<'_>, component: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (planes, of) = followed(component)?;
        let subscriber = host::wait(py, KvSubscriber::start(&planes.runtime, of))?.map_err(|error| runtime_error(&error))?;
        Ok(Self { subscriber: Own::new(Arc::new(subscriber)), _planes: Own::new(planes) })
    }

    /// A future of the next notice, as keywords of a `KvEvent`; of `None` once there are no more.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let subscriber = self.subscriber.get(SUBSCRIBER)?.clone();
        bell::future(py, async move { Ok(subscriber.next().await) }, |py, notice| {
            notice.map(|notice| shown(py, &notice).map(Bound::unbind)).transpose()
        })
    }

    /// A future of whether all that was known is void, of the events as keywords of `KvEvent`s, and of the last one's id.
    fn recover<'py>(
        &self,
        py: Python<'py>,
        worker_id: &Bound<'py, PyAny>,
        dp_rank: &Bound<'py, PyAny>,
        start_event_id: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let subscriber = self.subscriber.get(SUBSCRIBER)?.clone();
        let worker_id = number::<Hash>(worker_id, "worker_id")?.0;
        let dp_rank = number::<u32>(dp_rank, "dp_rank")?;
        let start = start_event_id.map(|start| number::<u64>(start, "start_event_id")).transpose()?;
        let work = async move {
            let recovered = subscriber.recover(worker_id, dp_rank, start).await;
            recovered.map_err(|error| PyRuntimeError::new_err(error.to_string()))
        };
        bell::future(py, work, |py, (recovered, last)| {
            let (is_all, events) = match recovered {
                Recovered::Events(events) => (false, events),
                Recovered::Everything(events) => (true, events),
            };
            let events: Vec<_> = events.iter().map(|one| event(py, None, one).map(Bound::unbind)).collect::<PyResult<_>>()?;
            Ok((is_all, events, last))
        })
    }
}

fn shown<'py>(py: Python<'py>, notice: &KvNotice) -> PyResult<Bound<'py, PyDict>> {
    let (kind, worker_id, dp_rank, publisher_id) = match notice {
        KvNotice::Event { publisher_id, event: told } => return event(py, Some(*publisher_id), told),
        KvNotice::Connected { worker_id, dp_rank, publisher_id } => ("connected", worker_id, dp_rank, publisher_id),
        KvNotice::Missed { worker_id, dp_rank, publisher_id } => ("missed", worker_id, dp_rank, publisher_id),
        KvNotice::Gone { worker_id, dp_rank, publisher_id } => ("gone", worker_id, dp_rank, publisher_id),
    };
    let shown = PyDict::new(py);
    shown.set_item("kind", kind)?;
    shown.set_item("worker_id", worker_id)?;
    shown.set_item("dp_rank", dp_rank)?;
    shown.set_item("publisher_id", publisher_id)?;
    Ok(shown)
}

fn event<'py>(py: Python<'py>, publisher_id: Option<u64>, told: &RouterEvent) -> PyResult<Bound<'py, PyDict>> {
    let shown = PyDict::new(py);
    shown.set_item("worker_id", told.worker_id)?;
    shown.set_item("dp_rank", told.event.dp_rank)?;
    shown.set_item("publisher_id", publisher_id)?;
    shown.set_item("event_id", told.event.event_id)?;
    shown.set_item("tier", told.storage_tier.name())?;
    let kind = match &told.event.data {
        KvData::Stored(stored) => {
            shown.set_item("parent_hash", stored.parent_hash)?;
            shown.set_item("block_hashes", stored.blocks.iter().map(|block| block.block_hash).collect::<Vec<_>>())?;
            shown.set_item("tokens_hashes", stored.blocks.iter().map(|block| block.tokens_hash).collect::<Vec<_>>())?;
            "stored"
        }
        KvData::Removed(hashes) => {
            shown.set_item("block_hashes", hashes)?;
            "removed"
        }
        KvData::Cleared => "cleared",
    };
    shown.set_item("kind", kind)?;
    Ok(shown)
}
