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

/// What is wrong with a pin is said of the header or field that it was written in.
#[tokio::test(flavor = "multi_thread")]
async fn pins_that_cannot_be_are_refused_by_the_name_the_client_wrote() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let workers = [Worker::start(&place, Setup::new(quick())).await, Worker::start(&place, Setup::new(quick())).await];
    let [one, two] = [0, 1].map(|at| workers[at].id.as_str());
    up(&frontend, &[one, two]).await;
    let number = |id: &str| id.parse::<u64>().unwrap();
    let (pin, older, rank) = ("x-dynamo-worker-instance-id", "x-worker-instance-id", "x-dynamo-dp-rank");
    let prefill = "x-dynamo-prefill-instance-id";
    for (headers, nvext, param, part) in [
        (vec![], json!({"decode_worker_id": 17}), "nvext.decode_worker_id", "names worker '17', which does not exist"),
        (vec![], json!({"backend_instance_id": 17}), "nvext.backend_instance_id", "names worker '17', which does not exist"),
        (vec![(pin, one)], json!({"decode_worker_id": number(two)}), "nvext.decode_worker_id", "give one of them"),
        (vec![(pin, one), (older, two)], json!({}), older, "give one of them"),
        (vec![(pin, one), (rank, "0")], json!({"dp_rank": 1}), "nvext.dp_rank", "names rank 0 and nvext.dp_rank rank 1"),
        (vec![(prefill, one)], json!({}), prefill, "which does not prefill prompts of 'tiny' for others"),
        (vec![(pin, one)], json!({"prefill_worker_id": number(two)}), "nvext.prefill_worker_id", "does not prefill"),
    ] {
        let mut body = completion(&[1, 2], 1);
        body["nvext"] = nvext;
        let answer = frontend.open("/v1/completions", &headers, &body).await.whole().await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status.as_u16(), error["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
    // The same worker twice is no contradiction, and one that does all of it is both: so a dry run tells it.
    let mut body = completion(&[1, 2], 1);
    body["nvext"] = json!({"decode_worker_id": number(one), "prefill_worker_id": number(one), "dp_rank": 0});
    let answer = frontend.open("/v1/completions", &[(pin, one), (older, one)], &body).await.whole().await;
    assert_eq!((answer.status.as_u16(), answer.worker()), (200, one), "{}", answer.text());
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
