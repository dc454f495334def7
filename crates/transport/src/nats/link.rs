//! One task's view of the connection: its changes, and subscriptions that are known to have arrived.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::client::{RequestErrorKind, SubscribeErrorKind};
use async_nats::{Client, Subject, Subscriber};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Connection, Refused, Shared};

/// Questions to the server before a subscription counts as known to it all the same: an account may forbid them.
const QUESTIONS: u32 = 3;
/// A subject that nobody serves, so that the server itself answers a question about it.
const NOBODY: &str = "_DYNAMO.ECHO";
/// Pause after a call that the client refused, so that no loop is busy.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// One view of the connection, for a task that waits for its changes.
pub(crate) struct Link {
    shared: Arc<Shared>,
    connection: watch::Receiver<Connection>,
}

/// What a [`Link`] shows.
pub(crate) enum LinkState {
    Up { epoch: u64 },
    Down { reason: String },
}

impl Link {
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), connection: shared.link.subscribe() }
    }

    /// The state now; the next [`changed`](Self::changed) waits for another.
    pub(crate) fn look(&mut self) -> LinkState {
        match &*self.connection.borrow_and_update() {
            Connection::Up { epoch, .. } => LinkState::Up { epoch: *epoch },
            Connection::Down { reason } => LinkState::Down { reason: reason.to_string() },
        }
    }

    /// Until the state changes. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        if self.connection.changed().await.is_err() {
            // The sender lives as long as `shared`, which is ours too.
            std::future::pending().await
        }
    }

    /// Waits for a connection.
    pub(super) async fn up(&mut self) -> (Client, u64) {
        loop {
            if let Connection::Up { client, epoch } = &*self.connection.borrow_and_update() {
                return (client.clone(), *epoch);
            }
            self.changed().await;
        }
    }

    /// Subscribes, once there is a connection. From then on the client renews it with each new one.
    pub(crate) async fn subscribe(&mut self, subject: &Subject) -> Result<Subscriber, Refused> {
        self.subscribe_as(subject, None).await
    }

    /// The same, as one of a group of which one gets each message.
    pub(crate) async fn queue_subscribe(&mut self, subject: &Subject, group: &str) -> Result<Subscriber, Refused> {
        self.subscribe_as(subject, Some(group)).await
    }

    async fn subscribe_as(&mut self, subject: &Subject, group: Option<&str>) -> Result<Subscriber, Refused> {
        loop {
            let (client, _) = self.up().await;
            let subscribed = async {
                match group {
                    Some(group) => client.queue_subscribe(subject.clone(), group.to_owned()).await,
                    None => client.subscribe(subject.clone()).await,
                }
            };
            match timeout(self.shared.options.call_timeout, subscribed).await {
                Ok(Ok(subscriber)) => return Ok(subscriber),
                Ok(Err(error)) if error.kind() == SubscribeErrorKind::InvalidSubject => return Err(Refused::Subject),
                Ok(Err(_)) => sleep(PAUSE).await,
                Err(_) => {}
            }
        }
    }

    /// Until the server of this connection has whatever was subscribed before the call: it answers a question, about a subject
    /// that nobody serves, only behind it. Where it does not answer the subscription, to `subject`, is taken as made.
    pub(crate) fn confirmed(&self, subject: &Subject) -> impl Future<Output = ()> + Send + 'static {
        let client = match &*self.connection.borrow() {
            Connection::Up { client, .. } => Some(client.clone()),
            Connection::Down { .. } => None,
        };
        let (shared, subject) = (self.shared.clone(), subject.clone());
        let bound = shared.options.call_timeout;
        async move {
            let Some(client) = client else { return std::future::pending().await };
            for _ in 0..QUESTIONS {
                match timeout(bound, client.request(NOBODY, Bytes::new())).await {
                    Ok(Ok(_)) => return,
                    Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => return,
                    Ok(Err(_)) => sleep(PAUSE).await,
                    Err(_) => {}
                }
            }
            if shared.unconfirmed.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    servers = %shared.servers, %subject, question = NOBODY,
                    "NATS does not confirm a subscription, it is taken as made; further ones are counted: allow us to publish the question",
                );
            }
        }
    }
}
