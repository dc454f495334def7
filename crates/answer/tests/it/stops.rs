//! What ends a choice.

use answer::{Answer, Progress, Stops};
use bytes::BytesMut;
use prompt::Endpoint;
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};
use wire::generate::{EngineOutput, FinishReason, StopReason};

use crate::{
    harness::{answer, content, cut, events, finished, shape, streamed, tokens},
    models::{AB, BYTE_LEVEL, END, EOS, HELLO, TOOL, WORLD, ascii},
};

fn strings(strings: &[&str]) -> Stops {
    Stops { strings: strings.iter().map(|text| (*text).to_owned()).collect(), ..Stops::default() }
}

/// Text, finish reason, stop reason and detailed finish reason of the whole body, and of the stream the same.
fn ended(stops: Stops, outputs: &[EngineOutput]) -> (String, Value, Value, Value) {
    let asked = |stream| {
        let mut shape = shape(Endpoint::Completions, stream);
        shape.stops = stops.clone();
        shape.fields.stop_reason = true;
        shape.fields.detailed_finish_reason = true;
        shape
    };
    let body = answer(asked(false), &BYTE_LEVEL.vocabulary, outputs);
    let stream = answer(asked(true), &BYTE_LEVEL.vocabulary, outputs);
    let body_end: Value = serde_json::from_str(&body).expect("JSON");
    let last = events(&stream).pop().expect("an event");
    let read = |text: String, end: &Value| {
        (
            text,
            end["choices"][0]["finish_reason"].clone(),
            end["nvext"]["stop_reason"].clone(),
            end["nvext"]["detailed_finish_reason"].clone(),
        )
    };
    let whole = read(content(&body, 0), &body_end);
    assert_eq!(whole, read(streamed(&stream, 0), &last));
    whole
}

fn expect(text: &str, finish: &str, stop: Value, detail: &str) -> (String, Value, Value, Value) {
    (text.to_owned(), json!(finish), stop, json!(detail))
}

#[test]
fn engines_say_why() {
    let after = |reason| ended(Stops::default(), &[tokens(&[HELLO, WORLD]), finished(reason)]);
    assert_eq!(after(FinishReason::Eos), expect("hello world", "stop", Value::Null, "eos"));
    assert_eq!(after(FinishReason::Stop), expect("hello world", "stop", Value::Null, "stop"));
    assert_eq!(after(FinishReason::Length), expect("hello world", "length", Value::Null, "length"));
    assert_eq!(after(FinishReason::ContentFilter), expect("hello world", "content_filter", Value::Null, "content_filter"));
    let stop = EngineOutput { finish_reason: Some(FinishReason::Stop), stop_reason: Some(StopReason::Token(5)), ..tokens(&[HELLO]) };
    assert_eq!(ended(Stops::default(), &[stop]), expect("hello", "stop", json!(5), "stop"));
}

#[test]
fn engines_that_give_up_leave_the_choice_open() {
    for stream in [false, true] {
        let mut answer = Answer::new(shape(Endpoint::Chat, stream), BYTE_LEVEL.vocabulary.clone());
        let mut out = BytesMut::new();
        for (reason, fault) in [
            (FinishReason::Error("no memory".to_owned()), answer::Fault::Engine("no memory".to_owned())),
            (FinishReason::Cancelled, answer::Fault::Cancelled),
        ] {
            assert_eq!(answer.push(0, &finished(reason), &mut out), Progress::Failed(fault));
            assert!(out.is_empty(), "nothing goes to the client before the first token");
            assert!(!answer.is_done(0));
        }
        assert_eq!(answer.push(0, &tokens(&[HELLO]), &mut out), Progress::Going);
        let failed = EngineOutput { finish_reason: Some(FinishReason::Cancelled), ..tokens(&[WORLD]) };
        assert_eq!(answer.push(0, &failed, &mut out), Progress::Failed(answer::Fault::Cancelled));
        assert_eq!(answer.delivered(0), [HELLO, WORLD], "what came with the failure counts");
        assert_eq!(answer.push(0, &finished(FinishReason::Stop), &mut out), Progress::ChoiceDone);
        answer.end(&mut out, &Default::default());
        let text = crate::harness::text(&out);
        assert_eq!(if stream { streamed(&text, 0) } else { content(&text, 0) }, "hello world");
    }
}

#[test]
fn hidden_visible_and_ignored_tokens() {
    let ids = [HELLO, EOS, WORLD, END, HELLO];
    let outputs = [tokens(&ids), finished(FinishReason::Length)];
    let eos = Stops { eos_ids: vec![END, EOS], ..Stops::default() };
    assert_eq!(ended(eos.clone(), &outputs), expect("hello", "stop", Value::Null, "eos"));
    let ignored = Stops { ignore_eos: true, ..eos.clone() };
    assert_eq!(ended(ignored, &outputs), expect("hello worldhello", "length", Value::Null, "length"));
    let hidden = Stops { hidden_ids: vec![WORLD], ..Stops::default() };
    assert_eq!(ended(hidden.clone(), &outputs), expect("hello", "stop", json!(WORLD), "stop"));
    let included = Stops { include: true, ..hidden };
    assert_eq!(ended(included, &outputs), expect("hello world", "stop", json!(WORLD), "stop"));
    let visible = Stops { visible_ids: vec![WORLD], ..Stops::default() };
    assert_eq!(ended(visible, &outputs), expect("hello world", "stop", json!(WORLD), "stop"));
}

/// The end-of-sequence token stays out of the text even where special tokens are shown.
#[test]
fn special_tokens_shown_or_not() {
    let shown = |skip| {
        let mut shape = shape(Endpoint::Completions, false);
        shape.skip_special_tokens = skip;
        shape.stops.eos_ids = vec![EOS];
        content(&answer(shape, &BYTE_LEVEL.vocabulary, &[tokens(&[END, HELLO, TOOL, EOS, HELLO])]), 0)
    };
    assert_eq!(shown(true), "hello<tool>");
    assert_eq!(shown(false), "<|end|>hello<tool>");
}

#[test]
fn tokens_beyond_the_most() {
    let most = Stops { max_tokens: Some(3), ..Stops::default() };
    assert_eq!(ended(most.clone(), &[tokens(&ascii("abcdef"))]), expect("abc", "length", Value::Null, "length"));
    assert_eq!(ended(most.clone(), &[tokens(&ascii("abc")), tokens(&ascii("d"))]), expect("abc", "length", Value::Null, "length"));
    // The engine may have a better reason to stop at the last one.
    assert_eq!(ended(most, &[tokens(&ascii("abc")), finished(FinishReason::Eos)]), expect("abc", "stop", Value::Null, "eos"));
}

#[test]
fn tokens_before_the_least() {
    let least = |min_tokens| Stops { min_tokens, eos_ids: vec![EOS], ..strings(&["bc"]) };
    let after = |min, text: &str| {
        let outputs = [tokens(&ascii(text)), finished(FinishReason::Length)];
        ended(least(min), &outputs).0
    };
    assert_eq!(after(0, "abcabc"), "a");
    assert_eq!(after(2, "abcabc"), "a", "the third token may end it");
    assert_eq!(after(3, "abcabc"), "abca", "the first match is within the least");
    assert_eq!(after(5, "abcabc"), "abca");
    assert_eq!(after(6, "abcabc"), "abcabc");
    let outputs = [tokens(&[EOS, HELLO, EOS, HELLO]), finished(FinishReason::Length)];
    assert_eq!(ended(least(2), &outputs), expect("hello", "stop", Value::Null, "eos"));
}

#[test]
fn stop_strings() {
    let after = |stops: &[&str], text: &str| ended(strings(stops), &[tokens(&ascii(text)), finished(FinishReason::Length)]);
    let at = |text: &str, stop: &str| expect(text, "stop", json!(stop), "stop");
    assert_eq!(after(&["bb"], "aabba"), at("aa", "bb"));
    assert_eq!(after(&["abcd", "bc"], "xabcd"), at("xa", "bc"), "the first to be complete");
    assert_eq!(after(&["c", "bc", "abc"], "xabcd"), at("x", "abc"), "the longest of those complete at once");
    assert_eq!(after(&["aab"], "aaab"), at("a", "aab"), "a beginning within a beginning");
    assert_eq!(after(&["", "zz"], "abz"), expect("abz", "length", Value::Null, "length"), "a beginning at the end is text");
    assert_eq!(after(&["ab"], "ab"), at("", "ab"));
    let included = Stops { include: true, ..strings(&["bb"]) };
    assert_eq!(ended(included, &[tokens(&ascii("aabba"))]), at("aabb", "bb"));
}

/// A stop string may begin in one token and end in the middle of another.
#[test]
fn stop_strings_across_tokens() {
    let outputs = [tokens(&[HELLO]), tokens(&[WORLD, HELLO])];
    assert_eq!(ended(strings(&["lo wo"]), &outputs), expect("hel", "stop", json!("lo wo"), "stop"));
    // Bytes of a character, one token each.
    let smile: Vec<u32> = "a🙂b".bytes().map(u32::from).collect();
    assert_eq!(ended(strings(&["🙂"]), &[tokens(&smile)]), expect("a", "stop", json!("🙂"), "stop"));
}

/// A stop string in what only the end settles.
#[test]
fn a_stop_string_completed_by_the_end() {
    let outputs = [tokens(&[u32::from(b'a'), 0xe6, 0x97]), finished(FinishReason::Length)];
    assert_eq!(ended(Stops::default(), &outputs), expect("a\u{fffd}", "length", Value::Null, "length"));
    assert_eq!(ended(strings(&["a\u{fffd}"]), &outputs), expect("", "stop", json!("a\u{fffd}"), "stop"));
}

/// What may begin a stop string is held back, and released once it cannot.
#[test]
fn beginnings_are_held_back() {
    let mut asked = shape(Endpoint::Completions, true);
    asked.stops = strings(&["abc"]);
    let mut answer = Answer::new(asked, BYTE_LEVEL.vocabulary.clone());
    let shown = ["x", "a", "b", "a", "b", "d"].map(|letter| {
        let mut out = BytesMut::new();
        assert_eq!(answer.push(0, &tokens(&ascii(letter)), &mut out), Progress::Going);
        out.extend_from_slice(b"data: [DONE]\n\n");
        streamed(&crate::harness::text(&out), 0)
    });
    assert_eq!(shown, ["x", "", "", "ab", "", "abd"]);
}

#[test]
fn nothing_follows_the_end() {
    let mut asked = shape(Endpoint::Completions, true);
    asked.stops = strings(&["b"]);
    let mut answer = Answer::new(asked, BYTE_LEVEL.vocabulary.clone());
    let mut out = BytesMut::new();
    assert_eq!(answer.push(0, &tokens(&ascii("abc")), &mut out), Progress::ChoiceDone);
    assert!(answer.is_done(0));
    let before = out.len();
    assert_eq!(answer.push(0, &tokens(&ascii("abc")), &mut out), Progress::ChoiceDone);
    assert_eq!((out.len(), answer.delivered(0).len()), (before, 2));
}

/// A text made to be slow for matchers that begin again: with them this takes minutes.
#[test]
fn long_stop_strings_cost_no_more() {
    let stops: Vec<String> = (1..60).map(|at| format!("{}b", "a".repeat(at * 50))).collect();
    let text = "a".repeat(1 << 20);
    let mut asked = shape(Endpoint::Completions, false);
    asked.stops.strings = stops;
    let body = answer(asked, &BYTE_LEVEL.vocabulary, &cut(&ascii(&text), &[4096]));
    assert_eq!(content(&body, 0).len(), text.len());
}

/// The first place at which one of `stops` is complete, and the longest of those: the plain way.
fn first(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    (1..=text.len()).find_map(|end| {
        let ends = stops.iter().filter(|stop| !stop.is_empty() && text.is_char_boundary(end) && text[..end].ends_with(stop.as_str()));
        ends.map(String::len).max().map(|length| (end - length, end))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn the_first_complete_stop_string_ends_it(
        text in "[abcé]{0,14}",
        stops in vec("[abcé]{1,4}", 0..5),
        cuts in vec(1_usize..4, 1..4),
        include: bool,
    ) {
        let mut ids = Vec::new();
        let mut rest = text.as_str();
        while let Some(next) = rest.chars().next() {
            let (id, length) = if rest.starts_with("ab") { (vec![AB], 2) } else { (rest[..next.len_utf8()].bytes().map(u32::from).collect(), next.len_utf8()) };
            ids.extend(id);
            rest = &rest[length..];
        }
        let asked = |stream| {
            let mut shape = shape(Endpoint::Chat, stream);
            shape.stops = Stops { strings: stops.clone(), include, ..Stops::default() };
            shape
        };
        let expected = match first(&text, &stops) {
            Some((begin, end)) => &text[..if include { end } else { begin }],
            None => &text,
        };
        let body = answer(asked(false), &BYTE_LEVEL.vocabulary, &cut(&ids, &cuts));
        let stream = answer(asked(true), &BYTE_LEVEL.vocabulary, &cut(&ids, &cuts));
        prop_assert_eq!(content(&body, 0), expected);
        prop_assert_eq!(streamed(&stream, 0), expected);
    }
}
