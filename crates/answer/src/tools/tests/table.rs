//! What models of each family really write, and what must come out: whole, character by character, and cut once anywhere.

use super::{ToolParser, call, characters, plan, run, said, thought, without_ids};
use crate::{reasoning::ReasoningParser, tools::tests::Seen};

struct Case {
    tools: &'static str,
    reasoning: &'static str,
    prompt_tail: &'static str,
    text: &'static str,
    seen: Vec<Seen>,
}

fn case(tools: &'static str, text: &'static str, seen: Vec<Seen>) -> Case {
    Case { tools, reasoning: "", prompt_tail: "", text, seen }
}

fn check(case: Case) {
    let tools = (!case.tools.is_empty()).then(|| ToolParser::by_name(case.tools).unwrap());
    let reasoning = (!case.reasoning.is_empty()).then(|| ReasoningParser::by_name(case.reasoning).unwrap());
    let plan = plan(tools, reasoning);
    let start = || plan.start(case.prompt_tail, 7);
    let whole = without_ids(run(start(), [case.text]));
    assert_eq!(whole, case.seen, "{} {}: {}", case.tools, case.reasoning, case.text);
    assert_eq!(without_ids(run(start(), characters(case.text))), case.seen, "by character: {}", case.text);
    for (at, _) in case.text.char_indices() {
        let pieces = [&case.text[..at], &case.text[at..]];
        assert_eq!(without_ids(run(start(), pieces)), case.seen, "{pieces:?}");
    }
}

const PARIS: &str = r#"{"city": "Paris", "days": 3}"#;

#[test]
fn json_between_markers() {
    let two = || vec![said("Let me check."), call("get_weather", PARIS), call("now", "{}"), said("One moment.")];
    let text = "Let me check.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\nOne moment.";
    for name in ["hermes", "qwen25", "qwen3", "qwen3_coder"] {
        check(case(name, text, two()));
    }
    let list = "Let me check.<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>One moment.";
    check(case("nemotron_deci", list, two()));
    check(case("default", list, two()));
    let jamba = "Let me check.\n<tool_calls>[\n  {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}},\n  {\"name\": \"now\"}\n]</tool_calls>\n\nOne moment.";
    check(case("jamba", jamba, two()));
    let phi = "Let me check.functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}},{\"name\": \"now\", \"arguments\": {}}] One moment.";
    check(case("phi4", phi, two()));
}

#[test]
fn json_with_brackets_quotes_and_escapes_inside() {
    let arguments = r#"{"city": "}{\"]</tool_call> 日本 \u00e9 \\", "where": {"a": [1, {"b": "}"}]}}"#;
    let text = r#"<tool_call>{"name": "get_weather", "arguments": {"city": "}{\"]</tool_call> 日本 \u00e9 \\", "where": {"a": [1, {"b": "}"}]}}}</tool_call>"#;
    check(case("hermes", text, vec![call("get_weather", arguments)]));
    let early = r#"<tool_call>{"arguments": {"city": "}{\"]</tool_call> 日本 \u00e9 \\", "where": {"a": [1, {"b": "}"}]}}, "name": "get_weather"}</tool_call>"#;
    check(case("hermes", early, vec![call("get_weather", arguments)]));
    let text = r#"<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Zürich \\ud83c\\udf27\"}"}</tool_call>"#;
    check(case("hermes", text, vec![call("get_weather", r#"{"city": "Zürich \ud83c\udf27"}"#)]));
    let nested = r#"<tool_call>{"type": "function", "function": {"name": "now", "arguments": null}}</tool_call>"#;
    check(case("hermes", nested, vec![call("now", "{}")]));
}

#[test]
fn slips_that_models_make() {
    let missing = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}\n</tool_call>\nok";
    check(case("hermes", missing, vec![call("now", r#"{"a": 1}"#), said("ok")]));
    let extra = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}}\n</tool_call>";
    check(case("hermes", extra, vec![call("now", r#"{"a": 1}"#)]));
    let open = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}";
    check(case("hermes", open, vec![call("now", r#"{"a": 1}"#)]));
    let cut = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"x";
    check(case("hermes", cut, vec![call("now", r#"{"a": "x"#)]));
    let cut_end = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_";
    check(case("hermes", cut_end, vec![call("now", "{}")]));
    let no_name = "A <tool_call>{\"arguments\": {\"a\": 1}}</tool_call> B";
    check(case("hermes", no_name, vec![said(no_name)]));
    let no_call = "Use <tool_call> to call.";
    check(case("hermes", no_call, vec![said(no_call)]));
    let cut_name = "A\n<tool_call>\n{\"name\": \"no";
    check(case("hermes", cut_name, vec![said(cut_name)]));
}

#[test]
fn llama3() {
    let bare = r#"{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}"#;
    let tagged = r#"<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}<|eom_id|>"#;
    let two =
        r#"{"type": "function", "name": "get_weather", "parameters": {"city": "Paris", "days": 3}}; {"name": "now", "parameters": {}}"#;
    for name in ["llama3_json", "default"] {
        check(case(name, bare, vec![call("get_weather", PARIS)]));
        check(case(name, two, vec![call("get_weather", PARIS), call("now", "{}")]));
        for answer in [r#"{"answer": {"name": "now"}}"#, r#"{"name": "Ada", "age": 36}"#, "[1, 2]", "{", "[see] it", " {}"] {
            check(case(name, answer, vec![said(answer)]));
        }
    }
    check(case("llama3_json", tagged, vec![call("get_weather", PARIS)]));
    let code = "<|python_tag|>print(1)";
    check(case("llama3_json", code, vec![said(code)]));
}

#[test]
fn pythonic() {
    let text = r#"[get_weather(city='Pa"ris\'s', days=3, exact=True, where={"x": [1, None, (2.5,)], 'y': {}}, tags=[]), now()]"#;
    let arguments = r#"{"city":"Pa\"ris's","days":3,"exact":true,"where":{"x":[1,null,[2.5]],"y":{}},"tags":[]}"#;
    check(case("pythonic", text, vec![call("get_weather", arguments), call("now", "{}")]));
    let llama4 = "Sure.\n<|python_start|>[now()]<|python_end|><|eom|>";
    check(case("pythonic", llama4, vec![said("Sure."), call("now", "{}")]));
    let more = "[now( ) ,\n search.web(query = '''a\n'b' ''', n=1_000)]\nDone, as [now()].";
    let web = call("search.web", r#"{"query":"a\n'b' ","n":1000.0}"#);
    check(case("pythonic", more, vec![call("now", "{}"), web, said("Done, as [now()].")]));
    for answer in ["[1] is the first source", "[link](http://x)", "[f(x)]", "[now(x)]", "[now", "[unknown(a=1)]", "[]"] {
        check(case("pythonic", answer, vec![said(answer)]));
    }
    check(case("pythonic", "[now(a=1, b", vec![call("now", r#"{"a":1"#), said("b")]));
}

#[test]
fn deepseek_and_kimi() {
    let v3 = "Let me check.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\", \"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
    let v3_1 = "Let me check.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let two = || vec![said("Let me check."), call("get_weather", PARIS), call("now", "{}")];
    for name in ["deepseek_v3", "deepseek_v3_1"] {
        check(case(name, v3, two()));
        check(case(name, v3_1, two()));
    }
    let kimi = "Let me check.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>";
    check(case("kimi_k2", kimi, two()));
    let bare = "<|tool_call_begin|>functions.search.web:12<|tool_call_argument_begin|>{\"q\": 1<|tool_call_end|>.";
    check(case("kimi_k25", bare, vec![call("search.web", "{\"q\": 1"), said(".")]));
    let empty = "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>";
    check(case("deepseek_v3", empty, vec![said(empty)]));
}

#[test]
fn mistral() {
    let old = r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "now", "arguments": {}}]"#;
    let new = r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}"#;
    let newest = r#"[TOOL_CALLS]get_weather{"city": "Paris", "days": 3}[TOOL_CALLS]now{}"#;
    for text in [old, new, newest] {
        check(case("mistral", text, vec![call("get_weather", PARIS), call("now", "{}")]));
    }
}

#[test]
fn parameters_in_tags() {
    let compact = r#"{"city":"New\nYork \"N\"","days":3,"exact":true,"where":{"x": [1]},"note":null,"limit":2.5,"extra":"7"}"#;
    let two = || vec![said("Let me check."), call("get_weather", compact), call("now", "{}"), said("Done.")];
    let qwen = "Let me check.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork \"N\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=where>\n{\"x\": [1]}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=limit>\n2.5\n</parameter>\n<parameter=extra>\n7\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nDone.";
    for name in ["qwen3_coder", "nemotron_nano", "qwen3"] {
        check(case(name, qwen, two()));
    }
    let glm = "Let me check.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>New\nYork \"N\"</arg_value>\n<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value><arg_key>where</arg_key><arg_value>{\"x\": [1]}</arg_value><arg_key>note</arg_key><arg_value>null</arg_value><arg_key>limit</arg_key><arg_value>2.5</arg_value><arg_key>extra</arg_key><arg_value>7</arg_value></tool_call><tool_call>now</tool_call>\nDone.";
    for name in ["glm45", "glm47"] {
        check(case(name, glm, two()));
    }
    let minimax = "Let me check.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">New\nYork \"N\"</parameter>\n<parameter name=\"days\">3</parameter>\n<parameter name=\"exact\">true</parameter>\n<parameter name=\"where\">{\"x\": [1]}</parameter><parameter name=\"note\">null</parameter><parameter name=\"limit\">2.5</parameter><parameter name=\"extra\">7</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>\nDone.";
    check(case("minimax_m2", minimax, two()));
    let muse = "<atem:function_calls>\n<atem:invoke name=\"now\">\n<atem:parameter name=\"a\"> x </atem:parameter>\n</atem:invoke>\n</atem:function_calls>";
    check(case("muse", muse, vec![call("now", r#"{"a":" x "}"#)]));
    for (name, block) in [("deepseek_v3_2", "function_calls"), ("deepseek_v4", "tool_calls")] {
        let text: &'static str = Box::leak(format!("Let me check.\n\n<｜DSML｜{block}>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">New\nYork \"N\"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"exact\" string=\"false\">true</｜DSML｜parameter>\n<｜DSML｜parameter name=\"where\" string=\"false\">{{\"x\": [1]}}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"note\" string=\"false\">null</｜DSML｜parameter>\n<｜DSML｜parameter name=\"limit\" string=\"false\">2.5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"extra\" string=\"true\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜{block}>Done.").into_boxed_str());
        check(case(name, text, two()));
    }
    let v41 = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"now\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    check(case("deepseek_v41", v41, vec![call("now", r#"{"a":"1"}"#)]));
}

#[test]
fn tags_that_are_missing() {
    let bare = "<function=now>\n<parameter=a>\nx\n<parameter=b>\ny\n</function>";
    check(case("qwen3_coder", bare, vec![call("now", r#"{"a":"x","b":"y"}"#)]));
    let open = "<tool_call>\n<function=now>\n<parameter=a>\nx\n</parameter>\n";
    check(case("qwen3_coder", open, vec![call("now", r#"{"a":"x"}"#)]));
    let cut = "<tool_call>\n<function=now>\n<parameter=a>\nx";
    check(case("qwen3_coder", cut, vec![call("now", r#"{"a":"x"#)]));
    let cut_number = "<tool_call>\n<function=get_weather>\n<parameter=days>\n12";
    check(case("qwen3_coder", cut_number, vec![call("get_weather", r#"{"days":12"#)]));
    let between = "<function=now>\noops\n<parameter=a>x</parameter></function>";
    check(case("qwen3_coder", between, vec![call("now", r#"{"a":"x"}"#), said("oops\n")]));
    let no_name = "<function=now>\n<parameter=>\nx\n</parameter>\n</function>";
    check(case("qwen3_coder", no_name, vec![call("now", "{}"), said("<parameter=>\nx\n</parameter>\n")]));
    let nothing = "<tool_call>hello</tool_call>";
    check(case("qwen3_coder", nothing, vec![said(nothing)]));
}

#[test]
fn minimax_m3() {
    let text = "Sure.\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>Paris <b>now</b>]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[<where>]<]minimax[>[<x>1]<]minimax[>[</x>]<]minimax[>[<y>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>2]<]minimax[>[</item>]<]minimax[>[</y>]<]minimax[>[</where>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"now\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call> Done.";
    let arguments = r#"{"city":"Paris <b>now</b>","days":3,"where":{"x":1,"y":["a",2]}}"#;
    let seen = || vec![said("Sure."), call("get_weather", arguments), call("now", "{}"), said(" Done.")];
    check(case("minimax_m3", text, seen()));
    let plain: &'static str = Box::leak(text.replace("]<]minimax[>[", "").into_boxed_str());
    check(case("minimax-m3-nom", plain, seen()));
}

#[test]
fn gemma4() {
    let text = "Sure.<|tool_call>call:get_weather{city:<|\"|>Pa\"r}is\n<|\"|>,days:3,exact:true,where:{x:[1,<|\"|>a<|\"|>]}}<tool_call|><|tool_call>call:now{}<tool_call|><turn|>";
    let arguments = r#"{"city":"Pa\"r}is\n","days":3,"exact":true,"where":{"x":[1,"a"]}}"#;
    check(case("gemma4", text, vec![said("Sure."), call("get_weather", arguments), call("now", "{}")]));
    let reasoning =
        Case { reasoning: "gemma4", ..case("gemma-4", "<|channel>thought\nHm.\n<channel|>Hi.", vec![thought("Hm."), said("Hi.")]) };
    check(reasoning);
}

#[test]
fn harmony() {
    let text = "<|channel|>analysis<|message|>User asks. Call it.<|end|><|start|>assistant<|channel|>commentary<|message|>Checking.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\", \"days\": 3}<|call|>";
    let seen = || vec![thought("User asks. Call it."), said("Checking."), call("get_weather", PARIS)];
    check(case("harmony", text, seen()));
    check(Case { reasoning: "gpt_oss", ..case("harmony", text, seen()) });
    let recipient_first = "<|start|>assistant to=functions.now<|channel|>commentary json<|message|> <|call|><|start|>assistant<|channel|>final<|message|>Noon.<|return|>";
    check(case("harmony", recipient_first, vec![call("now", "{}"), said("Noon.")]));
    let browser = "<|channel|>analysis to=browser.search code<|message|>{\"query\": \"x\"}<|call|>";
    check(case("harmony", browser, vec![thought("{\"query\": \"x\"}")]));
    let no_tools = "<|channel|>commentary to=functions.now<|message|>{}<|call|>";
    check(Case { reasoning: "gpt_oss", ..case("", no_tools, vec![said("{}")]) });
    for (text, seen) in [
        ("Plain answer < 3.", vec![said("Plain answer < 3.")]),
        ("to be or not", vec![said("to be or not")]),
        ("<|channel|>final<|message|>cut", vec![said("cut")]),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|chan", vec![thought("a")]),
        ("<|channel|>final no message but words", vec![said("final no message but words")]),
    ] {
        check(case("harmony", text, seen));
    }
}

#[test]
fn other_answers_of_messages() {
    let muse = " to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter name=\"city\"> Paris </atem:parameter>\n<atem:parameter name=\"days\">3</atem:parameter>\n</atem:invoke>\n<atem:invoke name=\"now\">\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Done.<|eot|>";
    let calls = vec![thought("Hm."), call("get_weather", r#"{"city":" Paris ","days":3}"#), call("now", "{}"), said("Done.")];
    check(Case { reasoning: "muse_glimmer", ..case("muse_glimmer", muse, calls) });
    let inkling = "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Sure.<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>{\"name\": \"get_weather\", \"args\": {\"city\": \"Paris\", \"days\": 3}}<|end_message|><|message_model|><|content_invoke_tool_json|>{\"args\": {}, \"name\": \"now\"}<|end_message|><|content_model_end_sampling|>";
    let calls = vec![thought("Hm."), said("Sure."), call("get_weather", PARIS), call("now", "{}")];
    check(Case { reasoning: "inkling", ..case("inkling", inkling, calls) });
    let kimi = "Hm.<|close|>think<|sep|><|open|>response<|sep|>Sure.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|> Paris <|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
    let calls = vec![thought("Hm."), said("Sure."), call("get_weather", r#"{"city":" Paris ","days":3}"#)];
    let whole = "<|open|>tools<|sep|><|open|>call tool=\"now\" index=\"1\"<|sep|><|open|>json type=\"object\"<|sep|>{\"a\": [1]}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";
    check(case("kimi_k3", whole, vec![call("now", r#"{"a": [1]}"#)]));
    check(Case { reasoning: "kimi_k3", prompt_tail: "<|open|>think<|sep|>", ..case("kimi-k3", kimi, calls) });
}

#[test]
fn thoughts() {
    let both = |a: &str, b: &str| vec![thought(a), said(b)];
    let rows: [(&str, &str, &str, Vec<Seen>); 19] = [
        ("qwen3", "", "<think>\nHm. 1 < 2\n</think>\n\nAnswer", both("Hm. 1 < 2", "Answer")),
        ("qwen3", "<think>\n\n</think>\n\n", "Write <think> so", vec![said("Write <think> so")]),
        ("qwen3", "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\n\nA <think> tag", both("Hm.", "A <think> tag")),
        ("qwen3", "", "No thought.\n", vec![said("No thought.\n")]),
        ("basic", "", "First <think>Hm.</think> then", vec![said("First "), thought("Hm."), said(" then")]),
        ("basic", "", "<think>\n\n</think>\n\nA", vec![said("A")]),
        ("deepseek_r1", "", "Hm.\n</think>\n\nA", both("Hm.", "A")),
        ("deepseek_r1", "", "<think>\nHm. <think> is a tag</think>A", both("Hm. <think> is a tag", "A")),
        ("deepseek_r1", "", "Only a thought", vec![thought("Only a thought")]),
        ("deepseek_v3_1", "<｜Assistant｜></think>", "A", vec![said("A")]),
        ("deepseek_v3_1", "<｜Assistant｜><think>", "Hm.</think>A", both("Hm.", "A")),
        ("nemotron_deci", "", "<think>Hm.</think>A", both("Hm.", "A")),
        ("step3", "", "Hm.</think>A", both("Hm.", "A")),
        ("mistral", "", "[THINK]Hm.[/THINK]A[THINK]x[/THINK]B", vec![thought("Hm."), said("A"), thought("x"), said("B")]),
        ("kimi", "", "◁think▷Hm.◁/think▷A", both("Hm.", "A")),
        ("granite", "", "Here is my thought process:\nHm.\nHere is my response:\nA", both("Hm.", "A")),
        ("minimax_append_think", "", "Hm.</think>A", vec![said("<think>Hm.</think>A")]),
        ("minimax_m3", "", "<mm:think>Hm.</mm:think>A", both("Hm.", "A")),
        ("qwen3", "", "<think>cut</thi", vec![thought("cut</thi")]),
    ];
    for (reasoning, prompt_tail, text, seen) in rows {
        check(Case { reasoning, prompt_tail, ..case("", text, seen) });
    }
}

#[test]
fn thoughts_before_calls() {
    let text = "<think>\nI could <tool_call>{\"name\": \"now\"}</tool_call>\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"<think>x</think>\"}}\n</tool_call>";
    let seen = vec![thought("I could <tool_call>{\"name\": \"now\"}</tool_call>"), call("now", "{\"a\": \"<think>x</think>\"}")];
    check(Case { reasoning: "qwen3", ..case("hermes", text, seen) });
    let quoted = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"<think>x</think>\"}}\n</tool_call>";
    check(Case { reasoning: "qwen3", ..case("hermes", quoted, vec![call("now", "{\"a\": \"<think>x</think>\"}")]) });
    let bare = "{\"name\": \"now\", \"parameters\": {\"a\": \"<think>x</think>\"}}";
    check(Case { reasoning: "basic", ..case("llama3_json", bare, vec![call("now", "{\"a\": \"<think>x</think>\"}")]) });
    let kimi = "<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    check(Case { reasoning: "kimi_k25", ..case("kimi_k2", kimi, vec![thought("Hm."), call("now", "{}")]) });
}
