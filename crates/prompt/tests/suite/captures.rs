//! Token ids equal those the real engine made of the same bodies.

use std::time::UNIX_EPOCH;

use prompt::{Counters, Endpoint, Request, Tokens};
use serde_json::Value;

use crate::{data, parse, tiny};

fn lines(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(data(&format!("captures/vllm/{name}.jsonl"))).expect("a capture");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("token ids");
    ids.iter().map(|id| u32::try_from(id.as_u64().expect("an id")).expect("small")).collect()
}

fn tokens(request: &Request) -> Vec<Vec<u32>> {
    let tokens = tiny().tokens(request, UNIX_EPOCH, &Counters::default()).expect("token ids");
    tokens
        .iter()
        .map(|Tokens { ids, text_only_prefix }| {
            assert_eq!(*text_only_prefix, None);
            ids.to_vec()
        })
        .collect()
}

fn endpoint(path: &str) -> Endpoint {
    if path.contains("chat") { Endpoint::Chat } else { Endpoint::Completions }
}

/// Bodies of requests whose ids the capture has from the engine's `/tokenize` or from the body itself.
#[test]
fn requests() {
    let (mut chats, mut texts) = (0, 0);
    for name in ["01-plain-store", "03-chat-multiturn", "07-cache-salt", "08-multi-sequence"] {
        for line in lines(name).iter().filter(|line| line["kind"] == "request" && line["status"] == 200) {
            let body = &line["body"];
            let request = parse(endpoint(line["path"].as_str().expect("a path")), body).expect("a good body");
            assert_eq!(request.salt.as_deref(), body["cache_salt"].as_str());
            let one = line["prompt_token_ids"].as_array().filter(|ids| ids.first().is_some_and(Value::is_u64));
            if one.is_none() {
                continue;
            }
            assert_eq!(tokens(&request), vec![ids(&line["prompt_token_ids"])], "{name} {}", line["id"]);
            chats += usize::from(body["messages"].is_array());
            texts += usize::from(body["prompt"].is_string());
        }
    }
    assert!(chats >= 9 && texts >= 3, "{chats} chats, {texts} texts");
}

/// The engine's `/tokenize` (prompt and messages) and its `render` endpoints.
#[test]
fn tokenize_and_render() {
    let mut checked = 0;
    for name in ["11-endpoints", "17-scale-out"] {
        for line in lines(name).iter().filter(|line| line["status"] == 200) {
            let (path, body) = (line["path"].as_str().unwrap_or_default(), &line["body"]);
            let expected = match path {
                "/tokenize" => vec![ids(&line["response"]["tokens"])],
                "/v1/chat/completions/render" => vec![ids(&line["response"]["token_ids"])],
                "/v1/completions/render" => line["response"].as_array().expect("a list").iter().map(|one| ids(&one["token_ids"])).collect(),
                _ => continue,
            };
            let mut body = body.clone();
            body["model"] = "tiny".into();
            let chat = body["messages"].is_array();
            let request = parse(if chat { Endpoint::Chat } else { Endpoint::Completions }, &body).expect("a good body");
            assert_eq!(tokens(&request), expected, "{path} {body}");
            checked += 1;
        }
    }
    assert_eq!(checked, 7);
}
