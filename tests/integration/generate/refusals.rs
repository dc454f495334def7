//! What clients are told: their own errors with what is wrong, and the workers' only when nobody can help.

use serde_json::json;
use tokio_util::sync::CancellationToken;
use worker::Failure;

use super::{
    Place, completion,
    scripted::{Setup, Worker, endless, failing, quick, spec},
    up,
};
use crate::support::PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let mut setup = Setup::new(quick());
    setup.spec.context_length = 64;
    let worker = Worker::start(&place, setup).await;
    up(&frontend, &[&worker.id]).await;
    let refused = frontend.post("/v1/completions", &completion(&[5; 64], 1)).await;
    let error = &refused.json()["error"];
    let message = error["message"].as_str().unwrap();
    assert_eq!((refused.status.as_u16(), error["code"].as_str()), (400, Some("context_length_exceeded")));
    assert!(message.contains("64 tokens, and the model's context of 64 tokens"), "{message}");
    assert!(worker.seen().is_empty());
    // What is asked for beyond the context is what the context leaves, and so is what is not asked for.
    frontend.complete(&completion(&[5; 60], 1000)).await;
    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(frontend.post("/v1/chat/completions", &chat).await.status, 200);
    let seen = worker.seen();
    assert_eq!(seen[0].stop_conditions.max_tokens, Some(4));
    assert_eq!(seen[1].stop_conditions.max_tokens, Some(64 - seen[1].token_ids.len() as u32));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_and_tokens_are_refused_by_name() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let worker = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&worker.id]).await;
    let refused = async |body: serde_json::Value| {
        let answer = frontend.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let message = refused(json!({"model": "tiny", "prompt": [1], "bogus": 1})).await;
    assert!(message.contains("bogus"), "{message}");
    let message = refused(json!({"model": "tiny", "prompt": [1], "nvext": {"bogus": 1}})).await;
    assert!(message.contains("bogus") && message.contains("backend_instance_id"), "{message}");
    let message = refused(json!({"model": "tiny", "prompt": [1, 99_999_999]})).await;
    assert!(message.contains("99999999"), "{message}");
    assert!(worker.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_says_of_a_request_is_the_clients_error_and_nobody_elses() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let script = || failing(Failure::InvalidArgument, "dp_rank 7 is out of bounds");
    let workers = [Worker::start(&place, Setup::new(script())).await, Worker::start(&place, Setup::new(script())).await];
    up(&frontend, &[&workers[0].id, &workers[1].id]).await;
    let refused = frontend.post("/v1/completions", &completion(&[1, 2], 3)).await;
    assert_eq!((refused.status.as_u16(), refused.json()["error"]["message"].as_str()), (400, Some("dp_rank 7 is out of bounds")));
    assert_eq!(workers.iter().map(|worker| worker.seen().len()).sum::<usize>(), 1, "no other worker is asked");
    up(&frontend, &[&workers[0].id, &workers[1].id]).await;
    assert_eq!(frontend.metric("dynamo_frontend_retries_total").await, None);
}

/// A whole answer is kept until it ends, so that it has a bound; its workers stop, and nobody else is asked. A stream has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_beyond_the_limit_is_refused_and_its_workers_stop() {
    let place = Place::new();
    let frontend = place.frontend(&["--http-answer-limit-mb", "1"]);
    let stopped = CancellationToken::new();
    let mut setup = Setup::new(endless(stopped.clone()));
    setup.spec.context_length = 10_000_000;
    let worker = Worker::start(&place, setup).await;
    up(&frontend, &[&worker.id]).await;
    let refused = frontend.post("/v1/completions", &completion(&[1, 2], 5_000_000)).await;
    let error = &refused.json()["error"];
    assert_eq!((refused.status.as_u16(), &error["code"]), (400, &json!("answer_too_large")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("1048576 bytes (--http-answer-limit-mb)"), "{error}");
    tokio::time::timeout(PATIENCE, stopped.cancelled()).await.expect("its worker stops");
    assert_eq!((worker.seen().len(), frontend.worker(&worker.id).await["state"].as_str()), (1, Some("up")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_engine_is_put_to_one_other_worker() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let script = || failing(Failure::Internal, "out of memory at 10.1.2.3");
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(Worker::start(&place, Setup::new(script())).await);
    }
    up(&frontend, &workers.iter().map(|worker| &*worker.id).collect::<Vec<_>>()).await;
    let failed = frontend.post("/v1/completions", &completion(&[1, 2], 3)).await;
    assert_eq!(failed.status, 500);
    assert!(!failed.text().contains("10.1.2.3"), "{}", failed.text());
    assert_eq!(workers.iter().map(|worker| worker.seen().len()).sum::<usize>(), 2);
    // Both failed alike: it may have been the request, and counts against neither.
    up(&frontend, &workers.iter().map(|worker| &*worker.id).collect::<Vec<_>>()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_takes_no_more_is_no_failure_where_another_does() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let full = Worker::start(&place, Setup::new(failing(Failure::Overloaded, "full"))).await;
    up(&frontend, &[&full.id]).await;
    assert_eq!(frontend.post("/v1/completions", &completion(&[1, 2], 3)).await.status, 503);
    let free = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&free.id]).await;
    for _ in 0..4 {
        frontend.complete(&completion(&[1, 2], 3)).await;
    }
    assert_eq!(frontend.worker(&full.id).await["state"], "up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_template_refuses_chats_alone() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let folder = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "config.json"] {
        std::fs::copy(std::path::Path::new(super::scripted::MODEL).join(file), folder.path().join(file)).unwrap();
    }
    let mut setup = Setup::new(quick());
    let mut bare = worker::ModelSpec::new("tiny", 16).in_folder(folder.path()).unwrap();
    bare.publishes_kv_events = spec().publishes_kv_events;
    setup.spec = bare;
    let worker = Worker::start(&place, setup).await;
    up(&frontend, &[&worker.id]).await;
    frontend.complete(&completion(&[1, 2], 3)).await;
    let refused = frontend.post("/v1/chat/completions", &json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("template"), "{}", refused.text());
}
