//! One connection as a state machine without I/O: greeting, handshake, traffic, heartbeats. Bytes and times go in;
//! events, bytes to write, and the time of the next wake-up come out.

use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};

use super::command::{self, Command};
use super::error::Error;
use super::frame::{Decoder, Item, encode};
use super::greeting::{GREETING_BYTES, greeting, inspect};
use super::options::{Limits, Options};

/// The socket kinds we have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sub,
    Dealer,
    Pub,
    Router,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
            Self::Pub => "PUB",
            Self::Router => "ROUTER",
        }
    }

    fn talks_to(self, theirs: &str) -> bool {
        match self {
            Self::Sub => matches!(theirs, "PUB" | "XPUB"),
            Self::Dealer => matches!(theirs, "ROUTER" | "DEALER" | "REP"),
            Self::Pub => matches!(theirs, "SUB" | "XSUB"),
            Self::Router => matches!(theirs, "DEALER" | "ROUTER" | "REQ"),
        }
    }
}

/// Who is at the other end, known once the handshake is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Minor version of ZMTP 3 it greeted with.
    pub(crate) minor: u8,
    pub(crate) identity: Bytes,
}

/// What the peer did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Open(Peer),
    Message(Vec<Bytes>),
    Subscribe(Bytes),
    Cancel(Bytes),
}

#[derive(Debug)]
enum Phase {
    Greeting,
    Ready { minor: u8 },
    Open { minor: u8 },
}

#[derive(Debug)]
pub(crate) struct Session {
    kind: Kind,
    identity: Bytes,
    /// What a SUB asks for as soon as the connection is open.
    topic: Bytes,
    /// Whether a SUB waits for an answer behind its subscription.
    confirm: bool,
    phase: Phase,
    decoder: Decoder,
    /// Limits of the open connection; until then a message of any size is one too many.
    limits: Limits,
    output: BytesMut,
    handshake_timeout: Duration,
    heartbeat_idle: Duration,
    heartbeat_timeout: Duration,
    started: Instant,
    heard: Instant,
    pinged: Option<Instant>,
    /// The peer's own wish to be cut off when it is silent for so long.
    peer_ttl: Option<Duration>,
    /// The peer of an open connection whose subscription is not confirmed yet.
    unconfirmed: Option<Unconfirmed>,
}

#[derive(Debug)]
struct Unconfirmed {
    peer: Peer,
    waits: Waits,
}

#[derive(Debug, PartialEq, Eq)]
enum Waits {
    ForPong,
    ForSecondPong,
    NoLonger,
}

impl Session {
    pub(crate) fn new(kind: Kind, topic: &Bytes, options: &Options, now: Instant) -> Self {
        let mut limits = options.limits;
        if kind == Kind::Pub {
            // Subscribers have nothing else to say than one byte and a topic.
            limits.max_message_bytes = limits.max_message_bytes.min(options.max_subscription_bytes + 1);
        }
        Self {
            kind,
            identity: options.identity.clone(),
            topic: topic.clone(),
            confirm: options.confirm_subscription && kind == Kind::Sub,
            phase: Phase::Greeting,
            decoder: Decoder::new(Limits { max_frame_bytes: 0, max_message_bytes: 0, ..limits }),
            limits,
            output: BytesMut::from(&greeting()[..]),
            handshake_timeout: options.handshake_timeout,
            heartbeat_idle: options.heartbeat_idle,
            heartbeat_timeout: options.heartbeat_timeout,
            started: now,
            heard: now,
            pinged: None,
            peer_ttl: None,
            unconfirmed: None,
        }
    }

    /// Bytes arrived. Call [`next`](Self::next) until it has nothing more.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = None;
    }

    /// Takes the next event off the front of `input`. After an error the connection is over.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Error> {
        if self.unconfirmed.as_ref().is_some_and(|open| open.waits == Waits::NoLonger) {
            return Ok(self.confirmed());
        }
        if let Phase::Greeting = self.phase {
            let Some(minor) = inspect(input)? else {
                return Ok(None);
            };
            input.advance(GREETING_BYTES);
            command::put_ready(&mut self.output, self.kind.name(), &self.identity);
            self.phase = Phase::Ready { minor };
        }
        while let Some(item) = self.decoder.decode(input)? {
            let event = match item {
                Item::Command(body) => self.obey(Command::parse(body)?)?,
                Item::Message(frames) => self.accept(frames)?,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn accept(&self, mut frames: Vec<Bytes>) -> Result<Option<Event>, Error> {
        let Phase::Open { .. } = self.phase else {
            return Err(Error::Malformed("a message came before READY"));
        };
        if self.kind != Kind::Pub {
            return Ok(Some(Event::Message(frames)));
        }
        // To a PUB only subscriptions mean something; ZMTP 3.0 sends them as messages of one frame.
        let [frame] = frames.as_mut_slice() else {
            return Ok(None);
        };
        Ok(match frame.try_get_u8() {
            Ok(1) => Some(Event::Subscribe(std::mem::take(frame))),
            Ok(0) => Some(Event::Cancel(std::mem::take(frame))),
            _ => None,
        })
    }

    fn obey(&mut self, command: Command) -> Result<Option<Event>, Error> {
        match (command, &self.phase) {
            (Command::Error(reason), _) => Err(Error::Refused(reason)),
            (Command::Ready { kind, identity }, Phase::Ready { minor }) => {
                if !self.kind.talks_to(&kind) {
                    return Err(Error::SocketKind { ours: self.kind.name(), theirs: kind });
                }
                let minor = *minor;
                self.phase = Phase::Open { minor };
                self.decoder.limit(self.limits);
                if self.kind == Kind::Sub {
                    self.subscribe(minor);
                }
                let peer = Peer { minor, identity };
                if self.confirm && minor >= 1 {
                    command::put_ping(&mut self.output);
                    self.unconfirmed = Some(Unconfirmed { peer, waits: Waits::ForPong });
                    return Ok(None);
                }
                Ok(Some(Event::Open(peer)))
            }
            (Command::Ready { .. }, _) => Err(Error::Malformed("a second READY")),
            (_, Phase::Greeting | Phase::Ready { .. }) => Err(Error::Malformed("another command came before READY")),
            (Command::Ping { ttl, context }, Phase::Open { .. }) => {
                self.peer_ttl = Some(ttl).filter(|ttl| !ttl.is_zero());
                command::put_pong(&mut self.output, &context);
                Ok(None)
            }
            (Command::Subscribe(topic), Phase::Open { .. }) => Ok(Some(Event::Subscribe(topic))),
            (Command::Cancel(topic), Phase::Open { .. }) => Ok(Some(Event::Cancel(topic))),
            (Command::Pong, Phase::Open { .. }) => Ok(self.ponged()),
            (Command::Unknown, Phase::Open { .. }) => Ok(None),
        }
    }

    /// libzmq answers a PING before it hands on what came with it in one read. What came with the first is handed on by the time
    /// the second, sent only now, is answered.
    fn ponged(&mut self) -> Option<Event> {
        let open = self.unconfirmed.as_mut()?;
        if open.waits == Waits::ForPong {
            open.waits = Waits::ForSecondPong;
            command::put_ping(&mut self.output);
            return None;
        }
        self.confirmed()
    }

    fn confirmed(&mut self) -> Option<Event> {
        self.unconfirmed.take().map(|open| Event::Open(open.peer))
    }

    fn subscribe(&mut self, minor: u8) {
        if minor >= 1 {
            command::put_subscribe(&mut self.output, &self.topic);
        } else {
            let frame: Bytes = [&[1], &self.topic[..]].concat().into();
            self.output.extend_from_slice(&encode(&[frame]));
        }
    }

    /// When [`tick`](Self::tick) is due. A peer of ZMTP 3.0 cannot be pinged: then the operating system's keepalive
    /// and whoever knows what to expect on the stream must notice that it is gone.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let minor = match self.phase {
            Phase::Greeting | Phase::Ready { .. } => return Some(self.started + self.handshake_timeout),
            Phase::Open { minor } => minor,
        };
        let ours = (minor >= 1).then(|| match self.pinged {
            Some(at) => at + self.heartbeat_timeout,
            None => self.heard + self.heartbeat_idle,
        });
        let theirs = self.peer_ttl.map(|ttl| self.heard + ttl);
        let confirmation = self.unconfirmed.as_ref().map(|_| self.started + self.handshake_timeout);
        ours.into_iter().chain(theirs).chain(confirmation).min()
    }

    /// Time passed: sends a PING, or ends a connection that is silent.
    pub(crate) fn tick(&mut self, now: Instant) -> Result<(), Error> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        let Phase::Open { minor } = self.phase else {
            return Err(Error::TimedOut { what: "the handshake", after: self.handshake_timeout });
        };
        self.confirm_late(now);
        let expired = self.peer_ttl.is_some_and(|ttl| now >= self.heard + ttl);
        let unanswered = self.pinged.is_some_and(|at| now >= at + self.heartbeat_timeout);
        if expired || unanswered {
            return Err(Error::Silent(now.duration_since(self.heard)));
        }
        if minor >= 1 && self.pinged.is_none() {
            command::put_ping(&mut self.output);
            self.pinged = Some(now);
        }
        Ok(())
    }

    /// Called instead of [`tick`](Self::tick) while bytes for the peer wait unsent: it is slow, or its host is gone;
    /// a PING could not reach it either, and the kernel's own time-out tells the two apart.
    pub(crate) fn postpone(&mut self, now: Instant) -> Result<(), Error> {
        if !self.is_open() {
            return self.tick(now);
        }
        self.confirm_late(now);
        self.heard(now);
        Ok(())
    }

    /// A peer that answers no PING has the subscription all the same, only nobody knows since when.
    fn confirm_late(&mut self, now: Instant) {
        if let Some(open) = self.unconfirmed.as_mut().filter(|_| now >= self.started + self.handshake_timeout) {
            open.waits = Waits::NoLonger;
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Greeting and commands to be written, before anything queued later.
    pub(crate) fn take_output(&mut self) -> Bytes {
        self.output.split().freeze()
    }

    /// How many bytes beyond `input` the frame in progress still needs; zero when that is not known.
    pub(crate) fn missing(&self, input: &BytesMut) -> usize {
        self.decoder.missing(input)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
