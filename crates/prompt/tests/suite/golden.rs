//! Prompt texts equal those of Python's jinja2 configured as transformers configures it, byte for byte.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use prompt::{Endpoint, Folder, Inputs, LoadOptions, TokenError};
use serde_json::{Value, json};

use crate::{data, folder_with, parse};

#[test]
fn prompts_equal_those_of_python() {
    assert!(equal_those_of_python(&data("templates")) >= 150);
}

#[test]
#[ignore = "needs a folder of templates and their golden.json, as tests/templates has them, in PROMPT_TEMPLATES"]
fn prompts_of_real_templates() {
    let folder = std::env::var("PROMPT_TEMPLATES").expect("PROMPT_TEMPLATES names a folder");
    assert!(equal_those_of_python(folder.as_ref()) > 0);
}

/// How many prompts were compared.
fn equal_those_of_python(templates: &Path) -> usize {
    let golden = std::fs::read_to_string(templates.join("golden.json")).expect("golden.json");
    let golden: Value = serde_json::from_str(&golden).expect("golden.json is JSON");
    let now = UNIX_EPOCH + Duration::from_secs(golden["now"].as_u64().expect("a time"));
    let mut checked = 0;
    for (name, special) in golden["special"].as_object().expect("templates") {
        let source = std::fs::read_to_string(templates.join(format!("{name}.jinja"))).expect("a template");
        let directory = folder_with(&[("chat_template.jinja", &source), ("tokenizer_config.json", &special.to_string())]);
        let folder = Folder::load(directory.path(), &LoadOptions::default()).expect("loads");
        assert_eq!(folder.report().chat_template.as_deref(), Ok("chat_template.jinja"));
        let cases = golden["golden"].as_array().expect("cases").iter().filter(|case| case["template"] == name.as_str());
        for case in cases {
            let mut body = case["body"].clone();
            body["model"] = "m".into();
            let request = parse(Endpoint::Chat, &body).expect("a good body");
            let Inputs::Chat(chat) = &request.inputs else { panic!("not a chat") };
            let found = folder.chat_text(chat, now);
            match (case["prompt"].as_str(), case["refused"].as_str()) {
                (Some(expected), _) => assert_eq!(found.as_deref(), Ok(expected), "{name}: {}", case["case"]),
                (None, Some(reason)) => assert_eq!(found, Err(TokenError::Refused(reason.to_owned())), "{name}: {}", case["case"]),
                // An error of Python's: one of ours in other words.
                (None, None) => assert!(matches!(found, Err(TokenError::Render(_))), "{name}: {}: {found:?}", case["case"]),
            }
            checked += 1;
        }
    }
    checked
}

#[test]
fn the_template_is_found_where_models_keep_it() {
    let text_of = |files: &[(&str, &str)], tools: Value| {
        let directory = folder_with(files);
        let folder = Folder::load(directory.path(), &LoadOptions::default()).expect("loads");
        let request = parse(Endpoint::Chat, &json!({"model": "m", "messages": [{"role": "user", "content": "u"}], "tools": tools}));
        let request = request.expect("a good body");
        let Inputs::Chat(chat) = &request.inputs else { panic!("not a chat") };
        folder.chat_text(chat, UNIX_EPOCH)
    };
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let list = json!({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}).to_string();
    assert_eq!(text_of(&[("tokenizer_config.json", &list)], Value::Null).as_deref(), Ok("D"));
    assert_eq!(text_of(&[("tokenizer_config.json", &list)], tools.clone()).as_deref(), Ok("T"));
    assert_eq!(text_of(&[("tokenizer_config.json", &list), ("chat_template.jinja", "J")], tools).as_deref(), Ok("J"));
    let file = json!({"chat_template": "F{{ bos_token }}"}).to_string();
    let map = json!({"bos_token": {"content": "<s>"}}).to_string();
    assert_eq!(text_of(&[("chat_template.json", &file), ("special_tokens_map.json", &map)], Value::Null).as_deref(), Ok("F<s>"));
    assert!(matches!(text_of(&[], Value::Null), Err(TokenError::NoTemplate(_))));
    assert!(
        matches!(text_of(&[("chat_template.jinja", "{% if %}")], Value::Null), Err(TokenError::NoTemplate(why)) if why.contains("line 1"))
    );
    let harmony = json!({"model_type": "gpt_oss"}).to_string();
    assert!(matches!(text_of(&[("config.json", &harmony), ("chat_template.jinja", "J")], Value::Null), Err(TokenError::NoTemplate(_))));
}

#[test]
fn a_template_of_the_request_is_never_rendered() {
    for extra in [json!({"chat_template": "x"}), json!({"chat_template_kwargs": {"chat_template": "x"}})] {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "u"}]});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let request = parse(Endpoint::Chat, &body).expect("a good body");
        let found = crate::tiny().tokens(&request, UNIX_EPOCH, &prompt::Counters::default());
        assert_eq!(found, Err(TokenError::OwnTemplate));
    }
}
