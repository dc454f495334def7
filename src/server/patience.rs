//! How long clients are waited for: by their request's body while it arrives, and by an answer while they read it.
//!
//! A client that keeps a connection open without using it holds what its request holds: a ticket here, a slot at an
//! engine. After a bounded wait it is treated as one that left.

use std::{
    error::Error as StdError,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{BoxError, body::Body};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// The waits for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the connection to the head of its first request, and from one request to the next on HTTP/1.
    pub(crate) head: Duration,
    /// Between two pieces of a request's body.
    pub(crate) body: Duration,
    /// Until a client takes the next piece (128 KiB at most) of an answer that is ready for it; also until it acknowledges
    /// what was sent.
    pub(crate) reading: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { head: Duration::from_secs(30), body: Duration::from_secs(30), reading: Duration::from_secs(60) }
    }
}

/// Nothing more of a request's body came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no byte of the request body for {0:?}")]
pub(crate) struct Stalled(pub(crate) Duration);

impl Stalled {
    /// Finds it in the errors that the framework wraps around it.
    pub(crate) fn find(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(stalled) = error.downcast_ref::<Self>() {
                return Some(*stalled);
            }
            next = error.source();
        }
        None
    }
}

/// The body of a request. It fails with [`Stalled`] when its client sends nothing for too long.
pub(super) struct Arriving<B> {
    body: B,
    limit: Duration,
    /// Runs while a piece is waited for.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<B> Arriving<B> {
    pub(super) fn new(body: B, limit: Duration) -> Self {
        Self { body, limit, wait: None }
    }
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> HttpBody for Arriving<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.wait = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let wait = this.wait.get_or_insert_with(|| Box::pin(sleep(this.limit)));
        ready!(wait.as_mut().poll(cx));
        Poll::Ready(Some(Err(Stalled(this.limit).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The client took nothing of its answer for too long.
#[derive(Debug, thiserror::Error)]
#[error("the client took nothing of its answer for {0:?}")]
struct NotTaken(Duration);

/// The body of an answer. A server asks for the next piece when it has room for it; where it does not for too long, the
/// body is dropped as if the client had left.
pub(super) struct Leaving {
    offer: Arc<Mutex<Offer>>,
    limit: Duration,
    /// Cancelled when the body is given up.
    given_up: CancellationToken,
    /// Begun with the first piece that is not the last.
    watch: Option<AbortOnDropHandle<()>>,
}

struct Offer {
    /// `None` once it is given up.
    body: Option<Body>,
    /// When the last piece was handed over, if no other was asked for since.
    handed_over: Option<Instant>,
}

impl Leaving {
    pub(super) fn new(body: Body, limit: Duration, given_up: CancellationToken) -> Self {
        Self { offer: Arc::new(Mutex::new(Offer { body: Some(body), handed_over: None })), limit, given_up, watch: None }
    }
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut offer = this.offer.lock();
        let Offer { body, handed_over } = &mut *offer;
        let Some(body) = body else { return Poll::Ready(Some(Err(NotTaken(this.limit).into()))) };
        // While it waits for the body, the server does not wait for the client.
        *handed_over = None;
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        if let Some(Ok(_)) = &frame
            && !body.is_end_stream()
        {
            *handed_over = Some(Instant::now());
            let watch = || tokio::spawn(watch(Arc::downgrade(&this.offer), this.limit, this.given_up.clone()));
            this.watch.get_or_insert_with(|| AbortOnDropHandle::new(watch()));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.offer.lock().body.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.offer.lock().body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

/// Drops the body when a piece of it has not been followed by another question for too long.
async fn watch(offer: Weak<Mutex<Offer>>, limit: Duration, given_up: CancellationToken) {
    let mut next = Instant::now() + limit;
    loop {
        sleep_until(next).await;
        let Some(offer) = offer.upgrade() else { return };
        let handed_over = offer.lock().handed_over;
        next = handed_over.unwrap_or_else(Instant::now) + limit;
        if next > Instant::now() {
            continue;
        }
        // Taken out first: what a body frees must not be freed under the lock.
        let body = offer.lock().body.take();
        drop(body);
        given_up.cancel();
        return;
    }
}
