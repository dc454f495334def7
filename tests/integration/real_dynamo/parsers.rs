//! Thoughts and calls of tools, as the real frontend takes them out of a text and as we do: a worker of ours tells the text, and both
//! answer chats by the parsers that its card names.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, sync::Arc, time::SystemTime};

use bytes::Bytes;
use futures_util::stream;
use prompt::{Counters, Endpoint, Folder, LoadOptions};
use serde_json::{Value, json};
use wire::generate::{EngineOutput, FinishReason, GenerateRequest};
use worker::{Context, ModelSpec, Outputs, Runtime};

use super::{
    generation::row,
    peers::{Peers, Planes},
    venv,
};
use crate::support::{eventually, frontend::Frontend, http, seen};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/tiny-llama");
/// Tokens that are told at once, but for markers: each is told whole, as it is one token of its model.
const PIECE: usize = 3;
/// The handler knows the text that is wanted by `max_tokens`: this and its number.
const FIRST: u32 = 2000;

/// What a model says, and its parsers of calls and thoughts.
struct Case {
    tools: Option<&'static str>,
    reasoning: Option<&'static str>,
    text: &'static str,
    /// Why ours is another answer than theirs, where it is.
    differs: Option<&'static str>,
}

const fn case(tools: Option<&'static str>, reasoning: Option<&'static str>, text: &'static str) -> Case {
    Case { tools, reasoning, text, differs: None }
}

const fn unlike(tools: Option<&'static str>, reasoning: Option<&'static str>, text: &'static str, why: &'static str) -> Case {
    Case { tools, reasoning, text, differs: Some(why) }
}

/// 1.6.1 reads gpt-oss by its own vocabulary, and falls back to no parser at all where it cannot fetch that.
const NO_VOCABULARY: &str = "theirs fetches gpt-oss's vocabulary, which cannot be had here";

const CALL: &str = r#"<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}
</tool_call>"#;

const CASES: &[Case] = &[
    case(Some("hermes"), None, CALL),
    case(
        Some("hermes"),
        None,
        "I will look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n</tool_call>",
    ),
    case(
        Some("hermes"),
        None,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
    ),
    case(Some("hermes"), None, "Nothing to call here: {\"a\": 1} < 2."),
    case(Some("llama3_json"), None, "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 2}}"),
    case(Some("llama3_json"), None, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}"),
    case(Some("llama3_json"), None, "The answer is 42."),
    case(
        Some("deepseek_v3_1"),
        None,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    case(
        Some("deepseek_v3_1"),
        None,
        "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    unlike(
        Some("harmony"),
        Some("gpt_oss"),
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Paris\"}<|call|>",
        NO_VOCABULARY,
    ),
    unlike(
        Some("harmony"),
        Some("gpt_oss"),
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hello there.",
        NO_VOCABULARY,
    ),
    case(
        Some("qwen3_coder"),
        None,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    case(Some("hermes"), Some("qwen3"), "<think>\nShort thought.\n</think>\n\nHello."),
    case(
        Some("hermes"),
        Some("qwen3"),
        "<think>\nA call is needed.\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
    ),
    case(Some("hermes"), Some("qwen3"), "No thought at all."),
    case(Some("hermes"), Some("qwen3"), "<think>\nNever closed"),
    case(None, Some("deepseek_r1"), "First I think.\n</think>\n\nThen I answer."),
    case(None, Some("deepseek_r1"), "<think>\nI think aloud.\n</think>\n\nThen I answer."),
    case(None, Some("deepseek_r1"), "Only a thought"),
    unlike(
        Some("harmony"),
        None,
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Paris\"}<|call|>",
        NO_VOCABULARY,
    ),
    unlike(
        Some("harmony"),
        None,
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Paris\"}<|call|>",
        NO_VOCABULARY,
    ),
    case(Some("mistral"), None, "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]"),
    case(
        Some("deepseek_v3"),
        None,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    case(
        Some("kimi_k2"),
        None,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    unlike(
        Some("glm45"),
        Some("glm45"),
        "<think>\nHm.\n</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "theirs takes no line breaks between the tags, which GLM-4.5 writes",
    ),
    case(Some("pythonic"), None, "[get_weather(city=\"Paris\", days=2), get_time()]"),
    case(Some("phi4"), None, "functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]"),
    case(Some("jamba"), None, "<tool_calls>[\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n]</tool_calls>"),
    case(
        Some("nemotron_deci"),
        Some("nemotron_deci"),
        "<think>\nHm.\n</think>\n\n<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]</TOOLCALL>",
    ),
    case(
        Some("minimax_m2"),
        Some("minimax_m2"),
        "Thinking.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    case(None, Some("kimi"), "◁think▷Hm.◁/think▷Hello."),
    case(None, Some("granite"), "Here is my thought process: Hm. Here is my response: Hello."),
    unlike(None, Some("mistral"), "[THINK]Hm.[/THINK]Hello.", "theirs takes the markers for text"),
    case(
        Some("qwen3_coder"),
        Some("qwen3"),
        "<think>\nHm.\n</think>\n\nI call.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew York\n</parameter>\n</function>\n</tool_call>",
    ),
    unlike(
        Some("llama3_json"),
        None,
        "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"get_time\", \"parameters\": {}}",
        "theirs leaves the semicolon in the content",
    ),
    case(Some("llama3_json"), None, "{\"city\": \"Paris\", \"is\": \"no call\"}"),
    unlike(
        Some("hermes"),
        None,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
        "theirs closes the arguments that were cut off; ours stay no JSON, so that nobody acts on half of them",
    ),
    unlike(Some("hermes"), None, "<tool_call>\nno JSON at all\n</tool_call>", "theirs drops what is no call; ours is content"),
];

/// Texts as the token ids of the model, in pieces.
fn pieces() -> Arc<Vec<Vec<Vec<u32>>>> {
    let folder = Folder::load(Path::new(MODEL), &LoadOptions::default()).unwrap();
    let pieces = |case: &Case| {
        let ids = |text: &str| {
            let body = json!({"model": "m", "prompt": text, "add_special_tokens": false}).to_string();
            let request = prompt::parse(Endpoint::Completions, &Bytes::from(body)).unwrap();
            folder.tokens(&request, SystemTime::now(), &Counters::default()).unwrap()[0].ids.to_vec()
        };
        let mut pieces = Vec::new();
        let mut rest = case.text;
        while let Some(start) = rest.find(['<', '[']) {
            let end = start + rest[start..].find(['>', ']']).map_or(1, |end| end + 1);
            if start > 0 {
                pieces.extend(ids(&rest[..start]).chunks(PIECE).map(<[u32]>::to_vec));
            }
            pieces.push(ids(&rest[start..end]));
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            pieces.extend(ids(rest).chunks(PIECE).map(<[u32]>::to_vec));
        }
        pieces
    };
    Arc::new(CASES.iter().map(pieces).collect())
}

fn name(case: &Case) -> String {
    format!("{}.{}", case.tools.unwrap_or("none"), case.reasoning.unwrap_or("none"))
}

/// Tells the text that is wanted.
fn told(texts: &[Vec<Vec<u32>>], request: &GenerateRequest) -> Outputs {
    let number = request.stop_conditions.max_tokens.unwrap() - FIRST;
    let piece = |ids: &Vec<u32>| Ok(EngineOutput { token_ids: ids.clone(), ..EngineOutput::default() });
    let mut outputs: Vec<_> = texts[number as usize].iter().map(piece).collect();
    outputs.push(Ok(EngineOutput { finish_reason: Some(FinishReason::Stop), ..EngineOutput::default() }));
    Box::pin(stream::iter(outputs))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn thoughts_and_calls_are_what_a_real_frontend_takes_out() {
    let folder = tempfile::tempdir().unwrap();
    let peers = Peers::new(Path::new(&venv()), Planes::file_and_zmq(folder.path()));
    let process = Runtime::start(peers.planes.of_worker()).await.unwrap();
    let texts = pieces();
    let models: BTreeMap<String, &Case> = CASES.iter().map(|case| (name(case), case)).collect();
    let mut kept = Vec::new();
    for (number, (name, case)) in models.iter().chain([(&"tiny".to_owned(), &&CASES[0])]).enumerate() {
        let endpoint = process.component("backend").endpoint(format!("generate{number}"));
        let mut spec = ModelSpec::new(name, 16).in_folder(Path::new(MODEL)).unwrap();
        spec.publishes_kv_events = false;
        (spec.tool_call_parser, spec.reasoning_parser) = (case.tools.map(str::to_owned), case.reasoning.map(str::to_owned));
        let texts = texts.clone();
        let served = endpoint.serve_generate(move |request: GenerateRequest, _: Context| told(&texts, &request)).unwrap();
        let card = endpoint.register_model(&spec);
        card.held().await.unwrap();
        kept.push((served, card));
    }
    let ours = Frontend::start(&peers.planes.flags());
    let real = peers.frontend().await;
    let mut wrong = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        for stream in [false, true] {
            let body = asked(case, number, stream);
            let (theirs, ours) = (answered(real.address, &body).await, answered(ours.address, &body).await);
            let same = theirs == ours;
            if let Some(why) = case.differs {
                row(&format!("{} (stream: {stream}): {:?}: {why}", name(case), case.text), &theirs.to_string(), &ours.to_string());
            }
            if same != case.differs.is_none() {
                wrong.push(format!("{} {:?} stream {stream}\n theirs {theirs}\n ours {ours}", name(case), case.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn asked(case: &Case, number: usize, stream: bool) -> Value {
    let tool = |name: &str, properties: Value| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}});
    let mut body = json!({"model": name(case), "messages": [{"role": "user", "content": "hi"}], "stream": stream, "max_tokens": FIRST + number as u32});
    if case.tools.is_some() {
        body["tools"] =
            json!([tool("get_weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})), tool("get_time", json!({}))]);
    }
    body
}

/// What a client makes of it: content, thought, calls with their arguments, finish reason.
async fn answered(address: SocketAddr, body: &Value) -> Value {
    let answer = eventually("the model answers", async || {
        let answer = http::open(address, "POST", "/v1/chat/completions", &[], body).await.whole().await;
        seen(answer.status == 200, answer.text())?;
        Ok(answer)
    })
    .await;
    let mut made = Made::default();
    if body["stream"] == true {
        for data in answer.text().lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]") {
            let chunk: Value = serde_json::from_str(data).unwrap();
            made.take(&chunk["choices"][0], "delta");
        }
    } else {
        made.take(&answer.json()["choices"][0], "message");
    }
    made.told()
}

#[derive(Default)]
struct Made {
    content: String,
    reasoning: String,
    calls: BTreeMap<u64, (String, String)>,
    finish: Value,
}

impl Made {
    fn take(&mut self, choice: &Value, part: &str) {
        let part = &choice[part];
        self.content.push_str(part["content"].as_str().unwrap_or_default());
        self.reasoning.push_str(part["reasoning_content"].as_str().unwrap_or_default());
        for (at, call) in part["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let known = self.calls.entry(call["index"].as_u64().unwrap_or(at as u64)).or_default();
            known.0.push_str(call["function"]["name"].as_str().unwrap_or_default());
            known.1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        if !choice["finish_reason"].is_null() {
            self.finish = choice["finish_reason"].clone();
        }
    }

    fn told(self) -> Value {
        let arguments = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| json!(format!("no JSON: {text}")));
        let calls: Vec<Value> = self.calls.values().map(|(name, text)| json!([name, arguments(text)])).collect();
        // Line breaks next to a marker are a part of it here, and of the text there.
        let bare = |text: &str| text.trim_matches('\n').to_owned();
        json!({"content": bare(&self.content), "reasoning": bare(&self.reasoning), "calls": calls, "finish": self.finish})
    }
}
