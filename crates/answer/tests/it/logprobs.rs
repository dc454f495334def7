//! Log-probabilities in both forms, with the text they belong to.

use answer::{Answer, Echo, Progress, Prompt};
use bytes::BytesMut;
use prompt::Endpoint;
use serde_json::{Value, json};
use wire::generate::{EngineOutput, FinishReason, TopLogprob};

use crate::{
    harness::{answer, events, finished, shape, text, tokens},
    models::{BYTE_LEVEL, HELLO, WORLD, ascii},
};

/// `ids`, each with a log-probability and two alternatives: itself, and `hello`.
fn output(ids: &[u32]) -> EngineOutput {
    let top = |id: u32| {
        let alternative = |rank, token_id, logprob| TopLogprob { rank, token_id, logprob, ..TopLogprob::default() };
        vec![alternative(1, id, -0.5), alternative(2, HELLO, -1.5), alternative(3, 0, -2.5)]
    };
    EngineOutput { log_probs: Some(vec![-0.5; ids.len()]), top_logprobs: Some(ids.iter().map(|id| top(*id)).collect()), ..tokens(ids) }
}

fn asked(endpoint: Endpoint, stream: bool, top: u32) -> answer::Shape {
    let mut asked = shape(endpoint, stream);
    asked.logprobs = Some(top);
    asked
}

fn logprobs(body: &str) -> Value {
    let body: Value = serde_json::from_str(body).expect("JSON");
    body["choices"][0]["logprobs"].clone()
}

#[test]
fn of_a_chat() {
    let body = answer(asked(Endpoint::Chat, false, 2), &BYTE_LEVEL.vocabulary, &[output(&[WORLD]), finished(FinishReason::Stop)]);
    let bytes: Vec<u8> = " world".bytes().collect();
    let expected = json!({"content": [{"token": " world", "logprob": -0.5, "bytes": bytes, "top_logprobs": [
        {"token": " world", "logprob": -0.5, "bytes": bytes}, {"token": "hello", "logprob": -1.5, "bytes": b"hello"}]}], "refusal": null});
    assert_eq!(logprobs(&body), expected);
}

/// What is kept of an answer that is wanted whole is counted as it grows: text, ids, log-probabilities, and what is echoed.
#[test]
fn what_is_kept_is_near_what_is_written() {
    let ids: Vec<u32> = [WORLD, HELLO].into_iter().cycle().take(1000).collect();
    let plain = |endpoint, top: Option<u32>| {
        let mut asked = shape(endpoint, false);
        asked.logprobs = top;
        asked
    };
    let mut echoed = plain(Endpoint::Completions, Some(2));
    echoed.prompts = vec![Prompt { ids: ids.clone().into(), echo: Some(Echo::Ids) }];
    let shapes = [Some(0), Some(2)].map(|top| [Endpoint::Chat, Endpoint::Completions].map(|endpoint| plain(endpoint, top)));
    for mut asked in shapes.into_iter().flatten().chain([echoed, plain(Endpoint::Chat, None)]) {
        asked.fields.completion_token_ids = true;
        let mut answer = Answer::new(asked.clone(), BYTE_LEVEL.vocabulary.clone());
        let mut out = BytesMut::new();
        assert_eq!(answer.push(0, &output(&ids), &mut out), Progress::Going);
        let held = answer.held_bytes();
        answer.end(&mut out, &answer::ResponseNvext::default());
        assert!((out.len() / 2..out.len() * 3).contains(&held), "{held} of {}: {asked:?}", out.len());
    }
    let mut stream = Answer::new(asked(Endpoint::Chat, true, 2), BYTE_LEVEL.vocabulary.clone());
    assert_eq!((stream.push(0, &output(&ids), &mut BytesMut::new()), stream.held_bytes()), (Progress::Going, 0));
}

#[test]
fn of_a_completion() {
    let body =
        answer(asked(Endpoint::Completions, false, 2), &BYTE_LEVEL.vocabulary, &[output(&[WORLD, HELLO]), finished(FinishReason::Stop)]);
    let expected = json!({"text_offset": [0, 6], "token_logprobs": [-0.5, -0.5], "tokens": [" world", "hello"],
        "top_logprobs": [{" world": -0.5, "hello": -1.5}, {"hello": -0.5}]});
    assert_eq!(logprobs(&body), expected);
}

/// Nobody asked for alternatives: the token itself is all there is.
#[test]
fn without_alternatives() {
    let body = |endpoint| answer(asked(endpoint, false, 0), &BYTE_LEVEL.vocabulary, &[output(&[HELLO]), finished(FinishReason::Stop)]);
    assert_eq!(logprobs(&body(Endpoint::Chat))["content"][0]["top_logprobs"], json!([]));
    assert_eq!(logprobs(&body(Endpoint::Completions))["top_logprobs"], json!([{"hello": -0.5}]));
}

#[test]
fn tokens_by_their_ids() {
    let mut shape = asked(Endpoint::Completions, false, 2);
    shape.tokens_as_ids = true;
    let body = answer(shape, &BYTE_LEVEL.vocabulary, &[output(&[WORLD]), finished(FinishReason::Stop)]);
    assert_eq!(logprobs(&body)["tokens"], json!(["token_id:257"]));
    assert_eq!(logprobs(&body)["top_logprobs"], json!([{"token_id:257": -0.5, "token_id:256": -1.5}]));
}

/// An engine that tells none, and one that tells too few.
#[test]
fn engines_that_tell_less() {
    let chat = |output| logprobs(&answer(asked(Endpoint::Chat, false, 1), &BYTE_LEVEL.vocabulary, &[output, finished(FinishReason::Stop)]));
    assert_eq!(chat(tokens(&[HELLO])), Value::Null);
    let short = EngineOutput { log_probs: Some(vec![f64::NEG_INFINITY]), top_logprobs: Some(vec![]), ..tokens(&[HELLO, WORLD]) };
    let told = chat(short.clone());
    assert_eq!(told["content"].as_array().expect("tokens").len(), 2);
    assert_eq!(told["content"][0]["logprob"], -9999.0);
    assert_eq!(told["content"][1]["logprob"], -9999.0);
    let completion = answer(asked(Endpoint::Completions, false, 1), &BYTE_LEVEL.vocabulary, &[short, finished(FinishReason::Stop)]);
    assert_eq!(logprobs(&completion)["token_logprobs"], json!([-9999.0, null]));
}

/// Each chunk's tokens are those of its text: while text is held back, so are they, and what is cut off is not told.
#[test]
fn they_go_with_the_text() {
    let mut shape = asked(Endpoint::Completions, true, 0);
    shape.stops.strings = vec!["bcd".to_owned()];
    let mut answer = Answer::new(shape, BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    for letter in "abxbcd".chars() {
        let done = answer.push(0, &output(&ascii(&letter.to_string())), &mut out);
        assert_eq!(done == Progress::ChoiceDone, letter == 'd');
    }
    answer.end(&mut out, &Default::default());
    let told: Vec<(String, Value, Value)> = events(&text(&out))
        .iter()
        .map(|event| {
            let choice = &event["choices"][0];
            let logprobs = &choice["logprobs"];
            (choice["text"].as_str().expect("text").to_owned(), logprobs["tokens"].clone(), logprobs["text_offset"].clone())
        })
        .collect();
    let expected = [("a", json!(["a"]), json!([0])), ("bx", json!(["b", "x"]), json!([1, 2])), ("", Value::Null, Value::Null)];
    assert_eq!(told, expected.map(|(text, tokens, offsets)| (text.to_owned(), tokens, offsets)));
}

/// The parts of a character are told with it, each with its own byte, and offsets count characters.
#[test]
fn parts_of_characters() {
    let ids: Vec<u32> = "é!".bytes().map(u32::from).collect();
    let outputs: Vec<_> = ids.iter().map(|id| output(&[*id])).chain([finished(FinishReason::Stop)]).collect();
    let stream = answer(asked(Endpoint::Chat, true, 0), &BYTE_LEVEL.vocabulary, &outputs);
    let told: Vec<_> = events(&stream)
        .iter()
        .filter(|event| event["choices"][0]["logprobs"].is_object())
        .map(|event| {
            let bytes: Vec<_> =
                event["choices"][0]["logprobs"]["content"].as_array().expect("tokens").iter().map(|token| token["bytes"].clone()).collect();
            (event["choices"][0]["delta"]["content"].clone(), bytes)
        })
        .collect();
    assert_eq!(told, [(json!("é"), vec![json!([0xc3]), json!([0xa9])]), (json!("!"), vec![json!([0x21])])]);
    let body = answer(asked(Endpoint::Completions, false, 0), &BYTE_LEVEL.vocabulary, &outputs);
    assert_eq!(logprobs(&body)["text_offset"], json!([0, 0, 1]));
}

/// An echoed prompt's tokens come first; the engine knows nothing of the very first.
#[test]
fn of_an_echo() {
    let told = json!([null, {"257": {"logprob": -0.25, "rank": 1, "decoded_token": " world"}, "104": {"logprob": -3.0, "rank": 2}}]);
    let first = EngineOutput { engine_data: Some(json!({"prompt_logprobs": told})), ..output(&[HELLO]) };
    let expected = json!({"text_offset": [0, 5, 11], "token_logprobs": [null, -0.25, -0.5], "tokens": ["hello", " world", "hello"],
        "top_logprobs": [null, {" world": -0.25}, {"hello": -0.5}]});
    for stream in [false, true] {
        let mut asked = asked(Endpoint::Completions, stream, 1);
        asked.prompts = vec![Prompt { ids: [HELLO, WORLD].into(), echo: Some(Echo::Ids) }];
        let out = answer(asked, &BYTE_LEVEL.vocabulary, &[first.clone(), finished(FinishReason::Stop)]);
        if stream {
            let events = events(&out);
            assert_eq!(events[0]["choices"][0]["text"], "hello world");
            assert_eq!(events[0]["choices"][0]["logprobs"]["token_logprobs"], json!([null, -0.25]));
            assert_eq!(events[1]["choices"][0]["logprobs"]["text_offset"], json!([11]));
        } else {
            assert_eq!(logprobs(&out), expected);
        }
    }
}
