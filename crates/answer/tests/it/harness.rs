//! Requests with little in them, and answers read back.

use std::sync::Arc;

use answer::{Answer, Progress, Prompt, ResponseNvext, Shape, Stops, tools::Plan};
use bytes::BytesMut;
use prompt::{Endpoint, ExtraFields, ToolChoice, UsageWanted, Vocabulary};
use serde_json::Value;
use wire::generate::{EngineOutput, FinishReason};

/// A request with nothing asked for, for one prompt of three tokens.
pub(crate) fn shape(endpoint: Endpoint, stream: bool) -> Shape {
    Shape {
        endpoint,
        stream,
        id: "id-1".to_owned(),
        model: "m".to_owned(),
        created: 7,
        prompts: vec![prompt(&[1, 2, 3])],
        n: 1,
        stops: Stops::default(),
        skip_special_tokens: true,
        logprobs: None,
        tokens_as_ids: false,
        usage: UsageWanted::default(),
        parse: Plan { reasoning: None, tools: None, choice: ToolChoice::None, parallel: true, schemas: Arc::default() },
        seed: 1,
        fields: ExtraFields::default(),
    }
}

pub(crate) fn prompt(ids: &[u32]) -> Prompt {
    Prompt { ids: ids.into(), echo: None }
}

/// Tokens, and nothing else.
pub(crate) fn tokens(ids: &[u32]) -> EngineOutput {
    EngineOutput { token_ids: ids.to_vec(), index: Some(0), ..EngineOutput::default() }
}

/// The end, and nothing else.
pub(crate) fn finished(reason: FinishReason) -> EngineOutput {
    EngineOutput { finish_reason: Some(reason), ..EngineOutput::default() }
}

/// What the client gets when the only choice is sent `outputs`, and then the end. What follows the end of the choice is not
/// sent, as the caller stops there.
pub(crate) fn answer(shape: Shape, vocabulary: &Arc<Vocabulary>, outputs: &[EngineOutput]) -> String {
    let mut answer = Answer::new(shape, vocabulary.clone());
    let mut out = BytesMut::new();
    for output in outputs {
        match answer.push(0, output, &mut out) {
            Progress::Going => {}
            Progress::ChoiceDone => break,
            Progress::Failed(fault) => panic!("{fault}"),
        }
    }
    answer.end(&mut out, &ResponseNvext::default());
    text(&out)
}

pub(crate) fn text(out: &BytesMut) -> String {
    String::from_utf8(out.to_vec()).expect("UTF-8")
}

/// The data of each event, `[DONE]` left out but checked.
pub(crate) fn events(stream: &str) -> Vec<Value> {
    let data: Vec<&str> = stream.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("data")).collect();
    let (last, events) = data.split_last().expect("an event");
    assert_eq!(*last, "[DONE]");
    events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
}

/// The text of a whole body's choice.
pub(crate) fn content(body: &str, choice: usize) -> String {
    let body: Value = serde_json::from_str(body).expect("JSON");
    let choice = &body["choices"][choice];
    choice["text"].as_str().or_else(|| choice["message"]["content"].as_str()).expect("a text").to_owned()
}

/// The text of a stream's choice, its chunks together.
pub(crate) fn streamed(stream: &str, choice: usize) -> String {
    let pick = |event: &Value| {
        let choices = event["choices"].as_array().expect("choices").clone();
        choices.into_iter().find(|one| one["index"] == choice)
    };
    let of = |one: Value| one["text"].as_str().or_else(|| one["delta"]["content"].as_str()).unwrap_or_default().to_owned();
    events(stream).iter().filter_map(pick).map(of).collect()
}

/// Cuts `ids` into outputs; `cuts` are the lengths, over and over.
pub(crate) fn cut(ids: &[u32], cuts: &[usize]) -> Vec<EngineOutput> {
    let mut rest = ids;
    let mut outputs = Vec::new();
    for length in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at((*length).clamp(1, rest.len()));
        outputs.push(tokens(now));
        rest = later;
    }
    outputs.push(finished(FinishReason::Length));
    outputs
}
