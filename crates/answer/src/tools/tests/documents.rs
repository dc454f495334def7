//! Answers made of prose and calls at random, written in the form of each family: what was written must come out.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{Seen, ToolParser, characters, plan, run, said, without_ids};

#[derive(Debug, Clone)]
struct Document {
    before: String,
    calls: Vec<(&'static str, Map<String, Value>)>,
    after: String,
}

fn prose() -> impl Strategy<Value = String> {
    // Nothing of which a marker is made, no white space at the ends, and no bracket as the first character.
    "[a-zA-Z0-9é日🌧.,!][a-zA-Z é日🌧.,!?\n'\"{}()]{0,20}[a-zA-Z0-9é日🌧.,!]"
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~é日🌧\n\t\\\\\"'{}\\[\\]<>/]{0,16}",
        Just("</tool_call".to_owned()),
        Just("{\"name\": \"x\"}".to_owned()),
        Just("\u{1}\u{7f}\u{2028}".to_owned()),
    ]
    // A line break at an end of a value is part of the tags in some families.
    .prop_map(|text| text.trim_matches('\n').to_owned())
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        string().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn arguments() -> impl Strategy<Value = Map<String, Value>> {
    let object = prop::collection::btree_map("[a-z]{1,4}", json(), 0..3).prop_map(|map| Value::Object(map.into_iter().collect()));
    let array = prop::collection::vec(json(), 0..3).prop_map(Value::from);
    (
        prop::option::of(string()),
        prop::option::of(any::<i32>()),
        prop::option::of(any::<bool>()),
        prop::option::of(object),
        prop::option::of(array),
    )
        .prop_map(|(city, days, exact, place, tags)| {
            let mut map = Map::new();
            let entries = [
                ("city", city.map(Value::from)),
                ("days", days.map(Value::from)),
                ("exact", exact.map(Value::from)),
                ("where", place),
                ("tags", tags),
            ];
            for (key, value) in entries {
                if let Some(value) = value {
                    map.insert(key.to_owned(), value);
                }
            }
            map
        })
}

fn document() -> impl Strategy<Value = Document> {
    let one = (prop::sample::select(&["get_weather", "get_weather", "now"][..]), arguments());
    (prop::option::of(prose()), prop::collection::vec(one, 1..4), prop::option::of(prose())).prop_map(|(before, calls, after)| Document {
        before: before.unwrap_or_default(),
        // Only the one tool declares these parameters.
        calls: calls.into_iter().map(|(name, map)| (name, if name == "now" { Map::new() } else { map })).collect(),
        after: after.unwrap_or_default(),
    })
}

fn object(name: &str, map: &Map<String, Value>) -> String {
    serde_json::json!({"name": name, "arguments": map}).to_string()
}

fn each(document: &Document, write: impl Fn(usize, &str, &Map<String, Value>) -> String) -> String {
    document.calls.iter().enumerate().map(|(at, (name, map))| write(at, name, map)).collect()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n")),
        Value::Array(list) => format!("[{}]", list.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("'{key}': {}", python(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

fn gemma(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(list) => format!("[{}]", list.iter().map(gemma).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{key}:{}", gemma(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
    }
}

/// The calls as a model of this family writes them.
fn written(family: &str, document: &Document) -> String {
    let objects = || document.calls.iter().map(|(name, map)| object(name, map)).collect::<Vec<_>>();
    let tags = |open: &str, close: &str, map: &Map<String, Value>| {
        map.iter().map(|(key, value)| open.replace("KEY", key) + &plain(value) + close).collect::<String>()
    };
    match family {
        "hermes" => objects().iter().map(|object| format!("<tool_call>\n{object}\n</tool_call>\n")).collect(),
        "nemotron_deci" => format!("<TOOLCALL>[{}]</TOOLCALL>", objects().join(", ")),
        "jamba" => format!("<tool_calls>[\n{}\n]</tool_calls>", objects().join(",\n")),
        "mistral" => each(document, |_, name, map| format!("[TOOL_CALLS]{name}[ARGS]{}", Value::Object(map.clone()))),
        "deepseek_v3" => {
            let calls = each(document, |_, name, map| {
                let json = Value::Object(map.clone());
                format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>")
            });
            format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
        }
        "kimi_k2" => {
            let calls = each(document, |at, name, map| {
                let json = Value::Object(map.clone());
                format!("<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{json}<|tool_call_end|>")
            });
            format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
        }
        "qwen3_coder" => each(document, |_, name, map| {
            let parameters = tags("<parameter=KEY>\n", "\n</parameter>\n", map);
            format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>\n")
        }),
        "glm45" => each(document, |_, name, map| {
            let parameters = tags("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n", map);
            format!("<tool_call>{name}\n{parameters}</tool_call>")
        }),
        "minimax_m2" => {
            let calls = each(document, |_, name, map| {
                let parameters = tags("<parameter name=\"KEY\">", "</parameter>\n", map);
                format!("<invoke name=\"{name}\">\n{parameters}</invoke>\n")
            });
            format!("<minimax:tool_call>\n{calls}</minimax:tool_call>")
        }
        "pythonic" => {
            let calls = document.calls.iter().map(|(name, map)| {
                let pairs = map.iter().map(|(key, value)| format!("{key}={}", python(value)));
                format!("{name}({})", pairs.collect::<Vec<_>>().join(", "))
            });
            format!("<|python_start|>[{}]<|python_end|>", calls.collect::<Vec<_>>().join(", "))
        }
        "gemma4" => each(document, |_, name, map| format!("<|tool_call>call:{name}{}<tool_call|>", gemma(&Value::Object(map.clone())))),
        other => panic!("{other}"),
    }
}

const FAMILIES: [&str; 11] =
    ["hermes", "nemotron_deci", "jamba", "mistral", "deepseek_v3", "kimi_k2", "qwen3_coder", "glm45", "minimax_m2", "pythonic", "gemma4"];

/// What comes out, with the arguments read.
fn read(seen: Vec<Seen>) -> Vec<(String, Value)> {
    let read = |seen| match seen {
        Seen::Thought(text) | Seen::Said(text) => (text, Value::Null),
        Seen::Call { name, arguments, .. } => {
            let value = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
            (name, value)
        }
    };
    without_ids(seen).into_iter().map(read).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_comes_out(document in document()) {
        for family in FAMILIES {
            let text = format!("{}{}{}", document.before, written(family, &document), document.after);
            let mut expected = vec![];
            if !document.before.is_empty() {
                expected.push((document.before.clone(), Value::Null));
            }
            expected.extend(document.calls.iter().map(|(name, map)| ((*name).to_owned(), Value::Object(map.clone()))));
            if !document.after.is_empty() {
                expected.push((document.after.clone(), Value::Null));
            }
            let plan = plan(Some(ToolParser::by_name(family).unwrap()), None);
            prop_assert_eq!(&read(run(plan.start("", 1), [text.as_str()])), &expected, "{}: {}", family, text);
            prop_assert_eq!(&read(run(plan.start("", 1), characters(&text))), &expected, "{}: {}", family, text);
        }
    }

    #[test]
    fn prose_alone_is_left_alone(text in prose()) {
        for name in ToolParser::names() {
            let plan = plan(Some(ToolParser::by_name(name).unwrap()), None);
            prop_assert_eq!(run(plan.start("", 1), characters(&text)), [said(&text)], "{}", name);
        }
    }
}
