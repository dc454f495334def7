//! What is read of bodies, and what bad ones get.

use bytes::Bytes;
use prompt::{BadRequest, Endpoint, Inputs, Prompt, parse as parse_bytes};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::parse;

fn refused(endpoint: Endpoint, body: Value) -> (Option<String>, Option<&'static str>, String) {
    let BadRequest { message, param, code } = parse(endpoint, &body).expect_err("refused");
    (param, code, message)
}

#[test]
fn every_field_that_routing_reads() {
    let request = parse(Endpoint::Completions, &json!({
        "unknown": {"prompt": [1]}, "model": "sql", "prompt": ["a", "b\u{e9}\n"], "stream": true,
        "n": 3, "best_of": 4, "max_tokens": "7", "cache_salt": "z", "nvext": {"cache_salt": "z", "backend_instance_id": 12345678901234567890_u64, "dp_rank": 2, "annotations": []},
        "echo": true, "logprobs": 0, "vllm_xargs": {"kv_cache_report_mode": "full"},
    })).expect("a good body");
    assert_eq!((request.model.as_str(), request.stream), ("sql", true));
    assert_eq!((request.n, request.best_of, request.max_tokens), (3, Some(4), Some(7)));
    assert_eq!(request.salt.as_deref(), Some("z"));
    assert!(request.skips_cache && request.full_reports && request.add_special_tokens);
    assert_eq!((request.pin.worker.as_deref(), request.pin.dp_rank), (Some("12345678901234567890"), Some(2)));
    let Inputs::Prompts(prompts) = request.inputs else { panic!("prompts") };
    assert_eq!(prompts, [Prompt::Text("a".into()), Prompt::Text("b\u{e9}\n".into())]);

    let request = parse(
        Endpoint::Chat,
        &json!({
            "model": "m", "messages": [{"role": "user"}], "max_tokens": 5, "max_completion_tokens": 6.0, "tools": [], "stream": null,
            "continue_final_message": true, "nvext": {"cache_salt": "n", "decode_worker_id": "w1"}, "reasoning_effort": "low",
        }),
    )
    .expect("a good body");
    assert_eq!((request.max_tokens, request.n, request.stream, request.skips_cache), (Some(6), 1, false, false));
    assert_eq!((request.salt.as_deref(), request.pin.worker.as_deref()), (Some("n"), Some("w1")));
    assert_eq!(request.pin.worker_param, "nvext.decode_worker_id");
    let decode = |nvext: Value| parse(Endpoint::Completions, &json!({"model": "m", "prompt": "x", "nvext": nvext}));
    let pin = decode(json!({"decode_worker_id": 7, "a_servers_own": 1})).expect("left to the server").pin;
    assert_eq!((pin.worker.as_deref(), pin.worker_param), (Some("7"), "nvext.decode_worker_id"));
    let two = decode(json!({"decode_worker_id": 7, "backend_instance_id": 8})).expect_err("two workers");
    assert_eq!(two.param.as_deref(), Some("nvext.decode_worker_id"));
    let Inputs::Chat(chat) = request.inputs else { panic!("a chat") };
    assert!(chat.tools.is_none() && chat.continue_final_message && !chat.add_generation_prompt);
    assert_eq!(chat.messages.as_bytes(), br#"[{"role":"user"}]"#);
}

#[test]
fn a_field_given_twice_counts_by_its_last_value_and_keys_may_be_escaped() {
    let body = Bytes::from_static(br#" {"model":"a","prompt":"x","mod\u0065l":"b","prompt":[5],"max_tokens":null} "#);
    let request = parse_bytes(Endpoint::Completions, &body).expect("a good body");
    assert_eq!((request.model.as_str(), request.max_tokens), ("b", Some(16)));
    assert!(matches!(request.inputs, Inputs::Prompts(prompts) if prompts == [Prompt::Ids(vec![5].into())]));
}

#[test]
fn requests_that_never_hit() {
    let skips = |endpoint, extra: Value| {
        let mut body = json!({"model": "m", "prompt": "p", "messages": [{"role": "user"}]});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        parse(endpoint, &body).expect("a good body").skips_cache
    };
    assert!(skips(Endpoint::Completions, json!({"prompt_logprobs": 0})));
    assert!(!skips(Endpoint::Completions, json!({"prompt_logprobs": null, "echo": true, "logprobs": null})));
    assert!(skips(Endpoint::Completions, json!({"echo": true, "logprobs": 1})));
    assert!(!skips(Endpoint::Completions, json!({"logprobs": 1})));
    assert!(skips(Endpoint::Chat, json!({"echo": true})));
    assert!(!skips(Endpoint::Chat, json!({"logprobs": true})));
}

#[test]
fn bad_json_gets_line_and_column() {
    for (body, place) in
        [(&b"{\"model\":\n  nope}"[..], "line 2 column 4"), (b"[1]", "line 1"), (b"", "line 1"), (b"{} x", "line 1 column 4")]
    {
        let error = parse_bytes(Endpoint::Chat, &Bytes::from_static(body)).expect_err("refused");
        assert!(error.param.is_none() && error.message.contains(place), "{}", error.message);
    }
    assert!(parse_bytes(Endpoint::Chat, &Bytes::from_static(b"{\"model\":\"\xff\"}")).is_err());
}

#[test]
fn bad_values_name_their_field() {
    let completions = |extra: Value| {
        let mut body = json!({"model": "m", "prompt": "p"});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let (param, code, _) = refused(Endpoint::Completions, body);
        (param.expect("a field"), code.expect("a code"))
    };
    let expect = |extra: Value, param: &str, code: &str| assert_eq!(completions(extra), (param.to_owned(), code), "{param}");
    expect(json!({"model": null}), "model", "missing_required_parameter");
    expect(json!({"model": 3}), "model", "invalid_type");
    expect(json!({"model": ""}), "model", "invalid_value");
    expect(json!({"prompt": null}), "prompt", "missing_required_parameter");
    expect(json!({"prompt": ""}), "prompt", "empty_array");
    expect(json!({"prompt": []}), "prompt", "empty_array");
    expect(json!({"prompt": [[1], []]}), "prompt[1]", "empty_array");
    expect(json!({"prompt": 5}), "prompt", "invalid_type");
    expect(json!({"prompt": [{}]}), "prompt", "invalid_type");
    expect(json!({"prompt": ["a", 1]}), "prompt", "invalid_type");
    expect(json!({"prompt": [1, "a"]}), "prompt[1]", "invalid_type");
    expect(json!({"prompt": [[1], 2]}), "prompt", "invalid_type");
    expect(json!({"prompt": [[1], [2.5]]}), "prompt[1][0]", "invalid_type");
    expect(json!({"prompt": [1, -1]}), "prompt[1]", "integer_below_min_value");
    expect(json!({"prompt": [4294967296_u64]}), "prompt[0]", "integer_above_max_value");
    expect(json!({"prompt": vec![vec![1]; 1025]}), "prompt", "array_above_max_length");
    expect(json!({"prompt": vec!["a"; 1025]}), "prompt", "array_above_max_length");
    expect(json!({"n": 0}), "n", "integer_below_min_value");
    expect(json!({"n": "many"}), "n", "invalid_type");
    expect(json!({"n": 1.5}), "n", "invalid_type");
    expect(json!({"max_tokens": -1}), "max_tokens", "integer_below_min_value");
    expect(json!({"max_tokens": 1e30}), "max_tokens", "integer_above_max_value");
    expect(json!({"stream": "yes"}), "stream", "invalid_type");
    expect(json!({"cache_salt": ""}), "cache_salt", "invalid_value");
    expect(json!({"cache_salt": "x".repeat(1025)}), "cache_salt", "invalid_value");
    expect(json!({"cache_salt": ["x"]}), "cache_salt", "invalid_type");
    expect(json!({"cache_salt": "a", "nvext": {"cache_salt": "b"}}), "cache_salt", "invalid_value");
    expect(json!({"nvext": {"cache_salt": ""}}), "nvext.cache_salt", "invalid_value");
    expect(json!({"nvext": {"dp_rank": -1}}), "nvext.dp_rank", "integer_below_min_value");
    expect(json!({"nvext": {"backend_instance_id": {}}}), "nvext.backend_instance_id", "invalid_type");
    expect(json!({"truncate_prompt_tokens": -2}), "truncate_prompt_tokens", "integer_below_min_value");

    let chat = |extra: Value, param: &str| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        assert_eq!(refused(Endpoint::Chat, body).0.as_deref(), Some(param));
    };
    chat(json!({"messages": null}), "messages");
    chat(json!({"messages": []}), "messages");
    chat(json!({"messages": "hi"}), "messages");
    chat(json!({"messages": ["hi"]}), "messages[0]");
    chat(json!({"tools": {}}), "tools");
    chat(json!({"chat_template_kwargs": [1]}), "chat_template_kwargs");
    chat(json!({"continue_final_message": true, "add_generation_prompt": true}), "add_generation_prompt");
}

proptest! {
    /// Ids come back as they were sent, in any layout, one prompt or several.
    #[test]
    fn token_ids_roundtrip(prompts in prop::collection::vec(prop::collection::vec(any::<u32>(), 1..50), 1..6), pretty in any::<bool>()) {
        let shape = |value: &Value| if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) }.expect("JSON");
        let read = |body: String| match parse_bytes(Endpoint::Completions, &body.into()).expect("a good body").inputs {
            Inputs::Prompts(prompts) => prompts,
            other => panic!("{other:?}"),
        };
        let expected: Vec<Prompt> = prompts.iter().map(|ids| Prompt::Ids(ids.as_slice().into())).collect();
        prop_assert_eq!(read(shape(&json!({"model": "m", "prompt": prompts}))), expected.clone());
        prop_assert_eq!(read(shape(&json!({"prompt": prompts[0], "model": "m"}))), &expected[..1]);
    }

    /// Text comes back as it was sent.
    #[test]
    fn texts_roundtrip(texts in prop::collection::vec(any::<String>(), 2..6)) {
        let body = json!({"model": "m", "prompt": texts}).to_string();
        let request = parse_bytes(Endpoint::Completions, &body.into()).expect("a good body");
        let Inputs::Prompts(prompts) = request.inputs else { panic!("prompts") };
        let expected: Vec<Prompt> = texts.iter().map(|text| Prompt::Text(text.as_str().into())).collect();
        prop_assert_eq!(prompts, expected);
    }
}
