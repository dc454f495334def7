//! Workers that take token ids and play a script. Each lives on a runtime of its own, so that it can die like a process.

use std::{
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use transport::discovery::{Backend, Registration};
use wire::{
    discovery::WorkerType,
    generate::{EngineOutput, EngineUsage, FinishReason, GenerateRequest},
    request::TypedError,
};
use worker::{Context, Failure, ModelSpec, Outputs, Runtime, RuntimeConfig, Served};

use super::Place;

/// Tokenizer and configuration; no weights are needed.
pub(super) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/tiny-llama");
/// What a worker answers.
pub(super) type Script = Arc<dyn Fn(GenerateRequest, Context) -> Outputs + Send + Sync>;

/// What a worker is.
pub(super) struct Setup {
    pub(super) spec: ModelSpec,
    pub(super) component: &'static str,
    pub(super) script: Script,
}

impl Setup {
    pub(super) fn new(script: Script) -> Self {
        Self { spec: spec(), component: "backend", script }
    }

    pub(super) fn of_type(self, kind: WorkerType) -> Self {
        let component = if kind == WorkerType::Prefill { "prefill" } else { "backend" };
        Self { spec: self.spec.of_type(kind), component, ..self }
    }
}

/// The model of these workers.
pub(super) fn spec() -> ModelSpec {
    let mut spec = ModelSpec::new("tiny", 16).in_folder(Path::new(MODEL)).unwrap();
    spec.publishes_kv_events = false;
    spec
}

/// A worker.
pub(super) struct Worker {
    pub(super) id: String,
    seen: Arc<Mutex<Vec<GenerateRequest>>>,
    ids: Arc<Mutex<Vec<String>>>,
    /// `None` once it is dead.
    life: Option<Life>,
}

struct Life {
    runtime: tokio::runtime::Runtime,
    served: Option<Served>,
    _card: Registration,
    _process: Runtime,
}

impl Worker {
    pub(super) async fn start(place: &Place, setup: Setup) -> Self {
        let backend = Backend::File { root: place.0.path().to_owned() };
        tokio::task::spawn_blocking(move || Self::make(backend, setup)).await.unwrap()
    }

    fn make(backend: Backend, setup: Setup) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (seen, ids) = (Arc::<Mutex<Vec<GenerateRequest>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (kept, named, script) = (seen.clone(), ids.clone(), setup.script);
        let (process, served, card) = runtime.block_on(async {
            let process = Runtime::start(RuntimeConfig::local(backend)).await.unwrap();
            let endpoint = process.component(setup.component).endpoint("generate");
            let handler = move |request: GenerateRequest, context: Context| {
                kept.lock().push(request.clone());
                named.lock().push(context.id.clone());
                script(request, context)
            };
            let served = endpoint.serve_generate(handler).unwrap();
            let card = endpoint.register_model(&setup.spec);
            card.held().await.unwrap();
            (process, served, card)
        });
        let id = process.instance_id().to_string();
        Self { id, seen, ids, life: Some(Life { runtime, served: Some(served), _card: card, _process: process }) }
    }

    /// What it was asked so far.
    pub(super) fn seen(&self) -> Vec<GenerateRequest> {
        self.seen.lock().clone()
    }

    /// What it was told to call them.
    pub(super) fn ids(&self) -> Vec<String> {
        self.ids.lock().clone()
    }

    /// It dies: its sockets close, and its records stay until they run out.
    pub(super) fn kill(&mut self) {
        if let Some(life) = self.life.take() {
            let Life { runtime, served, _card, _process } = life;
            // Whatever would withdraw it in good form has no thread to run on any more.
            runtime.shutdown_background();
            std::mem::forget((served, _card, _process));
        }
    }

    /// Discovery has no record of it any more; what runs there finishes.
    pub(super) async fn leave(&mut self) {
        let life = self.life.as_mut().unwrap();
        let served = life.served.take().unwrap();
        life.runtime.spawn(async move { served.withdraw().await });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(Life { runtime, .. }) = self.life.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) fn output(token_ids: Vec<u32>, finish_reason: Option<FinishReason>) -> EngineOutput {
    EngineOutput { token_ids, finish_reason, ..EngineOutput::default() }
}

/// Counts on from the prompt's last token, one token a permit, up to what was asked for.
pub(super) fn counting(permits: Arc<Semaphore>) -> Script {
    Arc::new(move |request, _| boxed(count(request, permits.clone())))
}

/// The same without waiting.
pub(super) fn quick() -> Script {
    counting(Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)))
}

fn count(request: GenerateRequest, permits: Arc<Semaphore>) -> impl Stream<Item = Result<EngineOutput, TypedError>> + Send {
    let (last, prompt) = (request.token_ids.last().copied().unwrap_or(0), request.token_ids.len() as u32);
    let most = request.stop_conditions.max_tokens.unwrap_or(16);
    stream::unfold(0, move |done| {
        let permits = permits.clone();
        async move {
            if done > most {
                return None;
            }
            if done == most {
                return Some((Ok(output(Vec::new(), Some(FinishReason::Length))), done + 1));
            }
            permits.acquire().await.unwrap().forget();
            let mut output = output(vec![last + 1 + done], None);
            if done == 0 {
                output.completion_usage =
                    Some(EngineUsage { prompt_tokens: prompt, completion_tokens: 1, total_tokens: prompt + 1, cached_tokens: Some(0) });
            }
            Some((Ok(output), done + 1))
        }
    })
}

/// Fails before the first token.
pub(super) fn failing(failure: Failure, message: &'static str) -> Script {
    Arc::new(move |_, _| boxed(stream::iter([Err(failure.error(message))])))
}

/// Fails the first time, and then does as it should.
pub(super) fn failing_once(failure: Failure) -> Script {
    let (first, good) = (AtomicBool::new(true), quick());
    let bad = failing(failure, "not now");
    Arc::new(move |request, context| if first.swap(false, Ordering::Relaxed) { bad(request, context) } else { good(request, context) })
}

/// Tells one token and then this error.
pub(super) fn failing_later(failure: Failure) -> Script {
    Arc::new(move |request, _| {
        let next = request.token_ids.last().copied().unwrap_or(0) + 1;
        boxed(stream::iter([Ok(output(vec![next], None)), Err(failure.error("later"))]))
    })
}

/// Tells these tokens and never anything more.
pub(super) fn falling_silent(tokens: u32) -> Script {
    Arc::new(move |request, _| {
        let last = request.token_ids.last().copied().unwrap_or(0);
        boxed(stream::iter((1..=tokens).map(move |more| Ok(output(vec![last + more], None)))).chain(stream::pending()))
    })
}

/// Tells tokens until it is stopped, and says so.
pub(super) fn endless(stopped: CancellationToken) -> Script {
    Arc::new(move |_, _| {
        let guard = stopped.clone().drop_guard();
        boxed(stream::repeat_with(move || {
            let _at_work = &guard;
            Ok(output(vec![7; 64], None))
        }))
    })
}

/// Tells these outputs, whatever is asked.
pub(super) fn telling(outputs: Vec<EngineOutput>) -> Script {
    Arc::new(move |_, _| boxed(stream::iter(outputs.clone().into_iter().map(Ok))))
}

pub(super) fn boxed(outputs: impl Stream<Item = Result<EngineOutput, TypedError>> + Send + 'static) -> Outputs {
    let outputs: Pin<Box<_>> = Box::pin(outputs);
    outputs
}
