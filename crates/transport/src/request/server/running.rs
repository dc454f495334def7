//! One call: connect to the caller, say whose answer this is, run the handler, send what it yields, and end in good order
//! or as the caller wants. At most one item and 64 KiB are held for a caller that does not read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use wire::request::{Codec, Control, ControlHeader, Handshake, Prologue, Response, StreamType, TypedError};

use super::super::frames::{self, ReadError};
use super::super::outbox::Outbox;
use super::super::{net, typed};
use super::handler::Items;
use super::subject::Acknowledgement;
use super::{Handler, Request, Shared};

/// The handler is asked for more while fewer bytes than this wait for the socket.
const ASK_BELOW_BYTES: usize = 64 << 10;
/// A caller's control messages have 30 bytes; whoever sends more than this without one is not a caller.
const MAX_CONTROL_BYTES: usize = 256;

/// A call that was acknowledged.
pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) request: Request,
    pub(super) permit: OwnedSemaphorePermit,
}

/// Why a call ended before its answer was complete.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the caller stopped it or left")]
    Cancelled,
    #[error("the caller took nothing for too long")]
    Stalled,
    #[error("the caller sent an invalid control message")]
    Malformed,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
}

impl Call {
    /// Runs it in a task of its own, after `first`.
    pub(super) fn start(self, first: Option<Acknowledgement>) {
        let shared = self.shared.clone();
        shared.counters.calls.fetch_add(1, Ordering::Relaxed);
        let until = shared.stopped.clone();
        let run = async move {
            if let Some(first) = first {
                first.send().await;
            }
            self.run().await;
        };
        shared.calls.spawn(async move { until.run_until_cancelled_owned(run).await });
    }

    async fn run(self) {
        let Self { shared, handler, request, permit: _running } = self;
        // However this ends, work that was handed on elsewhere ends with it.
        let _over = request.cancelled.clone().drop_guard();
        let control = request.control.clone();
        let Some(mut line) = Line::dial(&shared, &control).await else { return };
        match line.answer(handler, request).await {
            Ok(()) => line.part().await,
            Err(end) => {
                let counter = match end {
                    End::Cancelled | End::Malformed | End::Broken(_) => &shared.counters.cancelled,
                    End::Stalled => &shared.counters.stalled_callers,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(id = %control.id, caller = %control.connection.address, %end, "a call ended before its answer was complete");
            }
        }
    }
}

/// Tells a caller that was acknowledged already why there will be no answer.
pub(super) async fn refuse(shared: Arc<Shared>, control: ControlHeader, text: String) {
    let Some(mut line) = Line::dial(&shared, &control).await else { return };
    line.out.push(Prologue { error: Some(text), typed: None }.encode().encode());
    if line.attend(1).await.is_ok() {
        line.part().await;
    }
}

/// The connection to the caller.
struct Line {
    stream: TcpStream,
    codec: Codec,
    shared: Arc<Shared>,
    out: Outbox,
    input: BytesMut,
    /// When the caller last took something.
    moved: Instant,
    /// It has taken something.
    spoken: bool,
}

impl Drop for Line {
    /// Should the handler fail altogether, its caller learns at least whose answer broke off.
    fn drop(&mut self) {
        if !self.spoken {
            // 99 bytes on a socket that was never written to find room.
            let _ = self.out.write_to(&self.stream);
        }
    }
}

impl Line {
    /// Connects to the caller. Whose answer this is, is said with what comes first.
    async fn dial(shared: &Arc<Shared>, control: &ControlHeader) -> Option<Self> {
        let caller = &control.connection.address;
        let stream = match net::dial(caller, shared.options.connect_timeout).await {
            Ok(stream) => stream,
            Err(error) => {
                shared.counters.unreachable_callers.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(id = %control.id, %caller, %error, "cannot call back to the caller of a request");
                return None;
            }
        };
        let mut out = Outbox::default();
        let handshake = Handshake { subject: control.connection.subject.clone(), stream_type: StreamType::Response };
        out.push(handshake.encode().encode());
        let moved = Instant::now();
        Some(Self { stream, codec: control.codec, shared: shared.clone(), out, input: BytesMut::new(), moved, spoken: false })
    }

    /// Everything from the prologue to the sentinel.
    async fn answer(&mut self, handler: Arc<dyn Handler>, request: Request) -> Result<(), End> {
        let answer = handler.call(request);
        // `attend` only acts on readiness, so it may be dropped wherever it waits.
        let begun = tokio::select! {
            biased;
            begun = answer => begun,
            Err(end) = self.attend(0) => return Err(end),
        };
        match begun {
            Ok(items) => {
                self.out.push(Prologue::default().encode().encode());
                self.items(items).await?;
                self.out.push(Response::finale(self.codec));
                self.out.push(Response::sentinel());
            }
            Err(error) => {
                let prologue = Prologue { error: Some(error.message.clone()), typed: Some(error) };
                self.out.push(prologue.encode().encode());
            }
        }
        self.attend(1).await
    }

    /// Asks the handler for items as fast as the caller takes them. What is ready at once goes out together.
    async fn items(&mut self, mut items: Items) -> Result<(), End> {
        loop {
            if self.out.bytes() >= ASK_BELOW_BYTES {
                self.attend(ASK_BELOW_BYTES).await?;
                self.listen()?;
                // A handler that never waits and a caller that keeps up must not keep this thread to themselves.
                tokio::task::yield_now().await;
            }
            let item = tokio::select! {
                biased;
                item = items.next() => item,
                Err(end) = self.attend(0) => return Err(end),
            };
            match item {
                Some(item) => self.push(item),
                None => return Ok(()),
            }
        }
    }

    fn push(&mut self, item: Result<Bytes, TypedError>) {
        let item = item.unwrap_or_else(|error| typed::item(self.codec, &error));
        self.out.gather(|out| Response::put_before(self.codec, item.len(), out));
        self.out.push(item);
        self.out.gather(|out| out.extend_from_slice(Response::behind(self.codec)));
    }

    /// Sends what waits and listens to the caller, until fewer than `below` bytes wait: 1 is until all is sent, 0 for ever.
    async fn attend(&mut self, below: usize) -> Result<(), End> {
        loop {
            if self.out.write_to(&self.stream).map_err(End::Broken)? > 0 {
                (self.moved, self.spoken) = (Instant::now(), true);
            }
            // A caller that has everything may close before we look.
            if self.out.bytes() < below {
                return Ok(());
            }
            self.listen()?;
            let (interest, waits) = match self.out.is_empty() {
                true => (Interest::READABLE, false),
                false => (Interest::READABLE | Interest::WRITABLE, true),
            };
            tokio::select! {
                ready = self.stream.ready(interest) => drop(ready.map_err(End::Broken)?),
                () = sleep_until(self.moved + self.shared.options.stalled_timeout), if waits => return Err(End::Stalled),
            }
        }
    }

    /// What the caller has said meanwhile.
    fn listen(&mut self) -> Result<(), End> {
        loop {
            match frames::read_ready(&self.stream, &mut self.input, MAX_CONTROL_BYTES) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(ReadError::Closed) => return Err(End::Cancelled),
                Err(ReadError::Broken(error)) => return Err(End::Broken(error)),
            }
            match Control::take(&mut self.input) {
                Ok(Some(Control::Stop | Control::Kill)) => return Err(End::Cancelled),
                Ok(None) if self.input.len() < MAX_CONTROL_BYTES => {}
                Ok(None) | Err(_) => return Err(End::Malformed),
            }
        }
    }

    /// The caller closes first, so that it is its port that rests and not one of ours for each call. A drain does not wait.
    async fn part(mut self) {
        let bound = self.shared.options.close_timeout;
        let draining = self.shared.draining.clone();
        let closed = async { while self.listen().is_ok() && self.stream.readable().await.is_ok() {} };
        // Whether it closed or is given up makes no difference.
        let _ = timeout(bound, draining.run_until_cancelled(closed)).await;
    }
}
