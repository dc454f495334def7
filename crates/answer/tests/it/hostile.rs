//! Whatever an engine sends, an answer stays an answer: nothing panics, streams and bodies stay JSON, and the end is told once.

use std::sync::Arc;

use answer::{
    Answer, Echo, Fault, Progress, Prompt, ResponseNvext,
    reasoning::ReasoningParser,
    tools::{Plan, ToolParser},
};
use bolero::check;
use bytes::BytesMut;
use prompt::{Endpoint, ExtraFields, ToolChoice, UsageWanted};
use wire::generate::{EngineOutput, EngineUsage, FinishReason, StopReason, TopLogprob};

use crate::{
    harness::{events, finished, shape, text, tokens},
    models::{BYTE_LEVEL, HELLO, METASPACE, Model, SENTENCEPIECE, WORDPIECE},
};

/// Output for another choice than the one a leg is asked for.
#[test]
fn the_wrong_choice() {
    let mut answer = Answer::new(shape(Endpoint::Chat, true), BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    let wrong = EngineOutput { index: Some(1), ..tokens(&[HELLO]) };
    assert_eq!(answer.push(0, &wrong, &mut out), Progress::Failed(Fault::WrongChoice(1)));
    assert!(out.is_empty() && answer.delivered(0).is_empty());
    assert_eq!(answer.push(7, &tokens(&[HELLO]), &mut out), Progress::ChoiceDone);
    assert!(answer.delivered(7).is_empty() && answer.is_done(7));
}

/// An item with nothing in it, and an end without any token.
#[test]
fn nothing_at_all() {
    for stream in [false, true] {
        let mut answer = Answer::new(shape(Endpoint::Chat, stream), BYTE_LEVEL.vocabulary.clone());
        let mut out = BytesMut::new();
        assert_eq!(answer.push(0, &tokens(&[]), &mut out), Progress::Going);
        assert!(out.is_empty());
        assert_eq!(answer.push(0, &finished(FinishReason::Stop), &mut out), Progress::ChoiceDone);
        answer.end(&mut out, &ResponseNvext::default());
        let out = text(&out);
        if stream {
            assert_eq!(events(&out).len(), 2, "who speaks, and the end");
        } else {
            assert_eq!(crate::harness::content(&out, 0), "");
        }
    }
}

/// A choice that nobody ended is ended with the answer.
#[test]
fn an_answer_that_is_ended_early() {
    let mut answer = Answer::new(shape(Endpoint::Completions, true), BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    assert_eq!(answer.push(0, &tokens(&[HELLO, 0xe6]), &mut out), Progress::Going);
    answer.end(&mut out, &ResponseNvext::default());
    let out = text(&out);
    assert_eq!(crate::harness::streamed(&out, 0), "hello\u{fffd}");
    assert_eq!(events(&out).last().expect("an event")["choices"][0]["finish_reason"], "stop");
}

/// Bytes as a source of decisions.
struct Dice<'a>(std::slice::Iter<'a, u8>);

impl Dice<'_> {
    fn roll(&mut self, sides: u32) -> u32 {
        u32::from(self.0.next().copied().unwrap_or(0)) % sides
    }

    fn yes(&mut self) -> bool {
        self.roll(2) == 1
    }

    fn ids(&mut self, model: &Model) -> Vec<u32> {
        let count = self.roll(6);
        (0..count)
            .map(|_| if self.roll(8) == 0 { u32::MAX - self.roll(3) } else { (self.roll(256) * 2 + self.roll(2)) % (model.size() + 4) })
            .collect()
    }

    fn output(&mut self, model: &Model) -> EngineOutput {
        let numbers = [-0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300];
        let length = self.roll(4) as usize;
        let top =
            |dice: &mut Self| TopLogprob { token_id: dice.roll(300), logprob: numbers[dice.roll(5) as usize], ..TopLogprob::default() };
        EngineOutput {
            token_ids: self.ids(model),
            log_probs: self.yes().then(|| (0..length).map(|_| numbers[self.roll(5) as usize]).collect()),
            top_logprobs: self.yes().then(|| (0..length).map(|_| (0..self.roll(4)).map(|_| top(self)).collect()).collect()),
            finish_reason: match self.roll(24) {
                0 => Some(FinishReason::Stop),
                1 => Some(FinishReason::Length),
                2 => Some(FinishReason::Error("\"".to_owned())),
                3 => Some(FinishReason::Cancelled),
                _ => None,
            },
            stop_reason: self.yes().then(|| StopReason::Text("\u{1}".to_owned())),
            index: [None, Some(0), Some(0), Some(9)][self.roll(4) as usize],
            completion_usage: self.yes().then(|| EngineUsage { cached_tokens: Some(self.roll(9)), ..EngineUsage::default() }),
            engine_data: self.yes().then(|| serde_json::json!({"prompt_logprobs": [null, {"7": [], "x": {"logprob": "y"}}]})),
            ..EngineOutput::default()
        }
    }
}

fn run(bytes: &[u8]) {
    let mut dice = Dice(bytes.iter());
    let model: &Model = [&*BYTE_LEVEL, &*SENTENCEPIECE, &*WORDPIECE, &*METASPACE][dice.roll(4) as usize];
    let stream = dice.yes();
    let mut asked = shape([Endpoint::Chat, Endpoint::Completions][dice.roll(2) as usize], stream);
    asked.prompts = (0..1 + dice.roll(2)).map(|_| Prompt { ids: dice.ids(model).into(), echo: dice.yes().then_some(Echo::Ids) }).collect();
    asked.n = 1 + dice.roll(2);
    asked.stops.strings = vec!["h".to_owned(), " w".to_owned(), "\u{fffd}".to_owned(), "日".to_owned()].split_off(dice.roll(5) as usize);
    asked.stops.min_tokens = dice.roll(4);
    asked.stops.max_tokens = dice.yes().then(|| dice.roll(9));
    asked.stops.eos_ids = dice.ids(model);
    asked.stops.include = dice.yes();
    asked.skip_special_tokens = dice.yes();
    asked.logprobs = dice.yes().then(|| dice.roll(3));
    asked.tokens_as_ids = dice.yes();
    asked.usage = UsageWanted { in_stream: dice.yes(), each_chunk: dice.yes() };
    if dice.yes() {
        let choice = [ToolChoice::Auto, ToolChoice::Required, ToolChoice::Named("f".to_owned())][dice.roll(3) as usize].clone();
        asked.parse = Plan {
            reasoning: dice.yes().then_some(ReasoningParser::ThinkAtOnce),
            tools: [None, Some(ToolParser::Hermes), Some(ToolParser::Harmony), Some(ToolParser::Pythonic)][dice.roll(4) as usize],
            choice,
            parallel: dice.yes(),
            schemas: Arc::default(),
        };
    }
    asked.fields =
        ExtraFields { worker_id: true, timing: dice.yes(), completion_token_ids: true, prompt_logprobs: true, ..ExtraFields::default() };
    let choices = asked.prompts.len() as u32 * asked.n;
    let mut answer = Answer::new(asked, model.vocabulary.clone());
    let mut out = BytesMut::new();
    for _ in 0..12 {
        let choice = dice.roll(choices + 1);
        let (before, done, length) = (answer.delivered(choice).len(), answer.is_done(choice), out.len());
        let progress = answer.push(choice, &dice.output(model), &mut out);
        assert_eq!(progress == Progress::ChoiceDone, answer.is_done(choice));
        assert!(!done || (answer.delivered(choice).len() == before && out.len() == length), "nothing follows the end");
    }
    answer.end(&mut out, &ResponseNvext::default());
    let out = text(&out);
    if stream {
        let ends = events(&out).iter().filter(|event| event["choices"][0]["finish_reason"].is_string()).count();
        assert_eq!(ends, choices as usize, "each choice ends once");
    } else {
        let body: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(body["choices"].as_array().map(Vec::len), Some(choices as usize));
    }
}

#[test]
fn anything_from_engines() {
    check!().with_iterations(20_000).with_max_len(400).for_each(run);
}
