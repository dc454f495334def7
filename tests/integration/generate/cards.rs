//! What model cards mean: which models there are and with whom, contradictions, and tokenizers that cannot be read.

use std::path::Path;

use serde_json::{Value, json};
use worker::ModelSpec;

use super::{
    Place, completion,
    scripted::{MODEL, Setup, Worker, quick},
    up,
};
use crate::support::{eventually, frontend::Frontend};

/// A worker with the tiny model, but for what is changed.
async fn with(place: &Place, change: impl FnOnce(&mut ModelSpec)) -> Worker {
    let mut setup = Setup::new(quick());
    change(&mut setup.spec);
    Worker::start(place, setup).await
}

/// A copy of the model's folder.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(MODEL)
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.path().extension().is_some_and(|kind| kind != "safetensors"))
    {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

async fn models(frontend: &Frontend) -> Vec<String> {
    let listed = frontend.get("/v1/models").await.json();
    listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

async fn models_become(frontend: &Frontend, expected: &[&str]) {
    eventually(&format!("the models are {expected:?}"), async || {
        let found = models(frontend).await;
        if found == expected { Ok(()) } else { Err(format!("{found:?}\n{}", frontend.log())) }
    })
    .await;
}

fn for_model(model: &str) -> Value {
    let mut body = completion(&[1, 2], 2);
    body["model"] = json!(model);
    body
}

async fn state(frontend: &Frontend, id: &str, expected: &str) -> Value {
    eventually(&format!("{id} is {expected}"), async || {
        let worker = frontend.worker(id).await;
        if worker["state"] == expected { Ok(worker) } else { Err(format!("{worker}\n{}", frontend.log())) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_model_has_its_workers_and_goes_with_the_last_of_them() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let mut one = with(&place, |spec| spec.context_length = 4096).await;
    let other = with(&place, |spec| spec.name = "other".to_owned()).await;
    let mut more = with(&place, |spec| spec.name = "other".to_owned()).await;
    up(&frontend, &[&one.id, &other.id, &more.id]).await;
    models_become(&frontend, &["other", "tiny"]).await;
    let shown = frontend.get("/v1/models/tiny").await.json();
    assert_eq!((&shown["max_model_len"], &shown["context_window"]), (&json!(4096), &json!(4096)));
    for _ in 0..4 {
        assert_eq!(frontend.complete(&for_model("tiny")).await.worker(), one.id);
        assert_ne!(frontend.complete(&for_model("other")).await.worker(), one.id);
    }
    assert_eq!(frontend.metric("dynamo_frontend_model_folders").await, Some(1.0));
    more.leave().await;
    state(&frontend, &more.id, "draining").await;
    assert_eq!(frontend.complete(&for_model("other")).await.worker(), other.id);
    one.kill();
    // The first request finds out. Its record stays, and nobody can be sent requests for its model.
    assert!(frontend.post("/v1/completions", &for_model("tiny")).await.status.is_server_error());
    models_become(&frontend, &["other"]).await;
    assert_eq!(frontend.post("/v1/completions", &for_model("tiny")).await.status, 503);
    assert_eq!(frontend.post("/v1/completions", &for_model("none")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_card_contradicts_the_first_gets_no_requests_until_that_has_gone() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let mut first = with(&place, |_| {}).await;
    up(&frontend, &[&first.id]).await;
    let second = with(&place, |spec| spec.context_length = 77).await;
    let reason = state(&frontend, &second.id, "refused").await["reason"].as_str().unwrap().to_owned();
    for part in ["context length 77", &first.id, "16384"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(frontend.metric("dynamo_frontend_worker_refused").await, Some(1.0));
    assert!(frontend.log().contains("the worker is refused"), "{}", frontend.log());
    let excluded = frontend.candidate(&second.id, &completion(&[1, 2], 1)).await["excluded"].clone();
    assert_eq!(excluded, json!(reason));
    for _ in 0..4 {
        assert_eq!(frontend.complete(&completion(&[1, 2], 1)).await.worker(), first.id);
    }
    first.leave().await;
    state(&frontend, &second.id, "up").await;
    assert_eq!(frontend.complete(&completion(&[1, 2], 1)).await.worker(), second.id);
    assert!(second.seen().len() == 1 && frontend.metric("dynamo_frontend_worker_refused").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tokenizer_that_is_not_the_cards_is_not_used() {
    let place = Place::new();
    let folder = copy();
    let frontend = place.frontend(&[]);
    let setup = Setup {
        spec: ModelSpec { publishes_kv_events: false, ..ModelSpec::new("tiny", 16).in_folder(folder.path()).unwrap() },
        ..Setup::new(quick())
    };
    let template = folder.path().join("chat_template.jinja");
    std::fs::write(&template, "another").unwrap();
    let worker = Worker::start(&place, setup).await;
    // The folder of the card is tried next: nobody vouches for what is in it, so that is taken for the model.
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let reason = state(&frontend, &worker.id, "unloadable").await["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("tokenizer.json") && reason.contains("--model-path NAME=DIR"), "{reason}");
    assert_eq!(frontend.post("/v1/completions", &completion(&[1, 2], 1)).await.status, 503);
    assert_eq!(models(&frontend).await, [""; 0]);
    for name in ["tokenizer.json", "chat_template.jinja"] {
        std::fs::copy(Path::new(MODEL).join(name), folder.path().join(name)).unwrap();
    }
    state(&frontend, &worker.id, "up").await;
    assert_eq!(frontend.complete(&completion(&[1, 2], 1)).await.worker(), worker.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_folder_serves_a_model_whose_files_are_on_another_host() {
    let place = Place::new();
    let folder = copy();
    let setup = Setup {
        spec: ModelSpec { publishes_kv_events: false, ..ModelSpec::new("tiny", 16).in_folder(folder.path()).unwrap() },
        ..Setup::new(quick())
    };
    drop(folder);
    let worker = Worker::start(&place, setup).await;
    let alone = place.frontend(&[]);
    state(&alone, &worker.id, "unloadable").await;
    for folder in [format!("tiny={MODEL}"), MODEL.to_owned()] {
        let frontend = place.frontend(&["--router-mode", "round-robin", "--model-path", &folder]);
        up(&frontend, &[&worker.id]).await;
        let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
        let answer = frontend.post("/v1/chat/completions", &chat).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_have_begun_move_three_times_unless_the_operator_says_otherwise() {
    let place = Place::new();
    let (default, off) = (place.frontend(&[]), place.frontend(&["--migration-limit", "0"]));
    let worker = with(&place, |_| {}).await;
    up(&default, &[&worker.id]).await;
    up(&off, &[&worker.id]).await;
    let limit = async |frontend: &Frontend| frontend.worker(&worker.id).await["card"]["migration_limit"].clone();
    assert_eq!((limit(&default).await, limit(&off).await), (json!(3), json!(0)));
}
