//! Requests that never stop: whatever happens to the planes, a client sees nothing of it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    http,
    simulated::{BLOCK, completion, prompt},
};

/// Between two requests to one frontend.
const PAUSE: Duration = Duration::from_millis(10);
/// No answer for so long is a failure.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The clients of one frontend. They end when it is dropped.
pub(super) struct Traffic {
    /// Read for the time of a request; written while there is no frontend.
    address: Arc<RwLock<SocketAddr>>,
    counts: Arc<Counts>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    /// What each failed request got.
    failures: Mutex<Vec<String>>,
}

impl Traffic {
    pub(super) fn to(address: SocketAddr) -> Self {
        let (address, counts) = (Arc::new(RwLock::new(address)), Arc::<Counts>::default());
        let task = tokio::spawn(ask(address.clone(), counts.clone()));
        Self { address, counts, _task: AbortOnDropHandle::new(task) }
    }

    /// Waits for the request that runs; the next begins once what is returned, the address, is dropped.
    pub(super) async fn hold(&self) -> OwnedRwLockWriteGuard<SocketAddr> {
        self.address.clone().write_owned().await
    }

    pub(super) fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::Relaxed)
    }

    /// What went wrong since the last look.
    pub(super) fn failures(&self) -> Vec<String> {
        std::mem::take(&mut self.counts.failures.lock().unwrap())
    }
}

async fn ask(address: Arc<RwLock<SocketAddr>>, counts: Arc<Counts>) {
    for number in 0.. {
        let address = address.read().await;
        // Beginnings in common, and none that a publisher publishes.
        let body = completion(&[&prompt(4_000_000_000 + number % 50, 3 * BLOCK)[..], &prompt(number, 5)].concat());
        if let Err(failure) = complete(*address, body).await {
            counts.failures.lock().unwrap().push(failure);
        }
        counts.requests.fetch_add(1, Ordering::Relaxed);
        drop(address);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn complete(address: SocketAddr, body: Value) -> Result<(), String> {
    // A connection that is refused or breaks is a panic there, and a failure here.
    let answer = async move { http::open(address, "POST", "/v1/completions", &[], &body).await.whole().await };
    let asked = AbortOnDropHandle::new(tokio::spawn(answer));
    match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
        Ok(Ok(answer)) if answer.status == 200 => Ok(()),
        Ok(Ok(answer)) => Err(format!("{}: {}", answer.status, answer.text())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}
