//! Prompts prefilled by one worker and decoded by another.

use std::sync::Arc;

use futures_util::stream;
use serde_json::json;
use tokio::sync::Semaphore;
use wire::{discovery::WorkerType, generate::FinishReason};
use worker::Failure;

use super::{
    Place, completion, read_chunks,
    scripted::{Script, Setup, Worker, boxed, counting, failing, output, quick},
    streamed, streamed_ids, up,
};
use crate::support::{eventually, http::Answer};

/// Answers a prompt with what another engine needs of it.
fn prefilling(handle: &'static str) -> Script {
    Arc::new(move |_, _| {
        let mut done = output(vec![1], Some(FinishReason::Length));
        done.disaggregated_params = Some(json!({"handle": handle}));
        boxed(stream::iter([Ok(done)]))
    })
}

async fn ready(frontend: &crate::support::frontend::Frontend, workers: &[&Worker]) {
    up(frontend, &workers.iter().map(|worker| &*worker.id).collect::<Vec<_>>()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_is_prefilled_elsewhere_and_the_answer_decoded_with_what_came_of_it() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let prefill = Worker::start(&place, Setup::new(prefilling("kv-7")).of_type(WorkerType::Prefill)).await;
    let decode = Worker::start(&place, Setup::new(quick()).of_type(WorkerType::Decode)).await;
    ready(&frontend, &[&prefill, &decode]).await;
    let answer = frontend.complete(&completion(&[7, 100], 5)).await;
    assert_eq!((answer.worker(), answer.header("x-dynamo-prefill-worker-id")), (&*decode.id, &*prefill.id));
    let told = answer.json();
    assert_eq!(told["nvext"]["completion_token_ids"], json!([101, 102, 103, 104, 105]));
    let id = |worker: &Worker| worker.id.parse::<u64>().unwrap();
    assert_eq!(told["nvext"]["worker_id"]["prefill_worker_id"], id(&prefill));
    assert_eq!(told["nvext"]["worker_id"]["decode_worker_id"], id(&decode));
    let (asked, handed) = (&prefill.seen()[0], &decode.seen()[0]);
    assert_eq!((asked.stop_conditions.max_tokens, handed.stop_conditions.max_tokens), (Some(1), Some(5)));
    assert_eq!(handed.prefill_result.as_ref().unwrap().disaggregated_params, json!({"handle": "kv-7"}));
    assert_eq!(prefill.ids(), decode.ids(), "both legs of one request have one id");
    let route = frontend.route(&completion(&[7, 100], 5)).await;
    assert_eq!((&route["prefill"]["chosen"]["worker_id"], &route["chosen"]["worker_id"]), (&json!(prefill.id), &json!(decode.id)));
    for phase in ["prefill", "decode"] {
        let page = frontend.get("/metrics").await.text();
        assert!(page.contains(&format!("dynamo_frontend_legs_total{{model=\"tiny\",phase=\"{phase}\"}} 1")), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_engines_meet_both_are_told_one_room_that_names_the_rank() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let mut setup = Setup::new(prefilling("unused")).of_type(WorkerType::Prefill);
    setup.spec.bootstrap = Some(("10.0.0.1".to_owned(), 8998));
    setup.spec.dp_size = 4;
    let prefill = Worker::start(&place, setup).await;
    let decode = Worker::start(&place, Setup::new(quick()).of_type(WorkerType::Decode)).await;
    ready(&frontend, &[&prefill, &decode]).await;
    for _ in 0..8 {
        frontend.complete(&completion(&[7, 100], 2)).await;
    }
    eventually("every prefill has come", async || if prefill.seen().len() == 8 { Ok(()) } else { Err(prefill.seen().len().to_string()) })
        .await;
    for handed in decode.seen() {
        let info = handed.bootstrap_info.clone().unwrap();
        let asked = prefill.seen().into_iter().find(|asked| asked.bootstrap_info.as_ref() == Some(&info)).expect("both know the room");
        assert_eq!((info.host.as_str(), info.port), ("10.0.0.1", 8998));
        assert_eq!(info.room % 4, u64::from(asked.routing.unwrap().dp_rank.unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_is_tried_elsewhere_and_then_done_where_it_is_decoded() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let broken = || Setup::new(failing(Failure::Internal, "no memory")).of_type(WorkerType::Prefill);
    let bad = Worker::start(&place, broken()).await;
    let decode = Worker::start(&place, Setup::new(quick()).of_type(WorkerType::Decode)).await;
    ready(&frontend, &[&bad, &decode]).await;
    let answer = frontend.complete(&completion(&[7, 100], 3)).await;
    assert_eq!((answer.worker(), answer.headers.contains_key("x-dynamo-prefill-worker-id")), (&*decode.id, false));
    assert!(decode.seen()[0].prefill_result.is_none());
    let good = Worker::start(&place, Setup::new(prefilling("kv-1")).of_type(WorkerType::Prefill)).await;
    ready(&frontend, &[&good]).await;
    for _ in 0..4 {
        assert_eq!(frontend.complete(&completion(&[7, 100], 3)).await.header("x-dynamo-prefill-worker-id"), good.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_prefill_that_the_decode_worker_waits_for_ends_the_wait() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let mut setup = Setup::new(failing(Failure::Shutdown, "going")).of_type(WorkerType::Prefill);
    setup.spec.bootstrap = Some(("10.0.0.1".to_owned(), 8998));
    let prefill = Worker::start(&place, setup).await;
    // It waits for ever where it is told to meet somebody.
    let waiting: Script = Arc::new(|request, _| match request.bootstrap_info {
        Some(_) => boxed(stream::pending()),
        None => boxed(stream::iter([Ok(output(vec![8], Some(FinishReason::Length)))])),
    });
    let decode = Worker::start(&place, Setup::new(waiting).of_type(WorkerType::Decode)).await;
    ready(&frontend, &[&prefill, &decode]).await;
    let answer = frontend.complete(&completion(&[7, 100], 3)).await;
    assert_eq!(answer.json()["nvext"]["completion_token_ids"], json!([8]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_breaks_after_the_engines_met_changes_nothing() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let (broken, permits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(2)));
    let breaks = broken.clone();
    let script: Script = Arc::new(move |_, _| {
        let breaks = breaks.clone();
        boxed(stream::once(async move {
            breaks.acquire().await.unwrap().forget();
            Err(Failure::Shutdown.error("too late to matter"))
        }))
    });
    let mut setup = Setup::new(script).of_type(WorkerType::Prefill);
    setup.spec.bootstrap = Some(("10.0.0.1".to_owned(), 8998));
    let prefill = Worker::start(&place, setup).await;
    let decode = Worker::start(&place, Setup::new(counting(permits.clone())).of_type(WorkerType::Decode)).await;
    ready(&frontend, &[&prefill, &decode]).await;
    let mut stream = frontend.open("/v1/completions", &[], &streamed(&[7, 100], 6)).await;
    let read = read_chunks(&mut stream, 2).await;
    broken.add_permits(1);
    eventually("the prefill worker is out", async || {
        let shown = frontend.worker(&prefill.id).await;
        if shown["state"] == "up" { Err(shown.to_string()) } else { Ok(()) }
    })
    .await;
    permits.add_permits(100);
    let rest = stream.whole().await;
    let answer = Answer { body: [read.as_bytes(), &rest.body].concat().into(), ..rest };
    assert_eq!(streamed_ids(&answer), (101..107).collect::<Vec<_>>());
    assert_eq!(decode.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_only_prefill_are_never_chosen_for_a_whole_request() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let prefill = Worker::start(&place, Setup::new(prefilling("kv")).of_type(WorkerType::Prefill)).await;
    ready(&frontend, &[&prefill]).await;
    let refused = frontend.post("/v1/completions", &completion(&[7, 100], 3)).await;
    assert!(refused.status.is_client_error() || refused.status == 503, "{}", refused.text());
    assert!(prefill.seen().is_empty());
}
