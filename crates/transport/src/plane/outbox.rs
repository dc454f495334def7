//! What waits to be sent while NATS takes nothing: bounded in bytes, the oldest dropped first. After an outage the newest
//! message then shows at once that some before it are missing; kept the other way round, the end would be missing in silence.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes a message is charged beyond its content.
const MESSAGE_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct Outbox {
    /// Guards the queue; held for a few instructions.
    state: Mutex<State>,
    readable: Notify,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Bytes>,
    bytes: usize,
    closed: bool,
}

impl Outbox {
    /// Holds at most `limit` bytes, or one message of any size.
    pub(super) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), readable: Notify::new(), limit }
    }

    /// Queues a message and tells how many older ones went for it.
    pub(super) fn push(&self, message: Bytes) -> u64 {
        let mut dropped = 0;
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_add(cost(&message));
        state.messages.push_back(message);
        while state.bytes > self.limit && state.messages.len() > 1 {
            if let Some(oldest) = state.messages.pop_front() {
                state.bytes -= cost(&oldest);
                dropped += 1;
            }
        }
        drop(state);
        self.readable.notify_one();
        dropped
    }

    /// The oldest message; waits for one. `None` once it is closed and empty. For one reader. Cancel-safe.
    pub(super) async fn pop(&self) -> Option<Bytes> {
        loop {
            // Made before the look, so that a push in between is not missed.
            let woken = self.readable.notified();
            {
                let mut state = self.state.lock();
                if let Some(message) = state.messages.pop_front() {
                    state.bytes -= cost(&message);
                    return Some(message);
                }
                if state.closed {
                    return None;
                }
            }
            woken.await;
        }
    }

    /// What is queued can still be popped; nothing comes behind it.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.readable.notify_one();
    }
}

fn cost(message: &Bytes) -> usize {
    message.len().saturating_add(MESSAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_go_first_and_the_newest_always_fits() {
        let outbox = Outbox::new(1000);
        let dropped: u64 = (0..100u8).map(|n| outbox.push(Bytes::from(vec![n; 200]))).sum();
        assert_eq!(dropped, 97, "three of 264 bytes fit");
        assert_eq!(outbox.push(Bytes::from(vec![100; 5000])), 3);
        outbox.close();
        assert_eq!(outbox.pop().await.unwrap().len(), 5000);
        assert_eq!(outbox.pop().await, None);
    }
}
