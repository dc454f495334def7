//! Waiting, with a bound: a lost event is a failure and not a hang.

use std::time::Duration;

/// Far beyond what any wait here should take, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Awaits `work`, for 20 s at most.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}

/// Until it is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    soon(what, wait).await;
}
