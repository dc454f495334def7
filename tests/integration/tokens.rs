//! Where the tokens of prompts come from, and how long a request waits for them.

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    engine::{ScriptedEngine, Setup},
    eventually,
    frontend::Frontend,
    seen,
};

/// Between two answers of an engine that is slow.
const SLOW: Duration = Duration::from_secs(1);

async fn start(flags: &[&str]) -> (ScriptedEngine, Frontend) {
    let engine = ScriptedEngine::start(Setup::default()).await;
    engine.reply("/v1/completions", 200, &json!({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "a"}]}));
    engine.reply("/tokenize", 200, &json!({"tokens": [1, 2, 3], "count": 3}));
    let url = engine.url();
    let args: Vec<&str> = ["--router-mode", "kv", "--worker", &url].iter().chain(flags).copied().collect();
    let frontend = Frontend::start(&args);
    eventually("the worker serves", async || {
        let view = frontend.get("/workers").await.json();
        seen(view["workers"][0]["state"] == "up" && view["workers"][0]["ranks"][0].is_object(), &view)
    })
    .await;
    (engine, frontend)
}

fn body(prompt: impl Into<Value>) -> Value {
    json!({"model": "tiny", "prompt": prompt.into(), "max_tokens": 1})
}

async fn prompts(frontend: &Frontend, source: &str) -> Option<f64> {
    frontend.metric(&format!("dynamo_frontend_prompts_total{{source=\"{source}\"}}")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_are_counted_by_the_source_of_their_tokens() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/tiny-llama");
    let (engine, frontend) = start(&["--model-path", model.to_str().unwrap()]).await;
    frontend.complete(&body("a text")).await;
    frontend.complete(&body(vec![5, 6, 7])).await;
    frontend.complete(&body(json!([[5, 6, 7], [8, 9]]))).await;
    assert_eq!((prompts(&frontend, "folder").await, prompts(&frontend, "ids").await), (Some(1.0), Some(3.0)));
    assert_eq!(engine.asked("/tokenize"), 0);
    let (engine, frontend) = start(&[]).await;
    frontend.complete(&body(json!(["a text", "another", "a text"]))).await;
    frontend.complete(&body(vec![5, 6, 7])).await;
    assert_eq!((prompts(&frontend, "engine").await, prompts(&frontend, "ids").await), (Some(3.0), Some(1.0)));
    assert_eq!(engine.asked("/tokenize"), 2, "one is remembered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_prompts_waits_for_a_slow_tokenize_no_longer_than_one() {
    let (engine, frontend) = start(&[]).await;
    let gate = engine.gate("/tokenize");
    let _slow = AbortOnDropHandle::new(tokio::spawn({
        let gate = Arc::clone(&gate);
        async move {
            loop {
                tokio::time::sleep(SLOW).await;
                gate.add_permits(1);
            }
        }
    }));
    let texts: Vec<String> = (0..20).map(|number| format!("prompt {number}")).collect();
    frontend.complete(&body(texts)).await;
    let asked = engine.asked("/tokenize");
    assert!((2..=6).contains(&asked), "{asked} questions within five seconds");
    let reason = frontend.metric("dynamo_frontend_untokenized_requests_total{reason=\"engine_slow\"}").await;
    assert_eq!((reason, prompts(&frontend, "none").await), (Some(1.0), Some(20.0)));
}
