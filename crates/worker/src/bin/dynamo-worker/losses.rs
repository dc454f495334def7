//! What the sidecar could not publish, answer or keep: counted where it happens, told in one line of the log (rule 16).

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Between two lines.
const AGAIN: Duration = Duration::from_secs(60);

/// Losses by what was lost and where; since the start of whatever counts them.
pub(crate) type Counts = BTreeMap<String, u64>;

/// What was told of them.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    told: Counts,
    at: Option<Instant>,
}

impl Losses {
    /// A line, if any count grew: the first at once, further ones a minute apart.
    pub(crate) fn line(&mut self, now: Instant, counts: impl FnOnce() -> Counts) -> Option<String> {
        if self.at.is_some_and(|at| now - at < AGAIN) {
            return None;
        }
        let line = self.rest(counts())?;
        self.at = Some(now);
        Some(line)
    }

    /// The same without waiting: whatever counts ends now, and will begin anew.
    pub(crate) fn rest(&mut self, counts: Counts) -> Option<String> {
        let grown = counts.iter().filter_map(|(name, count)| {
            let told = self.told.get(name).copied().unwrap_or(0);
            // Less than before: another one counts, from 0.
            let more = count.checked_sub(told).unwrap_or(*count);
            (more > 0).then(|| format!("{name}={count} (+{more})"))
        });
        let line = grown.collect::<Vec<_>>().join(", ");
        self.told = counts;
        (!line.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, u64)]) -> Counts {
        of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn what_grew_is_told_at_once_and_then_once_a_minute() {
        let (mut losses, now) = (Losses::default(), Instant::now());
        assert_eq!(losses.line(now, || counts(&[("rank 0 dropped_stores", 0), ("junk", 0)])), None);
        let line = losses.line(now, || counts(&[("rank 0 dropped_stores", 7), ("junk", 0)]));
        assert_eq!(line.as_deref(), Some("rank 0 dropped_stores=7 (+7)"));
        let soon = now + Duration::from_secs(59);
        assert_eq!(losses.line(soon, || counts(&[("rank 0 dropped_stores", 9), ("junk", 1)])), None);
        let later = now + AGAIN;
        let line = losses.line(later, || counts(&[("rank 0 dropped_stores", 9), ("junk", 1)]));
        assert_eq!(line.as_deref(), Some("junk=1 (+1), rank 0 dropped_stores=9 (+2)"));
        assert_eq!(losses.line(later + AGAIN, || counts(&[("rank 0 dropped_stores", 9), ("junk", 1)])), None);
    }

    #[test]
    fn counts_that_begin_anew_are_told_again() {
        let mut losses = Losses::default();
        assert!(losses.rest(counts(&[("refused", 5)])).is_some());
        assert_eq!(losses.rest(counts(&[("refused", 2)])).as_deref(), Some("refused=2 (+2)"));
    }
}
