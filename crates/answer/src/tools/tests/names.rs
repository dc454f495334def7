//! Names, tokens and ids.

use std::collections::BTreeSet;

use prompt::ToolChoice;

use super::{Plan, Seen, ToolParser, call, characters, plan, run, said, schemas, thought, without_ids};
use crate::reasoning::ReasoningParser;

/// What `dynamo._core.get_tool_parser_names()` of 1.6.1 answers.
const TOOLS: &str = "minimax_m3 mistral llama3_json minimax_m3_nom gemma-4 harmony minimax_m2 minimax-m3 qwen3_coder gemma4 jamba glm47 hermes deepseek-v4 kimi_k3 kimi-k3 deepseek_v3_2 qwen25 nemotron_nano deepseek_v3 minimax-m3-nom deepseek_v3_1 deepseekv4 phi4 kimi_k2 pythonic deepseek_v4 default inkling nemotron_deci deepseek_v41 glm45 kimi_k25 muse muse_glimmer qwen3";
/// What `dynamo._core.get_reasoning_parser_names()` of 1.6.1 answers.
const REASONING: &str = "step3 deepseek_v3_1 minimax_m2 minimax_m3 gemma-4 deepseek_v4 gpt_oss mistral minimax_append_think nemotron3 qwen3 minimax-m3 granite kimi basic inkling gemma4 deepseek_v3 nemotron_nano kimi_k25 deepseek_r1 deepseekv4 deepseek_v3_2 deepseek-v4 kimi-k3 glm45 nemotron_deci kimi_k3 nemotron_v3 deepseek_v41 glm47 kimi_k2 muse muse_glimmer qwen3_coder";

#[test]
fn every_name_of_dynamo_is_known() {
    let names = |list: &'static str| list.split(' ').collect::<BTreeSet<_>>();
    assert_eq!(ToolParser::names().collect::<BTreeSet<_>>(), names(TOOLS));
    assert_eq!(ReasoningParser::names().collect::<BTreeSet<_>>(), names(REASONING));
    for name in ToolParser::names() {
        ToolParser::by_name(name).unwrap();
    }
    for name in ReasoningParser::names() {
        ReasoningParser::by_name(name).unwrap();
    }
}

#[test]
fn an_unknown_name_is_told_with_those_that_there_are() {
    let error = ToolParser::by_name("hermès").unwrap_err().to_string();
    assert!(error.starts_with("no tool call parser is named \"hermès\"; there are: default, hermes, "), "{error}");
    let error = ReasoningParser::by_name("").unwrap_err().to_string();
    assert!(error.starts_with("no reasoning parser is named \"\"; there are: basic, "), "{error}");
}

#[test]
fn no_marker_is_the_beginning_of_another() {
    for parser in ToolParser::names().map(|name| ToolParser::by_name(name).unwrap()) {
        let marks: Vec<_> = parser.marks().chain(parser.drops().iter().copied()).collect();
        for (at, one) in marks.iter().enumerate() {
            for (other_at, other) in marks.iter().enumerate() {
                assert!(at == other_at || !other.starts_with(one), "{parser:?}: {one} {other}");
            }
        }
    }
}

#[test]
fn special_tokens_become_text_where_they_are_markers() {
    let hermes = plan(Some(ToolParser::Hermes), Some(ReasoningParser::Mistral));
    assert!(hermes.wants_special_tokens());
    let parsing = hermes.start("", 1);
    assert!(parsing.wants_token("<tool_call>") && parsing.wants_token("[/THINK]"));
    assert!(!parsing.wants_token("<|im_end|>"));
    let none = Plan { choice: ToolChoice::None, ..plan(Some(ToolParser::Hermes), None) };
    assert!(!none.wants_special_tokens() && none.is_plain());
    let pythonic = plan(Some(ToolParser::Pythonic), None);
    assert!(pythonic.wants_special_tokens() && !pythonic.is_plain());
}

fn ids(seen: Vec<Seen>) -> Vec<String> {
    let id = |seen| match seen {
        Seen::Call { id, .. } => Some(id),
        Seen::Thought(_) | Seen::Said(_) => None,
    };
    seen.into_iter().filter_map(id).collect()
}

#[test]
fn ids_look_as_their_family_wants() {
    let text = r#"<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now"}</tool_call>"#;
    let hermes = plan(Some(ToolParser::Hermes), None);
    let first = ids(run(hermes.start("", 1), [text]));
    assert_ne!(first[0], first[1]);
    for id in &first {
        let digits = id.strip_prefix("call_").unwrap();
        assert!(digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
    assert_eq!(first, ids(run(hermes.start("", 1), characters(text))), "ids do not depend on the cuts");
    assert_ne!(first, ids(run(hermes.start("", 2), [text])));

    let mistral = plan(Some(ToolParser::Mistral), None);
    let text = "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}";
    let mistral_ids = ids(run(mistral.start("", 1), [text]));
    assert!(mistral_ids[0].len() == 9 && mistral_ids[0].bytes().all(|byte| byte.is_ascii_alphanumeric()));
    assert_eq!(mistral_ids[1], "abcdefghi");
    let given = r#"[TOOL_CALLS][{"name": "now", "id": "123456789", "arguments": {}}]"#;
    assert_eq!(ids(run(mistral.start("", 1), [given])), ["123456789"]);

    let kimi = plan(Some(ToolParser::KimiK2), None);
    let text = "<|tool_call_begin|>functions.now:3<|tool_call_argument_begin|>{}<|tool_call_end|>";
    assert_eq!(ids(run(kimi.start("", 1), [text])), ["functions.now:3"]);
}

#[test]
fn named_and_required_calls_are_json_without_markers() {
    let with = |choice: ToolChoice, tools| Plan { choice, ..plan(tools, Some(ReasoningParser::Think)) };
    let named = || ToolChoice::Named("get_weather".to_owned());
    let list = r#"[{"name": "get_weather", "parameters": {"city": "[<tool_call>]"}}, {"name": "now", "parameters": {}}]"#;
    let native = r#"<tool_call>{"name": "now", "arguments": {}}</tool_call>"#;
    let rows = [
        (named(), None, "{\"city\": \"}\"} ", vec![call("get_weather", "{\"city\": \"}\"}")]),
        (named(), None, "<think>Hm.</think>\n\n{\"a\": 1}", vec![thought("Hm."), call("get_weather", "{\"a\": 1}")]),
        (named(), Some(ToolParser::Hermes), "{\"a\": 1", vec![call("get_weather", "{\"a\": 1")]),
        (named(), Some(ToolParser::Hermes), native, vec![call("now", "{}")]),
        (named(), None, " not bound", vec![said(" not bound")]),
        (
            ToolChoice::Required,
            Some(ToolParser::DeepSeek),
            list,
            vec![call("get_weather", r#"{"city": "[<tool_call>]"}"#), call("now", "{}")],
        ),
        (ToolChoice::Required, Some(ToolParser::Hermes), native, vec![call("now", "{}")]),
        (ToolChoice::Required, None, "\n", vec![said("\n")]),
    ];
    for (choice, tools, text, seen) in rows {
        let plan = with(choice, tools);
        assert_eq!(without_ids(run(plan.start("", 1), [text])), seen, "{text}");
        assert_eq!(without_ids(run(plan.start("", 1), characters(text))), seen, "{text}");
    }
}

#[test]
fn without_parallel_calls_only_the_first_is_told() {
    let text = r#"a<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>b"#;
    let single = Plan { parallel: false, ..plan(Some(ToolParser::Hermes), None) };
    let seen = vec![said("a"), call("now", "{}"), said("b")];
    assert_eq!(without_ids(run(single.start("", 1), [text])), seen);
    assert_eq!(without_ids(run(single.start("", 1), characters(text))), seen);
}

#[test]
fn text_is_left_alone_where_nothing_is_searched_for() {
    let text = "\n<tool_call>{\"name\": \"now\"}</tool_call>\n ";
    let plain = Plan { reasoning: None, tools: None, choice: ToolChoice::None, parallel: true, schemas: schemas() };
    assert!(plain.is_plain());
    assert_eq!(run(plain.start("", 1), characters(text)), [said(text)]);
}
