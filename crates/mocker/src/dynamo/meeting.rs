//! Where a prefill worker and a decode worker meet: a stand-in for the transfer of a cache from engine to engine.
//!
//! The prefill worker listens. Each request has a room there, open while its prompt is computed and then ready. A decode worker connects,
//! names a room, waits until it is ready, and is told what was computed: how many tokens, and a digest of them. A room is used once, so
//! that an answer proves a hand-over, and this one. Where both workers are asked at once, a room may be waited for before it is opened.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::config::{DynamoConfig, HandOver};
use crate::config::ServeError;

/// Rooms at once, at most; of more the oldest ready one is given up.
const MAX_ROOMS: usize = 16_384;
/// How long a room stays ready for a decode worker that does not come.
const KEPT: Duration = Duration::from_secs(60);
/// How long a decode worker waits for a room: the prefill worker may be asked later, and may have much to do.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a room that nobody has heard of is waited for.
const UNHEARD: Duration = Duration::from_secs(10);
/// Decode workers that wait at once.
const MAX_VISITORS: usize = 4096;
/// The longest line of either side, in bytes.
const MAX_LINE_BYTES: u64 = 64;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefilled {
    /// Tokens of the prompt.
    pub(super) tokens: usize,
    /// [`crate::model::digest`] of them.
    pub(super) digest: u64,
}

/// What a decode worker knows of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It was told of by the prefill worker's answer.
    Opened,
    /// The prefill worker may not have been asked yet.
    Expected,
}

impl Known {
    fn verb(self) -> &'static str {
        match self {
            Self::Opened => "take",
            Self::Expected => "await",
        }
    }
}

#[derive(Debug)]
enum Room {
    /// The prompt is being computed.
    Open,
    Ready(Prefilled, Instant),
}

/// The rooms of a prefill worker.
pub(super) struct Rooms {
    host: String,
    port: u16,
    desk: Arc<Desk>,
    task: JoinHandle<()>,
    stop: DropGuard,
}

/// What prompts and visitors share.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Held for a look or a change.
    rooms: Mutex<HashMap<u64, Room>>,
    changed: Notify,
}

/// A room while its prompt is computed. Dropping it before it is ready closes the room.
#[derive(Debug)]
pub(super) struct Opened {
    desk: Arc<Desk>,
    room: u64,
    ready: bool,
}

impl Rooms {
    /// Listens.
    pub(super) async fn open(config: &DynamoConfig) -> Result<Self, ServeError> {
        let port = match config.hand_over {
            HandOver::Answer => 0,
            HandOver::Bootstrap { port } => port,
        };
        let host = config.runtime.request_host.clone().unwrap_or_else(|| "127.0.0.1".to_owned());
        // A name is one that others know us by: all interfaces.
        let bind = host.parse::<IpAddr>().map_or_else(|_| "0.0.0.0".to_owned(), |address| address.to_string());
        let refused =
            |error: io::Error| ServeError::Bind { what: "bootstrap", endpoint: format!("{bind}:{port}"), reason: error.to_string() };
        let listener = TcpListener::bind((bind.as_str(), port)).await.map_err(refused)?;
        let port = listener.local_addr().map_err(refused)?.port();
        let (desk, stop) = (Arc::new(Desk::default()), CancellationToken::new());
        let accept = accept(listener, desk.clone(), stop.clone());
        let until = stop.clone();
        let task = tokio::spawn(async move {
            // Whether it was cancelled: it never ends by itself.
            let _ = until.run_until_cancelled(accept).await;
        });
        Ok(Self { host, port, desk, task, stop: stop.drop_guard() })
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    pub(super) async fn close(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the meeting place of a simulated prefill worker failed");
        }
    }
}

impl Desk {
    /// A room for a prompt that is computed from now on. `None`: there is such a room already.
    pub(super) fn open(self: &Arc<Self>, room: u64) -> Option<Opened> {
        let mut rooms = self.rooms.lock();
        rooms.retain(|_, room| !matches!(room, Room::Ready(_, since) if since.elapsed() > KEPT));
        if rooms.contains_key(&room) {
            return None;
        }
        if rooms.len() >= MAX_ROOMS {
            let ready = rooms.iter().filter_map(|(name, room)| if let Room::Ready(_, since) = room { Some((*since, *name)) } else { None });
            if let Some((_, oldest)) = ready.min() {
                rooms.remove(&oldest);
            }
        }
        rooms.insert(room, Room::Open);
        drop(rooms);
        self.changed.notify_waiters();
        Some(Opened { desk: self.clone(), room, ready: false })
    }

    /// What is in a room, which is then gone; `None` if there is none, or none that becomes ready.
    async fn take(&self, room: u64, known: Known) -> Option<Prefilled> {
        let mut heard = known == Known::Opened;
        let search = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Before the look, so that no change is missed.
                changed.as_mut().enable();
                {
                    let mut rooms = self.rooms.lock();
                    match rooms.get(&room) {
                        Some(Room::Ready(prefilled, _)) => {
                            let prefilled = *prefilled;
                            rooms.remove(&room);
                            return Some(prefilled);
                        }
                        Some(Room::Open) => heard = true,
                        None if heard => return None,
                        None => {}
                    }
                }
                let patience = if heard { PATIENCE } else { UNHEARD };
                if timeout(patience, changed).await.is_err() {
                    return None;
                }
            }
        };
        timeout(PATIENCE, search).await.unwrap_or_default()
    }
}

impl Opened {
    /// The prompt is computed.
    pub(super) fn ready(mut self, prefilled: Prefilled) {
        self.ready = true;
        self.desk.rooms.lock().insert(self.room, Room::Ready(prefilled, Instant::now()));
        self.desk.changed.notify_waiters();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.ready {
            self.desk.rooms.lock().remove(&self.room);
            self.desk.changed.notify_waiters();
        }
    }
}

async fn accept(listener: TcpListener, desk: Arc<Desk>, stop: CancellationToken) {
    let visitors = Arc::new(Semaphore::new(MAX_VISITORS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(visitor) = visitors.clone().try_acquire_owned() else { continue };
                let (desk, until) = (desk.clone(), stop.clone());
                tokio::spawn(async move {
                    let _visitor = visitor;
                    if let Some(Err(error)) = until.run_until_cancelled(serve(stream, desk)).await {
                        tracing::debug!(%error, "a visitor left");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// `take ROOM` or `await ROOM`, answered with `TOKENS DIGEST` or `unknown`.
async fn serve(stream: TcpStream, desk: Arc<Desk>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let line = timeout(PATIENCE, line(&mut stream)).await??;
    let asked = [Known::Opened, Known::Expected].into_iter().find_map(|known| {
        let room = line.strip_prefix(known.verb())?.strip_prefix(' ')?;
        Some((room.parse().ok()?, known))
    });
    let (room, known) = asked.ok_or_else(|| io::Error::other("no room was named"))?;
    let answer = match desk.take(room, known).await {
        Some(Prefilled { tokens, digest }) => format!("{tokens} {digest:x}\n"),
        None => "unknown\n".to_owned(),
    };
    stream.write_all(answer.as_bytes()).await
}

async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.take(MAX_LINE_BYTES).read_line(&mut line).await?;
    Ok(line.trim_end().to_owned())
}

/// Takes what is in a room of a prefill worker. Why not, if not.
pub(super) async fn collect(host: &str, port: u16, room: u64, known: Known) -> Result<Prefilled, String> {
    let address = format!("{host}:{port}");
    let meet = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(format!("{} {room}\n", known.verb()).as_bytes()).await?;
        line(&mut BufReader::new(stream)).await
    };
    let told = timeout(2 * PATIENCE, meet).await.map_err(|_| format!("the prefill worker at {address} does not answer"))?;
    let told = told.map_err(|error| format!("the prefill worker at {address} cannot be reached: {error}"))?;
    let apart = told
        .split_once(' ')
        .and_then(|(tokens, digest)| Some(Prefilled { tokens: tokens.parse().ok()?, digest: u64::from_str_radix(digest, 16).ok()? }));
    apart.ok_or_else(|| format!("the prefill worker at {address} has nothing in room {room}: {told:?}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use transport::discovery::{Backend, MemStore};
    use worker::RuntimeConfig;

    use super::*;

    async fn rooms() -> Rooms {
        Rooms::open(&DynamoConfig::new(RuntimeConfig::local(Backend::Mem(MemStore::new())))).await.unwrap()
    }

    const PROMPT: Prefilled = Prefilled { tokens: 7, digest: 0xfeed };

    #[tokio::test]
    async fn a_room_is_waited_for_and_used_once() {
        let rooms = rooms().await;
        let port = rooms.port();
        let early = tokio::spawn(async move { collect("127.0.0.1", port, u64::MAX, Known::Expected).await });
        let opened = rooms.desk().open(u64::MAX).unwrap();
        assert!(rooms.desk().open(u64::MAX).is_none());
        opened.ready(PROMPT);
        assert_eq!(early.await.unwrap(), Ok(PROMPT));
        let opened = rooms.desk().open(5).unwrap();
        let waiting = tokio::spawn(async move { collect("127.0.0.1", port, 5, Known::Opened).await });
        // Whether the visitor sees the room and its end, or comes too late for both.
        drop(opened);
        assert!(waiting.await.unwrap().unwrap_err().contains("has nothing in room 5"));
        rooms.close().await;
        assert!(collect("127.0.0.1", port, 5, Known::Opened).await.unwrap_err().contains("cannot be reached"));
    }
}
