//! What the tests share: the process under test, a client, an engine that plays a script, and waiting.

pub(crate) mod engine;
pub(crate) mod frontend;
pub(crate) mod http;
pub(crate) mod simulated;

use std::time::{Duration, Instant};

/// Nothing in these tests takes nearly this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks at something that is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks until `look` finds what it wants; panics with what was seen last.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "never: {what}; last seen: {seen}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// `Ok` if `holds`, else what was seen.
pub(crate) fn seen(holds: bool, value: impl std::fmt::Debug) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{value:?}")) }
}
