//! A process on the planes, its components and endpoints, as Python has them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyRuntimeError, PyTypeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use transport::discovery::Registration;
use worker::{FlagError, PlaneFlags, Runtime, RuntimeConfig, RuntimeError, Served};

use crate::{
    bell, host,
    host::{Leaves, Own},
    log,
    numbers::{seconds, text, type_name},
    once,
};

/// The component unless told.
pub(crate) const COMPONENT: &str = "backend";
/// The endpoint that generates.
pub(crate) const GENERATE: &str = "generate";

/// What Python objects of one process on the planes share.
#[derive(Debug)]
pub(crate) struct Planes {
    pub(crate) runtime: Runtime,
    pub(crate) namespace: String,
    /// What it serves; taken by the shutdown.
    pub(crate) serving: Mutex<Option<Serving>>,
    closed: AtomicBool,
}

/// An endpoint with its model.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) served: Served,
    pub(crate) model: Registration,
}

/// Served endpoints are there until they are shut down, whether or not anybody keeps what `register_model` returned. Held for a look,
/// with the GIL held.
static KEPT: Mutex<Vec<Own<Arc<Planes>>>> = Mutex::new(Vec::new());

impl Planes {
    /// Takes part from now on.
    pub(crate) fn start(py: Python<'_>, flags: Option<&Bound<'_, PyDict>>) -> PyResult<Arc<Self>> {
        let planes = host::wait(py, Self::begin(config(flags)?))??;
        planes.remember();
        Ok(planes)
    }

    /// The same, on the runtime.
    pub(crate) async fn begin(config: RuntimeConfig) -> PyResult<Arc<Self>> {
        log::start();
        let namespace = config.namespace.clone();
        let runtime = Runtime::start(config).await.map_err(|error| runtime_error(&error))?;
        Ok(Arc::new(Self { runtime, namespace, serving: Mutex::new(None), closed: AtomicBool::new(false) }))
    }

    fn remember(self: &Arc<Self>) {
        let leaves: Arc<dyn Leaves> = self.clone();
        host::remember(Arc::downgrade(&leaves));
    }

    /// Keeps it until its shutdown.
    pub(crate) fn keep(self: &Arc<Self>) {
        self.remember();
        KEPT.lock().push(Own::new(self.clone()));
    }

    fn let_go(self: &Arc<Self>) {
        KEPT.lock().retain(|kept| kept.here().is_some_and(|kept| !Arc::ptr_eq(kept, self)));
    }

    async fn shutdown(&self, within: Duration) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let serving = self.serving.lock().take();
        let Some(Serving { served, model }) = serving else { return self.runtime.shutdown(within).await };
        // Routers are told first; the endpoint itself answers until the runtime has drained.
        model.withdraw().await;
        self.runtime.shutdown(within).await;
        drop(served);
    }
}

impl Leaves for Planes {
    fn leave(&self, within: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.shutdown(within / 2))
    }
}

/// The flags a dict names, and `DYN_*` for the rest.
pub(crate) fn config(given: Option<&Bound<'_, PyDict>>) -> PyResult<RuntimeConfig> {
    let mut flags = PlaneFlags::default();
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        let slot = match &*name {
            "namespace" => &mut flags.namespace,
            "discovery_backend" => &mut flags.discovery_backend,
            "file_kv" => &mut flags.file_kv,
            "etcd_endpoints" => &mut flags.etcd_endpoints,
            "event_plane" => &mut flags.event_plane,
            "request_plane" => &mut flags.request_plane,
            "nats_server" => &mut flags.nats_server,
            "event_plane_host" => &mut flags.event_plane_host,
            "tcp_rpc_host" => &mut flags.tcp_rpc_host,
            "tcp_rpc_port" => &mut flags.tcp_rpc_port,
            _ => return Err(PyTypeError::new_err(format!("{name} is no argument of it"))),
        };
        if value.is_none() {
            continue;
        }
        let is_port = name == "tcp_rpc_port";
        let text = value.extract::<String>().or_else(|_| match is_port {
            true => value.str().map(|text| text.to_string()),
            false => Err(PyTypeError::new_err(format!("{name} is a {}: expected a str", type_name(&value)))),
        })?;
        *slot = Some(text);
    }
    RuntimeConfig::check_env().map_err(|error| PyValueError::new_err(error.to_string()))?;
    flags.config(|name| std::env::var(name).ok()).map_err(|error| flag_error(&error))
}

/// Named as Python names it, or by the variable.
fn flag_error(error: &FlagError) -> PyErr {
    let FlagError { name, value, allowed } = error;
    let name = match name.strip_prefix("--") {
        Some(flag) => flag.replace('-', "_"),
        None => name.clone(),
    };
    PyValueError::new_err(format!("{name}={value}: {allowed}"))
}

pub(crate) fn runtime_error(error: &RuntimeError) -> PyErr {
    match error {
        RuntimeError::Discovery(_) | RuntimeError::Nats(_) => PyValueError::new_err(error.to_string()),
        RuntimeError::Listen { .. } | RuntimeError::Down => PyRuntimeError::new_err(error.to_string()),
    }
}

/// A process on the planes.
#[pyclass(frozen, name = "Runtime", module = "dynamo.llm")]
pub(crate) struct PyRuntime(Own<Arc<Planes>>);

/// A group of workers that do the same, as this process is one.
#[pyclass(frozen, name = "Component", module = "dynamo.llm")]
pub(crate) struct PyComponent {
    planes: Own<Arc<Planes>>,
    namespace: String,
    name: String,
}

/// An endpoint of a component.
#[pyclass(frozen, name = "Endpoint", module = "dynamo.llm")]
pub(crate) struct PyEndpoint {
    pub(crate) planes: Own<Arc<Planes>>,
    pub(crate) endpoint: Own<worker::Endpoint>,
}

impl PyRuntime {
    pub(crate) fn planes(&self) -> PyResult<&Arc<Planes>> {
        self.0.get("Runtime")
    }
}

#[pymethods]
impl PyRuntime {
    #[new]
    #[pyo3(signature = (**planes))]
    fn new(py: Python<'_>, planes: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Ok(Self(Own::new(Planes::start(py, planes)?)))
    }

    #[pyo3(signature = (name = None, *, namespace = None))]
    fn component(&self, name: Option<&Bound<'_, PyAny>>, namespace: Option<&Bound<'_, PyAny>>) -> PyResult<PyComponent> {
        let planes = self.0.get("Runtime")?;
        let name = text(name, "name")?.unwrap_or_else(|| COMPONENT.to_owned());
        named(&name, "name")?;
        let namespace = text(namespace, "namespace")?.unwrap_or_else(|| planes.namespace.clone());
        named(&namespace, "namespace")?;
        Ok(PyComponent::new(planes, &namespace, &name))
    }

    #[getter]
    fn instance_id(&self) -> PyResult<u64> {
        Ok(self.0.get("Runtime")?.runtime.instance_id())
    }

    #[getter]
    fn namespace(&self) -> PyResult<&str> {
        Ok(&self.0.get("Runtime")?.namespace)
    }

    fn health<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let planes = PyDict::new(py);
        for (name, health) in self.0.get("Runtime")?.runtime.health() {
            planes.set_item(name, health.stale_since.map(|_| health.reason))?;
        }
        Ok(planes)
    }

    #[pyo3(signature = (timeout = None))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let planes = self.0.get("Runtime")?;
        let within = seconds(timeout, 5.0, "timeout")?;
        planes.let_go();
        host::wait(py, planes.shutdown(within))
    }
}

impl PyComponent {
    pub(crate) fn planes(&self) -> PyResult<&Arc<Planes>> {
        self.planes.get("Component")
    }

    /// Its namespace and its own name.
    pub(crate) fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    pub(crate) fn new(planes: &Arc<Planes>, namespace: &str, name: &str) -> Self {
        Self { planes: Own::new(planes.clone()), namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[pymethods]
impl PyComponent {
    #[pyo3(signature = (name = None))]
    fn endpoint(&self, name: Option<&Bound<'_, PyAny>>) -> PyResult<PyEndpoint> {
        let planes = self.planes.get("Component")?;
        let name = text(name, "name")?.unwrap_or_else(|| GENERATE.to_owned());
        named(&name, "name")?;
        let endpoint = planes.runtime.namespace(&*self.namespace).component(&*self.name).endpoint(name);
        Ok(PyEndpoint::new(planes, endpoint))
    }

    #[getter]
    fn instance_id(&self) -> PyResult<u64> {
        Ok(self.planes.get("Component")?.runtime.instance_id())
    }

    #[getter]
    fn namespace(&self) -> &str {
        &self.namespace
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn __repr__(&self) -> String {
        format!("Component({}/{})", self.namespace, self.name)
    }
}

impl PyEndpoint {
    pub(crate) fn new(planes: &Arc<Planes>, endpoint: worker::Endpoint) -> Self {
        Self { planes: Own::new(planes.clone()), endpoint: Own::new(endpoint) }
    }
}

#[pymethods]
impl PyEndpoint {
    #[getter]
    fn instance_id(&self) -> PyResult<u64> {
        Ok(self.planes.get("Endpoint")?.runtime.instance_id())
    }

    /// The older name of `instance_id`.
    fn connection_id(&self, py: Python<'_>) -> PyResult<u64> {
        once::CONNECTION_ID.warn(py)?;
        self.instance_id()
    }

    #[getter]
    fn path(&self) -> PyResult<String> {
        let id = self.endpoint.get("Endpoint")?.id();
        Ok(format!("{}/{}/{}", id.namespace, id.component, id.endpoint))
    }

    /// Withdraws the model and the endpoint, lets running requests finish, and closes the planes.
    #[pyo3(signature = (timeout = None))]
    fn shutdown<'py>(&self, py: Python<'py>, timeout: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let planes = self.planes.get("Endpoint")?.clone();
        let within = seconds(timeout, 30.0, "timeout")?;
        planes.let_go();
        let work = async move {
            planes.shutdown(within).await;
            Ok(())
        };
        bell::future(py, work, |py, ()| Ok(py.None()))
    }

    fn __repr__(&self) -> String {
        self.path().map_or_else(|_| "Endpoint(of another process)".to_owned(), |path| format!("Endpoint({path})"))
    }
}

/// The endpoint whose blocks a publisher publishes: of a component, the one that generates.
pub(crate) fn endpoint_of(value: &Bound<'_, PyAny>, name: &str) -> PyResult<(Arc<Planes>, worker::Endpoint)> {
    if let Ok(component) = value.cast::<PyComponent>() {
        let endpoint = component.get().endpoint(None)?;
        return Ok((endpoint.planes.get("Component")?.clone(), endpoint.endpoint.get("Component")?.clone()));
    }
    match value.cast::<PyEndpoint>() {
        Ok(endpoint) => {
            let endpoint = endpoint.get();
            Ok((endpoint.planes.get("Endpoint")?.clone(), endpoint.endpoint.get("Endpoint")?.clone()))
        }
        Err(_) => Err(PyTypeError::new_err(format!(
            "{name} is a {}: expected the Component or the Endpoint that register_model or Runtime.component gave",
            type_name(value)
        ))),
    }
}

/// A part of a key.
pub(crate) fn named(text: &str, name: &str) -> PyResult<()> {
    if text.is_empty() || text.contains('/') {
        return Err(PyValueError::new_err(format!("{name} is {text:?}: expected a name without slashes")));
    }
    Ok(())
}
