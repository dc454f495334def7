//! Bounds: what is held, and how long it takes.

use std::time::{Duration, Instant};

use super::{Seen, ToolParser, call, plan, run, said, without_ids};
use crate::{Delta, reasoning::ReasoningParser, tools::MAX_HELD_BYTES};

fn hermes() -> super::Plan {
    plan(Some(ToolParser::Hermes), Some(ReasoningParser::Think))
}

#[test]
fn prose_is_not_held_back() {
    let mut parsing = hermes().start("", 1);
    let mut out = Vec::new();
    for (piece, seen) in [("Hel", "Hel"), ("lo ", "lo "), ("<", ""), ("tool", ""), ("box>", "<toolbox>"), (" a\n", " a"), ("b", "\nb")] {
        parsing.push(piece, &mut out);
        let told: String = out
            .drain(..)
            .map(|delta| matches!(&delta, Delta::Content(_)).then_some(delta))
            .map(|delta| match delta {
                Some(Delta::Content(text)) => text,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(told, seen, "after {piece:?}");
    }
}

#[test]
fn arguments_go_out_as_they_come() {
    let told = |text: &str, tools: &str| {
        let mut parsing = plan(Some(ToolParser::by_name(tools).unwrap()), None).start("", 1);
        let mut out = Vec::new();
        parsing.push(text, &mut out);
        super::joined(out)
    };
    let begun = |json: &str| vec![call("get_weather", json)];
    let hermes = told("<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa", "hermes");
    assert_eq!(without_ids(hermes), begun("{\"city\": \"Pa"));
    let qwen = told("<tool_call>\n<function=get_weather>\n<parameter=city>\nPa\"", "qwen3_coder");
    assert_eq!(without_ids(qwen), begun("{\"city\":\"Pa\\\""));
    let python = told("[get_weather(city='Pa", "pythonic");
    assert_eq!(without_ids(python), begun("{\"city\":\"Pa"));
    let harmony = told("<|channel|>commentary to=functions.get_weather<|message|>{\"ci", "harmony");
    assert_eq!(without_ids(harmony), begun("{\"ci"));
}

#[test]
fn what_is_held_is_bounded() {
    // A call with endless arguments before its name is none.
    let mut text = String::from("<tool_call>{\"arguments\": {\"a\": \"");
    text.push_str(&"x".repeat(3 * MAX_HELD_BYTES));
    let mut parsing = hermes().start("", 1);
    let mut out = Vec::new();
    parsing.push(&text[..MAX_HELD_BYTES], &mut out);
    assert_eq!(out, []);
    parsing.push(&text[MAX_HELD_BYTES..], &mut out);
    parsing.finish(&mut out);
    assert_eq!(super::joined(out), [said(&text)]);

    // An endless number is a string.
    let digits = "1".repeat(3 * MAX_HELD_BYTES);
    let text = format!("<function=get_weather><parameter=days>{digits}</parameter></function>");
    let seen = run(plan(Some(ToolParser::Qwen3Coder), None).start("", 1), [text.as_str()]);
    assert_eq!(without_ids(seen), [call("get_weather", &format!("{{\"days\":\"{digits}\"}}"))]);
}

#[test]
fn a_name_that_never_ends_is_read_the_same_however_it_is_cut() {
    // Markers inside the name and where its bound is, so that it matters to the byte where it is given up.
    let long = format!("{}<function=now>é{}{{\"a\": 1}}", "a".repeat(1000), "</tool_call>é<|message|>[TOOL_CALLS]".repeat(20));
    let calls: String = super::cuts::RUNS.iter().map(|(_, calls)| *calls).collect();
    for name in ToolParser::names() {
        let parser = ToolParser::by_name(name).unwrap();
        let plan = plan(Some(parser), None);
        for head in parser.marks().chain(["[", "<|channel|>", "<function=now><parameter=", "<|tool_call>call:"]) {
            let text = format!("{head}{long}{calls}");
            let whole = run(plan.start("", 1), [text.as_str()]);
            assert_eq!(whole, run(plan.start("", 1), super::characters(&text)), "{name}: {head}");
            for cut in (900..1200).step_by(7).map(|cut| text.floor_char_boundary(cut)) {
                assert_eq!(whole, run(plan.start("", 1), [&text[..cut], &text[cut..]]), "{name}: {head}, cut at {cut}");
            }
        }
    }
}

/// A quadratic parser takes long for these.
#[test]
fn time_grows_with_the_length_only() {
    const BYTES: usize = 60_000;
    /// A linear one takes milliseconds.
    const LIMIT: Duration = Duration::from_secs(3);
    let shards = [
        "<",
        "\n",
        " ",
        "[",
        "{",
        "}",
        "\"",
        "\\",
        "<tool_call>",
        "<tool_call>{\"",
        "<function=a",
        "<function=now>",
        "<parameter=",
        "[TOOL_CALLS]a",
        "[now(a=1), ",
        "(",
        "'",
        "<|tool_call>call:a",
        "<|channel|>",
        "<|message|>",
        "]<]minimax[>[<",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>a",
        "<think>",
        "</think>",
        "a=",
        "{\"a\":",
    ];
    for shard in shards {
        let text = shard.repeat(BYTES / shard.len());
        for name in ToolParser::names() {
            let plan = plan(Some(ToolParser::by_name(name).unwrap()), Some(ReasoningParser::Think));
            let pieces = text.as_bytes().chunks(997).scan(0, |at, chunk| {
                let from = text.floor_char_boundary(*at);
                *at += chunk.len();
                Some(&text[from..text.floor_char_boundary(*at)])
            });
            let begun = Instant::now();
            run(plan.start("", 1), pieces);
            assert!(begun.elapsed() < LIMIT, "{name}, {shard:?}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn no_text_panics() {
    bolero::check!().with_iterations(3000).with_type::<(u8, u8, Vec<u8>)>().for_each(|(tools, reasoning, bytes)| {
        let tools = ToolParser::names().nth(usize::from(*tools) % 36).unwrap();
        let reasoning = ReasoningParser::names().nth(usize::from(*reasoning) % 35).unwrap();
        let plan = plan(Some(ToolParser::by_name(tools).unwrap()), Some(ReasoningParser::by_name(reasoning).unwrap()));
        let text = String::from_utf8_lossy(bytes);
        let whole: Vec<Seen> = run(plan.start("", 1), [text.as_ref()]);
        assert_eq!(whole, run(plan.start("", 1), super::characters(&text)));
    });
}
