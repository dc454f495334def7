//! Folders for workers that take token ids: chats rendered here, files in places of their own, and what such a worker has to
//! know of a model.

use std::path::Path;
use std::time::UNIX_EPOCH;

use prompt::{Counters, Endpoint, File, Files, Folder, Inputs, LoadError, LoadOptions, TokenError};
use serde_json::{Value, json};

use crate::{data, folder_with, parse};

/// Who gets what comes of a chat.
#[derive(Clone, Copy)]
enum For {
    Workers,
    Servers,
}

fn load(path: &Path, whom: For) -> Folder {
    let options = LoadOptions::default();
    match whom {
        For::Workers => Folder::load_files(&Files::in_folder(path), &options),
        For::Servers => Folder::load(path, &options),
    }
    .expect("loads")
}

/// The prompt of a chat body by `template`, of a folder that says it is a model of kind `kind`.
fn text(template: &str, kind: &str, whom: For, more: &Value) -> Result<String, TokenError> {
    let config = json!({"model_type": kind}).to_string();
    let directory = folder_with(&[("chat_template.jinja", template), ("config.json", &config)]);
    let folder = load(directory.path(), whom);
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "u"}]});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let request = parse(Endpoint::Chat, &body).expect("a good body");
    let Inputs::Chat(chat) = &request.inputs else { panic!("not a chat") };
    folder.chat_text(chat, UNIX_EPOCH)
}

#[test]
fn gpt_oss_is_rendered_for_workers_and_left_to_servers() {
    let template = "{{ messages[0].content }}{% if add_generation_prompt %}<|start|>assistant{% endif %}";
    assert_eq!(text(template, "gpt_oss", For::Workers, &json!({})).as_deref(), Ok("u<|start|>assistant"));
    assert!(matches!(text(template, "gpt_oss", For::Servers, &json!({})), Err(TokenError::NoTemplate(_))));
    assert_eq!(text(template, "llama", For::Servers, &json!({})).as_deref(), Ok("u<|start|>assistant"));
    assert_eq!(text(template, "gpt_oss", For::Workers, &json!({"add_generation_prompt": false})).as_deref(), Ok("u"));
}

/// In the manner of gpt-oss.
const HARMONY: &str = r#"{%- for tool in tools or [] %}{% set tool = tool.function %}{{ "// " + tool.description + "|" + (tool|tojson) + "\n" }}{% endfor -%}
{%- for message in messages %}{{ message.role }}={{ message.content }}{% if "thinking" in message %}<{{ message.thinking }}>{% endif %};{% endfor -%}"#;

#[test]
fn reasoning_and_tools_as_the_template_means_them() {
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let body = json!({
        "messages": [
            {"role": "assistant", "reasoning_content": "r1", "tool_calls": call},
            {"role": "assistant", "content": "c2", "reasoning_content": "r2", "tool_calls": call},
            {"role": "assistant", "content": "c3", "reasoning": "r3"},
            {"role": "user", "content": "u"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g", "description": "d", "parameters": {}}}],
    });
    let expected = concat!(
        "// |{\"name\": \"f\", \"description\": \"\"}\n",
        "// d|{\"name\": \"g\", \"description\": \"d\", \"parameters\": {}}\n",
        "assistant=<r1>;assistant=c2;assistant=c3<r3>;user=u;"
    );
    assert_eq!(text(HARMONY, "gpt_oss", For::Workers, &body).as_deref(), Ok(expected));
    // A template that prints a tool whole gets it as it was written; a server's prints null.
    let whole = "{% for tool in tools %}{{ tool|tojson }}{% endfor %}{% for message in messages %}{{ 'thinking' in message }}{% endfor %}";
    let body = json!({"messages": [{"role": "assistant", "content": "a", "reasoning": "r"}], "tools": [{"type": "function", "function": {"name": "f"}}]});
    assert_eq!(text(whole, "qwen3", For::Workers, &body).as_deref(), Ok("{\"type\": \"function\", \"function\": {\"name\": \"f\"}}False"));
    let server = "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": null}}False";
    assert_eq!(text(whole, "qwen3", For::Servers, &body).as_deref(), Ok(server));
}

#[test]
fn whether_to_think() {
    const SHOW: &str = "{{ thinking }} {{ enable_thinking }} {{ thinking_mode }} {{ reasoning_effort }}";
    let shown = |more: Value| text(SHOW, "x", For::Workers, &more).expect("rendered");
    assert_eq!(shown(json!({})), "   ");
    for on in [
        json!({"thinking": true}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 5}}),
        json!({"chat_template_args": {"enable_thinking": true}}),
        json!({"chat_template_kwargs": {"thinking": true, "enable_thinking": false}}),
        json!({"chat_template_kwargs": {"enable_thinking": false}, "chat_template_args": {"enable_thinking": true}}),
        json!({"chat_template_kwargs": {"thinking_mode": "Enabled"}}),
        json!({"thinking": true, "chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        assert_eq!(shown(on.clone()), "True True enabled ", "{on}");
    }
    assert_eq!(shown(json!({"thinking": {"type": "disabled"}})), "False False disabled ");
    assert_eq!(shown(json!({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": false}})), "  adaptive ");
    assert_eq!(shown(json!({"reasoning_effort": "low"})), "True True enabled low");
    assert_eq!(shown(json!({"reasoning_effort": "none"})), "False False disabled none");
    assert_eq!(
        shown(json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "low"}})),
        "False False disabled high"
    );
    assert_eq!(shown(json!({"chat_template_kwargs": {"reasoning_effort": "low"}})), "True True enabled low");
    assert!(matches!(text(SHOW, "x", For::Workers, &json!({"thinking": {"type": "much"}})), Err(TokenError::Unsupported(_))));
    // A server does what vLLM does, and knows neither of Dynamo's fields.
    let server =
        text(SHOW, "x", For::Servers, &json!({"reasoning_effort": "low", "thinking": false, "chat_template_args": {"thinking": 5}}));
    assert_eq!(server.as_deref(), Ok(" True  low"));
}

#[test]
fn final_messages_are_continued() {
    let template =
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let body = json!({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "The answer is "}], "continue_final_message": true});
    assert_eq!(text(template, "x", For::Workers, &body).as_deref(), Ok("[user]u[end][assistant]The answer is "));
}

/// The ids are ours, so the side that is cut is known: the start, as vLLM has it.
#[test]
fn a_prompt_too_long_loses_its_start() {
    let folder = load(&data("models/tiny-llama"), For::Workers);
    let request =
        parse(Endpoint::Completions, &json!({"model": "m", "prompt": [1, 2, 3, 4], "truncate_prompt_tokens": 3})).expect("a good body");
    let tokens = folder.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids").remove(0);
    assert_eq!((tokens.ids.to_vec(), tokens.text_only_prefix), (vec![2, 3, 4], None));
}

#[test]
fn what_ends_an_answer() {
    let eos = |files: &[(&str, Value)]| {
        let files: Vec<(&str, String)> = files.iter().map(|(name, json)| (*name, json.to_string())).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, json)| (*name, json.as_str())).collect();
        let directory = folder_with(&files);
        load(directory.path(), For::Workers).eos_token_ids().to_vec()
    };
    let tokenizer = ("tokenizer_config.json", json!({"eos_token": {"content": "</s>"}}));
    let config = ("config.json", json!({"eos_token_id": 7, "max_position_embeddings": 99}));
    let nested = ("config.json", json!({"text_config": {"eos_token_id": [8]}}));
    let generation = ("generation_config.json", json!({"eos_token_id": [5, 6]}));
    assert_eq!(eos(&[]), [0; 0]);
    assert_eq!(eos(std::slice::from_ref(&tokenizer)), [2]);
    assert_eq!(eos(&[tokenizer.clone(), nested]), [8]);
    assert_eq!(eos(&[tokenizer.clone(), config.clone()]), [7]);
    assert_eq!(eos(&[tokenizer, config, generation]), [5, 6]);
    let tiny = load(&data("models/tiny-llama"), For::Workers);
    assert_eq!((tiny.eos_token_ids(), tiny.context_length()), (&[2][..], Some(16_384)));
}

#[test]
fn files_in_places_of_their_own() {
    let from = data("models/tiny-llama");
    let (one, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let copy = |name: &str, to: &Path, as_name: &str| {
        std::fs::copy(from.join(name), to.join(as_name)).expect("copied");
        let sum = blake3::hash(&std::fs::read(from.join(name)).expect("read")).to_hex();
        File { path: to.join(as_name), blake3: Some(format!("blake3:{sum}")) }
    };
    let files = Files {
        tokenizer: copy("tokenizer.json", one.path(), "a"),
        tokenizer_config: Some(copy("tokenizer_config.json", other.path(), "b.json")),
        special_tokens_map: None,
        chat_templates: vec![File::new(other.path().join("absent.jinja")), copy("chat_template.jinja", other.path(), "c")],
        tool_use_template: None,
        config: Some(copy("config.json", one.path(), "d")),
        generation_config: Some(File::new(one.path().join("absent.json"))),
    };
    let folder = Folder::load_files(&files, &LoadOptions::default()).expect("loads");
    let whole = load(&from, For::Workers);
    let request = parse(Endpoint::Chat, &json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]})).expect("a good body");
    let ids = |folder: &Folder| folder.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids");
    assert_eq!(ids(&folder), ids(&whole));
    assert_eq!(folder.report().chat_template.as_deref(), Ok("c"));
    assert_eq!((folder.eos_token_ids(), folder.context_length()), (&[2][..], Some(16_384)));

    // Another version of a file than the one announced, and a file that was announced and is not there.
    std::fs::write(other.path().join("b.json"), "{}").expect("written");
    let error = Folder::load_files(&files, &LoadOptions::default()).expect_err("another file");
    let LoadError::Checksum { path, .. } = &error else { panic!("{error}") };
    assert_eq!(*path, other.path().join("b.json"));
    let device = Files { config: Some(File::new("/dev/zero")), tokenizer_config: None, ..files.clone() };
    assert!(
        matches!(Folder::load_files(&device, &LoadOptions::default()), Err(LoadError::Read { path, .. }) if path == Path::new("/dev/zero"))
    );
    std::fs::remove_file(other.path().join("b.json")).expect("removed");
    assert!(matches!(Folder::load_files(&files, &LoadOptions::default()), Err(LoadError::Read { .. })));
}
