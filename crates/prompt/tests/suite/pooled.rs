//! The pool gives what the folder gives.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use prompt::{Counters, Endpoint, Pool, PoolOptions};
use serde_json::json;

use crate::{parse, tiny};

#[tokio::test]
async fn many_requests_at_once_get_their_own_tokens() {
    let pool = Arc::new(Pool::new(PoolOptions { threads: 2, queue: 64 }).expect("threads"));
    let folder = Arc::new(tiny());
    let (first, second) = tokio::join!(pool.warm(&folder), pool.warm(&folder));
    assert_eq!((first, second), ((), ()));
    let mut tasks = Vec::new();
    for number in 0..40 {
        let (pool, folder) = (pool.clone(), folder.clone());
        tasks.push(tokio::spawn(async move {
            let body = match number % 3 {
                0 => json!({"model": "m", "prompt": format!("order {number} of the customer")}),
                1 => json!({"model": "m", "prompt": [number, 2, 3]}),
                _ => json!({"model": "m", "messages": [{"role": "user", "content": format!("turn {number}")}]}),
            };
            let endpoint = if number % 3 == 2 { Endpoint::Chat } else { Endpoint::Completions };
            let request = Arc::new(pool.parse(endpoint, &Bytes::from(body.to_string())).await.expect("a good body"));
            let found = pool.tokens(&folder, &request, UNIX_EPOCH).await.expect("token ids");
            assert_eq!(found, folder.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids"));
        }));
    }
    for task in tasks {
        task.await.expect("joined");
    }
    let counters = pool.counters();
    assert_eq!(counters.pooled.value(), 27, "all but token ids");
    assert_eq!(counters.rendered.value(), 13);
    assert!(counters.encoded_tokens.value() > 0);
    assert_eq!((counters.busy.value(), counters.panicked.value()), (0, 0));
}

#[tokio::test]
async fn large_bodies_are_read_off_the_calling_thread_and_errors_come_back() {
    let pool = Pool::new(PoolOptions { threads: 1, queue: 4 }).expect("threads");
    let body = json!({"model": "m", "prompt": "word ".repeat(20_000)}).to_string();
    let request = pool.parse(Endpoint::Completions, &body.clone().into()).await.expect("a good body");
    assert_eq!(request.model, "m");
    assert_eq!(pool.counters().pooled.value(), 1);
    let error = pool.parse(Endpoint::Chat, &body.into()).await.expect_err("no messages");
    assert_eq!(error.param.as_deref(), Some("messages"));
}

#[tokio::test]
async fn a_prompt_seen_before_is_remembered() {
    let pool = Pool::new(PoolOptions { threads: 1, queue: 4 }).expect("threads");
    let folder = Arc::new(tiny());
    let request = Arc::new(parse(Endpoint::Completions, &json!({"model": "m", "prompt": "the same text"})).expect("a good body"));
    let first = pool.tokens(&folder, &request, UNIX_EPOCH).await.expect("token ids");
    let bytes = pool.counters().encoded_bytes.value();
    let second = pool.tokens(&folder, &request, UNIX_EPOCH).await.expect("token ids");
    assert_eq!(first, second);
    assert_eq!((pool.counters().encoded_bytes.value(), pool.counters().text_cache_hits.value()), (bytes, 1));
}
