//! The subscriptions of one peer of a PUB: prefixes, counted, bounded.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::error::Error;

#[derive(Debug)]
pub(crate) struct Topics {
    /// Prefix to how often it is subscribed: a cancel takes one of them back.
    counts: BTreeMap<Bytes, usize>,
    total: usize,
    bytes: usize,
    max_total: usize,
    max_bytes: usize,
}

impl Topics {
    pub(crate) fn new(max_total: usize, max_bytes: usize) -> Self {
        Self { counts: BTreeMap::new(), total: 0, bytes: 0, max_total, max_bytes }
    }

    pub(crate) fn subscribe(&mut self, topic: &Bytes) -> Result<(), Error> {
        if self.total >= self.max_total {
            return Err(Error::Subscriptions("subscriptions"));
        }
        if self.bytes + topic.len() > self.max_bytes {
            return Err(Error::Subscriptions("bytes of subscriptions"));
        }
        self.total += 1;
        self.bytes += topic.len();
        // A copy: the topic that arrived shares the connection's input buffer.
        *self.counts.entry(Bytes::copy_from_slice(topic)).or_default() += 1;
        Ok(())
    }

    /// Takes one subscription back; an unknown one is ignored.
    pub(crate) fn cancel(&mut self, topic: &[u8]) {
        let Some(count) = self.counts.get_mut(topic) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(topic);
        }
        self.total -= 1;
        self.bytes -= topic.len();
    }

    /// Takes all subscriptions back.
    pub(crate) fn clear(&mut self) {
        self.counts.clear();
        self.total = 0;
        self.bytes = 0;
    }

    /// Whether any subscription is a prefix of `subject`.
    pub(crate) fn matches(&self, subject: &[u8]) -> bool {
        let mut upper = subject;
        loop {
            // A prefix of `upper` sorts at or before it; whatever sorts between shares less of it with each step.
            let bounds = (Bound::Unbounded, Bound::Included(upper));
            let Some((topic, _)) = self.counts.range::<[u8], _>(bounds).next_back() else {
                return false;
            };
            let shared = topic.iter().zip(upper).take_while(|(a, b)| a == b).count();
            if shared == topic.len() {
                return true;
            }
            upper = &upper[..shared];
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_equals_a_plain_search_over_the_subscriptions() {
        bolero::check!().with_type::<(Vec<(bool, Vec<u8>)>, Vec<Vec<u8>>)>().for_each(|(changes, subjects)| {
            // Few letters, so that prefixes and cancels meet.
            let small = |bytes: &[u8]| Bytes::from(bytes.iter().take(4).map(|b| b % 3).collect::<Vec<u8>>());
            let mut topics = Topics::new(1000, 10_000);
            let mut naive: Vec<Bytes> = Vec::new();
            for (add, topic) in changes {
                let topic = small(topic);
                if *add {
                    topics.subscribe(&topic).unwrap();
                    naive.push(topic);
                } else {
                    topics.cancel(&topic);
                    if let Some(at) = naive.iter().position(|t| *t == topic) {
                        naive.swap_remove(at);
                    }
                }
            }
            for subject in subjects.iter().map(|s| small(s)).chain([Bytes::new()]) {
                assert_eq!(topics.matches(&subject), naive.iter().any(|t| subject.starts_with(t)));
            }
            assert_eq!(topics.is_empty(), naive.is_empty());
            assert_eq!((topics.total, topics.bytes), (naive.len(), naive.iter().map(Bytes::len).sum()));
        });
    }

    #[test]
    fn subscriptions_are_bounded_in_number_and_bytes() {
        let mut topics = Topics::new(2, 10);
        topics.subscribe(&Bytes::from_static(b"12345678")).unwrap();
        assert!(topics.subscribe(&Bytes::from_static(b"123")).is_err());
        topics.subscribe(&Bytes::new()).unwrap();
        assert!(topics.subscribe(&Bytes::new()).is_err());
        topics.cancel(b"12345678");
        topics.subscribe(&Bytes::from_static(b"123")).unwrap();
    }
}
