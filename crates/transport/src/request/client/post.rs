//! Requests over NATS: each is published to its endpoint's subject, and the acknowledgement, or the server's word that nobody is
//! there, comes to a subject below one inbox, named for the call. One task reads the inbox. The answer itself comes home over TCP.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subject as NatsSubject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::request::MAX_ACK_BYTES;

use crate::nats::{self, Letter, Link, LinkState, Nats, Unsent};

use super::super::alarm::Alarm;
use super::super::error::{Cause, Refusal};
use super::super::options::ClientOptions;
use super::expected::{Awaited, Expected, Patience};
use super::line::Line;
use super::subject::Subject;

#[derive(Debug)]
pub(super) struct Post {
    nats: Nats,
    /// Ends with a dot.
    inbox: String,
    expected: Arc<Expected>,
    pings: Arc<Pings>,
    /// The inbox is read.
    ready: watch::Receiver<bool>,
    options: Arc<ClientOptions>,
}

/// Pings that wait for their answer; held to add or take one.
type Pings = Mutex<HashMap<Subject, oneshot::Sender<Pong>>>;

/// What comes of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pong {
    /// A worker has answered, whatever it says.
    Here,
    /// NATS says that nobody reads the subject.
    Nobody,
}

/// What NATS says where nobody reads a subject.
const NOBODY: &str = "nobody serves it on NATS";
/// A call that has not come home for so long asks whether its worker is still there, and then again and again: with NATS between
/// them no connection tells.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// A worker that has just left may have called back at the same moment.
const LAST_CALLS: Duration = Duration::from_millis(100);

/// What is sent to whom.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) subject: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) payload: Bytes,
}

impl Post {
    /// Reads an inbox from now on, on the current runtime.
    pub(super) fn open(
        nats: Nats,
        options: Arc<ClientOptions>,
        expected: Arc<Expected>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let inbox = format!("_INBOX.{:032x}.", rand::random::<u128>());
        let (announce, ready) = watch::channel(false);
        let pings = Arc::<Pings>::default();
        let reader = Reader { nats: nats.clone(), inbox: inbox.clone(), expected: expected.clone(), pings: pings.clone() };
        tasks.spawn(async move { stop.run_until_cancelled_owned(reader.run(announce)).await });
        Self { nats, inbox, expected, pings, ready, options }
    }

    /// Publishes a request and waits for what comes of it. A connection to NATS that breaks before the acknowledgement may have
    /// lost it: once, it is sent again, and whichever arrives first is answered.
    pub(super) async fn call(&self, request: Request, awaited: &mut Awaited, alarm: &mut Alarm, home: &Arc<str>) -> Result<Line, Cause> {
        let patience = Patience { acknowledgement: Some(self.options.ack_timeout), call: self.options.call_home_timeout };
        let headers = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let headers = nats::headers(headers).map_err(|unsent| cause(unsent, request.payload.len()))?;
        let letter = self.letter(&request.subject, awaited.subject, headers, request.payload);
        let mut again = false;
        loop {
            let mut link = self.nats.link();
            let epoch = self.send(&letter, &mut link).await?;
            let (subject, expected) = (awaited.subject, &self.expected);
            let acknowledged = || expected.acknowledged(subject).is_some();
            let gone = tokio::select! {
                biased;
                word = awaited.word(patience, alarm, home) => return word,
                () = lost(&mut link, epoch, acknowledged) => false,
                () = self.gone(&request.subject) => true,
            };
            if gone {
                let last = timeout(LAST_CALLS, awaited.word(patience, alarm, home)).await;
                return last.unwrap_or_else(|_| Err(Cause::Lost(NOBODY.into())));
            }
            if again {
                return Err(Cause::Broken("the connection to NATS".into()));
            }
            again = true;
        }
    }

    /// Asks whether anybody reads the subject: an empty message, which 1.6.1 acknowledges before it finds, with a line in its log,
    /// that it is no request.
    pub(super) async fn ping(&self, subject: &str) -> Result<(), Cause> {
        match self.pong(subject).await? {
            Pong::Here => Ok(()),
            Pong::Nobody => Err(Cause::Unreachable(NOBODY.into())),
        }
    }

    async fn pong(&self, subject: &str) -> Result<Pong, Cause> {
        let (answer, answered) = oneshot::channel();
        let ping = Ping { name: Subject::random(), pings: self.pings.clone() };
        self.pings.lock().insert(ping.name, answer);
        let letter = self.letter(subject, ping.name, async_nats::HeaderMap::new(), Bytes::new());
        let asked = async {
            self.send(&letter, &mut self.nats.link()).await?;
            // The sender stays in the list until it is used.
            answered.await.map_err(|_| Cause::Stopped)
        };
        let within = self.options.ping_timeout;
        timeout(within, asked).await.unwrap_or(Err(Cause::NoPong(within)))
    }

    /// Ends once nobody reads the subject of a call. A worker that does not answer may be busy.
    async fn gone(&self, subject: &str) {
        loop {
            sleep(LOOK_AFTER).await;
            if matches!(self.pong(subject).await, Ok(Pong::Nobody)) {
                return;
            }
        }
    }

    fn letter(&self, to: &str, name: Subject, headers: async_nats::HeaderMap, payload: Bytes) -> Letter {
        Letter { subject: NatsSubject::from(to), reply: format!("{}{name}", self.inbox).into(), headers, payload }
    }

    /// Sends it as soon as there is a connection, within the bound on connecting; which connection it was.
    async fn send(&self, letter: &Letter, link: &mut Link) -> Result<u64, Cause> {
        let within = self.options.connect_timeout;
        let mut ready = self.ready.clone();
        let sent = async {
            // Its sender is the task that reads, which ends with the client.
            ready.wait_for(|ready| *ready).await.map_err(|_| Cause::Stopped)?;
            let epoch = link.look();
            self.nats.send(letter, within).await.map_err(|unsent| cause(unsent, letter.payload.len()))?;
            Ok(match epoch {
                LinkState::Up { epoch } => epoch,
                LinkState::Down { .. } => match link.look() {
                    LinkState::Up { epoch } => epoch,
                    LinkState::Down { .. } => 0,
                },
            })
        };
        match timeout(within, sent).await {
            Ok(sent) => sent,
            Err(_) => Err(Cause::Unreachable(format!("no connection to NATS: {}", self.nats.health().reason).into())),
        }
    }
}

/// Ends once the connection is another one while nobody has acknowledged; never after that.
async fn lost(link: &mut Link, epoch: u64, acknowledged: impl Fn() -> bool) {
    loop {
        match link.look() {
            LinkState::Up { epoch: now } if now == epoch => {}
            LinkState::Up { .. } | LinkState::Down { .. } if acknowledged() => std::future::pending().await,
            LinkState::Up { .. } | LinkState::Down { .. } => return,
        }
        link.changed().await;
    }
}

fn cause(unsent: Unsent, bytes: usize) -> Cause {
    match unsent {
        Unsent::Down(reason) => Cause::Unreachable(format!("no connection to NATS: {reason}").into()),
        Unsent::TooLarge(limit) => Cause::TooLarge { bytes: bytes as u64, limit },
        Unsent::Invalid(what) => Cause::Request(what),
    }
}

/// One that waits; dropping it takes it off the list.
struct Ping {
    name: Subject,
    pings: Arc<Pings>,
}

impl Drop for Ping {
    fn drop(&mut self) {
        self.pings.lock().remove(&self.name);
    }
}

/// The task that reads the inbox.
struct Reader {
    nats: Nats,
    inbox: String,
    expected: Arc<Expected>,
    pings: Arc<Pings>,
}

impl Reader {
    async fn run(self, announce: watch::Sender<bool>) {
        let subject = NatsSubject::from(format!("{}*", self.inbox));
        loop {
            // A subject of these letters is never refused.
            let Ok(mut messages) = self.nats.link().subscribe(&subject).await else { return };
            announce.send_replace(true);
            self.read(&mut messages).await;
            announce.send_replace(false);
        }
    }

    /// Until the client ends, which it does with us.
    async fn read(&self, messages: &mut Subscriber) {
        while let Some(message) = messages.next().await {
            let name = message.subject.as_str().strip_prefix(self.inbox.as_str()).and_then(Subject::parse);
            let Some(name) = name else { continue };
            let refusal = refusal(&message);
            let ping = self.pings.lock().remove(&name);
            match (ping, refusal) {
                // It may have been given up at this moment.
                (Some(ping), Some(Cause::Unreachable(_))) => drop(ping.send(Pong::Nobody)),
                (Some(ping), _) => drop(ping.send(Pong::Here)),
                (None, Some(cause)) => self.expected.fail(name, cause),
                (None, None) => drop(self.expected.acknowledge(name)),
            }
        }
    }
}

/// What a message says if it is no acknowledgement.
fn refusal(message: &Message) -> Option<Cause> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Some(Cause::Unreachable(NOBODY.into()));
    }
    let text = &message.payload[..message.payload.len().min(MAX_ACK_BYTES)];
    let text = String::from_utf8_lossy(text);
    (!text.is_empty()).then(|| Cause::Refused { kind: Refusal::of(&text), text: text.into() })
}
