//! The calls that wait for their worker: from before their request goes out until the worker calls back, or it is known that it
//! will not. Whoever learns something of a call says it here by the call's subject; the call itself waits for one word.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::alarm::{Alarm, after};
use super::super::error::Cause;
use super::line::Line;
use super::subject::Subject;

#[derive(Debug, Default)]
pub(super) struct Expected {
    /// Held to add, change or take one; once for all of a connection that broke.
    calls: Mutex<HashMap<Subject, Expectation>>,
    /// Connections that named no call, or one that was answered or given up.
    strangers: AtomicU64,
}

#[derive(Debug)]
struct Expectation {
    word: oneshot::Sender<Result<Line, Cause>>,
    /// When the worker said that it has the request.
    acknowledged: Option<Instant>,
}

/// A call that waits for its worker. Dropping it makes the subject unknown.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) subject: Subject,
    word: oneshot::Receiver<Result<Line, Cause>>,
    expected: Arc<Expected>,
}

/// How long a call waits for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For the acknowledgement; `None` where whoever sends the request sees to it.
    pub(super) acknowledgement: Option<Duration>,
    /// From the acknowledgement to the worker's call.
    pub(super) call: Duration,
}

impl Expected {
    /// Expects one call of a worker.
    pub(super) fn add(self: &Arc<Self>) -> Awaited {
        let subject = Subject::random();
        Awaited { subject, word: self.insert(subject), expected: self.clone() }
    }

    fn insert(&self, subject: Subject) -> oneshot::Receiver<Result<Line, Cause>> {
        let (word, heard) = oneshot::channel();
        self.calls.lock().insert(subject, Expectation { word, acknowledged: None });
        heard
    }

    /// Whether somebody waits for it.
    pub(super) fn has(&self, subject: Subject) -> bool {
        self.calls.lock().contains_key(&subject)
    }

    /// Its worker has the request. False if nobody waits any more: answered already, or given up.
    pub(super) fn acknowledge(&self, subject: Subject) -> bool {
        match self.calls.lock().get_mut(&subject) {
            Some(call) => {
                call.acknowledged.get_or_insert_with(Instant::now);
                true
            }
            None => false,
        }
    }

    /// Its worker will not call.
    pub(super) fn fail(&self, subject: Subject, cause: Cause) {
        let call = self.calls.lock().remove(&subject);
        if let Some(call) = call {
            // It may have been given up at this moment.
            let _ = call.word.send(Err(cause));
        }
    }

    /// Its worker has called. One that calls for nobody is told so when the line is dropped.
    pub(super) fn arrive(&self, subject: Subject, line: Line) {
        let call = self.calls.lock().remove(&subject);
        match call {
            Some(call) => drop(call.word.send(Ok(line))),
            None => self.stranger(),
        }
    }

    pub(super) fn stranger(&self) {
        self.strangers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }

    /// Of these, those that nobody waits for are taken out.
    pub(super) fn retain(&self, subjects: &mut Vec<Subject>) {
        let calls = self.calls.lock();
        subjects.retain(|subject| calls.contains_key(subject));
    }

    pub(super) fn len(&self) -> usize {
        self.calls.lock().len()
    }

    /// Gives up every call that waits.
    pub(super) fn close(&self) {
        self.calls.lock().clear();
    }

    /// When its worker said that it has the request.
    pub(super) fn acknowledged(&self, subject: Subject) -> Option<Instant> {
        self.calls.lock().get(&subject).and_then(|call| call.acknowledged)
    }
}

impl Awaited {
    /// The same once more, for a request that is sent again: whichever arrives first is answered.
    pub(super) fn renew(&mut self) {
        self.word = self.expected.insert(self.subject);
    }

    /// What became of it. `home` is where the worker was told to call.
    pub(super) async fn word(&mut self, patience: Patience, alarm: &mut Alarm, home: &Arc<str>) -> Result<Line, Cause> {
        let sent = after(Duration::ZERO);
        let mut due = after(patience.acknowledgement.unwrap_or(patience.call));
        loop {
            tokio::select! {
                biased;
                word = &mut self.word => return word.unwrap_or(Err(Cause::Stopped)),
                () = alarm.at(due) => {}
            }
            due = match (self.expected.acknowledged(self.subject), patience.acknowledgement) {
                (Some(at), _) if at.elapsed() >= patience.call => {
                    return Err(Cause::NoCallHome { after: patience.call, address: home.clone() });
                }
                (Some(at), _) => at.checked_add(patience.call).unwrap_or_else(|| after(patience.call)),
                (None, Some(bound)) if sent.elapsed() >= bound => return Err(Cause::Unacknowledged(bound)),
                (None, bound) => after(bound.unwrap_or(patience.call)),
            };
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.expected.calls.lock().remove(&self.subject);
    }
}
