//! What clients get: OpenAI's shapes, each token once, stops where they belong.

use serde_json::json;
use wire::generate::{EngineUsage, FinishReason};

use super::{
    Place, chunks, completion,
    scripted::{Setup, Worker, output, quick, telling},
    streamed, streamed_ids, streamed_usage, up, usage,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_one_body_with_its_usage() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let worker = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&worker.id]).await;
    let answer = frontend.complete(&completion(&[7, 100], 5)).await;
    let body = answer.json();
    assert_eq!(body["nvext"]["completion_token_ids"], json!([101, 102, 103, 104, 105]));
    assert_eq!((usage(&body), body["choices"][0]["finish_reason"].as_str()), ((2, 5), Some("length")));
    assert_eq!((answer.worker(), answer.header("x-dynamo-dp-rank")), (&*worker.id, "0"));
    assert_eq!(body["nvext"]["worker_id"]["decode_worker_id"], worker.id.parse::<u64>().unwrap());
    let asked = &worker.seen()[0];
    assert_eq!((asked.token_ids.as_slice(), asked.stop_conditions.max_tokens, asked.sampling_options.n), (&[7, 100][..], Some(5), None));
    assert_eq!(asked.routing.as_ref().unwrap().dp_rank, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_times_choices_are_legs_of_one_answer() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let workers = [Worker::start(&place, Setup::new(quick())).await, Worker::start(&place, Setup::new(quick())).await];
    up(&frontend, &[&workers[0].id, &workers[1].id]).await;
    let body = json!({"model": "tiny", "prompt": [[7, 100], [9, 9, 200]], "n": 3, "seed": 5, "max_tokens": 4, "ignore_eos": true});
    let answer = frontend.complete(&body).await.json();
    assert_eq!(usage(&answer), (5, 24), "each prompt counts once");
    let indexes: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    let texts: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert!(texts[0] == texts[1] && texts[3] == texts[4] && texts[0] != texts[3], "{texts:?}");
    // Equal seeds would make equal choices.
    let mut seeds: Vec<_> = workers.iter().flat_map(|worker| worker.seen()).map(|asked| asked.sampling_options.seed.unwrap()).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [5, 5, 6, 6, 7, 7]);
    // Each leg is booked on its own, so that they spread.
    assert!(workers.iter().all(|worker| !worker.seen().is_empty()));
    let ids: std::collections::HashSet<_> = workers.iter().flat_map(|worker| worker.ids()).collect();
    assert_eq!(ids.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_the_answer_and_the_work() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let worker = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&worker.id]).await;
    let text = frontend.complete(&completion(&[7, 100], 12)).await.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let characters: Vec<char> = text.chars().collect();
    let stop: String = characters[characters.len() / 2..characters.len() / 2 + 2].iter().collect();
    let mut body = streamed(&[7, 100], 100_000);
    body["stop"] = json!([stop]);
    let answer = frontend.post("/v1/completions", &body).await;
    let told: String = chunks(&answer).iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(told, text[..text.find(&stop).unwrap()]);
    assert!(answer.text().contains("\"finish_reason\":\"stop\"") && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert_eq!(frontend.worker(&worker.id).await["state"], "up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_rendered_here_and_its_cached_tokens_are_told() {
    let place = Place::new();
    let frontend = place.frontend(&[]);
    let mut first = output(vec![200], None);
    first.completion_usage = Some(EngineUsage { prompt_tokens: 11, completion_tokens: 1, total_tokens: 12, cached_tokens: Some(8) });
    let worker =
        Worker::start(&place, Setup::new(telling(vec![first, output(vec![201], None), output(vec![], Some(FinishReason::Eos))]))).await;
    up(&frontend, &[&worker.id]).await;
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]});
    let answer = frontend.post("/v1/chat/completions", &body).await;
    let told = answer.json();
    assert_eq!((told["object"].as_str(), told["choices"][0]["finish_reason"].as_str()), (Some("chat.completion"), Some("stop")));
    assert_eq!(told["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
    assert!(worker.seen()[0].token_ids.len() > 5);
    assert_eq!(told["usage"]["prompt_tokens"], worker.seen()[0].token_ids.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_bodies_tell_the_same() {
    let place = Place::new();
    let frontend = place.frontend(&["--router-mode", "round-robin"]);
    let worker = Worker::start(&place, Setup::new(quick())).await;
    up(&frontend, &[&worker.id]).await;
    let stream = frontend.post("/v1/completions", &streamed(&[1, 30], 9)).await;
    assert_eq!(stream.header("content-type"), "text/event-stream");
    assert_eq!((streamed_ids(&stream), streamed_usage(&stream)), ((31..40).collect(), (2, 9)));
    let text: String = chunks(&stream).iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(frontend.complete(&completion(&[1, 30], 9)).await.json()["choices"][0]["text"], text);
}
