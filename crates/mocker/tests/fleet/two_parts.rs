//! Prefill and decode workers: an answer proves that, and what, was handed over.

use mocker::{HandOver, Role};
use wire::{
    discovery::{ModelType, WorkerType},
    generate::{BootstrapInfo, EngineOutput, FinishReason, GenerateRequest, PrefillResult},
};

use crate::support::{Fleet, request, tokens};

/// The decode leg of a request, by what the prefill leg answered.
fn decode(request: &GenerateRequest, prefilled: &EngineOutput) -> GenerateRequest {
    let disaggregated_params = prefilled.disaggregated_params.clone().unwrap();
    let cached_tokens = prefilled.completion_usage.unwrap().cached_tokens;
    GenerateRequest { prefill_result: Some(PrefillResult { disaggregated_params, cached_tokens }), ..request.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_answer_is_decoded_once_and_by_its_own_prompt() {
    let fleet = Fleet::new().await;
    let workers = (fleet.of_role(Role::Prefill).await, fleet.of_role(Role::Decode).await, fleet.of_role(Role::Aggregated).await);
    let (prefill, card) = fleet.described(&workers.0).await;
    assert_eq!((prefill.id.component.as_str(), card.worker_type()), ("prefill", Some(WorkerType::Prefill)));
    assert_eq!((card.needs(), card.disaggregated_endpoint()), (vec![vec![WorkerType::Decode]], None));
    assert!(!card.serves(ModelType::Chat) && card.kv_event_publishing_enabled() == Some(true));
    let (decoder, card) = fleet.described(&workers.1).await;
    assert_eq!((decoder.id.component.as_str(), card.worker_type()), ("backend", Some(WorkerType::Decode)));
    assert!(card.serves(ModelType::Chat) && card.kv_event_publishing_enabled() == Some(false));

    let whole = request(100..150, 12);
    let outputs = fleet.ask(&prefill, &whole).await.unwrap();
    let [prefilled] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((prefilled.token_ids.len(), &prefilled.finish_reason), (1, &Some(FinishReason::Length)));
    assert_eq!(prefilled.completion_usage.unwrap().completion_tokens, 1);
    let leg = decode(&whole, prefilled);
    let alone = fleet.endpoint(&workers.2).await;
    assert_eq!(fleet.tokens(&decoder, &leg).await, fleet.tokens(&alone, &whole).await, "as one worker would have answered");
    // What was handed over is used up.
    let error = fleet.ask(&decoder, &leg).await.unwrap_err();
    assert!(error.message.contains("has nothing in room"), "{}", error.message);
    assert_eq!(error.reason, "backend.worker_unavailable");
    // It was of another prompt.
    let again = fleet.ask(&prefill, &whole).await.unwrap();
    assert_eq!(again[0].completion_usage.unwrap().cached_tokens, Some(48), "and a prefill worker's cache works");
    let error = fleet.ask(&decoder, &decode(&request(101..151, 12), &again[0])).await.unwrap_err();
    assert!(error.message.contains("holds another prompt"), "{}", error.message);
    // Nothing was handed over, or something strange.
    let error = fleet.ask(&decoder, &whole).await.unwrap_err();
    assert!(error.message.contains("needs what a prefill worker handed over"), "{}", error.message);
    let strange = EngineOutput { disaggregated_params: Some(serde_json::json!({"kv": 1})), ..again[0].clone() };
    assert!(fleet.ask(&decoder, &decode(&whole, &strange)).await.unwrap_err().message.contains("is not one of"));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_bootstrap_both_are_asked_at_once_and_meet_in_a_room() {
    let fleet = Fleet::new().await;
    let prefill = fleet
        .worker(|_, dynamo| {
            dynamo.role = Role::Prefill;
            dynamo.hand_over = HandOver::Bootstrap { port: 0 };
        })
        .await;
    let decoder = fleet.of_role(Role::Decode).await;
    let (prefill, card) = fleet.described(&prefill).await;
    let decoder = fleet.endpoint(&decoder).await;
    let place = card.disaggregated_endpoint().unwrap();
    let told = |room| BootstrapInfo { host: place.host.to_owned(), port: place.port, room, handoff_id: Some([7; 16]) };
    let leg = |room| GenerateRequest { bootstrap_info: Some(told(room)), ..request(100..150, 6) };
    // The decode worker is there first, and waits.
    let first = fleet.open(&decoder, &leg(1)).await;
    let prefilled = fleet.ask(&prefill, &leg(1)).await.unwrap();
    assert_eq!(prefilled.len(), 1);
    let (mut stream, mut outputs) = (first, Vec::new());
    while let Some(output) = stream.next().await {
        outputs.push(output.unwrap());
    }
    assert_eq!(tokens(&outputs).len(), 6);
    // The other way round.
    let room = u64::MAX >> 1;
    fleet.ask(&prefill, &leg(room)).await.unwrap();
    assert_eq!(fleet.tokens(&decoder, &leg(room)).await, tokens(&outputs));
    let error = fleet.ask(&prefill, &request(100..150, 6)).await.unwrap_err();
    assert!(error.message.contains("needs bootstrap_info"), "{}", error.message);
    // Nobody is where the room should be.
    let gone = GenerateRequest { bootstrap_info: Some(BootstrapInfo { port: 1, ..told(5) }), ..request(100..150, 6) };
    let error = fleet.ask(&decoder, &gone).await.unwrap_err();
    assert!(error.message.contains("cannot be reached"), "{}", error.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_may_do_it_all() {
    let fleet = Fleet::new().await;
    let decoder = fleet
        .worker(|_, dynamo| {
            dynamo.role = Role::Decode;
            dynamo.decodes_alone = true;
        })
        .await;
    let decoder = fleet.endpoint(&decoder).await;
    assert_eq!(fleet.tokens(&decoder, &request(100..150, 6)).await.len(), 6);
}
