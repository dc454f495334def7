//! The pool when its threads are busy, and when jobs fail.

use std::sync::{Arc, mpsc};

use bytes::Bytes;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{INLINE_BODY_BYTES, Pool, PoolOptions};
use crate::{error::TokenError, request::Endpoint};

fn pool(threads: usize, queue: usize) -> Pool {
    Pool::new(PoolOptions { threads, queue }).expect("threads")
}

/// A thread that tokenises is busy until the sender says.
async fn occupied(pool: &Arc<Pool>) -> (mpsc::Sender<()>, JoinHandle<Result<(), TokenError>>) {
    let (release, gate) = mpsc::channel::<()>();
    let (started, running) = oneshot::channel();
    let pool = pool.clone();
    let job = move || {
        started.send(()).expect("the test waits");
        gate.recv().expect("released");
    };
    let busy = tokio::spawn(async move { pool.run(job).await });
    running.await.expect("running");
    (release, busy)
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let pool = Arc::new(pool(1, 1));
    let (release, first) = occupied(&pool).await;
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run(|| 2).await }
    });
    while pool.queued() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.run(|| 3).await, Err(TokenError::Busy { queued: 1 }));
    assert_eq!(pool.counters().busy.value(), 1);
    release.send(()).expect("the job waits");
    assert_eq!(first.await.expect("joined"), Ok(()));
    assert_eq!(waiting.await.expect("joined"), Ok(2));
}

#[tokio::test]
async fn a_panic_is_one_jobs_failure() {
    let pool = pool(1, 8);
    let lost: Result<(), _> = pool.run(|| panic!("on purpose")).await;
    assert_eq!(lost, Err(TokenError::Failed));
    assert_eq!(pool.run(|| 1).await, Ok(1));
    assert_eq!(pool.counters().panicked.value(), 1);
}

#[tokio::test]
async fn brief_work_waits_for_no_tokenisation() {
    let pool = Arc::new(pool(1, 8));
    let (release, long) = occupied(&pool).await;
    // The only thread that tokenises is busy until the test lets it go.
    assert_eq!(pool.run_brief(|| 1).await, Ok(1));
    let body = Bytes::from(format!(r#"{{"model": "m", "prompt": "{}"}}"#, "x".repeat(INLINE_BODY_BYTES)));
    assert_eq!(pool.parse(Endpoint::Completions, &body).await.expect("a good body").model, "m");
    release.send(()).expect("the job waits");
    assert_eq!(long.await.expect("joined"), Ok(()));
}

#[test]
fn dropping_joins_the_threads() {
    let pool = pool(3, 8);
    let shared = Arc::downgrade(&pool.shared);
    drop(pool);
    assert!(shared.upgrade().is_none(), "no thread holds the queue any more");
}
