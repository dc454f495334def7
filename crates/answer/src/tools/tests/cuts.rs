//! However a text is cut into pieces, the same comes out; whatever the text is, nothing panics and every word of it is there.

use proptest::prelude::*;

use super::{Plan, Seen, ToolParser, characters, plan, run};
use crate::reasoning::ReasoningParser;

/// Pieces of every format, so that a random row of them is wrong in many ways.
const SHARDS: &[&str] = &[
    "<think>",
    "</think>",
    "<mm:think>",
    "[THINK]",
    "[/THINK]",
    "◁think▷",
    "◁/think▷",
    "<|channel>thought",
    "<channel|>",
    "<tool_call>",
    "</tool_call>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<tool_calls>",
    "</tool_calls>",
    "functools",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "<function=",
    "now>",
    "</function>",
    "<parameter=",
    "a>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "now",
    "get_weather",
    "days",
    "city",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.now:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"now\">",
    "</invoke>",
    "<parameter name=\"a\">",
    "]<]minimax[>[",
    "<｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"now\">",
    "<｜DSML｜parameter name=\"a\" string=\"false\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</｜DSML｜tool_calls>",
    "<|tool_call>",
    "call:now",
    "<|\"|>",
    "<tool_call|>",
    "<|channel|>",
    "analysis",
    "commentary",
    "final",
    " to=functions.now",
    "<|message|>",
    "<|start|>",
    "assistant",
    "<|end|>",
    "<|call|>",
    "<|message_model|>",
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
    "<|end_message|>",
    " to=self",
    "<|eom|>",
    "<atem:function_calls>",
    "<atem:invoke name=\"now\">",
    "</atem:invoke>",
    "<|open|>",
    "tools",
    "<|sep|>",
    "<|close|>",
    "call tool=\"now\"",
    "<|open|>json type=\"object\"<|sep|>",
    "<|close|>json<|sep|>",
    "{\"name\": \"now\"",
    "{\"name\": \"now\", \"arguments\": ",
    "\"arguments\": {",
    "\"parameters\": ",
    "{\"a\": 1}",
    "{\"a\": \"",
    "\\u00e",
    "\\",
    "\"",
    "'",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "[now(",
    "a=",
    ",",
    ":",
    ";",
    "1",
    "-2.5e3",
    "True",
    "null",
    "é",
    "日本",
    "🌧",
    " ",
    "\n",
    "\n\n",
    "\t",
    "```json\n",
    "<",
    "|",
    ">",
    "word",
    "Here is my response:",
];

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(SHARDS), 0..24).prop_map(|shards| shards.concat())
}

fn plans() -> Vec<Plan> {
    let tools = ToolParser::names().map(|name| ToolParser::by_name(name).unwrap());
    let mut plans: Vec<_> = tools.map(|tools| plan(Some(tools), Some(ReasoningParser::Think))).collect();
    let reasoning = ReasoningParser::names().map(|name| ReasoningParser::by_name(name).unwrap());
    plans.extend(reasoning.map(|reasoning| plan(None, Some(reasoning))));
    let required = prompt::ToolChoice::Required;
    plans.push(Plan { choice: required, ..plan(Some(ToolParser::Hermes), Some(ReasoningParser::Mistral)) });
    let named = prompt::ToolChoice::Named("now".to_owned());
    plans.push(Plan { choice: named, ..plan(Some(ToolParser::Qwen3Coder), None) });
    plans
}

fn pieces<'a>(text: &'a str, cuts: &[prop::sample::Index]) -> Vec<&'a str> {
    let mut ends: Vec<_> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
    ends.push(text.len());
    ends.sort_unstable();
    let mut from = 0;
    ends.into_iter().map(|end| &text[std::mem::replace(&mut from, end)..end]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_same_comes_out_however_a_text_is_cut(text in text(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        for plan in plans() {
            let whole = run(plan.start("", 1), [text.as_str()]);
            prop_assert_eq!(&whole, &run(plan.start("", 1), pieces(&text, &cuts)), "{:?}", plan);
            prop_assert_eq!(&whole, &run(plan.start("", 1), characters(&text)), "{:?}", plan);
        }
    }
}

/// Everything that came out.
fn all(seen: &[Seen]) -> String {
    let text = seen.iter().map(|seen| match seen {
        Seen::Thought(text) | Seen::Said(text) => text.clone(),
        Seen::Call { name, arguments, id } => format!("{name} {id} {arguments}"),
    });
    text.collect::<Vec<_>>().join("\n")
}

/// A run of calls in the form of each family, with words in it that must not be lost.
pub(super) const RUNS: &[(&str, &str)] = &[
    ("hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"WORD0\", \"b\": [1, \"WORD1\"]}}\n</tool_call>"),
    (
        "nemotron_deci",
        "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {\"a\": \"WORD0\"}}, {\"name\": \"now\", \"arguments\": {\"a\": \"WORD1\"}}]</TOOLCALL>",
    ),
    ("mistral", "[TOOL_CALLS]now[ARGS]{\"a\": \"WORD0\"}[TOOL_CALLS]now[ARGS]{\"a\": \"WORD1\"}"),
    (
        "deepseek_v3_1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\": \"WORD0\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\": \"WORD1\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{\"a\": \"WORD0 WORD1\"}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nWORD0\n</parameter>\n<parameter=where>\n{\"x\": \"WORD1\"}\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>WORD0</arg_value>\n<arg_key>where</arg_key>\n<arg_value>{\"x\": \"WORD1\"}</arg_value>\n</tool_call>",
    ),
    (
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"now\">\n<parameter name=\"a\">WORD0</parameter>\n<parameter name=\"b\">WORD1</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "minimax_m3",
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"now\">]<]minimax[>[<a>WORD0]<]minimax[>[</a>]<]minimax[>[<b>]<]minimax[>[<item>WORD1]<]minimax[>[</item>]<]minimax[>[</b>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
    ),
    (
        "deepseek_v4",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n<｜DSML｜parameter name=\"a\" string=\"true\">WORD0</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"false\">\"WORD1\"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    ("pythonic", "<|python_start|>[now(a='WORD0', b=[1, \"WORD1\"])]<|python_end|>"),
    ("gemma4", "<|tool_call>call:now{a:<|\"|>WORD0<|\"|>,b:[1,<|\"|>WORD1<|\"|>]}<tool_call|>"),
    (
        "harmony",
        "<|channel|>analysis<|message|>WORD0<|end|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{\"a\": \"WORD1\"}<|call|>",
    ),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// One character missing, doubled or replaced, or the end cut off: the words that are whole must come out somewhere.
    #[test]
    fn no_word_of_a_broken_call_is_lost(at in any::<prop::sample::Index>(), change in 0..4, row in any::<prop::sample::Index>()) {
        let (name, calls) = RUNS[row.index(RUNS.len())];
        let text = if name == "harmony" { format!("{calls}WORD3") } else { format!("WORD2 {calls}\nWORD3") };
        let at = text.floor_char_boundary(at.index(text.len()));
        let behind = at + text[at..].chars().next().map_or(0, char::len_utf8);
        let broken = match change {
            0 => format!("{}{}", &text[..at], &text[behind..]),
            1 => format!("{}{}", &text[..behind], &text[at..]),
            2 => format!("{}#{}", &text[..at], &text[behind..]),
            _ => text[..at].to_owned(),
        };
        let plan = plan(Some(ToolParser::by_name(name).unwrap()), None);
        let seen = all(&run(plan.start("", 1), [broken.as_str()]));
        for word in ["WORD0", "WORD1", "WORD2", "WORD3"] {
            prop_assert!(!broken.contains(word) || seen.contains(word), "{word} of {broken} is not in {seen}");
        }
    }
}
