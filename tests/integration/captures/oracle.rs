//! What trust must be shown, told from a recording's own JSON.

use serde_json::Value;

/// One stream.
#[derive(Debug)]
pub(super) struct Oracle {
    footing: Footing,
    last: Option<u64>,
    /// A reset went through the frontend, and the engine's event is still to come.
    awaits_clear: bool,
    /// A request asked for full reports. No recording goes on to a clear.
    full_reports: bool,
    /// What the stores have room for; `None` before the first.
    room: Option<Room>,
    /// Adapters have names though the events have numbers.
    mapped: bool,
}

#[derive(Debug)]
enum Footing {
    Unheard,
    /// Everything since the engine's start or its last clear was heard.
    Whole,
    Lacking,
}

/// The forms of stores, from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    Blocks,
    AdapterNumber,
    AdapterName,
    Salt,
}

impl Oracle {
    /// Joined a stream. With a replay socket that has nothing, it is known that nothing was missed.
    pub(super) fn joined(replays: bool, mapped: bool) -> Self {
        let footing = if replays { Footing::Whole } else { Footing::Unheard };
        Self { footing, last: None, awaits_clear: false, full_reports: false, room: None, mapped }
    }

    pub(super) fn reset(&mut self) {
        self.awaits_clear = true;
    }

    pub(super) fn asked_for_full_reports(&mut self) {
        self.full_reports = true;
    }

    /// Another process took the engine's place, and had nothing to replay.
    pub(super) fn restarted(&mut self, replays: bool) {
        if replays {
            *self = Self::joined(true, self.mapped);
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
        for event in batch[1].as_array().unwrap() {
            let tag = event.get("type").unwrap_or(&event[0]);
            if tag == "AllBlocksCleared" {
                self.footing = Footing::Whole;
                self.awaits_clear = false;
            } else if tag == "BlockStored" {
                self.room = Some(room(event));
            }
        }
    }

    pub(super) fn trust(&self) -> &'static str {
        match self.footing {
            Footing::Unheard => "blind",
            Footing::Lacking => "degraded",
            Footing::Whole if self.full_reports => "degraded",
            Footing::Whole if self.awaits_clear => "recovering",
            Footing::Whole => "exact",
        }
    }

    /// To a request of an adapter, of a salt, of both or of neither.
    pub(super) fn trust_for(&self, adapter: bool, salt: bool) -> &'static str {
        let named = if self.mapped { Room::AdapterNumber } else { Room::AdapterName };
        let lacks = |wanted: bool, room: Room| wanted && self.room.is_some_and(|has| has < room);
        if lacks(adapter, named) || lacks(salt, Room::Salt) { "degraded" } else { self.trust() }
    }

    /// Whether the stores have room for an adapter's name, and for a salt.
    pub(super) fn carries(&self) -> (Option<bool>, Option<bool>) {
        (self.room.map(|room| room >= Room::AdapterName), self.room.map(|room| room >= Room::Salt))
    }
}

/// Arrays by the lengths of the releases: SGLang 0.5.6, vLLM 0.12, 0.16, and later ones. Maps have a key for everything.
fn room(event: &Value) -> Room {
    match event.as_array().map(Vec::len) {
        Some(6) => Room::Blocks,
        Some(7) => Room::AdapterNumber,
        Some(8) => Room::AdapterName,
        None | Some(12) => Room::Salt,
        Some(other) => panic!("a store of {other} elements"),
    }
}
