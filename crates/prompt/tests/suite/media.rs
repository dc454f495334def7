//! Credit ends at the first part that is no text (rule 9), and where an engine may cut a prompt.

use std::time::UNIX_EPOCH;

use prompt::{Counters, Endpoint, Folder, LoadOptions, Tokens};
use serde_json::{Value, json};

use crate::{data, folder_with, parse, tiny};

fn tokens(folder: &Folder, messages: &Value) -> Tokens {
    let request = parse(Endpoint::Chat, &json!({"model": "m", "messages": messages})).expect("a good body");
    folder.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids").remove(0)
}

#[test]
fn credit_ends_at_the_first_media_part() {
    let source = std::fs::read_to_string(data("templates/parts.jinja")).expect("a template");
    let directory = folder_with(&[("chat_template.jinja", &source)]);
    let parts = Folder::load(directory.path(), &LoadOptions::default()).expect("loads");
    let qwen = std::fs::read_to_string(data("templates/qwen3.jinja")).expect("a template");
    let directory = folder_with(&[("chat_template.jinja", &qwen)]);
    let text = Folder::load(directory.path(), &LoadOptions::default()).expect("loads");
    let before = json!([{"role": "system", "content": "You read the document and summarise the orders."},
        {"role": "user", "content": [{"type": "text", "text": "Here is the table:"}, {"type": "text", "text": "END"}]}]);
    for kind in ["image_url", "input_audio", "video_url"] {
        let mut with = before.clone();
        with[1]["content"][1] = json!({"type": kind, kind: {"url": "data:,"}});
        for (folder, name) in [(&parts, "parts"), (&text, "text")] {
            let (plain, media) = (tokens(folder, &before), tokens(folder, &with));
            assert_eq!(plain.text_only_prefix, None);
            let prefix = media.text_only_prefix.expect("media is noticed");
            assert_eq!(media.matchable(), &plain.ids[..prefix], "{name}: the same ids as without media");
            // "Here is the table:" lies in front of the part where content is a list, and behind it where it is text.
            let shared = plain.ids.iter().zip(media.ids.iter()).take_while(|(a, b)| a == b).count();
            assert!(prefix <= shared && prefix > 10, "{name}: {prefix} of {shared}");
            assert_eq!(prefix == shared, name == "parts", "{name}: {prefix} of {shared}");
        }
    }
}

#[test]
fn a_cut_prompt_is_matched_only_where_it_is_known_which_end_goes() {
    let folder = tiny();
    let ids = |extra: Value| {
        let mut body = json!({"model": "m", "prompt": [10, 11, 12, 13, 14]});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let request = parse(Endpoint::Completions, &body).expect("a good body");
        let tokens = folder.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids").remove(0);
        tokens.matchable().to_vec()
    };
    assert_eq!(ids(json!({"truncate_prompt_tokens": 5})), [10, 11, 12, 13, 14]);
    assert_eq!(ids(json!({"truncate_prompt_tokens": -1})), [10, 11, 12, 13, 14]);
    assert_eq!(ids(json!({"truncate_prompt_tokens": 3})), [0_u32; 0]);
    assert_eq!(ids(json!({"truncate_prompt_tokens": 3, "truncation_side": "right"})), [10, 11, 12]);
    assert_eq!(ids(json!({"truncate_prompt_tokens": 3, "truncation_side": "left"})), [12, 13, 14]);
}

#[test]
fn special_tokens_as_each_endpoint_adds_them() {
    let folder = tiny();
    let ids = |endpoint, body: Value| {
        let request = parse(endpoint, &body).expect("a good body");
        folder.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids").remove(0).ids.to_vec()
    };
    assert_eq!(ids(Endpoint::Completions, json!({"model": "m", "prompt": "Hello world"})), [1, 944, 267, 265, 288]);
    assert_eq!(
        ids(Endpoint::Completions, json!({"model": "m", "prompt": "Hello world", "add_special_tokens": false})),
        [944, 267, 265, 288]
    );
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Hello"}]});
    assert_eq!(ids(Endpoint::Chat, chat.clone()), [3, 90, 359, 944, 4, 3, 480, 358, 454]);
    let mut with = chat;
    with["add_special_tokens"] = true.into();
    assert_eq!(ids(Endpoint::Chat, with), [1, 3, 90, 359, 944, 4, 3, 480, 358, 454]);
}

#[test]
fn text_beyond_any_context_is_not_tokenised() {
    let request = parse(Endpoint::Completions, &json!({"model": "m", "prompt": "x".repeat((32 << 20) + 1)})).expect("a good body");
    let error = tiny().tokens(&request, UNIX_EPOCH, &Counters::default()).expect_err("too long");
    assert_eq!(error.kind(), "too_long");
}
