//! A first-in, first-out queue bounded in bytes, between the task of a socket and its user.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes an item is charged beyond its content: the queue's own memory for it.
const ITEM_BYTES: usize = 64;

#[derive(Debug)]
pub(crate) struct ByteQueue<T> {
    /// Guards items and their sum; held for a few instructions.
    state: Mutex<State<T>>,
    readable: Notify,
    writable: Notify,
    limit: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
    closed: bool,
}

/// Why an item was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

impl<T> ByteQueue<T> {
    /// Holds at most `limit` bytes, or one item of any size.
    pub(crate) fn new(limit: usize) -> Self {
        let state = State { items: VecDeque::new(), bytes: 0, closed: false };
        Self { state: Mutex::new(state), readable: Notify::new(), writable: Notify::new(), limit }
    }

    /// Adds an item of `bytes` content unless that goes over the limit.
    pub(crate) fn try_push(&self, bytes: usize, item: T) -> Result<(), (Refusal, T)> {
        let cost = bytes.saturating_add(ITEM_BYTES);
        let mut state = self.state.lock();
        if state.closed {
            return Err((Refusal::Closed, item));
        }
        if !state.items.is_empty() && state.bytes.saturating_add(cost) > self.limit {
            return Err((Refusal::Full, item));
        }
        state.bytes = state.bytes.saturating_add(cost);
        state.items.push_back((cost, item));
        drop(state);
        self.readable.notify_one();
        Ok(())
    }

    /// Adds an item, waiting for room. Returns it if the queue is closed meanwhile. Cancel-safe: a dropped call has
    /// added nothing.
    pub(crate) async fn push(&self, bytes: usize, item: T) -> Result<(), T> {
        let mut item = item;
        loop {
            let woken = self.writable.notified();
            match self.try_push(bytes, item) {
                Ok(()) => return Ok(()),
                Err((Refusal::Closed, back)) => return Err(back),
                Err((Refusal::Full, back)) => item = back,
            }
            woken.await;
        }
    }

    /// The oldest item; waits for one. `None` once the queue is closed and empty. Cancel-safe.
    pub(crate) async fn pop(&self) -> Option<T> {
        loop {
            // Made before the look, so that a push in between is not missed.
            let woken = self.readable.notified();
            {
                let mut state = self.state.lock();
                if let Some((cost, item)) = state.items.pop_front() {
                    state.bytes -= cost;
                    drop(state);
                    self.writable.notify_waiters();
                    return Some(item);
                }
                if state.closed {
                    return None;
                }
            }
            woken.await;
        }
    }

    /// Waits until at most half of the bound is in use. Cancel-safe.
    pub(crate) async fn half_empty(&self) {
        loop {
            let woken = self.writable.notified();
            if self.state.lock().bytes <= self.limit / 2 {
                return;
            }
            woken.await;
        }
    }

    /// Takes no more items; what is queued can still be popped.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.readable.notify_waiters();
        self.writable.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_bound_is_bytes_and_one_item_always_fits() {
        let queue = ByteQueue::new(1000);
        assert_eq!(queue.try_push(5000, 1), Ok(()));
        assert_eq!(queue.try_push(1, 2), Err((Refusal::Full, 2)));
        assert_eq!(queue.pop().await, Some(1));
        assert_eq!(queue.try_push(400, 3), Ok(()));
        assert_eq!(queue.try_push(400, 4), Ok(()));
        assert_eq!(queue.try_push(400, 5), Err((Refusal::Full, 5)));
        queue.close();
        assert_eq!(queue.try_push(1, 6), Err((Refusal::Closed, 6)));
        assert_eq!((queue.pop().await, queue.pop().await, queue.pop().await), (Some(3), Some(4), None));
    }

    #[tokio::test]
    async fn nothing_is_lost_between_waiting_ends() {
        let queue = Arc::new(ByteQueue::new(200));
        let pusher = {
            let queue = queue.clone();
            tokio::spawn(async move {
                for n in 0..10_000 {
                    queue.push(10, n).await.unwrap();
                }
                queue.close();
            })
        };
        let mut expected = 0;
        while let Some(n) = queue.pop().await {
            assert_eq!(n, expected);
            expected += 1;
        }
        assert_eq!(expected, 10_000);
        pusher.await.unwrap();
    }
}
