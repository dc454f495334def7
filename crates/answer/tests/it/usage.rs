//! Each token is counted once.

use answer::{Answer, Progress, Usage};
use bytes::BytesMut;
use prompt::Endpoint;
use wire::generate::{EngineOutput, EngineUsage, FinishReason};

use crate::{
    harness::{finished, prompt, shape, tokens},
    models::{BYTE_LEVEL, EOS, HELLO, WORLD, ascii},
};

fn reporting(ids: &[u32], prompt_tokens: u32, cached: Option<u32>) -> EngineOutput {
    let usage = EngineUsage { prompt_tokens, completion_tokens: 0, total_tokens: prompt_tokens, cached_tokens: cached };
    EngineOutput { completion_usage: Some(usage), ..tokens(ids) }
}

fn usage(prompt_tokens: u64, completion_tokens: u64, cached_tokens: Option<u64>) -> Usage {
    Usage { prompt_tokens, completion_tokens, cached_tokens }
}

/// The second worker reports a prompt that the first one's tokens are part of, and finds most of it cached.
#[test]
fn over_a_migration() {
    let mut answer = Answer::new(shape(Endpoint::Chat, false), BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    assert_eq!(answer.push(0, &reporting(&[HELLO], 3, Some(1)), &mut out), Progress::Going);
    assert_eq!(answer.push(0, &tokens(&[WORLD, HELLO]), &mut out), Progress::Going);
    assert_eq!(answer.delivered(0), [HELLO, WORLD, HELLO]);
    assert_eq!(answer.push(0, &reporting(&[WORLD], 6, Some(5)), &mut out), Progress::Going);
    assert_eq!(answer.push(0, &finished(FinishReason::Length), &mut out), Progress::ChoiceDone);
    assert_eq!(answer.usage(), usage(3, 4, Some(1)));
}

/// A cut character, a held-back beginning of a stop string: the next worker goes on where the text stood.
#[test]
fn text_goes_on_over_a_migration() {
    let mut asked = shape(Endpoint::Chat, false);
    asked.stops.strings = vec!["zé!".to_owned()];
    let mut answer = Answer::new(asked, BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    let before = EngineOutput { finish_reason: Some(FinishReason::Cancelled), ..tokens(&[u32::from(b'a'), u32::from(b'z'), 0xc3]) };
    assert_eq!(answer.push(0, &before, &mut out), Progress::Failed(answer::Fault::Cancelled));
    assert_eq!(answer.delivered(0), [97, 122, 0xc3]);
    assert_eq!(answer.push(0, &tokens(&[0xa9, u32::from(b'!'), HELLO]), &mut out), Progress::ChoiceDone);
    answer.end(&mut out, &Default::default());
    assert_eq!(crate::harness::content(&crate::harness::text(&out), 0), "a");
    assert_eq!(answer.usage(), usage(3, 5, None), "what follows the stop string was not asked for");
}

/// A report beyond the prompt is no more than the prompt.
#[test]
fn reports_are_capped() {
    let mut answer = Answer::new(shape(Endpoint::Chat, false), BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    assert_eq!(answer.push(0, &reporting(&[HELLO], 3, None), &mut out), Progress::Going);
    assert_eq!(answer.usage().cached_tokens, None);
    assert_eq!(answer.push(0, &reporting(&[HELLO], 3, Some(u32::MAX)), &mut out), Progress::Going);
    assert_eq!(answer.usage(), usage(3, 2, Some(3)));
}

/// Choices of one prompt count it once; what was cached before any of them is the least that is reported.
#[test]
fn several_choices_and_prompts() {
    let mut asked = shape(Endpoint::Completions, false);
    asked.prompts = vec![prompt(&[1, 2, 3, 4]), prompt(&[5, 6, 7])];
    asked.n = 2;
    let mut answer = Answer::new(asked, BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    for (choice, cached) in [(0, Some(4)), (1, Some(2)), (2, Some(3)), (3, None)] {
        assert_eq!(answer.push(choice, &reporting(&ascii("ab"), 0, cached), &mut out), Progress::Going);
    }
    assert_eq!(answer.usage(), usage(7, 8, Some(5)));
}

/// The token that ends a choice was generated; those behind it were not asked for.
#[test]
fn the_end_counts_and_nothing_behind_it() {
    let mut asked = shape(Endpoint::Chat, false);
    asked.stops.eos_ids = vec![EOS];
    let mut answer = Answer::new(asked, BYTE_LEVEL.vocabulary.clone());
    assert_eq!(answer.push(0, &tokens(&[HELLO, EOS, WORLD]), &mut BytesMut::new()), Progress::ChoiceDone);
    assert_eq!(answer.usage().completion_tokens, 2);
}
