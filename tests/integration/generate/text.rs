//! Workers that take text: they are sent what clients send, and their chunks are what clients get.

use std::{collections::HashSet, sync::Arc};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use transport::discovery::{Backend, Registration};
use wire::{discovery::ModelType, request::TypedError};
use worker::{Chunks, Context, Failure, ModelInput, ModelSpec, Runtime, RuntimeConfig, Served, TextHandler};

use super::{Place, chunks, up};
use crate::support::{PATIENCE, eventually, frontend::Frontend, http::Answer, seen};

type Script = Arc<dyn Fn(Value, Context) -> Chunks + Send + Sync>;

/// A worker that takes text and plays a script.
struct Worker {
    id: String,
    seen: Arc<Mutex<Vec<Value>>>,
    _held: (Served, Registration, Runtime),
}

struct Player {
    script: Script,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl TextHandler for Player {
    fn answer(&self, request: Value, context: Context) -> Chunks {
        self.seen.lock().push(request.clone());
        (self.script)(request, context)
    }
}

impl Worker {
    async fn start(place: &Place, script: Script) -> Self {
        Self::serving(place, script, &[ModelType::Chat, ModelType::Completions]).await
    }

    async fn serving(place: &Place, script: Script, kinds: &[ModelType]) -> Self {
        let process = Runtime::start(RuntimeConfig::local(Backend::File { root: place.0.path().to_owned() })).await.unwrap();
        let seen = Arc::<Mutex<Vec<Value>>>::default();
        let endpoint = process.component("backend").endpoint("generate");
        let served = endpoint.serve_text(Player { script, seen: seen.clone() }).unwrap();
        let spec = ModelSpec { input: ModelInput::Text, kinds: kinds.to_vec(), ..ModelSpec::new("bare", 16) };
        let card = endpoint.register_model(&spec);
        card.held().await.unwrap();
        Self { id: process.instance_id().to_string(), seen, _held: (served, card, process) }
    }

    fn seen(&self) -> Vec<Value> {
        self.seen.lock().clone()
    }
}

fn chunk(index: u32, text: &str, reason: Option<&str>) -> Value {
    json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "bare", "only_this_engine": true,
        "choices": [{"index": index, "text": text, "finish_reason": reason, "logprobs": null}]})
}

/// Says this, whatever is asked.
fn says(items: Vec<Result<Value, TypedError>>) -> Script {
    Arc::new(move |_, _| Box::pin(stream::iter(items.clone())))
}

fn hello() -> Script {
    let usage = json!({"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}});
    says(vec![Ok(chunk(0, "hel\nlo", None)), Ok(chunk(0, "!", Some("stop"))), Ok(usage)])
}

/// Says one chunk, waits for `go`, and says the last. Tells `stopped` when nobody wants it any more.
fn slow(go: CancellationToken, stopped: CancellationToken) -> Script {
    Arc::new(move |_, context| {
        let (go, stopped) = (go.clone(), stopped.clone());
        tokio::spawn(async move {
            context.cancelled.cancelled().await;
            stopped.cancel();
        });
        let last = stream::once(async move {
            go.cancelled().await;
            Ok(chunk(0, "b", Some("stop")))
        });
        Box::pin(stream::iter([Ok(chunk(0, "a", None))]).chain(last))
    })
}

async fn asks(frontend: &Frontend, more: Value) -> Answer {
    let mut body = json!({"model": "bare", "prompt": "say hello", "max_tokens": 4, "only_this_engine_knows": {"a": [1.50, 1]}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    frontend.post("/v1/completions", &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_send_is_handed_on_and_what_comes_back_is_theirs() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let worker = Worker::start(&place, hello()).await;
    up(&frontend, &[&worker.id]).await;
    let streamed = asks(&frontend, json!({"stream": true})).await;
    assert_eq!((streamed.worker(), streamed.header("content-type")), (&*worker.id, "text/event-stream"));
    assert_eq!(streamed.header("x-dynamo-overlap-blocks"), "0");
    let (told, text) = (chunks(&streamed), streamed.text());
    assert_eq!((told.len(), &told[0]), (3, &chunk(0, "hel\nlo", None)));
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    // A client that wants it whole gets it whole, whatever the worker adds.
    let whole = asks(&frontend, json!({})).await;
    let body = whole.json();
    assert_eq!((whole.worker(), whole.header("content-type")), (&*worker.id, "application/json"));
    assert_eq!((&body["choices"][0]["text"], &body["choices"][0]["finish_reason"]), (&json!("hel\nlo!"), &json!("stop")));
    assert_eq!((&body["usage"]["total_tokens"], &body["only_this_engine"]), (&json!(5), &json!(true)));
    let seen = worker.seen();
    assert_eq!((&seen[0]["only_this_engine_knows"], &seen[0]["stream"]), (&json!({"a": [1.50, 1]}), &json!(true)));
    assert_eq!((&seen[1]["prompt"], seen[1].get("stream")), (&json!("say hello"), None));
    assert_eq!(frontend.get("/v1/models").await.json()["data"][0]["id"], "bare");
    assert_eq!(frontend.worker(&worker.id).await["input"], "text");
    assert_eq!(frontend.metric("dynamo_frontend_output_tokens_total").await, Some(4.0), "as the worker counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_put_together_with_its_calls() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let told = |delta: Value, reason: Option<&str>| {
        Ok(json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))
    };
    let call = |more: Value| told(json!({"tool_calls": [{"index": 0, "function": more}]}), None);
    let script = says(vec![
        told(json!({"role": "assistant", "content": ""}), None),
        call(json!({"name": "sum", "arguments": "{\"a\""})),
        call(json!({"arguments": ": 1}"})),
        told(json!({}), Some("tool_calls")),
    ]);
    let worker = Worker::start(&place, script).await;
    up(&frontend, &[&worker.id]).await;
    let body = json!({"model": "bare", "messages": [{"role": "user", "content": "1 + 1"}]});
    let whole = frontend.post("/v1/chat/completions", &body).await;
    let choice = &whole.json()["choices"][0];
    assert_eq!((&choice["message"]["role"], &choice["finish_reason"]), (&json!("assistant"), &json!("tool_calls")));
    assert_eq!(choice["message"]["tool_calls"][0]["function"], json!({"name": "sum", "arguments": "{\"a\": 1}"}));
    assert_eq!(worker.seen(), [body]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_before_the_first_chunk_is_nobodys_where_another_worker_answers() {
    let place = Place::new();
    let frontend = place.frontend(&["--router-mode", "round-robin"]);
    let good = Worker::start(&place, hello()).await;
    let unfinished = says(vec![Ok(chunk(0, "a", None))]);
    for bad in [says(vec![Err(Failure::Shutdown.error("going"))]), says(vec![Ok(json!({"error": {"message": "oom"}}))]), unfinished] {
        let bad = Worker::start(&place, bad).await;
        up(&frontend, &[&good.id, &bad.id]).await;
        while bad.seen().is_empty() {
            let answer = asks(&frontend, json!({})).await;
            assert_eq!(answer.worker(), good.id, "{}", answer.text());
        }
    }
    assert!(frontend.metric("dynamo_frontend_retries_total").await >= Some(3.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_after_it_is_one_error_event() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let failing = |failure: Failure| says(vec![Ok(chunk(0, "a", None)), Err(failure.error("at 10.1.2.3"))]);
    let broken = [failing(Failure::Internal), says(vec![Ok(chunk(0, "a", None))])];
    for (script, code) in broken.into_iter().zip(["worker_error", "worker_unfinished"]) {
        let worker = Worker::start(&place, script).await;
        up(&frontend, &[&worker.id]).await;
        let mut open = frontend.open("/v1/completions", &[], &json!({"model": "bare", "prompt": "x", "stream": true})).await;
        let mut text = String::new();
        let end = loop {
            match open.piece().await {
                Some(Ok(bytes)) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(_))), "the body is broken off");
        let events: Vec<Value> = text.split_terminator("\n\n").map(|event| serde_json::from_str(&event[6..]).unwrap()).collect();
        assert_eq!((events.len(), &events[0], &events[1]["error"]["code"]), (2, &chunk(0, "a", None), &json!(code)), "{text}");
        assert!(!text.contains("10.1.2.3"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_stops_the_worker_with_a_stream_and_without() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    for stream in [true, false] {
        let stopped = CancellationToken::new();
        let worker = Worker::start(&place, slow(CancellationToken::new(), stopped.clone())).await;
        up(&frontend, &[&worker.id]).await;
        let body = json!({"model": "bare", "prompt": "x", "stream": stream});
        let asking = frontend.open("/v1/completions", &[], &body);
        if stream {
            drop(asking.await);
        } else {
            let begun = eventually("it is asked", async || seen(!worker.seen().is_empty(), "not yet"));
            tokio::select! {
                _ = asking => panic!("nobody has answered"),
                () = begun => {}
            }
        }
        tokio::time::timeout(PATIENCE, stopped.cancelled()).await.expect("its worker stops");
        assert_eq!(frontend.worker(&worker.id).await["state"], "up");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_where_the_least_is_to_do() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let go = CancellationToken::new();
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(Worker::start(&place, slow(go.clone(), CancellationToken::new())).await);
    }
    up(&frontend, &workers.iter().map(|worker| &*worker.id).collect::<Vec<_>>()).await;
    let mut running = Vec::new();
    for _ in 0..3 {
        let body = json!({"model": "bare", "prompt": "some words ".repeat(100), "stream": true});
        running.push(frontend.open("/v1/completions", &[], &body).await);
    }
    let ids: HashSet<_> = running.iter().map(|open| open.headers["x-dynamo-worker-id"].clone()).collect();
    assert_eq!(ids.len(), 3);
    go.cancel();
    for open in running {
        assert!(open.whole().await.text().ends_with("data: [DONE]\n\n"));
    }
    assert_eq!(frontend.rank(&workers[0].id).await["active_requests"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_such_a_worker_cannot_take_is_refused_with_the_reason() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let chats = Worker::serving(&place, hello(), &[ModelType::Chat]).await;
    up(&frontend, &[&chats.id]).await;
    assert_eq!(asks(&frontend, json!({})).await.status, 400);
    let both = Worker::start(&place, hello()).await;
    up(&frontend, &[&both.id]).await;
    for _ in 0..3 {
        assert_eq!(asks(&frontend, json!({})).await.worker(), both.id);
    }
    let refused = asks(&frontend, json!({"prompt": ["a", "b"]})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("one prompt a request"), "{}", refused.text());
    let wrong = Worker::start(&place, says(vec![Err(Failure::InvalidArgument.error("temperature is too high"))])).await;
    up(&frontend, &[&wrong.id]).await;
    let pinned = [("x-dynamo-worker-instance-id", &*wrong.id)];
    let refused = frontend.open("/v1/completions", &pinned, &json!({"model": "bare", "prompt": "x"})).await.whole().await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["message"]), (400, &json!("temperature is too high")));
    assert!(chats.seen().is_empty());
}
