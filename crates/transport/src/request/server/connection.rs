//! One connection that asks: frames come in, each is answered by an acknowledgement in its turn, and calls begin.
//!
//! The path stands at the head of a frame: a body is kept only where there is an endpoint for it, else it is read past.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};
use wire::request::{Ack, ControlHeader, FrameError, PROBE_PATH, RequestFrame, StreamType, TwoPart};

use super::super::alarm::Alarm;
use super::super::error::{OVERLOADED, UNAVAILABLE};
use super::super::frames::{self, ReadError};
use super::super::newcomers::Newcomer;
use super::super::outbox::Outbox;
use super::head::Head;
use super::running::Call;
use super::{Endpoint, Request, Shared};

/// Payloads up to this size are not counted; of larger ones all is.
const FREE_PAYLOAD_BYTES: usize = 64 << 10;
/// Most room made for one read of a body that is kept.
const MAX_ROOM_BYTES: usize = 256 << 10;
/// Room made for one read of what is read past.
const SKIP_BYTES: usize = 16 << 10;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The peer closed it, or it broke.
    Gone,
    /// No request, or not the whole of one, came in time, or nothing was taken.
    Silent,
    /// It sent something other than a frame.
    Malformed,
    /// It had to make room.
    Full,
}

pub(super) async fn serve(shared: Arc<Shared>, mut stream: TcpStream, peer: SocketAddr) {
    let until = Instant::now() + shared.options.newcomer_timeout;
    let mut connection = Connection {
        standing: Standing::Newcomer { place: shared.newcomers.enter(), until },
        shared: shared.clone(),
        peer,
        input: BytesMut::new(),
        out: Outbox::default(),
        arriving: None,
        skip: 0,
        begun: None,
        alarm: Alarm::default(),
    };
    let over = connection.run(&mut stream).await;
    let counters = &shared.counters;
    let closed: Option<&AtomicU64> = match over {
        Over::Gone => None,
        Over::Silent => Some(&counters.closed_silent),
        Over::Malformed => Some(&counters.closed_malformed),
        Over::Full => Some(&counters.closed_full),
    };
    if let Some(closed) = closed {
        closed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%peer, ?over, "a request connection was closed");
    }
}

struct Connection {
    shared: Arc<Shared>,
    peer: SocketAddr,
    standing: Standing,
    input: BytesMut,
    out: Outbox,
    /// The frame whose body is awaited.
    arriving: Option<Arriving>,
    /// Bytes still to be read past.
    skip: usize,
    /// When the frame that is not complete began.
    begun: Option<Instant>,
    alarm: Alarm,
}

enum Standing {
    /// Has not asked for anything that is here.
    Newcomer {
        place: Newcomer,
        until: Instant,
    },
    Proven {
        _place: OwnedSemaphorePermit,
    },
}

/// A frame for an endpoint that is here.
struct Arriving {
    endpoint: Endpoint,
    whole: usize,
    /// Its share of what large bodies may hold.
    held: Option<OwnedSemaphorePermit>,
}

impl Connection {
    async fn run(&mut self, stream: &mut TcpStream) -> Over {
        loop {
            let digested = self.digest();
            if !self.out.is_empty() {
                match timeout(self.shared.options.frame_timeout, self.flush(stream)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Over::Gone,
                    Err(_) => return Over::Silent,
                }
            }
            if let Err(over) = digested {
                return over;
            }
            if self.input.is_empty() && self.input.capacity() > frames::READ_BYTES {
                // A quiet connection is to keep nothing of what was large once.
                self.input = BytesMut::new();
            }
            if let Err(over) = self.read(stream).await {
                return over;
            }
        }
    }

    /// Room for the next read: of a frame that was admitted, as much as is missing.
    fn room(&self) -> usize {
        match &self.arriving {
            Some(arriving) => arriving.whole.saturating_sub(self.input.len()).clamp(frames::READ_BYTES, MAX_ROOM_BYTES),
            None if self.skip > 0 => SKIP_BYTES,
            None => frames::READ_BYTES,
        }
    }

    /// Waits for bytes, as long as this connection deserves.
    async fn read(&mut self, stream: &mut TcpStream) -> Result<(), Over> {
        let options = &self.shared.options;
        let room = self.room();
        let (until, place) = match &self.standing {
            Standing::Newcomer { place, until } => (*until, Some(place)),
            Standing::Proven { .. } => match self.begun {
                Some(begun) => (begun + options.frame_timeout, None),
                None => (Instant::now() + options.idle_timeout, None),
            },
        };
        let displaced = async {
            match place {
                Some(place) => place.displaced().await,
                None => pending().await,
            }
        };
        // Each only waits until there is something; nothing is lost with those that are dropped.
        tokio::select! {
            biased;
            read = frames::read(stream, &mut self.input, room) => match read {
                Ok(_) => Ok(()),
                Err(ReadError::Closed | ReadError::Broken(_)) => Err(Over::Gone),
            },
            () = displaced => Err(Over::Full),
            () = self.alarm.at(until) => Err(Over::Silent),
        }
    }

    async fn flush(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        loop {
            self.out.write_to(stream)?;
            if self.out.is_empty() {
                return Ok(());
            }
            stream.writable().await?;
        }
    }

    /// Does what can be done with what has arrived.
    fn digest(&mut self) -> Result<(), Over> {
        loop {
            if self.skip > 0 {
                let here = self.skip.min(self.input.len());
                self.input.advance(here);
                self.skip -= here;
                if self.skip > 0 {
                    self.begun.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                self.begun = None;
            }
            if self.input.is_empty() {
                return Ok(());
            }
            let whole = match &self.arriving {
                Some(arriving) => arriving.whole,
                None => match Head::peek(&self.input).map_err(|_| Over::Malformed)? {
                    Some(head) => {
                        self.admit(head)?;
                        continue;
                    }
                    None => usize::MAX,
                },
            };
            if self.input.len() < whole {
                self.begun.get_or_insert_with(Instant::now);
                return Ok(());
            }
            self.begun = None;
            if let Some(arriving) = self.arriving.take() {
                // Its length was judged when it was admitted.
                let frame = RequestFrame::take(&mut self.input, whole).map_err(|_| Over::Malformed)?;
                self.begin(arriving, frame.ok_or(Over::Malformed)?);
            }
        }
    }

    /// Decides about a frame by its head.
    fn admit(&mut self, head: Head) -> Result<(), Over> {
        let shared = self.shared.clone();
        let (options, counters) = (&shared.options, &shared.counters);
        let path = head.path(&self.input);
        let endpoint = path.and_then(|path| shared.endpoints.read().get(path).cloned());
        let Some(endpoint) = endpoint.filter(|_| !shared.draining.is_cancelled()) else {
            let text = match shared.draining.is_cancelled() {
                true => format!("{UNAVAILABLE} shutting down"),
                false => format!("{UNAVAILABLE} unknown endpoint {}", path.unwrap_or("(not UTF-8)")),
            };
            let counter = if path == Some(PROBE_PATH) { &counters.pings } else { &counters.refused_unknown };
            self.read_past(head, text, counter);
            return Ok(());
        };
        if matches!(self.standing, Standing::Newcomer { .. }) {
            let Ok(place) = shared.proven.clone().try_acquire_owned() else {
                let text = format!("{OVERLOADED} {} connections", options.max_connections);
                self.read_past(head, text, &counters.refused_full);
                return Err(Over::Full);
            };
            self.standing = Standing::Proven { _place: place };
        }
        if head.whole > options.max_frame_bytes {
            let text = format!("{UNAVAILABLE} the request has {} bytes, the limit is {}", head.whole, options.max_frame_bytes);
            self.read_past(head, text, &counters.refused_malformed);
            return Ok(());
        }
        if shared.running.available_permits() == 0 {
            self.read_past(head, format!("{OVERLOADED} {} calls running", options.max_running), &counters.refused_full);
            return Ok(());
        }
        let held = match share(&shared, head.payload) {
            Ok(held) => held,
            Err(bound) => {
                self.read_past(head, format!("{OVERLOADED} request bodies of {bound} bytes are being handled"), &counters.refused_full);
                return Ok(());
            }
        };
        self.arriving = Some(Arriving { endpoint, whole: head.whole, held });
        Ok(())
    }

    fn read_past(&mut self, head: Head, text: String, counter: &AtomicU64) {
        self.skip = head.whole;
        self.refuse(text, counter);
    }

    fn refuse(&mut self, text: String, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(peer = %self.peer, text, "a request was refused");
        self.out.push(Ack::Refused(text).encode());
    }

    fn begin(&mut self, arriving: Arriving, frame: RequestFrame) {
        let shared = self.shared.clone();
        let (control, body) = match read_payload(&frame.payload) {
            Ok(parts) => parts,
            Err(error) => {
                self.refuse(format!("{UNAVAILABLE} cannot read the request: {error}"), &shared.counters.refused_malformed);
                return;
            }
        };
        let Ok(permit) = shared.running.clone().try_acquire_owned() else {
            let text = format!("{OVERLOADED} {} calls running", shared.options.max_running);
            self.refuse(text, &shared.counters.refused_full);
            return;
        };
        let body = held(body, arriving.held);
        let request = Request { headers: frame.headers, control, body, cancelled: shared.stopped.child_token() };
        Call { shared, handler: arriving.endpoint.handler, request, permit }.start(None);
        self.out.push(Ack::Accepted.encode());
    }
}

/// The share of a payload in what all large ones may hold, for those that count. The error is the bound, which it would exceed.
pub(super) fn share(shared: &Shared, payload: usize) -> Result<Option<OwnedSemaphorePermit>, usize> {
    if payload <= FREE_PAYLOAD_BYTES {
        return Ok(None);
    }
    let held = u32::try_from(payload >> 10).ok().and_then(|kib| shared.body_kib.clone().try_acquire_many_owned(kib).ok());
    held.map(Some).ok_or(shared.options.max_body_bytes)
}

/// A body with its share.
pub(super) fn held(body: Bytes, share: Option<OwnedSemaphorePermit>) -> Bytes {
    match share {
        Some(share) => Bytes::from_owner(Held { body, _share: share }),
        None => body,
    }
}

/// What a payload asks for.
pub(super) fn read_payload(payload: &Bytes) -> Result<(ControlHeader, Bytes), FrameError> {
    let TwoPart { header, body } = TwoPart::decode(payload)?;
    let control = ControlHeader::decode(&header)?;
    match control.connection.stream_type {
        StreamType::Response => Ok((control, body)),
        StreamType::Request => Err(FrameError::Order("an answer asked for on a request's stream")),
    }
}

/// A large body and its share of what all may hold, given back when the last reference is gone.
struct Held {
    body: Bytes,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}
