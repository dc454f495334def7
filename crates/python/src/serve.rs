//! Serving generation with a Python async generator: requests go to its asyncio loop, what it yields comes back.
//!
//! [`register`] puts an endpoint and a model card on the planes. For each request the loop runs `begin`, which is
//! `dynamo.llm._serve`'s: it gives the request to the generator and what that yields to the request's [`Sink`].

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyRuntimeError, PyTypeError, PyValueError},
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyDict, PyModule},
};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use wire::{
    generate::{Annotated, EngineOutput, GenerateRequest},
    request::{Codec, TypedError},
};
use worker::{Failure, ModelInput, ModelSpec};

use crate::{
    bell::{self, Loop, Rope},
    numbers::{Numbers, number, type_name},
    planes::{Planes, PyComponent, PyEndpoint, Serving, config, named},
    spec,
};

/// Outputs of one request that wait for the asker; the generator then waits, too.
const OUTPUTS: usize = 64;

/// What a generator knows of a request beside its body.
#[pyclass(frozen, name = "Context", module = "dynamo.llm")]
pub(crate) struct PyContext {
    id: String,
    headers: Vec<(String, String)>,
    stopped: CancellationToken,
}

#[pymethods]
impl PyContext {
    fn id(&self) -> &str {
        &self.id
    }

    #[getter]
    fn headers(&self) -> Vec<(String, String)> {
        self.headers.clone()
    }

    fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    fn is_killed(&self) -> bool {
        self.stopped.is_cancelled()
    }

    fn async_killed_or_stopped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stopped = self.stopped.clone();
        bell::future(
            py,
            async move {
                stopped.cancelled().await;
                Ok(true)
            },
            |_, stopped| Ok(stopped),
        )
    }
}

/// Where the outputs of one request go.
#[pyclass(frozen, name = "Sink", module = "dynamo.llm")]
pub(crate) struct Sink {
    /// Taken at the end. Held for a send.
    to: Mutex<Option<mpsc::Sender<Result<Output, TypedError>>>>,
    takes: ModelInput,
}

/// What a generator yields: tokens, or one of OpenAI's chunks.
enum Output {
    Tokens(Box<EngineOutput>),
    Chunk(Value),
}

#[pymethods]
impl Sink {
    /// Takes an output: whether it is the last, and a future to be waited for where the asker reads more slowly.
    fn push<'py>(&self, py: Python<'py>, output: &Bound<'py, PyAny>) -> PyResult<(bool, Option<Bound<'py, PyAny>>)> {
        let (output, is_last) = match self.takes {
            ModelInput::Tokens => {
                let output = engine_output(output)?;
                let is_last = output.finish_reason.is_some();
                (Output::Tokens(Box::new(output)), is_last)
            }
            // Whoever makes the chunks knows the last.
            ModelInput::Text => (Output::Chunk(json(output)?), false),
        };
        let Some(to) = self.to.lock().clone() else { return Ok((true, None)) };
        match to.try_send(Ok(output)) {
            Ok(()) => Ok((is_last, None)),
            // Nobody reads any more; the cancellation is on its way.
            Err(mpsc::error::TrySendError::Closed(_)) => Ok((true, None)),
            Err(mpsc::error::TrySendError::Full(output)) => {
                let sent = bell::future(py, async move { Ok(to.send(output).await.is_ok()) }, |_, sent| Ok(sent))?;
                Ok((is_last, Some(sent)))
            }
        }
    }

    /// It is over.
    fn end(&self) {
        self.to.lock().take();
    }

    /// It is over, with an error of this kind: one of those that `failure` knows.
    fn fail<'py>(&self, py: Python<'py>, kind: &str, message: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = failure(kind)?.error(message);
        let Some(to) = self.to.lock().take() else { return Ok(None) };
        match to.try_send(Err(error)) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(None),
            Err(mpsc::error::TrySendError::Full(error)) => {
                bell::future(py, async move { Ok(to.send(error).await.is_ok()) }, |_, sent| Ok(sent)).map(Some)
            }
        }
    }
}

fn failure(kind: &str) -> PyResult<Failure> {
    Ok(match kind {
        "invalid_argument" => Failure::InvalidArgument,
        "overloaded" => Failure::Overloaded,
        "unavailable" => Failure::Unavailable,
        "shutdown" => Failure::Shutdown,
        "internal" => Failure::Internal,
        _ => return Err(PyValueError::new_err(format!("kind is {kind:?}, which is not known"))),
    })
}

/// What a generator yields. Tokens are read as they lie; what is rarer goes the way of a body in JSON, whose reader names what is wrong.
fn engine_output(value: &Bound<'_, PyAny>) -> PyResult<EngineOutput> {
    let dict = value
        .cast::<PyDict>()
        .map_err(|_| PyTypeError::new_err(format!("the generator yielded a {}: expected a dict", type_name(value))))?;
    let (mut tokens, mut text, mut index) = (Vec::new(), None, None);
    let rest = PyDict::new(value.py());
    for (key, value) in dict {
        if value.is_none() {
            continue;
        }
        match key.extract::<&str>()? {
            "token_ids" => tokens = Numbers::<u32>::of(&value, "token_ids")?.read()?,
            "text" => text = Some(value.extract::<String>().map_err(|_| PyTypeError::new_err("text is no str"))?),
            "index" => index = Some(number(&value, "index")?),
            _ => rest.set_item(key, value)?,
        }
    }
    let mut output = if rest.is_empty() { EngineOutput::default() } else { rare(&rest)? };
    (output.token_ids, output.text, output.index) = (tokens, text, index);
    Ok(output)
}

fn rare(fields: &Bound<'_, PyDict>) -> PyResult<EngineOutput> {
    let item = PyDict::new(fields.py());
    item.set_item("data", fields)?;
    match Annotated::decode(dumped(&item)?.as_bytes(), Codec::Json) {
        Ok(Annotated::Output(output)) => Ok(*output),
        Ok(Annotated::Event { name, .. }) => Err(PyTypeError::new_err(format!("the generator yielded an event {name}"))),
        Err(error) => Err(PyTypeError::new_err(format!("the generator yielded a dict that is no output: {error}"))),
    }
}

fn dumped(value: &Bound<'_, PyAny>) -> PyResult<String> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let dumps = DUMPS.get_or_try_init(py, || Ok::<_, PyErr>(PyModule::import(py, "json")?.getattr("dumps")?.unbind()))?;
    dumps.bind(py).call1((value,))?.extract()
}

fn json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    serde_json::from_str(&dumped(value)?).map_err(|error| PyTypeError::new_err(format!("the generator yielded no JSON: {error}")))
}

/// The Python side of an endpoint.
struct Generator {
    rope: Arc<Rope>,
    /// `begin(body, context, sink)` gives the task that answers.
    begin: Arc<Py<PyAny>>,
}

/// One request on the loop. Dropping it cancels its task.
struct Answering {
    rope: Arc<Rope>,
    /// Set once the loop has begun it. Held for a look.
    task: Arc<Mutex<Option<Py<PyAny>>>>,
    outputs: mpsc::Receiver<Result<Output, TypedError>>,
    /// What the generator's context says.
    stopped: CancellationToken,
    is_over: bool,
}

impl Generator {
    fn begin(&self, body: Bytes, takes: ModelInput, context: worker::Context) -> Result<Answering, TypedError> {
        let (to, outputs) = mpsc::channel(OUTPUTS);
        let task = Arc::new(Mutex::new(None));
        let answering =
            Answering { rope: self.rope.clone(), task: task.clone(), outputs, stopped: context.cancelled.clone(), is_over: false };
        let begin = self.begin.clone();
        let begun = self.rope.send(Box::new(move |py| {
            if context.cancelled.is_cancelled() {
                return Ok(());
            }
            let context = PyContext { id: context.id, headers: context.headers, stopped: context.cancelled };
            let sink = Sink { to: Mutex::new(Some(to)), takes };
            let made = begin.bind(py).call1((PyBytes::new(py, &body), context, sink))?;
            *task.lock() = Some(made.unbind());
            Ok(())
        }));
        begun.map_err(|_| Failure::Shutdown.error("the worker's event loop has ended")).map(|()| answering)
    }
}

impl worker::GenerateHandler for Generator {
    fn generate(&self, request: GenerateRequest, context: worker::Context) -> worker::Outputs {
        match self.begin(request.encode(Codec::Json), ModelInput::Tokens, context) {
            Ok(answering) => Box::pin(answering.into_outputs().filter_map(async |output| match output {
                Ok(Output::Tokens(output)) => Some(Ok(*output)),
                Ok(Output::Chunk(_)) => None,
                Err(error) => Some(Err(error)),
            })),
            Err(error) => Box::pin(stream::iter([Err(error)])),
        }
    }
}

impl worker::TextHandler for Generator {
    fn answer(&self, request: Value, context: worker::Context) -> worker::Chunks {
        match self.begin(request.to_string().into(), ModelInput::Text, context) {
            Ok(answering) => Box::pin(answering.into_outputs().filter_map(async |output| match output {
                Ok(Output::Chunk(chunk)) => Some(Ok(chunk)),
                Ok(Output::Tokens(_)) => None,
                Err(error) => Some(Err(error)),
            })),
            Err(error) => Box::pin(stream::iter([Err(error)])),
        }
    }
}

impl Answering {
    fn finish(mut self) {
        self.is_over = true;
    }

    fn into_outputs(self) -> impl Stream<Item = Result<Output, TypedError>> + Send {
        stream::unfold(self, |mut answering| async move {
            match answering.outputs.recv().await {
                Some(output) => Some((output, answering)),
                None => {
                    answering.finish();
                    None
                }
            }
        })
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // A generator that is cancelled finds its context saying so.
        self.stopped.cancel();
        let task = self.task.clone();
        // After the request has begun there, as errands are done in order. A loop that has ended has nothing to cancel.
        let _ = self.rope.send(Box::new(move |py| match task.lock().take() {
            Some(task) => task.bind(py).call_method0("cancel").map(drop),
            None => Ok(()),
        }));
    }
}

/// Registers a model and serves it, as `register_model` says. Gives a future of its component and its endpoint.
#[pyfunction]
#[pyo3(signature = (begin, model, options, planes))]
pub(crate) fn register<'py>(
    py: Python<'py>,
    begin: Bound<'py, PyAny>,
    model: &str,
    options: &Bound<'py, PyDict>,
    planes: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let here = Loop::here(py)?;
    let names = spec::names(options)?;
    named(&names.component, "component")?;
    named(&names.endpoint, "endpoint")?;
    let (spec, folder) = spec::of(model, options)?;
    let config = config(Some(planes))?;
    let generator = Generator { rope: here.rope().clone(), begin: Arc::new(begin.unbind()) };
    let work = async move {
        let spec = match folder {
            Some(folder) => tokio::task::spawn_blocking(move || spec.in_folder(&folder)).await.map_err(|_| failed("reading the model"))?,
            None => Ok(ModelSpec { input: ModelInput::Text, ..spec }),
        };
        let spec = spec.map_err(|error| PyValueError::new_err(format!("model: {error}")))?;
        let planes = Planes::begin(config).await?;
        let component = planes.runtime.component(&*names.component);
        let endpoint = component.endpoint(&*names.endpoint);
        let served = match spec.input {
            ModelInput::Tokens => endpoint.serve_generate(generator),
            ModelInput::Text => endpoint.serve_text(generator),
        };
        let served = served.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let model = endpoint.register_model(&spec);
        *planes.serving.lock() = Some(Serving { served, model });
        Ok((planes, endpoint))
    };
    bell::future(py, work, |_, (planes, endpoint)| {
        planes.keep();
        let id = endpoint.id();
        let component = PyComponent::new(&planes, &id.namespace, &id.component);
        Ok((component, PyEndpoint::new(&planes, endpoint.clone())))
    })
}

fn failed(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{what} failed"))
}
