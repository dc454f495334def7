//! A worker that is an OpenAI server, and whether what is sent to it comes back.

use std::time::{Duration, Instant};

use engine::{Probe, Pulse};
use parking_lot::Mutex;

use crate::{config::worker_flag::WorkerSpec, fleet::via::Mark};

/// An OpenAI server.
pub(crate) struct OpenAi {
    pub(crate) spec: WorkerSpec,
    probe: Probe,
    /// Named in what is sent to it.
    pub(crate) mark: Mark,
    /// When something that was sent to it last came back. Held for a copy.
    circle: Mutex<Option<Circle>>,
}

/// Something that was sent to a worker has come back.
#[derive(Clone, Copy)]
struct Circle {
    at: Instant,
    why: &'static str,
}

/// How long a worker gets no requests after one came back. Then one may try again, and is moved to another worker if that
/// leads here still; probes that come back try every few seconds.
const CIRCLE_FOR: Duration = Duration::from_secs(300);
/// Why it gets none, where nobody is between.
const ITSELF: &str = "worker is this frontend itself";
/// The same, where other frontends are.
const SENDS_BACK: &str = "worker is a frontend that sends requests back to this one";

impl OpenAi {
    pub(in crate::fleet) fn new(spec: WorkerSpec, probe: Probe, mark: Mark) -> Self {
        Self { spec, probe, mark, circle: Mutex::new(None) }
    }

    /// Something that was sent to it came back, by way of so many other frontends. Returns why it gets no requests now, and
    /// whether that is news.
    pub(in crate::fleet) fn led_back(&self, now: Instant, others: usize) -> (&'static str, bool) {
        let why = if others == 0 { ITSELF } else { SENDS_BACK };
        let known = self.circle(now);
        *self.circle.lock() = Some(Circle { at: now, why });
        (why, known != Some(why))
    }

    /// Why it gets no requests, where what was sent to it came back lately.
    pub(in crate::fleet) fn circle(&self, now: Instant) -> Option<&'static str> {
        let circle = *self.circle.lock();
        circle.filter(|circle| now.saturating_duration_since(circle.at) < CIRCLE_FOR).map(|circle| circle.why)
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        self.probe.pulse()
    }
}
