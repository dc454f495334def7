//! What reading a typical chat body costs. Figures to look at, not to pass or fail: run with `--release -- --ignored`.

use std::hint::black_box;
use std::time::{Instant, UNIX_EPOCH};

use bytes::Bytes;
use prompt::{Counters, Endpoint, Folder, Generation, LoadOptions};
use serde_json::json;

use crate::data;

const ROUNDS: u32 = 20_000;

fn measure<T>(what: &str, mut work: impl FnMut() -> T) {
    for _ in 0..ROUNDS / 10 {
        black_box(work());
    }
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(work());
    }
    println!("{what}: {:.2} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
}

#[test]
#[ignore = "prints figures"]
fn of_a_chat_of_750_tokens() {
    let turn = |role: &str, words: usize| json!({"role": role, "content": "the model routes each request to the worker ".repeat(words)});
    let body = json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true}, "temperature": 0.7, "top_p": 0.95, "max_tokens": 256,
        "stop": ["</s>", "User:"], "seed": 7, "user": "u",
        "messages": [turn("system", 30), turn("user", 20), turn("assistant", 30), turn("user", 15)],
    });
    let with_tools = {
        let mut body = body.clone();
        let tool = json!({"type": "function", "function": {"name": "find", "description": "Finds things", "parameters":
            {"type": "object", "properties": {"what": {"type": "string", "description": "what to find"}, "where": {"type": "string"}}, "required": ["what"]}}});
        body["tools"] = vec![tool; 4].into();
        body["nvext"] = json!({"annotations": ["token_ids"], "extra_fields": ["worker_id", "timing"]});
        Bytes::from(body.to_string())
    };
    let body = Bytes::from(body.to_string());
    let folder = Folder::load(&data("models/tiny-llama"), &LoadOptions::default()).expect("loads");
    let counters = Counters::default();
    let request = prompt::parse(Endpoint::Chat, &body).expect("good");
    let ids = folder.tokens(&request, UNIX_EPOCH, &counters).expect("token ids").remove(0).ids;
    println!("{} bytes, {} tokens", body.len(), ids.len());
    measure("parse", || prompt::parse(Endpoint::Chat, &body));
    measure("Generation::parse", || Generation::parse(Endpoint::Chat, &body));
    measure("Generation::parse with tools and nvext", || Generation::parse(Endpoint::Chat, &with_tools));
    measure("tokens, remembered", || folder.tokens(&request, UNIX_EPOCH, &counters));
    let vocabulary = folder.vocabulary();
    measure("decode all", || vocabulary.decode(&ids, true));
    measure("bytes of all tokens", || ids.iter().map(|id| vocabulary.token_bytes(*id).len()).sum::<usize>());
}
