//! The HTTP side over loopback.

use crate::support::*;
use http_body_util::BodyExt;
use mocker::Generation;
use serde_json::{Value, json};

#[tokio::test]
async fn completions_take_every_form_of_prompt() {
    let handle = start(quick()).await;
    let tokens = post(&handle, "/tokenize", json!({"prompt": "the quiet river"})).await.json();
    let ids = &tokens["tokens"];
    assert_eq!(tokens["count"], ids.as_array().unwrap().len());
    for (prompt, answers) in
        [(json!("the quiet river"), 1), (ids.clone(), 1), (json!(["the quiet river", "the old bridge"]), 2), (json!([ids, ids, ids]), 3)]
    {
        let answer =
            post(&handle, "/v1/completions", json!({"model": "mock-model", "prompt": prompt, "max_tokens": 4, "ignore_eos": true})).await;
        let body = answer.json();
        assert_eq!(answer.status, 200, "{body}");
        assert_eq!(body["object"], "text_completion");
        let choices = body["choices"].as_array().unwrap();
        assert_eq!(choices.len(), answers);
        // The same prompt, as text or as ids, is answered alike.
        assert_eq!(
            choices[0]["text"],
            post(&handle, "/v1/completions", json!({"prompt": ids, "max_tokens": 4, "ignore_eos": true})).await.json()["choices"][0]["text"]
        );
        assert_eq!(choices[answers - 1]["index"], answers - 1);
        assert_eq!(choices[0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 4 * answers);
        let total = body["usage"]["prompt_tokens"].as_u64().unwrap() + 4 * answers as u64;
        assert_eq!(body["usage"]["total_tokens"], total);
    }
    let several = post(&handle, "/v1/completions", json!({"prompt": "x", "n": 3, "max_tokens": 6, "ignore_eos": true})).await.json();
    let texts: std::collections::BTreeSet<_> =
        several["choices"].as_array().unwrap().iter().map(|choice| choice["text"].to_string()).collect();
    assert_eq!(texts.len(), 3, "choices differ");
    handle.shutdown().await;
}

#[tokio::test]
async fn answers_depend_on_the_prompt_only() {
    let (one, other) = (start(quick()).await, start(quick()).await);
    let body = json!({"prompt": "tell me about the garden", "max_tokens": 12, "ignore_eos": true});
    let text = |answer: Answer| answer.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let first = text(post(&one, "/v1/completions", body.clone()).await);
    assert_eq!(first, text(post(&other, "/v1/completions", body.clone()).await));
    assert_eq!(first, text(post(&one, "/v1/completions", body).await));
    assert_eq!(first.split_whitespace().count(), 12, "one word a token: {first}");
    one.shutdown().await;
    other.shutdown().await;
}

#[tokio::test]
async fn a_chat_counts_and_caches_its_rendered_tokens() {
    let handle = start(quick()).await;
    let mut messages =
        json!([{"role": "system", "content": "you are a helpful assistant"}, {"role": "user", "content": "tell me about the river"}]);
    let chat = |messages: &Value| json!({"model": "mock-model", "messages": messages, "max_tokens": 20, "ignore_eos": true, "return_token_ids": true});
    let tokens = post(&handle, "/tokenize", json!({"messages": messages})).await.json()["tokens"].clone();
    let rendered = "<|system|>\nyou are a helpful assistant<|end|>\n<|user|>\ntell me about the river<|end|>\n<|assistant|>\n";
    let plain = post(&handle, "/tokenize", json!({"prompt": rendered, "add_special_tokens": false})).await.json()["tokens"].clone();
    assert_eq!(tokens, plain);
    let first = post(&handle, "/v1/chat/completions", chat(&messages)).await.json();
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["choices"][0]["prompt_token_ids"], tokens);
    assert_eq!(first["choices"][0]["message"]["role"], "assistant");
    assert_eq!(first["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());
    // The next turn repeats the answer as text and hits the blocks that were filled while generating it.
    let computed = tokens.as_array().unwrap().len() + 19;
    let turn =
        [json!({"role": "assistant", "content": first["choices"][0]["message"]["content"]}), json!({"role": "user", "content": "go on"})];
    messages.as_array_mut().unwrap().extend(turn);
    let second = post(&handle, "/v1/chat/completions", chat(&messages)).await.json();
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], computed / BLOCK * BLOCK);
    handle.shutdown().await;
}

#[tokio::test]
async fn streams_bring_the_same_words_then_usage_then_done() {
    let handle = start(quick()).await;
    let mut body = json!({"prompt": "the old painter", "max_tokens": 5, "ignore_eos": true, "n": 2});
    let whole = post(&handle, "/v1/completions", body.clone()).await.json();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let answer = post(&handle, "/v1/completions", body.clone()).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    let mut events = answer.events();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let usage: Value = serde_json::from_str(&events.pop().unwrap()).unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 10);
    assert_eq!(events.len(), 10);
    let mut texts = [String::new(), String::new()];
    let mut ends = 0;
    for event in &events {
        let event: Value = serde_json::from_str(event).unwrap();
        assert!(event.get("usage").is_none());
        let choice = &event["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
        ends += usize::from(choice["finish_reason"] == "length");
    }
    assert_eq!(ends, 2);
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(whole["choices"][index]["text"], **text);
    }
    body["stream_options"] = Value::Null;
    body["n"] = 1.into();
    let events = post(&handle, "/v1/completions", body).await.events();
    assert_eq!(events.len(), 6, "no usage unless asked for");

    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": true, "stream": true});
    let events = post(&handle, "/v1/chat/completions", chat).await.events();
    let first: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!((&first["object"], &first["choices"][0]["delta"]["role"]), (&json!("chat.completion.chunk"), &json!("assistant")));
    assert_eq!(events.len(), 5);
    handle.shutdown().await;
}

#[tokio::test]
async fn an_answer_may_end_by_itself() {
    let handle = start(mocker::Config { mean_output_tokens: 4, ..quick() }).await;
    let mut stops = 0;
    for at in 0..20 {
        let chat = json!({"messages": [{"role": "user", "content": format!("number {at}")}], "max_tokens": 100});
        let answer = post(&handle, "/v1/chat/completions", chat).await.json();
        stops += usize::from(answer["choices"][0]["finish_reason"] == "stop");
    }
    assert!(stops > 15, "{stops} of 20 stopped");
    let plain = post(&handle, "/v1/completions", json!({"prompt": "x", "ignore_eos": true})).await.json();
    assert_eq!(plain["usage"]["completion_tokens"], 16, "the default of plain completions");
    handle.shutdown().await;
}

#[tokio::test]
async fn errors_have_the_engines_shape() {
    let handle = start(quick()).await;
    let long: Vec<u32> = vec![300; 256];
    for (path, body, status, kind, param, words) in [
        (
            "/v1/completions",
            json!({"model": "nope", "prompt": "x"}),
            404,
            "NotFoundError",
            json!("model"),
            "The model `nope` does not exist. Valid aliases: mock-model.",
        ),
        ("/v1/chat/completions", json!({"model": "nope", "messages": []}), 404, "NotFoundError", json!("model"), "`nope`"),
        ("/tokenize", json!({"model": "nope", "prompt": "x"}), 404, "NotFoundError", json!("model"), "`nope`"),
        ("/v1/completions", json!({"prompt": []}), 400, "BadRequestError", Value::Null, "at least one prompt"),
        ("/v1/completions", json!({"prompt": [[]]}), 400, "BadRequestError", Value::Null, "at least one prompt"),
        ("/v1/completions", json!({"prompt": [999_999]}), 400, "BadRequestError", Value::Null, "Token id 999999 is out of vocabulary"),
        ("/v1/completions", json!({"prompt": [-1]}), 400, "Bad Request", json!("body.prompt"), "validation error"),
        ("/v1/completions", json!({"prompt": 5}), 400, "Bad Request", json!("body.prompt"), "valid string"),
        ("/v1/completions", json!({}), 400, "BadRequestError", json!("prompt"), "must be provided"),
        ("/v1/completions", json!({"prompt": long}), 400, "BadRequestError", json!("input_tokens"), "maximum context length is 256 tokens"),
        ("/v1/completions", json!({"prompt": "x", "n": 0}), 400, "BadRequestError", json!("n"), "n must be"),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 0}), 400, "BadRequestError", json!("max_tokens"), "at least 1"),
        ("/v1/completions", json!({"prompt": "x", "cache_salt": ""}), 400, "BadRequestError", json!("cache_salt"), "non-empty"),
        ("/v1/completions", json!({"prompt": "x", "stream_options": {}}), 400, "BadRequestError", json!("stream_options"), "stream"),
        ("/v1/completions", json!([1]), 400, "Bad Request", json!("body"), "validation error"),
        ("/v1/chat/completions", json!({"prompt": [1]}), 400, "Bad Request", json!("body.messages"), "Field required"),
    ] {
        let answer = post(&handle, path, body.clone()).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status.as_u16(), &error["type"], &error["param"]), (status, &json!(kind), &param), "{body} gave {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        assert_eq!(error["code"], status);
    }
    let answer = call(&handle, "POST", "/v1/completions", &[("X-data-parallel-rank", "5")], json!({"prompt": "x"})).await;
    assert_eq!(answer.json()["error"]["message"], "data_parallel_rank 5 is out of range [0, 1).");
    assert_eq!((get(&handle, "/nope").await.status.as_u16(), get(&handle, "/v1/completions").await.status.as_u16()), (404, 405));
    assert_eq!(get(&handle, "/nope").await.json(), json!({"detail": "Not Found"}));
    handle.shutdown().await;
}

#[tokio::test]
async fn a_prompt_near_the_end_is_cut_not_refused() {
    let handle = start(quick()).await;
    let prompt: Vec<u32> = (0..250).map(|at| 300 + at).collect();
    let answer = post(&handle, "/v1/completions", json!({"prompt": prompt, "max_tokens": 100, "ignore_eos": true})).await.json();
    assert_eq!((&answer["usage"]["completion_tokens"], &answer["usage"]["total_tokens"]), (&json!(6), &json!(256)));
    handle.shutdown().await;
}

#[tokio::test]
async fn request_ids_come_back() {
    let handle = start(quick()).await;
    let answer = call(&handle, "POST", "/v1/completions", &[("X-Request-Id", "mine-1")], json!({"prompt": "x"})).await;
    assert_eq!(
        (&answer.headers["x-request-id"], &answer.json()["id"]),
        (&hyper::header::HeaderValue::from_static("mine-1"), &json!("cmpl-mine-1"))
    );
    let answer = get(&handle, "/health").await;
    assert!(!answer.headers["x-request-id"].is_empty());
    handle.shutdown().await;
}

#[tokio::test]
async fn adapters_are_models_and_can_come_and_go() {
    let handle = start(mocker::Config { adapters: vec!["sql".to_owned()], ..quick() }).await;
    let ids = async || {
        let cards = get(&handle, "/v1/models").await.json();
        cards["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|card| (card["id"].clone(), card["parent"].clone(), card["max_model_len"].clone()))
            .collect::<Vec<_>>()
    };
    let base = (json!("mock-model"), Value::Null, json!(256));
    assert_eq!(ids().await, [base.clone(), (json!("sql"), json!("mock-model"), Value::Null)]);
    let body = json!({"model": "sql", "prompt": vec![500; 40], "max_tokens": 1});
    assert_eq!(post(&handle, "/v1/completions", body.clone()).await.json()["model"], "sql");
    assert_eq!(post(&handle, "/v1/load_lora_adapter", json!({"lora_name": "sql", "lora_path": "x"})).await.status, 400);
    assert_eq!(post(&handle, "/v1/unload_lora_adapter", json!({"lora_name": "sql"})).await.status, 200);
    assert_eq!(ids().await, [base]);
    assert_eq!(post(&handle, "/v1/completions", body.clone()).await.status, 404);
    assert_eq!(post(&handle, "/v1/load_lora_adapter", json!({"lora_name": "sql", "lora_path": "x"})).await.status, 200);
    // The blocks of the first load are still there.
    assert_eq!(post(&handle, "/v1/completions", body).await.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 32);
    handle.shutdown().await;
}

#[tokio::test]
async fn text_and_tokens_convert_both_ways() {
    let handle = start(quick()).await;
    let asked = json!({"model": "mock-model", "prompt": "the quiet river", "return_token_strs": true});
    let tokens = post(&handle, "/tokenize", asked).await.json();
    assert_eq!(tokens["max_model_len"], 256);
    assert_eq!(tokens["token_strs"], json!(["<|begin|>", "the", "Ġquiet", "Ġriver"]));
    let text = post(&handle, "/detokenize", json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(text, json!({"prompt": "the quiet river"}));
    // A text above the limit for inline work.
    let long = "the quiet river ".repeat(1_000);
    let count = post(&handle, "/tokenize", json!({"prompt": long})).await.json()["count"].as_u64().unwrap();
    assert!(count > 3_000);
    handle.shutdown().await;
}

#[tokio::test]
async fn an_engine_tells_a_router_about_itself() {
    let handle = start(quick()).await;
    for path in ["/health", "/ping"] {
        assert_eq!((get(&handle, path).await.status.as_u16(), get(&handle, path).await.text.len()), (200, 0));
    }
    assert_eq!(get(&handle, "/version").await.json(), json!({"version": "0.33.0"}));
    let source = get(&handle, "/kv_event_sources").await.json()["0"].clone();
    let endpoints = handle.events().remove(0);
    let reached = |told: &Value| told.as_str().unwrap().replace('*', "127.0.0.1");
    assert_eq!(reached(&source["endpoint"]), endpoints.events.to_string());
    assert_eq!(reached(&source["replay_endpoint"]), endpoints.replay.unwrap().to_string());
    let keys: Vec<&String> = source.as_object().unwrap().keys().collect();
    let real = ["enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm", "max_queue_size", "topic"];
    assert_eq!(keys, real);
    assert_eq!((&source["publisher"], &source["buffer_steps"], &source["topic"]), (&json!("zmq"), &json!(10_000), &json!("")));
    post(&handle, "/v1/completions", json!({"prompt": vec![500; 40], "max_tokens": 1})).await;
    let metrics = get(&handle, "/metrics").await.text;
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"mock-model\"} 0.0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"mock-model\"} 0.0",
        "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"mock-model\"} 40.0",
        "vllm:prompt_tokens_cached_total{engine=\"0\",model_name=\"mock-model\"} 0.0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock-model\"} 0.0",
        "block_size=\"8\"",
        "num_gpu_blocks=\"64\"",
        "kv_cache_size_tokens=\"512\"",
        "# TYPE vllm:cache_config_info gauge",
        "process_start_time_seconds 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert_eq!(get(&handle, "/server_info").await.status, 404);
    handle.shutdown().await;
}

#[tokio::test]
async fn sglang_tells_it_its_own_way() {
    let handle = start(mocker::Config { generation: Generation::Sglang0523, ranks: 2, ..quick() }).await;
    let info = get(&handle, "/server_info").await.json()["kv_events"].clone();
    assert_eq!(info["endpoint_host"], "*");
    let first = format!("tcp://127.0.0.1:{}", info["endpoint_port_base"]);
    assert_eq!(first, handle.events()[0].events.to_string());
    assert_eq!((&info["block_size"], &info["dp_size"]), (&json!(8), &json!(2)));
    let replay = format!("tcp://127.0.0.1:{}", info["replay_endpoint_port_base"].as_u64().unwrap() + 1);
    assert_eq!(replay, handle.events()[1].replay.as_ref().unwrap().to_string());
    assert_eq!(get(&handle, "/kv_event_sources").await.status, 404);
    assert!(get(&handle, "/metrics").await.text.contains("sglang:num_running_reqs{dp_rank=\"1\""));
    let body = json!({"prompt": vec![500; 40], "max_tokens": 1});
    let cached = async || {
        let answer = call(&handle, "POST", "/v1/completions", &[("X-Data-Parallel-Rank", "1")], body.clone()).await;
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!((cached().await, cached().await), (json!(0), json!(32)));
    assert_eq!(post(&handle, "/flush_cache", Value::Null).await.status, 200);
    assert_eq!(cached().await, 0);
    handle.shutdown().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_everything() {
    // Slow enough that no answer ends by itself.
    let handle = start(mocker::Config { speedup: 1.0, decode_tokens_per_s: 50.0, ..quick() }).await;
    for stream in [true, false] {
        let body = json!({"prompt": vec![500; 40], "max_tokens": 200, "ignore_eos": true, "stream": stream});
        let asked = send(&handle, "POST", "/v1/completions", &[], &body);
        if stream {
            let mut answer = asked.await.unwrap().into_body();
            answer.frame().await.unwrap().unwrap();
            drop(answer);
        } else {
            tokio::select! {
                _ = asked => panic!("the answer takes seconds"),
                () = eventually("running", || handle.gauges(0).unwrap().running == 1) => {}
            }
        }
        eventually("aborted", || {
            let gauges = handle.gauges(0).unwrap();
            gauges.running == 0 && gauges.used_blocks == 0
        })
        .await;
    }
    assert_eq!(handle.totals(0).unwrap().aborted, 2);
    handle.shutdown().await;
}

/// At 10 times the speed, 1,000 prompt tokens at 10,000 a second and 50 tokens at 1,000 a second take 15 ms.
#[tokio::test]
async fn time_passes_at_the_configured_rates() {
    let config = mocker::Config {
        blocks: 1_024,
        max_model_len: 2_048,
        max_batched_tokens: 2_048,
        prefill_tokens_per_s: 10_000.0,
        decode_tokens_per_s: 1_000.0,
        speedup: 10.0,
        ..quick()
    };
    let handle = start(config).await;
    let mut fastest = std::time::Duration::MAX;
    for round in 0..5u32 {
        let prompt: Vec<u32> = (0..1_000).map(|at| 100 + (at * 7 + round) % 1_000).collect();
        let asked = std::time::Instant::now();
        post(&handle, "/v1/completions", json!({"prompt": prompt, "max_tokens": 51, "ignore_eos": true})).await;
        fastest = fastest.min(asked.elapsed());
    }
    assert!(fastest.as_millis() >= 14, "{fastest:?}");
    // 51 timers of a millisecond each would alone take this long.
    assert!(fastest.as_millis() < 50, "{fastest:?}");
    handle.shutdown().await;
}
