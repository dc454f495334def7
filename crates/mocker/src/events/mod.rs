//! KV events on their way out: numbering, encoding, the replay buffer, and the sockets.

mod buffer;
mod sockets;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use transport::zmtp::Endpoint;
use wire::encode::{self, Encoder};

use self::buffer::Buffer;
use self::sockets::{PubSocket, RouterSocket, bind_again};
use crate::adapters::Adapters;
use crate::config::{Config, EventsConfig, ServeError, SocketKind};
use crate::faults::Fate;
use crate::model::{KvEvent, StoredBlocks};

pub(crate) use self::buffer::ReplayCounts;

/// Tries to find neighbouring free ports at most, and to bind them.
const PORT_TRIES: usize = 32;

/// One rank's event stream.
pub(crate) struct Publisher {
    rank: u32,
    block_size: u32,
    encoder: Encoder,
    adapters: Arc<Adapters>,
    topic: Bytes,
    kind: SocketKind,
    endpoints: Endpoints,
    socket: PubSocket,
    replay: Option<AbortOnDropHandle<()>>,
    buffer: Arc<Mutex<Buffer>>,
    next_seq: u64,
}

/// Where one rank's events can be had, as bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    pub(crate) events: Endpoint,
    pub(crate) replay: Option<Endpoint>,
}

/// The publishers of all ranks.
pub(crate) async fn publishers(config: &Config, adapters: &Arc<Adapters>) -> Result<Vec<Publisher>, ServeError> {
    let Some(events) = &config.events else { return Ok(Vec::new()) };
    let mut tries = 0;
    loop {
        tries += 1;
        let bound = bind_all(config, events, adapters).await;
        if bound.is_ok() || tries == PORT_TRIES || !events.picks_ports() {
            return bound;
        }
    }
}

impl EventsConfig {
    /// Whether a second attempt would try other ports.
    fn picks_ports(&self) -> bool {
        self.port == 0 || self.replay.is_some_and(|replay| replay.port == 0)
    }
}

async fn bind_all(config: &Config, events: &EventsConfig, adapters: &Arc<Adapters>) -> Result<Vec<Publisher>, ServeError> {
    let ports = first_port(events.host, events.port, config.ranks);
    let replay_ports = events.replay.map(|replay| first_port(events.host, replay.port, config.ranks));
    let mut publishers = Vec::new();
    for rank in 0..config.ranks {
        let endpoints =
            Endpoints { events: endpoint(events.host, ports, rank), replay: replay_ports.map(|ports| endpoint(events.host, ports, rank)) };
        match Publisher::bind(config, events, adapters, (rank, endpoints)).await {
            Ok(publisher) => publishers.push(publisher),
            Err(error) => {
                for publisher in publishers {
                    publisher.close().await;
                }
                return Err(error);
            }
        }
    }
    Ok(publishers)
}

/// The first of `ranks` neighbouring ports. A port that is given stands; else one is looked for that is free together
/// with its neighbours now. Someone may take it before it is bound: the caller tries again.
fn first_port(host: IpAddr, port: u16, ranks: u32) -> u16 {
    if port != 0 || ranks == 1 {
        return port;
    }
    let neighbours = || {
        let first = TcpListener::bind(SocketAddr::new(host, 0)).ok()?.local_addr().ok()?.port();
        (1..ranks)
            .all(|rank| {
                u16::try_from(rank)
                    .ok()
                    .and_then(|rank| first.checked_add(rank))
                    .is_some_and(|port| TcpListener::bind((host, port)).is_ok())
            })
            .then_some(first)
    };
    (0..PORT_TRIES).find_map(|_| neighbours()).unwrap_or(0)
}

fn endpoint(host: IpAddr, first: u16, rank: u32) -> Endpoint {
    // Beyond the last port every rank wants the last one, and the second of them fails to bind, naming it.
    let port = if first == 0 { 0 } else { first.saturating_add(u16::try_from(rank).unwrap_or(u16::MAX)) };
    Endpoint::Tcp { host: host.to_string(), port }
}

impl Publisher {
    async fn bind(
        config: &Config,
        events: &EventsConfig,
        adapters: &Arc<Adapters>,
        (rank, wanted): (u32, Endpoints),
    ) -> Result<Self, ServeError> {
        let (socket, bound) = PubSocket::bind(events.sockets, &wanted.events).await?;
        let topic = Bytes::from(events.topic.clone().into_bytes());
        let buffer_steps = events.replay.map_or(0, |replay| replay.buffer_steps);
        let mut publisher = Self {
            rank,
            block_size: config.block_size.get(),
            encoder: Encoder { hashes: config.hashes, ..Encoder::new(config.generation) },
            adapters: adapters.clone(),
            buffer: Arc::new(Mutex::new(Buffer::new(config.generation, topic.clone(), buffer_steps))),
            topic,
            kind: events.sockets,
            endpoints: Endpoints { events: bound, replay: None },
            socket,
            replay: None,
            next_seq: 0,
        };
        if let Some(wanted) = wanted.replay {
            publisher.offer_replay(RouterSocket::bind(events.sockets, &wanted).await?);
        }
        Ok(publisher)
    }

    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Counts of the replay side, shared with it.
    pub(crate) fn replay_counts(&self) -> Arc<ReplayCounts> {
        self.buffer.lock().counts()
    }

    /// Numbers, encodes and sends one batch.
    pub(crate) async fn publish(&mut self, events: &[KvEvent], fate: Fate) {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.encoder.adapters = self.adapters.by_number();
        let payload = self.encoder.batch(timestamp, self.rank, &self.wire(events));
        let message = wire::Message { seq: self.next_seq, payload };
        self.next_seq += 1;
        match fate {
            Fate::Sent | Fate::Dropped => self.buffer.lock().push(message.clone()),
            Fate::Lost => {}
        }
        if fate == Fate::Sent {
            self.socket.send(encode::live(&self.topic, &message)).await;
        }
    }

    /// Closes the sockets and opens them again where they were, numbering from 0 with nothing to replay.
    pub(crate) async fn restart(mut self) -> Result<Self, ServeError> {
        let Endpoints { events, replay } = self.endpoints.clone();
        self.stop_replay().await;
        self.socket.close().await;
        let (socket, _) = bind_again(async || PubSocket::bind(self.kind, &events).await).await?;
        self.socket = socket;
        self.next_seq = 0;
        self.buffer.lock().clear();
        if let Some(endpoint) = replay {
            self.offer_replay(bind_again(async || RouterSocket::bind(self.kind, &endpoint).await).await?);
        }
        Ok(self)
    }

    pub(crate) async fn close(mut self) {
        self.stop_replay().await;
        self.socket.close().await;
    }

    fn offer_replay(&mut self, (router, bound): (RouterSocket, Endpoint)) {
        self.endpoints.replay = Some(bound);
        self.replay = Some(AbortOnDropHandle::new(tokio::spawn(router.answer(self.buffer.clone()))));
    }

    async fn stop_replay(&mut self) {
        if let Some(task) = self.replay.take() {
            task.abort();
            // The task is cancelled or has ended; either way its socket is gone once this returns.
            let _ = task.await;
        }
    }

    fn wire(&self, events: &[KvEvent]) -> Vec<wire::Event> {
        let mut out: Vec<wire::Event> = Vec::with_capacity(events.len());
        for event in events {
            match event {
                KvEvent::Stored(stored) => out.push(wire::Event::Stored(self.stored(stored))),
                KvEvent::Removed { hash } => self.removed(&mut out, *hash),
                KvEvent::Cleared => out.push(wire::Event::Cleared),
            }
        }
        out
    }

    fn stored(&self, stored: &StoredBlocks) -> wire::Stored {
        wire::Stored {
            block_hashes: stored.hashes.clone(),
            parent: stored.parent,
            tokens: wire::Tokens::Plain(stored.tokens.clone()),
            block_size: self.block_size,
            adapter: stored.adapter.as_deref().map_or(wire::Adapter::Base, |name| wire::Adapter::Named(name.to_owned())),
            salt: stored.salt.as_deref().filter(|_| self.is_sglang() || stored.parent.is_none()).map(str::to_owned),
            group: if self.is_sglang() { wire::Group::default() } else { full_attention() },
            ..wire::Stored::default()
        }
    }

    /// vLLM removes one block per event, SGLang many.
    fn removed(&self, out: &mut Vec<wire::Event>, hash: u64) {
        if self.is_sglang()
            && let Some(wire::Event::Removed(last)) = out.last_mut()
        {
            last.block_hashes.push(hash);
            return;
        }
        let group = if self.is_sglang() { wire::Group::default() } else { wire::Group { kind: None, ..full_attention() } };
        out.push(wire::Event::Removed(wire::Removed { block_hashes: vec![hash], group, ..wire::Removed::default() }));
    }

    fn is_sglang(&self) -> bool {
        matches!(self.encoder.generation, encode::Generation::Sglang056 | encode::Generation::Sglang0523)
    }
}

fn full_attention() -> wire::Group {
    wire::Group { idx: Some(0), kind: Some(wire::Kind::FullAttention) }
}
