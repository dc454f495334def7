//! What one worker answers.

use mocker::{Freeze, StreamFault, StreamFaultKind};
use wire::{
    discovery::{ModelType, Record, WorkerType},
    generate::{EngineUsage, FinishReason, OutputOptions, RoutingHints, StopReason},
};

use crate::support::{Fleet, request, tokens};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_a_token_an_item_and_usage_at_both_ends() {
    let fleet = Fleet::new().await;
    let worker = fleet.worker(|_, _| {}).await;
    let (endpoint, card) = fleet.described(&worker).await;
    assert_eq!(endpoint.id.to_string(), "dynamo/backend/generate");
    assert_eq!((card.worker_type(), card.serves(ModelType::Chat), card.context_length()), (Some(WorkerType::Aggregated), true, Some(256)));
    assert!(card.files().len() >= 4 && card.files().iter().all(|file| std::path::Path::new(file.path).exists()));
    for cached in [0, 16] {
        let outputs = fleet.ask(&endpoint, &request(100..120, 5)).await.unwrap();
        assert_eq!(outputs.len(), 6);
        assert!(outputs[..5].iter().all(|output| output.token_ids.len() == 1 && output.finish_reason.is_none()));
        let usage = |completion_tokens| {
            let (prompt_tokens, total_tokens) = (20, 20 + completion_tokens);
            Some(EngineUsage { prompt_tokens, completion_tokens, total_tokens, cached_tokens: Some(cached) })
        };
        assert_eq!((outputs[0].completion_usage, outputs[5].completion_usage), (usage(1), usage(5)));
        assert!(outputs[1..5].iter().all(|output| output.completion_usage.is_none()));
        assert_eq!((outputs[5].token_ids.len(), &outputs[5].finish_reason), (0, &Some(FinishReason::Length)));
    }
    // Three blocks of it are full: two of the prompt, and one that the answer filled.
    assert_eq!(worker.cached_blocks(0).unwrap().len(), 3);
    let folder = std::path::PathBuf::from(card.source_path().unwrap());
    worker.shutdown().await;
    assert!(!folder.exists(), "a folder made for the card goes with it");
    assert!(fleet.records(|records| records.is_empty()).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_at_another_worker_as_it_would_have() {
    let fleet = Fleet::new().await;
    let (one, other) = (fleet.worker(|_, _| {}).await, fleet.worker(|_, _| {}).await);
    let (one, other) = (fleet.endpoint(&one).await, fleet.endpoint(&other).await);
    let whole = fleet.tokens(&one, &request(100..120, 30)).await;
    let begun = (100..120).chain(whole[..11].iter().copied());
    assert_eq!(fleet.tokens(&other, &request(begun, 19)).await, whole[11..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_conditions_end_an_answer_or_keep_it_going() {
    let fleet = Fleet::new().await;
    let worker = fleet.worker(|config, _| config.mean_output_tokens = 4).await;
    let endpoint = fleet.endpoint(&worker).await;
    let whole = fleet.tokens(&endpoint, &request(100..120, 30)).await;
    let mut stopped = request(100..120, 30);
    let at = (3..30).find(|at| !whole[..*at].contains(&whole[*at])).unwrap();
    stopped.stop_conditions.stop_token_ids_hidden = Some(vec![whole[at]]);
    let outputs = fleet.ask(&endpoint, &stopped).await.unwrap();
    assert_eq!(tokens(&outputs), whole[..=at], "the engine tells the token; who detokenises hides it");
    let last = outputs.last().unwrap();
    assert_eq!((&last.finish_reason, &last.stop_reason), (&Some(FinishReason::Stop), &Some(StopReason::Token(whole[at].into()))));
    stopped.stop_conditions.min_tokens = Some(30);
    assert_eq!(fleet.tokens(&endpoint, &stopped).await.len(), 30);
    // The model's own end.
    let mut free = request(100..120, 200);
    free.stop_conditions.ignore_eos = None;
    let outputs = fleet.ask(&endpoint, &free).await.unwrap();
    assert_eq!(outputs.last().unwrap().finish_reason, Some(FinishReason::Eos));
    free.stop_conditions.min_tokens = Some(150);
    assert!(fleet.tokens(&endpoint, &free).await.len() > 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_is_refused_with_the_reason() {
    let fleet = Fleet::new().await;
    let worker = fleet.worker(|config, _| config.adapters = vec!["sql".to_owned()]).await;
    let endpoint = fleet.endpoint(&worker).await;
    let records = fleet.records(|records| records.iter().filter(|record| matches!(record, Record::Model(_))).count() == 2).await;
    let adapter = records.iter().find_map(|record| if let Record::Model(model) = record { model.card.lora() } else { None });
    assert_eq!(adapter.unwrap().name, "sql");
    let hinted = |hints: RoutingHints| wire::generate::GenerateRequest { routing: Some(hints), ..request(0..9, 2) };
    for (wrong, why) in [
        (request([], 2), "the prompt is empty"),
        (request(0..256, 2), "the prompt has 256 tokens, and at most 256 fit with an answer"),
        (request([70_000], 2), "token id 70000 is not in the vocabulary of"),
        (hinted(RoutingHints { dp_rank: Some(7), ..RoutingHints::default() }), "dp_rank 7 is out of bounds for dp_size 1"),
        (hinted(RoutingHints { lora_name: Some("x".to_owned()), ..RoutingHints::default() }), "the adapter \"x\" is not loaded"),
    ] {
        let error = fleet.ask(&endpoint, &wrong).await.unwrap_err();
        assert!(error.message.starts_with(why), "{}", error.message);
        assert_eq!((error.class.as_str(), error.public.as_deref()), ("InvalidRequest", Some(error.message.as_str())));
    }
    let base = fleet.tokens(&endpoint, &request(0..20, 9)).await;
    let with = hinted(RoutingHints { lora_name: Some("sql".to_owned()), ..RoutingHints::default() });
    let by_hint = fleet.tokens(&endpoint, &wire::generate::GenerateRequest { routing: with.routing, ..request(0..20, 9) }).await;
    let by_name = fleet.tokens(&endpoint, &wire::generate::GenerateRequest { model: "sql".to_owned(), ..request(0..20, 9) }).await;
    assert!(by_hint == by_name && by_hint != base);
    let salted = hinted(RoutingHints { cache_salt: Some("tenant".to_owned()), ..RoutingHints::default() });
    let salted = wire::generate::GenerateRequest { routing: salted.routing, ..request(0..20, 1) };
    let cached = async |request| fleet.ask(&endpoint, request).await.unwrap()[0].completion_usage.unwrap().cached_tokens;
    assert_eq!((cached(&salted).await, cached(&salted).await, cached(&request(0..20, 1)).await), (Some(0), Some(16), Some(16)));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_are_told_when_asked_for() {
    let fleet = Fleet::new().await;
    let worker = fleet.worker(|_, _| {}).await;
    let endpoint = fleet.endpoint(&worker).await;
    let mut asked = request(100..110, 3);
    asked.output_options = OutputOptions { logprobs: Some(2), prompt_logprobs: Some(1), ..OutputOptions::default() };
    let outputs = fleet.ask(&endpoint, &asked).await.unwrap();
    for output in &outputs[..3] {
        let [top] = &output.top_logprobs.as_ref().unwrap()[..] else { panic!("{output:?}") };
        assert_eq!((top.len(), top[0].token_id, top[0].rank, top[1].rank), (2, output.token_ids[0], 1, 2));
        assert!(top[0].logprob > top[1].logprob && output.log_probs.as_ref().unwrap()[..] == [top[0].logprob]);
    }
    let prompt = outputs[0].engine_data.as_ref().unwrap()["prompt_logprobs"].as_array().unwrap();
    assert!(prompt.len() == 10 && prompt[0].is_null() && prompt[9]["109"]["logprob"].is_number());
    assert!(outputs[1].engine_data.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_show_as_a_frontend_would_see_them() {
    let fleet = Fleet::new().await;
    let worker = fleet.worker(|_, _| {}).await;
    let endpoint = fleet.endpoint(&worker).await;
    let reason = async |status| {
        worker.set_faults(|faults| faults.status = Some(status));
        fleet.ask(&endpoint, &request(0..9, 4)).await.unwrap_err().reason
    };
    assert_eq!(reason(529).await, "capacity.worker_overloaded");
    assert_eq!(reason(503).await, "backend.worker_unavailable");
    assert_eq!(reason(400).await, "request.invalid_argument");
    assert_eq!(reason(500).await, "backend.unknown");
    let stream = |kind| Some(StreamFault { after_events: 2, kind });
    worker.set_faults(|faults| {
        faults.status = None;
        faults.stream = stream(StreamFaultKind::ErrorEvent);
    });
    let mut answer = fleet.open(&endpoint, &request(0..9, 4)).await;
    assert!(answer.next().await.unwrap().is_ok() && answer.next().await.unwrap().is_ok());
    assert_eq!(answer.next().await.unwrap().unwrap_err().class, "Internal");
    worker.set_faults(|faults| faults.stream = stream(StreamFaultKind::Close));
    let outputs = fleet.ask(&endpoint, &request(0..9, 4)).await.unwrap();
    assert!(outputs.len() == 2 && outputs.iter().all(|output| output.finish_reason.is_none()));
    worker.set_faults(|faults| {
        faults.stream = None;
        faults.freeze = Freeze::Process;
    });
    let mut answer = fleet.open(&endpoint, &request(0..9, 1)).await;
    worker.set_faults(|faults| faults.freeze = Freeze::None);
    assert!(answer.next().await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_is_finished_before_a_worker_ends() {
    let fleet = Fleet::new().await;
    let worker = fleet.worker(|_, _| {}).await;
    let endpoint = fleet.endpoint(&worker).await;
    worker.set_faults(|faults| faults.stream = Some(StreamFault { after_events: 3, kind: StreamFaultKind::Stall }));
    let mut stalled = fleet.open(&endpoint, &request(0..9, 9)).await;
    for _ in 0..3 {
        stalled.next().await.unwrap().unwrap();
    }
    worker.set_faults(|faults| {
        faults.stream = None;
        faults.freeze = Freeze::Engine;
    });
    let mut running = fleet.open(&endpoint, &request(0..9, 9)).await;
    let handle = worker;
    let thaw = async {
        // Its records go first, while the answer still waits.
        fleet.records(|records| records.is_empty()).await;
        drop(stalled);
    };
    let faults = handle.faults();
    assert_eq!(faults.freeze, Freeze::Engine);
    // The engine goes on once the drain has begun.
    handle.set_faults(|faults| faults.freeze = Freeze::None);
    let answer = async {
        let mut outputs = Vec::new();
        while let Some(output) = running.next().await {
            outputs.push(output.unwrap());
        }
        outputs
    };
    let (outputs, (), ()) = tokio::join!(answer, thaw, handle.shutdown());
    assert_eq!(outputs.last().unwrap().finish_reason, Some(FinishReason::Length));
}
