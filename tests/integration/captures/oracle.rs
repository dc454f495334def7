//! What trust must be shown, told from a recording's own JSON.

use serde_json::Value;

/// One stream.
#[derive(Debug)]
pub(super) struct Oracle {
    footing: Footing,
    last: Option<u64>,
    /// A reset went through the frontend, and the engine's event is still to come.
    awaits_clear: bool,
}

#[derive(Debug)]
enum Footing {
    Unheard,
    /// Everything since the engine's start or its last clear was heard.
    Whole,
    Lacking,
}

impl Oracle {
    /// Joined a stream. With a replay socket that has nothing, it is known that nothing was missed.
    pub(super) fn joined(replays: bool) -> Self {
        let footing = if replays { Footing::Whole } else { Footing::Unheard };
        Self { footing, last: None, awaits_clear: false }
    }

    pub(super) fn reset(&mut self) {
        self.awaits_clear = true;
    }

    /// Another process took the engine's place, and had nothing to replay.
    pub(super) fn restarted(&mut self, replays: bool) {
        if replays {
            *self = Self::joined(true);
        } else if matches!(self.footing, Footing::Whole) {
            self.footing = Footing::Lacking;
        }
    }

    /// A batch as JSON.
    pub(super) fn heard(&mut self, seq: u64, batch: &Value) {
        let next = self.last.map_or(0, |last| last + 1);
        if seq == 0 {
            self.footing = Footing::Whole;
        } else if seq != next {
            self.footing = Footing::Lacking;
        }
        self.last = Some(seq);
        let tag = |event: &Value| if event.is_object() { event["type"].clone() } else { event[0].clone() };
        if batch[1].as_array().unwrap().iter().any(|event| tag(event) == "AllBlocksCleared") {
            self.footing = Footing::Whole;
            self.awaits_clear = false;
        }
    }

    pub(super) fn trust(&self) -> &'static str {
        match self.footing {
            Footing::Unheard => "blind",
            Footing::Lacking => "degraded",
            Footing::Whole if self.awaits_clear => "recovering",
            Footing::Whole => "exact",
        }
    }
}
