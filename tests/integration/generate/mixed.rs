//! One model served by OpenAI servers and by workers that take token ids: a request may go to either.

use std::collections::HashSet;

use serde_json::json;

use super::{
    Place, completion,
    scripted::{Script, Setup, Worker, failing, quick},
    up,
};
use crate::support::{eventually, frontend::Frontend, simulated};

/// A frontend that has a worker of each kind for one model, and takes them in turns.
struct Both {
    frontend: Frontend,
    worker: Worker,
    engine: mocker::Handle,
    _place: Place,
}

async fn both(script: Script) -> Both {
    let place = Place::new();
    let engine = simulated::start(mocker::Config { speedup: 0.0, model: "tiny".to_owned(), ..mocker::Config::default() }).await;
    let flag = format!("http://{}", simulated::id(&engine));
    let frontend = place.frontend(&["--router-mode", "round-robin", "--worker", &flag]);
    let worker = Worker::start(&place, Setup::new(script)).await;
    up(&frontend, &[&worker.id]).await;
    eventually("the server serves", async || {
        let shown = frontend.get("/workers").await.text();
        if shown.matches("\"state\":\"up\"").count() == 2 { Ok(()) } else { Err(shown) }
    })
    .await;
    Both { frontend, worker, engine, _place: place }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_to_either_and_what_cannot_be_tokenised_to_the_server() {
    let Both { frontend, worker, .. } = &both(quick()).await;
    let mut chosen = HashSet::new();
    for _ in 0..8 {
        chosen.insert(frontend.complete(&json!({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 2})).await.worker().to_owned());
    }
    assert_eq!(chosen.len(), 2, "{chosen:?}");
    // A field that only servers know.
    let body = json!({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 2, "only_servers_know": 1});
    for _ in 0..4 {
        assert_ne!(frontend.complete(&body).await.worker(), worker.id);
    }
    let candidate = frontend.candidate(&worker.id, &body).await;
    assert!(candidate["excluded"].as_str().unwrap().contains("token ids"), "{candidate}");
    assert!(frontend.route(&body).await["not_for_token_level_workers"].as_str().unwrap().contains("only_servers_know"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_helps_where_workers_of_tokens_fail() {
    let Both { frontend, worker, .. } = &both(failing(worker::Failure::Shutdown, "going")).await;
    for _ in 0..4 {
        let mut body = completion(&[1, 2, 3], 2);
        body.as_object_mut().unwrap().remove("nvext");
        assert_ne!(frontend.complete(&body).await.worker(), worker.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_tokens_help_where_a_server_fails() {
    let Both { frontend, worker, engine, .. } = &both(quick()).await;
    engine.set_faults(|faults| faults.status = Some(502));
    for _ in 0..4 {
        assert_eq!(frontend.complete(&json!({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 2})).await.worker(), worker.id);
    }
}
