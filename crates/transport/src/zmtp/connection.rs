//! One connection: moves bytes between a stream and its [`Session`]. It has no task of its own; whoever owns it polls
//! [`Connection::event`], which reads, writes and keeps time until something happened.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::time::{Instant, sleep_until, timeout};

use super::error::Error;
use super::net::Stream;
use super::options::Options;
use super::session::{Event, Kind, Peer, Session};

/// Room for one read: grows from the first to the second while the peer fills it.
const MIN_READ_BYTES: usize = 4 << 10;
const MAX_READ_BYTES: usize = 64 << 10;
/// Reading pauses while this many bytes of our answers (PONGs) wait for a peer that does not read them.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// How long a peer that was told the end is given to hang up; some notice only when their user next reads.
const FAREWELL: Duration = Duration::from_millis(500);
/// Chunks given to the kernel with one call.
const MAX_WRITE_CHUNKS: usize = 32;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    session: Session,
    input: BytesMut,
    read_bytes: usize,
    output: VecDeque<Chunk>,
    output_bytes: usize,
    answer_bytes: usize,
}

#[derive(Debug)]
struct Chunk {
    bytes: Bytes,
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The socket's user.
    User,
    /// Our session: greeting, commands, answers to the peer.
    Session,
}

impl Connection {
    /// Shakes hands; bounded by the handshake time-out. When this returns the kernel has our subscription: whoever asks
    /// the publisher for the past from then on is not answered before it counts.
    pub(crate) async fn open(stream: Stream, kind: Kind, topic: &Bytes, options: &Options) -> Result<(Self, Peer), Error> {
        let session = Session::new(kind, topic, options, Instant::now().into_std());
        let mut connection = Self {
            stream,
            session,
            input: BytesMut::new(),
            read_bytes: MIN_READ_BYTES,
            output: VecDeque::new(),
            output_bytes: 0,
            answer_bytes: 0,
        };
        loop {
            if let Event::Open(peer) = connection.event().await? {
                let after = options.handshake_timeout;
                let late = |_| Error::TimedOut { what: "the handshake", after };
                timeout(after, connection.flush()).await.map_err(late)??;
                return Ok((connection, peer));
            }
        }
    }

    /// The next thing the peer does; writes what is queued meanwhile. Cancel-safe: all progress is kept in `self`.
    pub(crate) async fn event(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.advance().await? {
                return Ok(event);
            }
        }
    }

    /// Like [`event`](Self::event), but also returns, with nothing, after each round of reading and writing: for a
    /// caller that looks at the [`backlog`](Self::backlog). Cancel-safe.
    pub(crate) async fn advance(&mut self) -> Result<Option<Event>, Error> {
        let event = self.heard()?;
        if event.is_none() {
            self.exchange().await?;
        }
        Ok(event)
    }

    /// What the peer did, as far as it was read.
    pub(crate) fn heard(&mut self) -> Result<Option<Event>, Error> {
        let event = self.session.next(&mut self.input);
        self.queue_answers();
        event
    }

    /// Neither reads nor writes for so long. Not cancel-safe: the connection is lost.
    pub(crate) async fn rest(self, time: Duration) -> Result<Self, Error> {
        Ok(Self { stream: self.stream.rest(time).await?, ..self })
    }

    /// Queues a whole message as [`encode`](super::frame::encode)d bytes.
    pub(crate) fn send(&mut self, bytes: Bytes) {
        self.queue(bytes, Source::User);
    }

    /// Bytes queued and not yet taken by the kernel.
    pub(crate) fn backlog(&self) -> usize {
        self.output_bytes
    }

    /// Writes all that is queued, reading nothing. Cancel-safe.
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        while !self.output.is_empty() {
            if self.stream.ready(Interest::WRITABLE).await?.is_writable() {
                self.write()?;
            }
        }
        Ok(())
    }

    /// Ends in order: writes all that is queued (the caller bounds that), then waits a little for the peer to hang up.
    /// Closing at once with the peer's bytes unread would make the kernel discard ours; after a quiet end it goes on
    /// delivering them by itself.
    pub(crate) async fn finish(mut self) -> Result<(), Error> {
        self.flush().await?;
        self.stream.finish_writing()?;
        timeout(FAREWELL, self.hung_up()).await.unwrap_or(Ok(()))
    }

    async fn hung_up(&mut self) -> Result<(), Error> {
        loop {
            self.input.clear();
            self.input.reserve(MIN_READ_BYTES);
            self.stream.ready(Interest::READABLE).await?;
            match self.stream.try_read(&mut self.input) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One round of waiting, then reading, writing or the session's clock. Cancel-safe.
    pub(crate) async fn exchange(&mut self) -> Result<(), Error> {
        let interest = match (self.answer_bytes < MAX_ANSWER_BYTES, self.output.is_empty()) {
            (true, true) => Interest::READABLE,
            (true, false) => Interest::READABLE | Interest::WRITABLE,
            (false, _) => Interest::WRITABLE,
        };
        let deadline = self.session.deadline().map(Instant::from_std);
        tokio::select! {
            ready = self.stream.ready(interest) => {
                let ready = ready?;
                if ready.is_writable() {
                    self.write()?;
                }
                if ready.is_readable() && interest.is_readable() {
                    self.read()?;
                }
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                let now = Instant::now().into_std();
                if self.output.is_empty() {
                    self.session.tick(now)?;
                } else {
                    self.session.postpone(now)?;
                }
                self.queue_answers();
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Error> {
        let room = self.session.missing(&self.input).clamp(self.read_bytes, MAX_READ_BYTES);
        self.input.reserve(room);
        match self.stream.try_read(&mut self.input) {
            Ok(0) => Err(Error::Closed { during_handshake: !self.session.is_open() }),
            Ok(count) => {
                if count >= self.read_bytes {
                    self.read_bytes = (self.read_bytes * 2).min(MAX_READ_BYTES);
                }
                self.session.heard(Instant::now().into_std());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&mut self) -> Result<(), Error> {
        let mut parts = [io::IoSlice::new(&[]); MAX_WRITE_CHUNKS];
        let mut count = 0;
        for (part, chunk) in parts.iter_mut().zip(&self.output) {
            *part = io::IoSlice::new(&chunk.bytes);
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        match self.stream.try_write(&parts[..count]) {
            Ok(written) => {
                self.written(written);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn written(&mut self, mut count: usize) {
        self.output_bytes -= count;
        while let Some(front) = self.output.front_mut() {
            let part = count.min(front.bytes.len());
            front.bytes.advance(part);
            count -= part;
            if front.source == Source::Session {
                self.answer_bytes -= part;
            }
            if !front.bytes.is_empty() {
                return;
            }
            self.output.pop_front();
        }
    }

    fn queue_answers(&mut self) {
        let answers = self.session.take_output();
        self.queue(answers, Source::Session);
    }

    fn queue(&mut self, bytes: Bytes, source: Source) {
        if bytes.is_empty() {
            return;
        }
        self.output_bytes += bytes.len();
        if source == Source::Session {
            self.answer_bytes += bytes.len();
        }
        self.output.push_back(Chunk { bytes, source });
    }
}
