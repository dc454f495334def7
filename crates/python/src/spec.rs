//! What Python says of a model, as a card takes it.

use std::path::PathBuf;

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyModule},
};
use wire::discovery::{ModelType, WorkerType};
use worker::ModelSpec;

use crate::numbers::{flag, number, positive, text};

/// Where a model is served.
pub(crate) struct Names {
    pub(crate) component: String,
    pub(crate) endpoint: String,
}

/// Its component and its endpoint.
pub(crate) fn names(options: &Bound<'_, PyDict>) -> PyResult<Names> {
    let given = |name: &str| {
        text(options.get_item(name)?.as_ref(), name)?.ok_or_else(|| PyTypeError::new_err(format!("{name} is None: expected a str")))
    };
    Ok(Names { component: given("component")?, endpoint: given("endpoint")? })
}

/// A model by its options, and its folder, which has not been read yet; none for a bare name.
pub(crate) fn of(model: &str, options: &Bound<'_, PyDict>) -> PyResult<(ModelSpec, Option<PathBuf>)> {
    if model.is_empty() {
        return Err(PyValueError::new_err("model is empty: expected a name or the folder of a model"));
    }
    let path = PathBuf::from(model);
    let folder = path.is_dir().then_some(path);
    let last = folder.as_ref().and_then(|folder| Some(folder.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned()));
    let given = Given(options);
    let name = given.text("model_name")?.or(last).unwrap_or_else(|| model.to_owned());
    let block_size = given.value("kv_block_size")?.map(|size| positive(&size, "kv_block_size")).transpose()?;
    let mut spec = ModelSpec::new(name, block_size.unwrap_or(16));
    let worker_type = match given.text("worker_type")?.as_deref() {
        None | Some("aggregated") => WorkerType::Aggregated,
        Some("prefill") => WorkerType::Prefill,
        Some("decode") => WorkerType::Decode,
        Some(other) => {
            return Err(PyValueError::new_err(format!("worker_type is {other:?}: expected \"aggregated\", \"prefill\" or \"decode\"")));
        }
    };
    spec = spec.of_type(worker_type);
    if folder.is_none() && worker_type.answers() {
        spec.kinds = vec![ModelType::Chat, ModelType::Completions];
    }
    spec.context_length = given.number("context_length")?.unwrap_or(0);
    spec.migration_limit = given.number("migration_limit")?.unwrap_or(0);
    spec.total_kv_blocks = given.large("total_kv_blocks")?;
    spec.max_num_seqs = given.large("max_num_seqs")?;
    spec.max_num_batched_tokens = given.large("max_num_batched_tokens")?;
    spec.dp_start = given.number("dp_start_rank")?.unwrap_or(0);
    spec.dp_size = given.value("dp_size")?.map(|size| positive(&size, "dp_size")).transpose()?.unwrap_or(1);
    spec.enable_local_indexer = given.flag("enable_local_indexer")?.unwrap_or(false);
    spec.publishes_kv_events = given.flag("publishes_kv_events")?.unwrap_or(true);
    spec.tool_call_parser = given.text("tool_call_parser")?;
    spec.reasoning_parser = given.text("reasoning_parser")?;
    spec.bootstrap = given.bootstrap()?;
    if let Some(data) = given.value("runtime_data")? {
        spec.runtime_data = runtime_data(&data)?;
    }
    Ok((spec, folder))
}

/// Options by name; `None` counts as not given.
struct Given<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Given<'_, 'py> {
    fn value(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    fn text(&self, name: &str) -> PyResult<Option<String>> {
        text(self.value(name)?.as_ref(), name)
    }

    fn flag(&self, name: &str) -> PyResult<Option<bool>> {
        flag(self.value(name)?.as_ref(), name)
    }

    fn number(&self, name: &str) -> PyResult<Option<u32>> {
        self.value(name)?.map(|value| number(&value, name)).transpose()
    }

    fn large(&self, name: &str) -> PyResult<Option<u64>> {
        self.value(name)?.map(|value| number(&value, name)).transpose()
    }

    fn bootstrap(&self) -> PyResult<Option<(String, u16)>> {
        let Some(value) = self.value("bootstrap")? else { return Ok(None) };
        value.extract().map(Some).map_err(|_| PyTypeError::new_err("bootstrap is no pair of a host and a port"))
    }
}

fn runtime_data(data: &Bound<'_, PyAny>) -> PyResult<serde_json::Map<String, serde_json::Value>> {
    let data = data.cast::<PyDict>().map_err(|_| PyTypeError::new_err("runtime_data is no dict"))?;
    let json: String = PyModule::import(data.py(), "json")?.call_method1("dumps", (data,))?.extract()?;
    serde_json::from_str(&json).map_err(|error| PyValueError::new_err(format!("runtime_data is no JSON object: {error}")))
}
