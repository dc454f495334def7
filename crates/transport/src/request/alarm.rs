//! A time-out that is set again for each wait. Most waits end long before it, so the runtime's timer is left as it is, and set
//! anew only when it goes off too early: many waits cost one timer.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// As good as never.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// One after the other, of one owner.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Waits until then. Cancel-safe; the next wait may be for any other time.
    pub(super) async fn at(&mut self, due: Instant) {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if due < sleep.deadline() {
            sleep.as_mut().reset(due);
        }
        loop {
            sleep.as_mut().await;
            if sleep.deadline() >= due {
                return;
            }
            sleep.as_mut().reset(due);
        }
    }
}

/// So long from now, also where that is beyond what a clock counts.
pub(super) fn after(patience: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(patience.min(NEVER)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// A wait is never shorter than asked for; longer it is on a busy machine.
    #[tokio::test]
    async fn each_wait_ends_when_it_is_due_whatever_was_waited_for_before() {
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(60));
        let mut alarm = Alarm::default();
        // Given up; then for less; then for more, with the timer already past; then for what is past.
        assert!(timeout(short, alarm.at(after(long))).await.is_err());
        let begun = Instant::now();
        alarm.at(begun + short * 2).await;
        assert!(begun.elapsed() >= short * 2 && begun.elapsed() < long);
        assert!(timeout(short, alarm.at(after(short * 3))).await.is_err());
        let begun = Instant::now();
        alarm.at(begun + short * 8).await;
        assert!(begun.elapsed() >= short * 8);
        timeout(long, alarm.at(begun)).await.unwrap();
        assert!(timeout(short, alarm.at(after(Duration::MAX))).await.is_err());
    }
}
