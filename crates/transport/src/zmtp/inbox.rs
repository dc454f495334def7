//! What a SUB's socket task tells its user: a byte-bounded queue that, once full, drops messages until it is half
//! empty and then says how many. One long hole costs its user one recovery; many short ones would cost many.

use std::sync::Arc;

use bytes::Bytes;

use super::queue::ByteQueue;
use super::sub::SubEvent;

/// Charged for each frame beside its bytes: the handle to it.
const FRAME_BYTES: usize = 32;

#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Arc<ByteQueue<SubEvent>>,
    hole: Option<Hole>,
}

/// What happened while the queue was full, folded to a bounded size.
#[derive(Debug, Default)]
struct Hole {
    dropped: u64,
    disconnected: Option<String>,
    connected: Option<u8>,
    failed: Option<String>,
}

impl Inbox {
    pub(crate) fn new(queue: Arc<ByteQueue<SubEvent>>) -> Self {
        Self { queue, hole: None }
    }

    pub(crate) fn push(&mut self, event: SubEvent) {
        let event = match &mut self.hole {
            Some(hole) => return hole.fold(event),
            None => event,
        };
        if let Err((_, event)) = self.queue.try_push(cost(&event), event) {
            self.hole.get_or_insert_default().fold(event);
        }
    }

    /// Waits until a hole can be told to the user; for ever while there is none. Cancel-safe.
    pub(crate) async fn drained(&self) {
        match self.hole {
            Some(_) => self.queue.half_empty().await,
            None => std::future::pending().await,
        }
    }

    /// Tells the user about the hole. If the queue is full even now, the rest becomes the start of the next one.
    pub(crate) fn tell_hole(&mut self) {
        let Some(hole) = self.hole.take() else {
            return;
        };
        let dropped = (hole.dropped > 0).then_some(SubEvent::Dropped { messages: hole.dropped });
        let disconnected = hole.disconnected.map(|reason| SubEvent::Disconnected { reason });
        let connected = hole.connected.map(|zmtp_minor| SubEvent::Connected { zmtp_minor });
        let failed = hole.failed.map(|reason| SubEvent::Failed { reason });
        for event in [dropped, disconnected, connected, failed].into_iter().flatten() {
            self.push(event);
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Hole {
    fn fold(&mut self, event: SubEvent) {
        match event {
            SubEvent::Message(_) => self.dropped += 1,
            SubEvent::Dropped { messages } => self.dropped += messages,
            SubEvent::Disconnected { reason } => {
                self.disconnected = Some(reason);
                self.connected = None;
            }
            SubEvent::Connected { zmtp_minor } => {
                self.connected = Some(zmtp_minor);
                self.failed = None;
            }
            SubEvent::Failed { reason } => self.failed = Some(reason),
        }
    }
}

fn cost(event: &SubEvent) -> usize {
    match event {
        SubEvent::Message(frames) => message_bytes(frames),
        SubEvent::Disconnected { reason } | SubEvent::Failed { reason } => reason.len(),
        SubEvent::Connected { .. } | SubEvent::Dropped { .. } => 0,
    }
}

/// What a message is charged in a queue.
pub(crate) fn message_bytes(frames: &[Bytes]) -> usize {
    frames.iter().map(|frame| frame.len() + FRAME_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(n: u8) -> SubEvent {
        SubEvent::Message(vec![Bytes::from(vec![n; 100])])
    }

    #[tokio::test]
    async fn what_is_dropped_is_counted_in_its_place_and_connections_are_never_lost() {
        let queue = Arc::new(ByteQueue::new(1000));
        let mut inbox = Inbox::new(queue.clone());
        inbox.push(SubEvent::Connected { zmtp_minor: 1 });
        for n in 0..20 {
            inbox.push(message(n));
        }
        inbox.push(SubEvent::Disconnected { reason: "first".into() });
        for round in 0..100_000 {
            inbox.push(SubEvent::Connected { zmtp_minor: 0 });
            inbox.push(message(99));
            inbox.push(SubEvent::Disconnected { reason: format!("round {round}") });
        }
        inbox.push(SubEvent::Connected { zmtp_minor: 0 });
        assert_eq!(queue.pop().await, Some(SubEvent::Connected { zmtp_minor: 1 }));
        let mut kept = 0;
        while let Some(event) = tokio::select! { biased; () = inbox.drained() => None, event = queue.pop() => event } {
            assert_eq!(event, message(kept));
            kept += 1;
        }
        inbox.tell_hole();
        inbox.push(message(7));
        let mut after = Vec::new();
        drop(inbox);
        while let Some(event) = queue.pop().await {
            after.push(event);
        }
        while after.first() == Some(&message(kept)) {
            after.remove(0);
            kept += 1;
        }
        assert!((1..10).contains(&kept), "{kept} messages of 196 bytes in 1000");
        assert_eq!(
            after,
            [
                SubEvent::Dropped { messages: 100_020 - u64::from(kept) },
                SubEvent::Disconnected { reason: "round 99999".into() },
                SubEvent::Connected { zmtp_minor: 0 },
                message(7),
            ]
        );
    }
}
