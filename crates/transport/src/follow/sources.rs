//! The publishers of a rank and the subscriptions to them.

use feed::plane::Source;
use futures_util::future::select_all;
use wire::discovery::{ChannelTransport, Endpoint, Transport};

use crate::plane::{PlaneEvent, Subscription, Subscriptions};
use crate::reins::Link;

use super::SourceSpec;

/// In the order they were told, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Sources {
    list: Vec<Followed>,
    /// Who is looked at first, so that one that always has something does not keep the others waiting.
    first: usize,
}

#[derive(Debug)]
struct Followed {
    spec: SourceSpec,
    subscription: Option<Subscription>,
    link: Result<(), String>,
}

/// What changed, for the feed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Added(Source),
    Removed(u64),
    /// It publishes elsewhere now.
    Moved(u64),
}

impl Sources {
    /// Takes over what discovery says; at most `most` publishers, the newest.
    pub(super) fn update(&mut self, mut specs: Vec<SourceSpec>, most: usize, subscriptions: &Subscriptions) -> Vec<Change> {
        specs.drain(..specs.len().saturating_sub(most));
        let mut changes = Vec::new();
        let mut known = std::mem::take(&mut self.list);
        for spec in specs {
            if self.find(spec.publisher_id).is_some() {
                continue;
            }
            let found = known.iter().position(|followed| followed.spec.publisher_id == spec.publisher_id);
            let followed = match found.map(|at| known.remove(at)) {
                Some(followed) => followed.update(spec, subscriptions, &mut changes),
                None => {
                    warn_if_unreachable(&spec);
                    changes.push(Change::Added(source(&spec)));
                    Followed::new(spec, subscriptions)
                }
            };
            self.list.push(followed);
        }
        changes.extend(known.iter().map(|gone| Change::Removed(gone.spec.publisher_id)));
        changes
    }

    /// What happened next on any of the channels, and whose it is; waits for it. Cancel-safe.
    pub(super) async fn next(&mut self) -> (u64, PlaneEvent) {
        self.first = self.first.wrapping_add(1);
        let live = self.list.iter_mut().filter_map(|followed| Some((followed.spec.publisher_id, followed.subscription.as_mut()?)));
        let mut live: Vec<_> = live.collect();
        match live.as_mut_slice() {
            [] => std::future::pending().await,
            [(id, only)] => (*id, only.next().await),
            several => {
                let count = several.len();
                several.rotate_left(self.first % count);
                let each = several.iter_mut().map(|(id, subscription)| Box::pin(async { (*id, subscription.next().await) }));
                select_all(each).await.0
            }
        }
    }

    /// Notes that a channel is connected, or why not; true if that is news.
    pub(super) fn note(&mut self, publisher_id: u64, link: Result<(), String>) -> bool {
        let Some(followed) = self.list.iter_mut().find(|followed| followed.spec.publisher_id == publisher_id) else { return false };
        let news = followed.link != link;
        followed.link = link;
        news
    }

    /// Where its recovery queries go.
    pub(super) fn recovery(&self, publisher_id: u64) -> Option<&Endpoint> {
        self.find(publisher_id)?.spec.recovery.as_ref()
    }

    /// Whether many publishers share the connection that carries it, whose state is logged elsewhere.
    pub(super) fn is_shared(&self, publisher_id: u64) -> bool {
        let channel = self.find(publisher_id).and_then(|followed| followed.spec.channel.as_ref());
        channel.is_some_and(|channel| match channel.transport {
            ChannelTransport::Nats { .. } | ChannelTransport::ZmqBroker { .. } => true,
            ChannelTransport::Zmq { .. } => false,
        })
    }

    /// If none is connected, the newest publisher's reason is shown.
    pub(super) fn link(&self) -> Link {
        if self.list.iter().any(|followed| followed.link.is_ok()) {
            return Link::Up;
        }
        let newest = self.list.last().and_then(|followed| followed.link.as_ref().err());
        Link::Down { reason: newest.cloned().unwrap_or_else(|| "no publisher of the rank is known".to_owned()) }
    }

    fn find(&self, publisher_id: u64) -> Option<&Followed> {
        self.list.iter().find(|followed| followed.spec.publisher_id == publisher_id)
    }
}

impl Followed {
    fn new(spec: SourceSpec, subscriptions: &Subscriptions) -> Self {
        let subscription = spec.channel.as_ref().map(|channel| subscriptions.subscribe(channel));
        let link = Err(match &subscription {
            Some(_) => "not connected yet".to_owned(),
            None => format!("where publisher {:x} publishes is not known", spec.publisher_id),
        });
        Self { spec, subscription, link }
    }

    fn update(self, spec: SourceSpec, subscriptions: &Subscriptions, changes: &mut Vec<Change>) -> Self {
        if source(&self.spec) != source(&spec) {
            warn_if_unreachable(&spec);
            changes.push(Change::Added(source(&spec)));
        }
        if self.spec.channel == spec.channel {
            return Self { spec, ..self };
        }
        if self.link.is_ok() {
            changes.push(Change::Moved(spec.publisher_id));
        }
        Self::new(spec, subscriptions)
    }
}

/// Its owner offers recovery, and we cannot ask for it.
fn warn_if_unreachable(spec: &SourceSpec) {
    if let Some(endpoint) = spec.recovery.as_ref().filter(|endpoint| !is_reached(endpoint)) {
        let (publisher, transport) = (format_args!("{:x}", spec.publisher_id), &endpoint.transport);
        tracing::warn!(publisher, ?transport, "its recovery endpoint is on neither TCP nor NATS, so what is missed of it stays missing");
    }
}

/// What the feed is told of it. A recovery endpoint that cannot be reached cannot be asked.
fn source(spec: &SourceSpec) -> Source {
    Source { publisher_id: spec.publisher_id, recoverable: spec.recovery.as_ref().is_some_and(is_reached) }
}

fn is_reached(endpoint: &Endpoint) -> bool {
    match &endpoint.transport {
        Transport::Tcp(_) => endpoint.transport.tcp_parts().is_some(),
        Transport::NatsTcp(_) => true,
        Transport::Other(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use wire::discovery::{EndpointId, EventChannel};

    use super::*;
    use crate::plane::SubscriptionOptions;

    fn spec(publisher_id: u64, port: u16) -> SourceSpec {
        let id = EndpointId::new("n", "c", "e");
        let transport = ChannelTransport::Zmq { endpoint: format!("tcp://127.0.0.1:{port}") };
        let channel = EventChannel { scope: id.scope(), topic: "kv-events".into(), instance_id: publisher_id, transport };
        SourceSpec { publisher_id, channel: Some(channel), recovery: Some(Endpoint::tcp(id, 1, "127.0.0.1:9")) }
    }

    #[tokio::test]
    async fn only_what_differs_is_told_and_the_oldest_are_left_out() {
        let subscriptions = Subscriptions::new(|| unreachable!("no NATS here"), SubscriptionOptions::default());
        let mut sources = Sources::default();
        let mut told = |specs: Vec<SourceSpec>| sources.update(specs, 2, &subscriptions);
        let added = |publisher_id| Change::Added(Source { publisher_id, recoverable: true });
        assert_eq!(told(vec![spec(1, 1), spec(1, 1)]), [added(1)]);
        assert_eq!(told(vec![spec(1, 1)]), []);
        assert_eq!(told(vec![spec(1, 1), spec(2, 2), spec(3, 3)]), [added(2), added(3), Change::Removed(1)]);
        let elsewhere =
            |transport| SourceSpec { recovery: spec(2, 2).recovery.map(|endpoint| Endpoint { transport, ..endpoint }), ..spec(2, 2) };
        assert!(source(&elsewhere(Transport::NatsTcp("s".to_owned()))).recoverable);
        assert!(!source(&elsewhere(Transport::Other(serde_json::Value::Null))).recoverable);
        let live_only = SourceSpec { recovery: None, ..spec(2, 2) };
        assert_eq!(told(vec![live_only, spec(3, 4)]), [Change::Added(Source { publisher_id: 2, recoverable: false })]);
        assert_eq!(told(vec![]), [Change::Removed(2), Change::Removed(3)]);
    }

    #[tokio::test]
    async fn a_publisher_that_moves_while_connected_is_told() {
        let subscriptions = Subscriptions::new(|| unreachable!("no NATS here"), SubscriptionOptions::default());
        let mut sources = Sources::default();
        sources.update(vec![spec(1, 1)], 8, &subscriptions);
        assert!(matches!(sources.link(), Link::Down { .. }));
        assert!(sources.note(1, Ok(())) && !sources.note(1, Ok(())) && !sources.note(7, Ok(())));
        assert_eq!(sources.link(), Link::Up);
        assert_eq!(sources.update(vec![spec(1, 2)], 8, &subscriptions), [Change::Moved(1)]);
        assert!(matches!(sources.link(), Link::Down { .. }));
    }
}
