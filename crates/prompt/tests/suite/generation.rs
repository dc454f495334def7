//! What a token-level worker is asked, read from bodies: values, defaults, and each refusal with the field it names.

use bytes::Bytes;
use prompt::{BadRequest, Endpoint, Generation, Nvext, ToolChoice};
use proptest::prelude::*;
use serde_json::{Value, json};

const BOTH: [Endpoint; 2] = [Endpoint::Completions, Endpoint::Chat];

fn body(endpoint: Endpoint, more: &Value) -> Bytes {
    let mut body = match endpoint {
        Endpoint::Completions => json!({"model": "m", "prompt": "p"}),
        Endpoint::Chat => json!({"model": "m", "messages": [{"role": "user", "content": "u"}]}),
    };
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body.to_string().into()
}

fn read(endpoint: Endpoint, more: Value) -> Result<Generation, BadRequest> {
    Generation::parse(endpoint, &body(endpoint, &more))
}

fn completion(more: Value) -> Generation {
    read(Endpoint::Completions, more).expect("a good body")
}

fn chat(more: Value) -> Generation {
    read(Endpoint::Chat, more).expect("a good body")
}

#[test]
fn defaults() {
    let plain = completion(json!({}));
    assert_eq!((plain.n, plain.stream, plain.max_tokens, plain.min_tokens), (1, false, Some(16), None));
    assert_eq!((plain.skip_special_tokens, plain.include_stop, plain.echo, plain.ignore_eos), (true, false, false, false));
    assert_eq!((plain.logprobs, plain.prompt_logprobs, &plain.guided), (None, None, &None));
    assert_eq!(plain.sampling, prompt::Sampling::default());
    assert_eq!(plain.nvext, Nvext::default());
    assert_eq!(chat(json!({})).max_tokens, None, "what the context leaves");
    let nulls =
        json!({"temperature": null, "stop": null, "nvext": null, "tools": null, "stream_options": null, "seed": null, "max_tokens": null});
    assert_eq!(chat(nulls), chat(json!({})));
}

#[test]
fn every_field() {
    let read = completion(json!({
        "max_tokens": 9, "min_tokens": 9, "temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125, "n": 128, "seed": -3,
        "presence_penalty": -2, "frequency_penalty": 2.0, "repetition_penalty": 1.5, "stop": ["a", "bé"], "stop_token_ids": [7],
        "ignore_eos": true, "include_stop_str_in_output": true, "skip_special_tokens": false, "logprobs": 5, "prompt_logprobs": 20,
        "return_tokens_as_token_ids": true, "echo": true, "stream": true, "best_of": 128,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "guided_regex": "a+", "guided_decoding_backend": "x",
        "guided_whitespace_pattern": " ", "logit_bias": {"5": -100, "6": 0.5}, "allowed_token_ids": [1, 2], "bad_words_token_ids": [[1], []],
        "detokenize": false, "user": "u", "metadata": {"a": 1}, "cache_salt": "s", "add_special_tokens": false, "suffix": "", "prompt_embeds": [],
    }));
    assert_eq!((read.max_tokens, read.min_tokens, read.n, read.logprobs, read.prompt_logprobs), (Some(9), Some(9), 128, Some(5), Some(20)));
    let sampling = &read.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (Some(0.5), Some(0.25), Some(-1), Some(0.125)));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty), (Some(-2.0), Some(2.0), Some(1.5)));
    assert_eq!(sampling.seed, Some(-3));
    assert_eq!((read.stop, read.stop_token_ids), (vec!["a".to_owned(), "bé".to_owned()], vec![7]));
    assert!(read.ignore_eos && read.include_stop && !read.skip_special_tokens && read.return_tokens_as_ids && read.echo && read.stream);
    assert!(read.usage.in_stream && read.usage.each_chunk);
    assert_eq!(read.guided, Some(json!({"regex": "a+", "backend": "x", "whitespace_pattern": " "})));
    let extra =
        json!({"logit_bias": {"5": -100, "6": 0.5}, "allowed_token_ids": [1, 2], "bad_words_token_ids": [[1], []], "detokenize": false});
    assert_eq!(Value::Object(read.extra), extra);

    let read = chat(json!({
        "max_tokens": 3, "max_completion_tokens": 4, "logprobs": true, "top_logprobs": 20, "stop": [5, 6], "stop_token_ids": [7],
        "thinking_token_budget": 8, "nvext": {"max_thinking_tokens": 9}, "reasoning_effort": "low", "thinking": {"type": "enabled"},
        "chat_template_kwargs": {"enable_thinking": false}, "chat_template_args": {"x": 1}, "modalities": ["text"], "functions": [],
        "function_call": "none", "store": true, "service_tier": "auto", "verbosity": "low", "add_generation_prompt": true,
    }));
    assert_eq!((read.max_tokens, read.logprobs, read.max_thinking_tokens), (Some(4), Some(20), Some(8)));
    assert_eq!(read.stop_token_ids, [7, 5, 6]);
    assert_eq!(chat(json!({"logprobs": true})).logprobs, Some(0));
    assert_eq!(chat(json!({"stop": "x"})).stop, ["x"]);
    assert_eq!(chat(json!({"stop": []})).stop, [""; 0]);
    assert!(completion(json!({"no_stop_trim": true})).include_stop);
    assert_eq!(chat(json!({"n": 3, "temperature": 0})).n, 3, "equal choices, as OpenAI serves them");
}

/// Message and field of each refusal, for one endpoint or both.
#[test]
fn refusals() {
    let long = "x".repeat(1025);
    let many: Vec<String> = (0..33).map(|n| n.to_string()).collect();
    let cases: Vec<(&[Endpoint], Value, &str, &str)> = vec![
        (&BOTH, json!({"foo": 1}), "foo", "unknown parameter: 'foo'"),
        (&BOTH, json!({"foo": null, "bar": 1}), "foo", "unknown parameters: 'foo', 'bar'"),
        (&BOTH, json!({"use_beam_search": true}), "use_beam_search", "unknown parameter"),
        (&BOTH, json!({"priority": 1}), "priority", "unknown parameter"),
        (&BOTH, json!({"temperature": 9}), "temperature", "'temperature' must be between 0 and 2, not 9"),
        (&BOTH, json!({"temperature": "hot"}), "temperature", "expected a number"),
        (&BOTH, json!({"top_p": 1.5}), "top_p", "between 0 and 1, not 1.5"),
        (&BOTH, json!({"top_p": -0.1}), "top_p", "between 0 and 1, not -0.1"),
        (&BOTH, json!({"min_p": 2}), "min_p", "between 0 and 1"),
        (&BOTH, json!({"top_k": -2}), "top_k", "at least -1"),
        (&BOTH, json!({"top_k": 1_u64 << 40}), "top_k", "at most 2147483647"),
        (&BOTH, json!({"presence_penalty": 2.1}), "presence_penalty", "between -2 and 2"),
        (&BOTH, json!({"frequency_penalty": -3}), "frequency_penalty", "between -2 and 2"),
        (&BOTH, json!({"repetition_penalty": 0}), "repetition_penalty", "must be above 0"),
        (&BOTH, json!({"repetition_penalty": 3}), "repetition_penalty", "between 0 and 2"),
        (&BOTH, json!({"n": 0}), "n", "'n' must be at least 1, not 0"),
        (&BOTH, json!({"n": 129}), "n", "'n' must be at most 128, not 129"),
        (&BOTH, json!({"max_tokens": 0}), "max_tokens", "'max_tokens' must be at least 1, not 0"),
        (&[Endpoint::Chat], json!({"max_completion_tokens": 0}), "max_completion_tokens", "at least 1"),
        (&BOTH, json!({"max_tokens": 4, "min_tokens": 5}), "min_tokens", "'min_tokens' is 5, which is more than 'max_tokens' (4)"),
        (&[Endpoint::Completions], json!({"min_tokens": 17}), "min_tokens", "(16, the default)"),
        (&BOTH, json!({"seed": "x"}), "seed", "expected an integer"),
        (&BOTH, json!({"stop": ""}), "stop", "1 to 1024 bytes"),
        (&BOTH, json!({"stop": ["a", ""]}), "stop", "1 to 1024 bytes"),
        (&BOTH, json!({"stop": long}), "stop", "1 to 1024 bytes"),
        (&BOTH, json!({"stop": many}), "stop", "at most 32 texts, not 33"),
        (&BOTH, json!({"stop": ["a", 5]}), "stop", "expected a string, an array of strings, or an array of token ids"),
        (&BOTH, json!({"stop": {"a": 1}}), "stop", "expected a string"),
        (&BOTH, json!({"stop": [5, "a"]}), "stop[1]", "a token id"),
        (&BOTH, json!({"stop_token_ids": [-1]}), "stop_token_ids[0]", "at least 0"),
        (&BOTH, json!({"stop_token_ids": 5}), "stop_token_ids", "an array of token ids"),
        (&BOTH, json!({"stop_token_ids": vec![1; 129]}), "stop_token_ids", "at most 128"),
        (&[Endpoint::Completions], json!({"logprobs": 6}), "logprobs", "'logprobs' must be at most 5, not 6"),
        (&[Endpoint::Completions], json!({"logprobs": true}), "logprobs", "expected an integer"),
        (&[Endpoint::Chat], json!({"logprobs": 5}), "logprobs", "expected a boolean"),
        (&[Endpoint::Chat], json!({"top_logprobs": 3}), "top_logprobs", "'logprobs' is not true"),
        (&[Endpoint::Chat], json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "at most 20"),
        (&BOTH, json!({"prompt_logprobs": 21}), "prompt_logprobs", "at most 20"),
        (&BOTH, json!({"stream_options": {"include_usage": true}}), "stream_options", "only allowed when 'stream' is true"),
        (&BOTH, json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x", "allowed in 'stream_options' are include_usage"),
        (&BOTH, json!({"stream": true, "stream_options": 1}), "stream_options", "expected an object"),
        (&[Endpoint::Completions], json!({"best_of": 2}), "best_of", "equal to 'n', which is 1, not 2"),
        (&[Endpoint::Completions], json!({"suffix": "s"}), "suffix", "not supported"),
        (&[Endpoint::Completions], json!({"prompt_embeds": "AA"}), "prompt_embeds", "take token ids"),
        (&[Endpoint::Completions], json!({"messages": []}), "messages", "it is one of /v1/chat/completions"),
        (&[Endpoint::Chat], json!({"prompt": "p"}), "prompt", "it is one of /v1/completions"),
        (&[Endpoint::Chat], json!({"echo": true}), "echo", "it is one of /v1/completions"),
        (&[Endpoint::Chat], json!({"chat_template": "x"}), "chat_template", "the model's own template"),
        (&[Endpoint::Chat], json!({"chat_template_args": {"chat_template": "x"}}), "chat_template", "the model's own template"),
        (&[Endpoint::Chat], json!({"chat_template_args": 1}), "chat_template_args", "expected an object"),
        (&[Endpoint::Chat], json!({"modalities": ["text", "audio"]}), "modalities", "generate text"),
        (&[Endpoint::Chat], json!({"audio": {}}), "audio", "generate text"),
        (&[Endpoint::Chat], json!({"functions": [{"name": "f"}]}), "functions", "use 'tools'"),
        (&BOTH, json!({"logit_bias": {"x": 1}}), "logit_bias.x", "must be token ids"),
        (&BOTH, json!({"logit_bias": {"5": 101}}), "logit_bias.5", "between -100 and 100"),
        (&BOTH, json!({"logit_bias": [1]}), "logit_bias", "an object of token ids and numbers"),
        (&BOTH, json!({"allowed_token_ids": ["a"]}), "allowed_token_ids[0]", "a token id"),
        (&BOTH, json!({"bad_words_token_ids": [1]}), "bad_words_token_ids", "an array of arrays"),
        (&BOTH, json!({"guided_json": {}, "guided_regex": "x"}), "guided_regex", "cannot both be given"),
        (&BOTH, json!({"guided_choice": []}), "guided_choice", "none of them empty"),
        (&BOTH, json!({"guided_choice": "a"}), "guided_choice", "an array of strings"),
        (&BOTH, json!({"guided_grammar": ""}), "guided_grammar", "1 to 262144 bytes"),
        (&BOTH, json!({"structured_outputs": {"x": 1}}), "structured_outputs.x", "allowed in 'structured_outputs' are json"),
        (&BOTH, json!({"structured_outputs": {"json": 5}}), "structured_outputs.json", "a JSON schema"),
        (&BOTH, json!({"response_format": {"type": "xml"}}), "response_format.type", "not 'xml'"),
        (&BOTH, json!({"response_format": {}}), "response_format.type", "missing"),
        (&BOTH, json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema", "missing"),
        (
            &BOTH,
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
            "response_format.json_schema.schema",
            "missing",
        ),
        (
            &BOTH,
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": {}}}}),
            "response_format.json_schema.name",
            "empty",
        ),
        (
            &BOTH,
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": false}}}),
            "response_format.json_schema.schema",
            "no answer satisfies",
        ),
        (&[Endpoint::Chat], json!({"tool_choice": "required"}), "tool_choice", "'tools' names no tool"),
        (&[Endpoint::Chat], json!({"tool_choice": "any"}), "tool_choice", "must be 'none', 'auto', 'required'"),
        (&[Endpoint::Chat], json!({"tool_choice": 5}), "tool_choice", "expected 'none', 'auto', 'required'"),
        (
            &[Endpoint::Chat],
            json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice.function.name",
            "the tool 'g', which is not in 'tools'",
        ),
        (&[Endpoint::Chat], json!({"tools": [{"type": "x", "function": {"name": "f"}}]}), "tools[0].type", "must be 'function'"),
        (&[Endpoint::Chat], json!({"tools": [{"type": "function"}]}), "tools[0]", "expected an object with"),
        (&[Endpoint::Chat], json!({"tools": [{"function": {}}]}), "tools[0].function.name", "missing"),
        (&[Endpoint::Chat], json!({"tools": [{"function": {"name": "a b"}}]}), "tools[0].function.name", "letters, digits"),
        (&[Endpoint::Chat], json!({"tools": {}}), "tools", "an array of objects"),
        (
            &[Endpoint::Chat],
            json!({"tools": [{"function": {"name": "f", "parameters": 5}}], "tool_choice": "required"}),
            "tools[0].function.parameters",
            "an object",
        ),
        (
            &[Endpoint::Chat],
            json!({"tools": [{"function": {"name": "f"}}], "tool_choice": "required", "guided_regex": "x"}),
            "guided_regex",
            "another form of answer",
        ),
    ];
    for (endpoints, more, param, part) in cases {
        for endpoint in endpoints {
            let error = read(*endpoint, more.clone()).expect_err(&more.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{more}: {error}");
            assert!(error.message.contains(part), "{more}: {error}");
        }
    }
}

#[test]
fn forms() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    for (more, expected) in [
        (json!({"guided_json": schema}), json!({"json": schema})),
        (json!({"guided_json": "{}"}), json!({"json": "{}"})),
        (json!({"guided_choice": ["a", "b"]}), json!({"choice": ["a", "b"]})),
        (json!({"guided_grammar": "root ::= x"}), json!({"grammar": "root ::= x"})),
        (json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}), json!({"regex": "a", "whitespace_pattern": " "})),
        (json!({"structured_outputs": {"json_object": true}}), json!({"json": {"type": "object"}})),
        (json!({"response_format": {"type": "json_object"}}), json!({"json": {"type": "object"}})),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}}}),
            json!({"json": schema}),
        ),
        (json!({"response_format": {"type": "json_object"}, "guided_regex": "x"}), json!({"regex": "x"})),
    ] {
        for endpoint in BOTH {
            assert_eq!(read(endpoint, more.clone()).expect("good").guided, Some(expected.clone()), "{more}");
        }
    }
    for none in [
        json!({"response_format": {"type": "text"}}),
        json!({"structured_outputs": {"json_object": false}}),
        json!({"guided_whitespace_pattern": " "}),
    ] {
        assert_eq!(chat(none).guided, None);
    }
}

#[test]
fn tools() {
    let tools = json!([
        {"type": "function", "function": {"name": "get.weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "strict": true}},
        {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"by": {"$ref": "#/$defs/By"}, "default": {"$ref": "#"}},
            "$defs": {"By": {"enum": ["#/$defs/By"]}}}}},
        {"function": {"name": "now", "parameters": null}},
    ]);
    let offered = chat(json!({"tools": tools, "parallel_tool_calls": false}));
    assert!(offered.tools.offered() && !offered.tools.parallel && offered.guided.is_none());
    assert_eq!(offered.tools.choice, ToolChoice::Auto);
    assert_eq!(offered.tools.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["get.weather", "find", "now"]);
    assert!(offered.tools.tools[0].strict && offered.tools.tools[0].parameters.is_some() && offered.tools.tools[2].parameters.is_none());
    assert!(!chat(json!({"tools": tools, "tool_choice": "none"})).tools.offered());
    assert!(!chat(json!({"tool_choice": "auto"})).tools.offered());

    let named = chat(json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "get.weather"}}}));
    assert_eq!(named.tools.choice, ToolChoice::Named("get.weather".into()));
    assert_eq!(named.guided, Some(json!({"json": {"type": "object", "properties": {"city": {"type": "string"}}}})));

    let required =
        chat(json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "response_format": {"type": "json_object"}}));
    let call = |name: &str, parameters: Value| json!({"properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters}, "required": ["name", "parameters"]});
    let expected = json!({
        "type": "array", "minItems": 1, "maxItems": 1,
        "items": {"type": "object", "anyOf": [
            call("get.weather", json!({"type": "object", "properties": {"city": {"type": "string"}}})),
            call("find", json!({"$ref": "#/$defs/tool_1"})),
            call("now", json!({"type": "object", "properties": {}})),
        ]},
        // Within the schema that moved, references move with it; a property called like a keyword is a property.
        "$defs": {"tool_1": {"type": "object", "properties": {"by": {"$ref": "#/$defs/tool_1/$defs/By"}, "default": {"$ref": "#/$defs/tool_1"}},
            "$defs": {"By": {"enum": ["#/$defs/By"]}}}},
    });
    assert_eq!(required.guided, Some(json!({"json": expected})));
}

#[test]
fn nvext() {
    let given = json!({
        "greed_sampling": true, "use_raw_prompt": true, "annotations": ["token_ids", "query_instance_id:abc"], "backend_instance_id": 5,
        "token_data": [1, 2], "max_thinking_tokens": 7, "cache_salt": "s", "extra_fields": ["worker_id", "timing", "whatever"],
        "metadata_upload": {"url": "http://x"}, "prefill_worker_id": 18_446_744_073_709_551_615_u64, "decode_worker_id": "5", "dp_rank": 1,
        "prefill_dp_rank": 2, "agent_hints": {"priority": -3, "strict_priority": 4, "osl": 100, "speculative_prefill": true, "latency_sensitivity": 0.5},
        "request_timestamp_ms": 12.5, "routing_constraints": {"required_taints": ["a"], "preferred_taints": {"b": 0.5}},
        "router": {"ttft_target": 100, "itl_target": 5.5},
    });
    let read = chat(json!({"nvext": given, "temperature": 1.5}));
    assert_eq!(read.sampling.temperature, Some(0.0), "greedy");
    assert_eq!(read.max_thinking_tokens, Some(7));
    let nvext = &read.nvext;
    assert!(nvext.annotates("token_ids") && !nvext.annotates("formatted_prompt"));
    assert_eq!(nvext.dry_run(), Some("abc"));
    assert_eq!(nvext.token_data.as_deref(), Some(&[1, 2][..]));
    assert_eq!(nvext.targets.worker.as_deref(), Some("5"));
    assert_eq!(nvext.targets.prefill_worker.as_deref(), Some("18446744073709551615"));
    assert_eq!((nvext.targets.dp_rank, nvext.targets.prefill_dp_rank), (Some(1), Some(2)));
    assert!(nvext.extra_fields.worker_id && nvext.extra_fields.timing && !nvext.extra_fields.stop_reason);
    assert_eq!((nvext.hints.priority, nvext.hints.strict_priority, nvext.hints.osl), (Some(-3), Some(4), Some(100)));
    assert_eq!(
        (nvext.taints.required.as_slice(), nvext.taints.preferred.as_slice()),
        (&["a".to_owned()][..], &[("b".to_owned(), 0.5)][..])
    );
    assert_eq!((nvext.ttft_target, nvext.itl_target, nvext.request_timestamp_ms), (Some(100.0), Some(5.5), Some(12.5)));
    let raw = nvext.raw.as_ref().expect("as it came").value().expect("JSON");
    assert_eq!(raw, given);

    for (nvext, param, part) in [
        (
            json!({"bogus": 1}),
            "nvext.bogus",
            "allowed in 'nvext' are greed_sampling, use_raw_prompt, annotations, backend_instance_id, token_data",
        ),
        (
            json!({"backend_instance_id": 1, "decode_worker_id": 2}),
            "nvext.decode_worker_id",
            "names worker 1 and 'nvext.decode_worker_id' worker 2",
        ),
        (json!({"backend_instance_id": -1}), "nvext.backend_instance_id", "a worker id"),
        (json!({"dp_rank": -1}), "nvext.dp_rank", "at least 0"),
        (json!({"use_raw_prompt": "yes"}), "nvext.use_raw_prompt", "a boolean"),
        (json!({"token_data": []}), "nvext.token_data", "must not be empty"),
        (json!({"token_data": ["a"]}), "nvext.token_data[0]", "a token id"),
        (json!({"annotations": "token_ids"}), "nvext.annotations", "an array of strings"),
        (json!({"annotations": vec!["a"; 257]}), "nvext.annotations", "at most 256 entries, not 257"),
        (json!({"agent_hints": {"priority": 1_u64 << 40}}), "nvext.agent_hints.priority", "must be between"),
        (json!({"agent_hints": 1}), "nvext.agent_hints", "an object"),
        (json!({"routing_constraints": {"required": []}}), "nvext.routing_constraints.required", "allowed in"),
        (json!({"routing_constraints": {"preferred_taints": ["a"]}}), "nvext.routing_constraints.preferred_taints", "an object of taints"),
        (json!({"metadata_upload": {"url": ""}}), "nvext.metadata_upload.url", "must not be empty"),
        (json!({"router": {"ttft_target": "x"}}), "nvext.router.ttft_target", "a number"),
        (json!(5), "nvext", "an object"),
    ] {
        let error = self::read(Endpoint::Chat, json!({"nvext": nvext})).expect_err(&nvext.to_string());
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert!(error.message.contains(part), "{error}");
    }
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![-3.0..3.0, any::<f64>(), Just(0.0), Just(1.0), Just(2.0), Just(-2.0), Just(2.000_000_1), Just(-1e-9)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is within its range is read as it is, whatever is not is refused by name.
    #[test]
    fn ranges(value in any_number(), field in 0..6_usize) {
        let fields = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"];
        let (least, most) = [(0.0, 2.0), (0.0, 1.0), (0.0, 1.0), (-2.0, 2.0), (-2.0, 2.0), (0.0, 2.0)][field];
        let name = fields[field];
        prop_assume!(value.is_finite());
        let found = read(Endpoint::Chat, json!({name: value}));
        let good = least <= value && value <= most && (name != "repetition_penalty" || value as f32 > 0.0);
        match found {
            Ok(read) => {
                let sampling = read.sampling;
                let all = [sampling.temperature, sampling.top_p, sampling.min_p, sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty];
                prop_assert!(good, "{name} {value}");
                prop_assert_eq!(all[field], Some(value as f32));
                prop_assert_eq!(all.iter().flatten().count(), 1);
            }
            Err(error) => {
                prop_assert!(!good, "{name} {value}: {error}");
                prop_assert_eq!(error.param.as_deref(), Some(name));
            }
        }
    }

    #[test]
    fn lengths(least in prop::option::of(0..40_u32), most in prop::option::of(0..40_u32), n in 0..200_u32, chat: bool) {
        let endpoint = if chat { Endpoint::Chat } else { Endpoint::Completions };
        let found = read(endpoint, json!({"min_tokens": least, "max_tokens": most, "n": n}));
        let limit = most.or((!chat).then_some(16));
        let good = (1..=128).contains(&n) && limit != Some(0) && limit.is_none_or(|limit| least.unwrap_or(0) <= limit);
        prop_assert_eq!(found.is_ok(), good, "{:?}", found);
        if let Ok(read) = found {
            prop_assert_eq!((read.min_tokens, read.max_tokens, read.n), (least, limit, n));
        }
    }

    /// Fields in any order, with others of OpenAI's between them, given once more or not.
    #[test]
    fn order_and_company(seed: u64, temperature in 0.0..2.0_f64, stop in prop::collection::vec("[a-z]{1,9}", 1..5), twice: bool) {
        let mut fields = vec![
            r#""model": "m""#.to_owned(), r#""prompt": "p""#.to_owned(), format!(r#""temperature": {temperature}"#),
            format!(r#""stop": {}"#, json!(stop)), r#""user": "nvext""#.to_owned(), r#""metadata": {"temperature": 9, "foo": [1]}"#.to_owned(),
        ];
        let shift = usize::try_from(seed % 6).expect("small");
        fields.rotate_left(shift);
        if twice {
            // The last one counts.
            fields.insert(0, r#""temperature": 1.25"#.to_owned());
        }
        let read = Generation::parse(Endpoint::Completions, &format!("{{{}}}", fields.join(", ")).into()).expect("good");
        prop_assert_eq!(read.sampling.temperature, Some(temperature as f32));
        prop_assert_eq!(read.stop, stop);
    }
}
