//! Misbehaviour on demand, for tests of whatever stands in front of an engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Everything that can go wrong on purpose. The default is an engine that works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// What stands still.
    pub freeze: Freeze,
    /// The HTTP port refuses connections, and open ones are cut. Only through a handle: it would cut its own request.
    pub refuse: bool,
    /// Generation requests are answered with this status and nothing else.
    pub status: Option<u16>,
    /// What happens to event streams.
    pub stream: Option<StreamFault>,
    /// Generation requests wait this long before anything else, in milliseconds.
    pub latency_ms: u64,
    /// `/health` waits this long before it answers, in milliseconds.
    pub health_latency_ms: u64,
    /// So many of the next batches are not sent, but kept for replay.
    pub drop_batches: u32,
    /// So many of the next batches are neither sent nor kept. Dropping comes first.
    pub lose_batches: u32,
}

/// What stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Freeze {
    /// Nothing.
    #[default]
    None,
    /// No token and no event comes; everything else is answered.
    Engine,
    /// The whole process: connections are accepted and nothing is answered, no token and no event comes.
    Process,
}

/// How an event stream goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamFault {
    /// Events sent before it happens.
    pub after_events: u32,
    /// What happens.
    pub kind: StreamFaultKind,
}

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamFaultKind {
    /// Half an event, then the connection is closed without the end of the body.
    DieMidLine,
    /// The connection is closed after a whole event, without the end of the body.
    Close,
    /// An error event, then `[DONE]`, under status 200: what vLLM does when its engine dies.
    ErrorEvent,
    /// Nothing more comes and the connection stays open.
    Stall,
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    /// Kept for replay only.
    Dropped,
    Lost,
}

/// The switches, shared by everything that obeys them.
#[derive(Clone, Debug)]
pub(crate) struct Switches(watch::Sender<Faults>);

impl Switches {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Faults::default()))
    }

    pub(crate) fn now(&self) -> Faults {
        *self.0.borrow()
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        self.0.send_modify(change);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Faults> {
        self.0.subscribe()
    }

    /// Waits until `holds`. Cancel-safe.
    pub(crate) async fn until(&self, holds: impl FnMut(&Faults) -> bool) {
        // The sender is in `self`, so the channel is open as long as anyone waits.
        let _ = self.0.subscribe().wait_for(holds).await;
    }

    /// What becomes of the next batch; counts it off.
    pub(crate) fn fate(&self) -> Fate {
        let mut fate = Fate::Sent;
        self.0.send_if_modified(|faults| {
            fate = if faults.drop_batches > 0 {
                faults.drop_batches -= 1;
                Fate::Dropped
            } else if faults.lose_batches > 0 {
                faults.lose_batches -= 1;
                Fate::Lost
            } else {
                Fate::Sent
            };
            fate != Fate::Sent
        });
        fate
    }
}

impl Faults {
    pub(crate) fn latency(&self) -> Duration {
        Duration::from_millis(self.latency_ms)
    }

    pub(crate) fn health_latency(&self) -> Duration {
        Duration::from_millis(self.health_latency_ms)
    }
}
