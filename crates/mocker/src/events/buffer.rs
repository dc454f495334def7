//! The last batches of a stream, and the answer to whoever asks for them again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use wire::Message;
use wire::encode::Generation;

/// How often replay was asked for.
#[derive(Debug, Default)]
pub(crate) struct ReplayCounts {
    pub(crate) requests: AtomicU64,
    pub(crate) batches: AtomicU64,
}

/// At most `capacity` batches, the oldest given up first.
pub(crate) struct Buffer {
    generation: Generation,
    topic: Bytes,
    capacity: usize,
    batches: VecDeque<Message>,
    counts: Arc<ReplayCounts>,
}

impl Buffer {
    pub(super) fn new(generation: Generation, topic: Bytes, capacity: usize) -> Self {
        Self { generation, topic, capacity, batches: VecDeque::new(), counts: Arc::default() }
    }

    pub(super) fn counts(&self) -> Arc<ReplayCounts> {
        self.counts.clone()
    }

    pub(super) fn push(&mut self, batch: Message) {
        if self.capacity == 0 {
            return;
        }
        if self.batches.len() == self.capacity {
            self.batches.pop_front();
        }
        self.batches.push_back(batch);
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
    }

    /// The messages that answer a request, without the identity: what is kept from the sequence asked for on, then the
    /// end marker. A request that is not an empty frame and a sequence gets no answer, as from real engines.
    pub(super) fn answer(&self, request: &[Bytes]) -> Vec<Vec<Bytes>> {
        let [delimiter, start] = request else { return Vec::new() };
        if !delimiter.is_empty() || start.len() > size_of::<u64>() {
            return Vec::new();
        }
        // A short frame is read as a number, also as real engines do.
        let start = start.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let mut messages: Vec<_> =
            self.batches.iter().filter(|batch| batch.seq >= start).map(|batch| self.generation.replayed(&self.topic, batch)).collect();
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.counts.batches.fetch_add(messages.len() as u64, Ordering::Relaxed);
        messages.push(self.generation.replay_end());
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(start: &[u8]) -> Vec<Bytes> {
        vec![Bytes::new(), Bytes::copy_from_slice(start)]
    }

    fn seqs(messages: &[Vec<Bytes>]) -> Vec<Option<u64>> {
        messages
            .iter()
            .map(|frames| match wire::message(&frames[1..]).unwrap() {
                wire::Framed::Batch(message) => Some(message.seq),
                wire::Framed::EndOfReplay => None,
            })
            .collect()
    }

    #[test]
    fn what_is_kept_is_replayed_and_the_marker_ends_it() {
        for (generation, frames) in [(Generation::Vllm023, 3), (Generation::Vllm033, 4), (Generation::Sglang0523, 4)] {
            let mut buffer = Buffer::new(generation, Bytes::from_static(b"kv"), 3);
            for seq in 0..5 {
                buffer.push(Message { seq, payload: Bytes::from_static(b"batch") });
            }
            assert_eq!(seqs(&buffer.answer(&asked(&[0; 8]))), [Some(2), Some(3), Some(4), None]);
            assert_eq!(seqs(&buffer.answer(&asked(&4u64.to_be_bytes()))), [Some(4), None]);
            assert_eq!(seqs(&buffer.answer(&asked(&[4]))), [Some(4), None]);
            assert_eq!(seqs(&buffer.answer(&asked(&[255; 8]))), [None]);
            assert!(buffer.answer(&asked(&[0; 8])).iter().all(|message| message.len() == frames));
            for odd in [vec![], vec![Bytes::new()], vec![Bytes::new(); 3], vec![Bytes::from_static(b"x"), Bytes::new()], asked(&[0; 9])] {
                assert!(buffer.answer(&odd).is_empty());
            }
        }
    }
}
