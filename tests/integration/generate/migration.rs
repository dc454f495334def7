//! A stream whose worker dies goes on elsewhere, so that its client sees nothing of it; where that cannot be right, one clean
//! error.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use worker::Failure;

use super::{
    Place, completion, read_chunks,
    scripted::{Script, Setup, Worker, counting, failing, failing_later, failing_once, falling_silent, quick},
    streamed, streamed_ids, streamed_usage, up, usage,
};
use crate::support::{
    eventually,
    frontend::Frontend,
    http::{Answer, Open},
};

/// A frontend before one worker, and a stream of it that has been read up to so many tokens.
async fn begun(place: &Place, flags: &[&str], script: Script, (body, tokens): (&Value, usize)) -> (Frontend, Worker, Open, String) {
    let frontend = place.frontend(flags);
    let worker = Worker::start(place, Setup::new(script)).await;
    up(&frontend, &[&worker.id]).await;
    let mut stream = frontend.open("/v1/completions", &[], body).await;
    assert_eq!(stream.status, 200);
    let read = read_chunks(&mut stream, tokens).await;
    (frontend, worker, stream, read)
}

/// The same of a worker that stops after `tokens` of thirty.
async fn stopped(place: &Place, flags: &[&str], tokens: usize) -> (Frontend, Worker, Open, String) {
    begun(place, flags, counting(Arc::new(Semaphore::new(tokens))), (&streamed(&[7, 100], 30), tokens)).await
}

/// Another worker comes.
async fn joined(place: &Place, frontend: &Frontend, script: Script) -> Worker {
    let worker = Worker::start(place, Setup::new(script)).await;
    up(frontend, &[&worker.id]).await;
    worker
}

/// A frontend before a worker that stops after `tokens`, and then one that goes on. The stream has been read so far.
async fn interrupted(place: &Place, flags: &[&str], tokens: usize) -> (Frontend, Worker, Worker, Open, String) {
    let (frontend, first, stream, read) = stopped(place, flags, tokens).await;
    let second = joined(place, &frontend, quick()).await;
    (frontend, first, second, stream, read)
}

fn whole(read: String, rest: Answer) -> Answer {
    Answer { body: [read.as_bytes(), &rest.body].concat().into(), ..rest }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_worker_dies_goes_on_as_if_nothing_had_been() {
    let place = Place::new();
    let (frontend, mut first, second, stream, read) = interrupted(&place, &[], 12).await;
    first.kill();
    let answer = whole(read, stream.whole().await);
    assert_eq!(streamed_ids(&answer), (101..131).collect::<Vec<_>>());
    // Each token once: 1.6.1 counts those before the move twice.
    assert_eq!(streamed_usage(&answer), (2, 30));
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    let moved = &second.seen()[0];
    assert_eq!(moved.token_ids, [&[7, 100][..], &(101..113).collect::<Vec<_>>()].concat());
    assert_eq!(moved.stop_conditions.max_tokens, Some(18));
    assert_eq!(frontend.metric("dynamo_frontend_migrations_total").await, Some(1.0));
    // It is out of the choice at once, long before its records run out.
    for _ in 0..10 {
        assert_eq!(frontend.complete(&completion(&[1, 2], 1)).await.worker(), second.id);
    }
    assert_eq!(frontend.metric("dynamo_frontend_retries_total").await, None);
    assert_eq!(frontend.metric("dynamo_frontend_output_tokens_total").await, Some(40.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_is_left_after_the_time_between_tokens() {
    let place = Place::new();
    let (_frontend, _first, _second, stream, read) = interrupted(&place, &["--engine-between-tokens-timeout-secs", "0.5"], 5).await;
    let began = Instant::now();
    let answer = whole(read, stream.whole().await);
    assert_eq!(streamed_ids(&answer), (101..131).collect::<Vec<_>>());
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_gone_from_discovery_releases_what_is_silent() {
    let place = Place::new();
    let (_frontend, mut first, _second, stream, read) = interrupted(&place, &[], 3).await;
    let began = Instant::now();
    first.leave().await;
    let answer = whole(read, stream.whole().await);
    assert_eq!(streamed_ids(&answer), (101..131).collect::<Vec<_>>());
    assert!((4..9).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_at_once_where_nobody_can_take_over() {
    let place = Place::new();
    let (_frontend, mut only, stream, _) = stopped(&place, &[], 3).await;
    let began = Instant::now();
    only.kill();
    let ending = stream.ending().await;
    assert!(ending.answer.text().contains("\"code\":\"worker_closed\""), "{}", ending.answer.text());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// One that failed another request a moment ago is asked by a probe, which takes half a second.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_waits_for_a_worker_in_quarantine() {
    let place = Place::new();
    let (frontend, mut first, stream, read) = stopped(&place, &[], 3).await;
    let second = joined(&place, &frontend, failing_once(Failure::Shutdown)).await;
    let pin = [("x-dynamo-worker-instance-id", second.id.as_str())];
    assert_eq!(frontend.open("/v1/completions", &pin, &completion(&[1, 2], 1)).await.whole().await.status, 502);
    assert_eq!(frontend.worker(&second.id).await["state"], "quarantined");
    first.kill();
    let answer = whole(read, stream.whole().await);
    assert_eq!((streamed_ids(&answer), streamed_usage(&answer)), ((101..131).collect::<Vec<_>>(), (2, 30)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_migration_there_is_one_clean_error() {
    let place = Place::new();
    let (_frontend, mut first, _second, stream, read) = interrupted(&place, &["--migration-limit", "0"], 4).await;
    first.kill();
    let ending = stream.ending().await;
    let text = read + &ending.answer.text();
    assert_eq!((text.matches("\"error\"").count(), text.contains("[DONE]"), ending.whole), (1, false, false), "{text}");
    assert!(text.contains("\"code\":\"worker_closed\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_bound_to_a_form_does_not_move_and_neither_does_a_pinned_one() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let mut first = joined(&place, &frontend, falling_silent(2)).await;
    let mut bound = streamed(&[7, 100], 30);
    bound["response_format"] = json!({"type": "json_object"});
    let mut pinned = streamed(&[7, 100], 30);
    pinned["nvext"]["backend_instance_id"] = json!(first.id.parse::<u64>().unwrap());
    let mut streams = Vec::new();
    for body in [bound, pinned] {
        let mut stream = frontend.open("/v1/completions", &[], &body).await;
        read_chunks(&mut stream, 2).await;
        streams.push(stream);
    }
    let second = joined(&place, &frontend, quick()).await;
    first.kill();
    for stream in streams {
        let ending = stream.ending().await;
        assert!(ending.answer.text().contains("\"error\""), "{}", ending.answer.text());
    }
    assert!(second.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_token_a_request_moves_without_any_option() {
    let place = Place::new();
    let frontend = place.frontend(&["--migration-limit", "0"]);
    let broken = Worker::start(&place, Setup::new(failing(Failure::Shutdown, "going down"))).await;
    let good = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&broken.id, &good.id]).await;
    for number in 0..6 {
        let answer = frontend.complete(&completion(&[number, 40], 3)).await;
        assert_eq!((answer.worker(), usage(&answer.json())), (&*good.id, (2, 3)));
    }
    // Its own word is enough to leave it alone until its probe has asked.
    assert!(broken.seen().len() <= 3, "{}", broken.seen().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_goes_down_in_the_middle_is_left() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let _first = joined(&place, &frontend, failing_later(Failure::Shutdown)).await;
    let _second = joined(&place, &frontend, quick()).await;
    for _ in 0..4 {
        let answer = frontend.post("/v1/completions", &streamed(&[7, 100], 5)).await;
        assert_eq!(streamed_ids(&answer), (101..106).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_died_at_its_last_token_has_answered() {
    let place = Place::new();
    let (_frontend, mut first, stream, read) = begun(&place, &[], falling_silent(3), (&streamed(&[7, 100], 3), 3)).await;
    first.kill();
    let answer = whole(read, stream.whole().await);
    assert_eq!((streamed_ids(&answer), streamed_usage(&answer)), (vec![101, 102, 103], (2, 3)));
    assert!(answer.text().contains("\"finish_reason\":\"length\""), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_choice_moves_by_itself() {
    let place = Place::new();
    let mut body = streamed(&[7, 100], 20);
    body["n"] = json!(3);
    let (frontend, mut first, stream, read) = begun(&place, &[], counting(Arc::new(Semaphore::new(6))), (&body, 6)).await;
    let second = joined(&place, &frontend, quick()).await;
    first.kill();
    let answer = whole(read, stream.whole().await);
    assert_eq!(streamed_usage(&answer), (2, 60));
    assert_eq!(answer.text().matches("\"finish_reason\":\"length\"").count(), 3);
    assert_eq!(second.seen().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_stops_the_engine_and_frees_its_load() {
    let place = Place::new();
    let (frontend, worker, stream, _) = begun(&place, &[], falling_silent(2), (&streamed(&[7, 100], 30), 2)).await;
    assert_eq!(frontend.rank(&worker.id).await["active_requests"], 1);
    drop(stream);
    eventually("the load is freed", async || {
        let rank = frontend.rank(&worker.id).await;
        if rank["active_requests"] == 0 { Ok(()) } else { Err(rank.to_string()) }
    })
    .await;
    eventually("it is counted as one that left", async || match frontend.metric("dynamo_frontend_disconnected_clients_total").await {
        Some(1.0) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}
