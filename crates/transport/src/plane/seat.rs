//! Between a task that serves many readers and one of them: a queue bounded in bytes that, once full, drops messages until it is
//! half empty and then says how many. One long hole costs the reader one recovery; many short ones would cost many.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::envelope::Envelope;

use super::PlaneEvent;

/// Bytes an event is charged beyond its content.
const EVENT_BYTES: usize = 160;

#[derive(Debug)]
pub(super) struct Seat {
    /// Guards queue and hole; held for a few instructions.
    state: Mutex<State>,
    readable: Notify,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<(usize, PlaneEvent)>,
    bytes: usize,
    /// What could not be queued; told behind `events`, before anything later.
    hole: Hole,
}

/// What happened while the queue was full, folded to a bounded size.
#[derive(Debug, Default)]
struct Hole {
    open: bool,
    dropped: u64,
    /// The last change of the connection: up, or down with its reason.
    link: Option<Result<(), String>>,
}

impl Seat {
    /// Holds at most `limit` bytes of events, or one event of any size.
    pub(super) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), readable: Notify::new(), limit }
    }

    /// Never waits.
    pub(super) fn push(&self, event: PlaneEvent) {
        let mut state = self.state.lock();
        if state.hole.open && state.bytes <= self.limit / 2 {
            state.close_hole();
        }
        let cost = cost(&event);
        if state.hole.open || (!state.events.is_empty() && state.bytes.saturating_add(cost) > self.limit) {
            state.hole.fold(event);
        } else {
            state.queue(cost, event);
        }
        drop(state);
        self.readable.notify_one();
    }

    /// The oldest event; waits for one. For one reader. Cancel-safe.
    pub(super) async fn next(&self) -> PlaneEvent {
        loop {
            // Made before the look, so that a push in between is not missed.
            let woken = self.readable.notified();
            if let Some(event) = self.take() {
                return event;
            }
            woken.await;
        }
    }

    fn take(&self) -> Option<PlaneEvent> {
        let mut state = self.state.lock();
        if state.events.is_empty() && state.hole.open {
            state.close_hole();
        }
        let (cost, event) = state.events.pop_front()?;
        state.bytes -= cost;
        Some(event)
    }
}

impl State {
    fn queue(&mut self, cost: usize, event: PlaneEvent) {
        self.bytes = self.bytes.saturating_add(cost);
        self.events.push_back((cost, event));
    }

    /// Makes events of it: a few, however much fell into it.
    fn close_hole(&mut self) {
        let hole = std::mem::take(&mut self.hole);
        let dropped = (hole.dropped > 0).then_some(PlaneEvent::Dropped { messages: hole.dropped });
        let link = hole.link.map(|link| link.map_or_else(|reason| PlaneEvent::Disconnected { reason }, |()| PlaneEvent::Connected));
        for event in dropped.into_iter().chain(link) {
            self.queue(cost(&event), event);
        }
    }
}

impl Hole {
    fn fold(&mut self, event: PlaneEvent) {
        self.open = true;
        match event {
            PlaneEvent::Envelope(_) | PlaneEvent::Malformed { .. } => self.dropped = self.dropped.saturating_add(1),
            PlaneEvent::Dropped { messages } => self.dropped = self.dropped.saturating_add(messages),
            PlaneEvent::Connected => self.link = Some(Ok(())),
            PlaneEvent::Disconnected { reason } => self.link = Some(Err(reason)),
        }
    }
}

/// The envelope with a payload of its own: what it was read from may be a piece of a far larger buffer.
pub(super) fn own(envelope: Envelope) -> Envelope {
    Envelope { payload: Bytes::copy_from_slice(&envelope.payload), ..envelope }
}

fn cost(event: &PlaneEvent) -> usize {
    EVENT_BYTES
        + match event {
            PlaneEvent::Envelope(envelope) => envelope.payload.len() + envelope.topic.len(),
            PlaneEvent::Disconnected { reason } | PlaneEvent::Malformed { reason } => reason.len(),
            PlaneEvent::Connected | PlaneEvent::Dropped { .. } => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(sequence: u64) -> PlaneEvent {
        let payload = Bytes::from(vec![7; 100]);
        PlaneEvent::Envelope(Envelope { publisher_id: 1, sequence, published_at_ms: 0, topic: "t".to_owned(), payload })
    }

    #[tokio::test]
    async fn what_does_not_fit_is_counted_in_its_place_and_the_connection_is_never_lost() {
        let seat = Seat::new(2000);
        seat.push(PlaneEvent::Connected);
        for sequence in 0..1000 {
            seat.push(envelope(sequence));
        }
        seat.push(PlaneEvent::Disconnected { reason: "gone".into() });
        for _ in 0..100_000 {
            seat.push(PlaneEvent::Connected);
            seat.push(PlaneEvent::Disconnected { reason: "again".into() });
        }
        assert!(seat.state.lock().bytes <= 2000, "{}", seat.state.lock().bytes);
        assert_eq!(seat.next().await, PlaneEvent::Connected);
        let mut kept = 0;
        let dropped = loop {
            match seat.next().await {
                PlaneEvent::Envelope(envelope) => assert_eq!(envelope.sequence, kept),
                other => break other,
            }
            kept += 1;
        };
        assert!((3..10).contains(&kept), "{kept}");
        assert_eq!(dropped, PlaneEvent::Dropped { messages: 1000 - kept });
        assert_eq!(seat.next().await, PlaneEvent::Disconnected { reason: "again".into() });
        seat.push(envelope(5000));
        assert_eq!(seat.next().await, envelope(5000));
    }

    #[tokio::test]
    async fn the_hole_is_closed_before_anything_later() {
        let seat = Seat::new(1000);
        for sequence in 0..10 {
            seat.push(envelope(sequence));
        }
        assert_eq!(seat.next().await, envelope(0));
        // Not half empty yet: this one falls in too.
        seat.push(envelope(10));
        assert_eq!(seat.next().await, envelope(1));
        seat.push(envelope(11));
        assert_eq!(seat.next().await, envelope(2));
        assert_eq!(seat.next().await, PlaneEvent::Dropped { messages: 8 });
        assert_eq!(seat.next().await, envelope(11));
    }
}
