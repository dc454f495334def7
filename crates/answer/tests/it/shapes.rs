//! Chunks and bodies, byte for byte. Written by hand after OpenAI's reference.

use answer::{Answer, Echo, OpenAiError, Progress, Prompt, ResponseNvext, Shape, Timing, Workers};
use bytes::BytesMut;
use prompt::{Endpoint, ExtraFields, UsageWanted};
use wire::generate::{EngineOutput, EngineUsage, FinishReason, StopReason};

use crate::{
    harness::{answer, content, finished, prompt, shape, streamed, text, tokens},
    models::{BYTE_LEVEL, END, HELLO, WORLD, ascii},
};

/// "hello", " world", and the end, with a report of 2 cached tokens.
fn outputs() -> [EngineOutput; 3] {
    let usage = EngineUsage { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4, cached_tokens: Some(2) };
    let first = EngineOutput { completion_usage: Some(usage), ..tokens(&[HELLO]) };
    [first, tokens(&[WORLD]), finished(FinishReason::Stop)]
}

#[test]
fn a_chat() {
    assert_eq!(
        answer(shape(Endpoint::Chat, false), &BYTE_LEVEL.vocabulary, &outputs()),
        r#"{"id":"id-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello world","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}"#
    );
}

#[test]
fn a_chat_streamed() {
    let chunk = |choice: &str| {
        format!(r#"data: {{"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{choice}]}}"#) + "\n\n"
    };
    let expected = [
        chunk(r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}"#),
        chunk(r#"{"index":0,"delta":{"content":"hello"},"logprobs":null,"finish_reason":null}"#),
        chunk(r#"{"index":0,"delta":{"content":" world"},"logprobs":null,"finish_reason":null}"#),
        chunk(r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}"#),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(answer(shape(Endpoint::Chat, true), &BYTE_LEVEL.vocabulary, &outputs()), expected.concat());
}

#[test]
fn a_completion() {
    assert_eq!(
        answer(shape(Endpoint::Completions, false), &BYTE_LEVEL.vocabulary, &outputs()),
        r#"{"id":"id-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"hello world","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}"#
    );
}

#[test]
fn a_completion_streamed_with_usage() {
    let mut asked = shape(Endpoint::Completions, true);
    asked.usage.in_stream = true;
    let chunk =
        |rest: &str| format!(r#"data: {{"id":"id-1","object":"text_completion","created":7,"model":"m","choices":[{rest}}}"#) + "\n\n";
    let expected = [
        chunk(r#"{"index":0,"text":"hello","logprobs":null,"finish_reason":null}],"usage":null"#),
        chunk(r#"{"index":0,"text":" world","logprobs":null,"finish_reason":null}],"usage":null"#),
        chunk(r#"{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null"#),
        chunk(r#"],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}"#),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(answer(asked, &BYTE_LEVEL.vocabulary, &outputs()), expected.concat());
}

#[test]
fn usage_in_each_chunk() {
    let mut asked = shape(Endpoint::Completions, true);
    asked.usage = UsageWanted { in_stream: true, each_chunk: true };
    let stream = answer(asked, &BYTE_LEVEL.vocabulary, &outputs());
    let totals: Vec<_> = crate::harness::events(&stream).iter().map(|event| event["usage"]["completion_tokens"].clone()).collect();
    assert_eq!(totals, [1, 2, 2, 2]);
}

/// What must be escaped is, and the model's name is the client's.
#[test]
fn texts_are_escaped() {
    let said = "a\"b\\c\n\u{1}é</script>";
    let ids: Vec<u32> = said.bytes().map(u32::from).collect();
    for stream in [false, true] {
        let mut asked = shape(Endpoint::Chat, stream);
        asked.model = "m\"\\\n".to_owned();
        let out = answer(asked, &BYTE_LEVEL.vocabulary, &[tokens(&ids), finished(FinishReason::Stop)]);
        let (text, event) = if stream {
            (streamed(&out, 0), crate::harness::events(&out).remove(0))
        } else {
            (content(&out, 0), serde_json::from_str(&out).expect("JSON"))
        };
        assert_eq!((text.as_str(), event["model"].as_str()), (said, Some("m\"\\\n")));
    }
}

/// Two prompts, two choices each, which end in another order than theirs.
fn four(stream: bool) -> String {
    let mut asked = shape(Endpoint::Completions, stream);
    asked.prompts = vec![prompt(&[1, 2, 3]), prompt(&[4, 5])];
    asked.n = 2;
    let mut answer = Answer::new(asked, BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    for (choice, letter) in [(3, "d"), (0, "a"), (2, "c"), (1, "b")] {
        assert_eq!(answer.push(choice, &tokens(&ascii(letter)), &mut out), Progress::Going);
        assert_eq!(answer.push(choice, &finished(FinishReason::Length), &mut out), Progress::ChoiceDone);
    }
    assert_eq!(answer.push(4, &tokens(&ascii("e")), &mut out), Progress::ChoiceDone, "nobody asked for it");
    answer.end(&mut out, &ResponseNvext::default());
    text(&out)
}

#[test]
fn choices_in_the_order_of_their_index() {
    let body: serde_json::Value = serde_json::from_str(&four(false)).expect("JSON");
    let choices = body["choices"].as_array().expect("choices");
    assert_eq!(choices.iter().map(|choice| choice["index"].as_u64().expect("index")).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(choices.iter().map(|choice| choice["text"].as_str().expect("text")).collect::<String>(), "abcd");
    assert_eq!(body["usage"], serde_json::json!({"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}));
    let stream = four(true);
    assert_eq!([0, 1, 2, 3].map(|choice| streamed(&stream, choice)), ["a", "b", "c", "d"]);
}

#[test]
fn an_echo_stands_in_front() {
    let echoed = |endpoint, echo, stream| {
        let mut asked = shape(endpoint, stream);
        asked.prompts = vec![Prompt { ids: [HELLO, END].into(), echo: Some(echo) }];
        let out = answer(asked, &BYTE_LEVEL.vocabulary, &[tokens(&[WORLD]), finished(FinishReason::Stop)]);
        if stream { streamed(&out, 0) } else { content(&out, 0) }
    };
    for endpoint in [Endpoint::Completions, Endpoint::Chat] {
        for stream in [false, true] {
            assert_eq!(echoed(endpoint, Echo::Text("Hi!".to_owned()), stream), "Hi! world");
            assert_eq!(echoed(endpoint, Echo::Ids, stream), "hello world");
        }
    }
}

/// One error event, and nothing behind it.
#[test]
fn an_error_is_the_end() {
    let error = OpenAiError { message: "the worker \"died\"", kind: "server_error", param: None, code: Some("worker_dead") };
    let told = r#"{"error":{"message":"the worker \"died\"","type":"server_error","param":null,"code":"worker_dead"}}"#;
    for stream in [false, true] {
        let mut answer = Answer::new(shape(Endpoint::Completions, stream), BYTE_LEVEL.vocabulary.clone());
        let mut out = BytesMut::new();
        assert_eq!(answer.push(0, &tokens(&[HELLO]), &mut out), Progress::Going);
        let before = out.len();
        answer.error(&error, &mut out);
        let event = if stream { format!("data: {told}\n\n") } else { told.to_owned() };
        assert_eq!(text(&BytesMut::from(&out[before..])), event);
        answer.end(&mut out, &ResponseNvext::default());
        answer.error(&error, &mut out);
        assert_eq!(answer.push(0, &tokens(&[HELLO]), &mut out), Progress::ChoiceDone);
        assert_eq!(out.len(), before + event.len());
    }
}

fn everything(endpoint: Endpoint, stream: bool) -> Shape {
    let mut asked = shape(endpoint, stream);
    asked.fields = ExtraFields {
        worker_id: true,
        timing: true,
        completion_token_ids: true,
        prompt_token_ids: true,
        prompt_logprobs: true,
        stop_reason: true,
        detailed_finish_reason: true,
        routed_experts: true,
        engine_data: true,
    };
    asked
}

fn with_everything(stream: bool) -> String {
    let mut answer = Answer::new(everything(Endpoint::Completions, stream), BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    let worker = Workers { prefill_worker_id: Some(1), prefill_dp_rank: Some(0), decode_worker_id: Some(u64::MAX), decode_dp_rank: None };
    answer.served_by(0, worker);
    assert_eq!(answer.push(0, &tokens(&[HELLO]), &mut out), Progress::Going);
    // It moves.
    answer.served_by(0, Workers { decode_worker_id: Some(9), ..worker });
    let last = EngineOutput {
        finish_reason: Some(FinishReason::Stop),
        stop_reason: Some(StopReason::Token(5)),
        engine_data: Some(serde_json::json!({"prompt_logprobs": [null], "x": 1})),
        ..tokens(&[WORLD])
    };
    assert_eq!(answer.push(0, &last, &mut out), Progress::ChoiceDone);
    let timing = Timing { request_received_ms: Some(5), ttft_ms: Some(1.5), ..Timing::default() };
    answer.end(&mut out, &ResponseNvext { timing });
    text(&out)
}

#[test]
fn nvext_in_a_body() {
    let body: serde_json::Value = serde_json::from_str(&with_everything(false)).expect("JSON");
    let expected = serde_json::json!({
        "worker_id": {"prefill_worker_id": 1, "prefill_dp_rank": 0, "decode_worker_id": 9},
        "completion_token_ids": [HELLO, WORLD], "prompt_token_ids": [1, 2, 3], "stop_reason": 5, "detailed_finish_reason": "stop",
        "prompt_logprobs": [null], "engine_data": {"prompt_logprobs": [null], "x": 1},
        "timing": {"request_received_ms": 5, "ttft_ms": 1.5},
    });
    assert_eq!(body["nvext"], expected);
}

#[test]
fn nvext_in_a_stream() {
    let events = crate::harness::events(&with_everything(true));
    let nvext: Vec<_> = events.iter().map(|event| event["nvext"].clone()).collect();
    let moved = serde_json::json!({"prefill_worker_id": 1, "prefill_dp_rank": 0, "decode_worker_id": 9});
    let expected = [
        serde_json::json!({"worker_id": {"prefill_worker_id": 1, "prefill_dp_rank": 0, "decode_worker_id": u64::MAX},
            "prompt_token_ids": [1, 2, 3], "completion_token_ids": [HELLO]}),
        serde_json::json!({"worker_id": moved, "completion_token_ids": [WORLD]}),
        serde_json::json!({"worker_id": moved, "stop_reason": 5, "detailed_finish_reason": "stop", "prompt_logprobs": [null],
            "engine_data": {"prompt_logprobs": [null], "x": 1}, "timing": {"request_received_ms": 5, "ttft_ms": 1.5}}),
    ];
    assert_eq!(nvext, expected);
    assert_eq!(events[2]["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_dry_run() {
    let advice = |stream| {
        let mut answer = Answer::new(shape(Endpoint::Chat, stream), BYTE_LEVEL.vocabulary.clone());
        let mut out = BytesMut::new();
        answer.served_by(0, Workers { decode_worker_id: Some(4), ..Workers::default() });
        answer.advise(&mut out);
        text(&out)
    };
    let nvext = serde_json::json!({"worker_id": {"decode_worker_id": 4}, "token_ids": [1, 2, 3]});
    let [event] = <[serde_json::Value; 1]>::try_from(crate::harness::events(&advice(true))).expect("one event");
    assert_eq!(event["nvext"], nvext);
    assert_eq!(event["choices"][0]["delta"]["role"], "assistant");
    let body: serde_json::Value = serde_json::from_str(&advice(false)).expect("JSON");
    assert_eq!((&body["nvext"], &body["choices"]), (&nvext, &serde_json::json!([])));
}

#[test]
fn annotations_are_events_of_their_own() {
    let answer = Answer::new(shape(Endpoint::Chat, true), BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    answer.annotate("formatted_prompt", "<|user|>\nx", &mut out);
    assert_eq!(text(&out), "event: formatted_prompt\n: \"<|user|>\\nx\"\n\n");
}
