//! What requests may name: workers, ids, hints, and a dry run.

use serde_json::json;

use super::{
    Place, chunks, completion,
    scripted::{Setup, Worker, quick},
    up,
};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_to_the_worker_it_names_by_header_or_field() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let workers = [Worker::start(&place, Setup::new(quick())).await, Worker::start(&place, Setup::new(quick())).await];
    up(&frontend, &[&workers[0].id, &workers[1].id]).await;
    for worker in &workers {
        for _ in 0..3 {
            let headers = [("x-dynamo-worker-instance-id", &*worker.id)];
            let answer = frontend.open("/v1/completions", &headers, &completion(&[1, 2], 1)).await.whole().await;
            assert_eq!(answer.worker(), worker.id);
            let mut body = completion(&[1, 2], 1);
            body["nvext"]["decode_worker_id"] = json!(worker.id.parse::<u64>().unwrap());
            assert_eq!(frontend.complete(&body).await.worker(), worker.id);
        }
    }
    let unknown = frontend.open("/v1/completions", &[("x-dynamo-worker-instance-id", "17")], &completion(&[1], 1)).await.whole().await;
    assert_eq!(unknown.status, 400);
    let unknown = frontend.open("/v1/completions", &[("x-dynamo-prefill-instance-id", "17")], &completion(&[1], 1)).await.whole().await;
    assert_eq!(unknown.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_the_worker_and_the_tokens_and_sends_nothing() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let worker = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&worker.id]).await;
    for stream in [true, false] {
        let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": stream,
            "nvext": {"annotations": ["query_instance_id:"]}});
        // A dry run waits for nobody: on a busy machine the worker may be out of the choice for a moment.
        let answer = eventually("a dry run is answered", async || {
            let answer = frontend.post("/v1/chat/completions", &body).await;
            if answer.status == 503 { Err(answer.text()) } else { Ok(answer) }
        })
        .await;
        assert_eq!(answer.status, 200);
        let told = if stream { chunks(&answer).remove(0) } else { answer.json() };
        assert_eq!(told["nvext"]["worker_id"]["decode_worker_id"], worker.id.parse::<u64>().unwrap());
        assert!(told["nvext"]["token_ids"].as_array().unwrap().len() > 3);
    }
    assert!(worker.seen().is_empty());
    assert_eq!(frontend.rank(&worker.id).await["active_requests"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_hints_go_where_they_belong() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let worker = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&worker.id]).await;
    let mut body = completion(&[1, 2], 2);
    body["cache_salt"] = json!("tenant");
    body["nvext"]["agent_hints"] = json!({"priority": 3, "osl": 77});
    let headers = [("x-request-id", "mine"), ("x-dynamo-request-id", "0000-suffix"), ("x-dynamo-request-priority", "9")];
    let answer = frontend.open("/v1/completions", &headers, &body).await.whole().await;
    assert_eq!((answer.header("x-request-id"), answer.json()["id"].as_str()), ("mine", Some("cmpl-0000-suffix")));
    let asked = &worker.seen()[0];
    let routing = asked.routing.clone().unwrap();
    assert_eq!((routing.priority, routing.expected_output_tokens, routing.cache_salt.as_deref()), (Some(9), Some(77), Some("tenant")));
    // Engines take the salt from there.
    assert_eq!(asked.extra_args.as_ref().unwrap()["nvext"]["cache_salt"], "tenant");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_made_elsewhere_are_used_and_annotations_come_first() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let worker = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&worker.id]).await;
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": true, "max_tokens": 2, "ignore_eos": true,
        "nvext": {"token_data": [4, 5, 6], "annotations": ["token_ids", "formatted_prompt"]}});
    let answer = frontend.post("/v1/chat/completions", &body).await;
    assert_eq!(worker.seen()[0].token_ids, [4, 5, 6]);
    let text = answer.text();
    assert!(text.starts_with("event: "), "{text}");
    assert!(text.contains("event: token_ids\n: \"[4,5,6]\"\n\n"), "{text}");
    assert!(text.contains("event: formatted_prompt\n: "), "{text}");
}
