//! An endpoint that is asked over NATS: its requests come to one subject, are acknowledged by an empty message to where their sender
//! waits for it, and are answered over TCP like all others.
//!
//! 1.6.1 does not read what an acknowledgement says, so a no that is for now is told where it is read: as a failed answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wire::request::{ControlHeader, MAX_ACK_BYTES};

use crate::nats::Nats;

use super::super::error::{OVERLOADED, UNAVAILABLE};
use super::connection::{held, read_payload, share};
use super::running::{Call, refuse};
use super::{Endpoint, Request, Shared};

/// The group of 1.6.1's workers, of which one gets each message.
const GROUP: &str = "q";
/// How long the server may take to send what it had for a subject that is withdrawn.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// An empty message to whoever sent a request.
pub(super) struct Acknowledgement {
    nats: Nats,
    to: Subject,
}

impl Acknowledgement {
    pub(super) async fn send(self) {
        self.nats.answer(self.to, Bytes::new()).await;
    }
}

/// The task that reads a subject.
pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) nats: Nats,
    pub(super) subject: Subject,
    pub(super) endpoint: Endpoint,
    /// Set once the server is known to have the subscription.
    pub(super) reachable: watch::Sender<bool>,
    pub(super) withdrawn: CancellationToken,
}

impl Reader {
    /// Until it is withdrawn or the server drains, and what was sent before that is taken. A new connection to NATS has the
    /// subscription too, which its client sees to.
    pub(super) async fn run(self) {
        let draining = self.shared.draining.clone();
        let over = async {
            tokio::select! {
                () = draining.cancelled() => {}
                () = self.withdrawn.cancelled() => {}
            }
        };
        tokio::pin!(over);
        loop {
            let mut link = self.nats.link();
            let subscribed = tokio::select! {
                subscribed = link.queue_subscribe(&self.subject, GROUP) => subscribed,
                () = &mut over => return,
            };
            let mut messages = match subscribed {
                Ok(messages) => messages,
                Err(refused) => {
                    tracing::warn!(subject = %self.subject, %refused, "an endpoint cannot be served over NATS");
                    return;
                }
            };
            let confirmed = link.confirmed(&self.subject);
            tokio::pin!(confirmed);
            loop {
                // Messages that have come stay with the subscription while another branch is taken.
                tokio::select! {
                    message = messages.next() => match message {
                        Some(message) => self.take(message),
                        None => break,
                    },
                    () = &mut confirmed, if !*self.reachable.borrow() => drop(self.reachable.send_replace(true)),
                    () = &mut over => return self.finish(messages).await,
                }
            }
        }
    }

    /// Takes what was sent while it could be sent.
    async fn finish(&self, mut messages: Subscriber) {
        let last = async {
            if messages.drain().await.is_ok() {
                while let Some(message) = messages.next().await {
                    self.take(message);
                }
            }
        };
        if timeout(LAST_REQUESTS, last).await.is_err() {
            tracing::debug!(subject = %self.subject, "NATS did not confirm the end of a subscription");
        }
    }

    fn take(&self, message: Message) {
        let (shared, counters) = (&self.shared, &self.shared.counters);
        let Message { payload, reply, headers, .. } = message;
        if payload.is_empty() {
            counters.pings.fetch_add(1, Ordering::Relaxed);
            self.answer(reply, Bytes::new());
            return;
        }
        let (control, body) = match read_payload(&payload) {
            Ok(parts) => parts,
            Err(error) => {
                counters.refused_malformed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(subject = %self.subject, %error, "a request over NATS was refused");
                let mut text = format!("{UNAVAILABLE} cannot read the request: {error}");
                text.truncate(text.floor_char_boundary(MAX_ACK_BYTES));
                self.answer(reply, text.into());
                return;
            }
        };
        let (permit, share) = match self.admit(payload.len()) {
            Ok(admitted) => admitted,
            Err(text) => return self.refuse(reply, control, text),
        };
        let headers = headers.iter().flat_map(|headers| headers.iter());
        let headers = headers.filter_map(|(name, values)| Some((name.to_string(), values.first()?.as_str().to_owned()))).collect();
        let request = Request { headers, control, body: held(body, share), cancelled: shared.stopped.child_token() };
        let call = Call { shared: shared.clone(), handler: self.endpoint.handler.clone(), request, permit };
        call.start(reply.map(|to| Acknowledgement { nats: self.nats.clone(), to }));
    }

    /// A place among the calls that run, and a share for the body where it is large; or why not.
    fn admit(&self, payload: usize) -> Result<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>), String> {
        let options = &self.shared.options;
        let permit = self.shared.running.clone().try_acquire_owned();
        let permit = permit.map_err(|_| format!("{OVERLOADED} {} calls running", options.max_running))?;
        let share = share(&self.shared, payload);
        let share = share.map_err(|bound| format!("{OVERLOADED} request bodies of {bound} bytes are being handled"))?;
        Ok((permit, share))
    }

    /// A no for now. Of more than are told at once, callers hear nothing and go elsewhere after a while.
    fn refuse(&self, reply: Option<Subject>, control: ControlHeader, text: String) {
        let shared = self.shared.clone();
        shared.counters.refused_full.fetch_add(1, Ordering::Relaxed);
        let Ok(place) = shared.refusing.clone().try_acquire_owned() else { return };
        let first = reply.map(|to| Acknowledgement { nats: self.nats.clone(), to });
        let until = shared.stopped.clone();
        let told = async move {
            let _place = place;
            if let Some(first) = first {
                first.send().await;
            }
            refuse(shared, control, text).await;
        };
        self.shared.calls.spawn(async move { until.run_until_cancelled_owned(told).await });
    }

    fn answer(&self, reply: Option<Subject>, text: Bytes) {
        let Some(to) = reply else { return };
        let (nats, until) = (self.nats.clone(), self.shared.stopped.clone());
        self.shared.calls.spawn(async move { until.run_until_cancelled_owned(nats.answer(to, text)).await });
    }
}
