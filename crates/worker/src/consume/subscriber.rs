//! [`KvSubscriber`]: events as they come, for those who keep something else than an index of them.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use transport::{
    discovery::Watch,
    follow::SourceSpec,
    plane::{PlaneEvent, Subscription, Subscriptions},
    request::{Call, CallError, Client},
};
use wire::{
    discovery::{Endpoint, EventChannel},
    recovery::{Answer, AnswerError, Item, Query},
    router::{RouterEvent, decode_events},
};

use super::{
    Followed, clients,
    publishers::{Publishers, Rank},
};
use crate::runtime::{Runtime, RuntimeError};

/// Notices that wait for the reader; then the subscriptions' own queues fill, which tell what they drop.
const NOTICES: usize = 256;

/// What a subscriber hears, in the order of each publisher.
#[derive(Clone, Debug, PartialEq)]
pub enum KvNotice {
    /// A change of one rank's cache.
    Event {
        /// Who tells it: event ids count by publisher.
        publisher_id: u64,
        /// What changed.
        event: Box<RouterEvent>,
    },
    /// What this publisher publishes from now on arrives; what it published before may have been missed.
    Connected {
        /// The worker.
        worker_id: u64,
        /// Its rank.
        dp_rank: u32,
        /// The publisher.
        publisher_id: u64,
    },
    /// Something of this publisher did not arrive.
    Missed {
        /// The worker.
        worker_id: u64,
        /// Its rank.
        dp_rank: u32,
        /// The publisher.
        publisher_id: u64,
    },
    /// The publisher is gone, and with it what it said.
    Gone {
        /// The worker.
        worker_id: u64,
        /// Its rank.
        dp_rank: u32,
        /// The publisher.
        publisher_id: u64,
    },
}

/// Why there is no answer to a recovery query.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// Nobody publishes for the rank, or whoever does keeps nothing.
    #[error("nobody answers for what was missed of worker {0} rank {1}")]
    Nobody(u64, u32),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer cannot be read.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The publisher refused.
    #[error("the publisher refused: {0}")]
    Refused(String),
}

/// Hears every publisher of KV events of a component, and those that come. Dropping it ends it.
#[derive(Debug)]
pub struct KvSubscriber {
    notices: tokio::sync::Mutex<mpsc::Receiver<KvNotice>>,
    client: Client,
    /// Who can be asked. Held for a copy or a change.
    known: Arc<Mutex<BTreeMap<Rank, Vec<SourceSpec>>>>,
    _task: AbortOnDropHandle<()>,
}

/// What the task owns.
struct Keeper {
    handle: tokio::runtime::Handle,
    subscriptions: Subscriptions,
    known: Arc<Mutex<BTreeMap<Rank, Vec<SourceSpec>>>>,
    to: mpsc::Sender<KvNotice>,
    heard: BTreeMap<(Rank, u64), (EventChannel, AbortOnDropHandle<()>)>,
}

impl KvSubscriber {
    /// Hears from now on, whether or not any plane is there.
    pub async fn start(runtime: &Runtime, of: Followed) -> Result<Self, RuntimeError> {
        let (subscriptions, client) = clients(runtime).await?;
        let (to, notices) = mpsc::channel(NOTICES);
        let known = Arc::default();
        let handle = runtime.handle().clone();
        let keeper = Keeper { handle, subscriptions, known: Arc::clone(&known), to, heard: BTreeMap::new() };
        let task = runtime.handle().spawn(keeper.run(runtime.discovery().watch("v1/"), Publishers::new(of)));
        Ok(Self { notices: tokio::sync::Mutex::new(notices), client, known, _task: AbortOnDropHandle::new(task) })
    }

    /// What is heard next; `None` once discovery has been closed. Cancel-safe.
    pub async fn next(&self) -> Option<KvNotice> {
        self.notices.lock().await.recv().await
    }

    /// Asks the newest publisher of a rank for its events from this one on, or, without one, for all that the rank holds: events that
    /// rebuild it from nothing. Older events than are kept are answered so, too. Gives the answers, and the last event that is in them.
    pub async fn recover(&self, worker_id: u64, dp_rank: u32, start_event_id: Option<u64>) -> Result<(Recovered, u64), RecoverError> {
        let query = Query { start_event_id, pages: true, ..Query::everything(worker_id, dp_rank) };
        let call = self.recovery_of((worker_id, dp_rank)).and_then(|target| Call::to(&target, query.encode()));
        let mut answers = self.client.call(call.ok_or(RecoverError::Nobody(worker_id, dp_rank))?).await?;
        let (mut recovered, mut last) = (Recovered::Events(Vec::new()), 0);
        while let Some(item) = answers.next().await {
            match Item::decode(&item?)?.0.answer {
                Answer::Events { events, last_event_id } => {
                    recovered.add(events);
                    last = last_event_id;
                }
                Answer::TreeDump { events, last_event_id, .. } => {
                    recovered.rebuild();
                    recovered.add(events);
                    last = last_event_id;
                }
                // Nothing is missing.
                Answer::TooNew { newest_available, .. } => last = newest_available,
                Answer::TreeDumpFailed { message, .. } | Answer::Error(message) => return Err(RecoverError::Refused(message)),
                Answer::InvalidRange { start_id, end_id } => {
                    return Err(RecoverError::Refused(format!("{start_id} to {end_id} is no range")));
                }
                Answer::Unknown(name) => return Err(RecoverError::Refused(format!("{name} is not known here"))),
            }
        }
        Ok((recovered, last))
    }

    fn recovery_of(&self, rank: Rank) -> Option<Endpoint> {
        self.known.lock().get(&rank)?.iter().rev().find_map(|source| source.recovery.clone())
    }
}

/// What a publisher answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// The events asked for.
    Events(Vec<RouterEvent>),
    /// Everything that the rank holds: what was known of it before is void.
    Everything(Vec<RouterEvent>),
}

impl Recovered {
    fn rebuild(&mut self) {
        if let Self::Events(events) = self {
            *self = Self::Everything(std::mem::take(events));
        }
    }

    fn add(&mut self, more: Vec<RouterEvent>) {
        match self {
            Self::Events(events) | Self::Everything(events) => events.extend(more),
        }
    }
}

impl Keeper {
    async fn run(mut self, mut watch: Watch, mut publishers: Publishers) {
        while let Some(change) = watch.next().await {
            publishers.take(change);
            let wanted = publishers.by_rank();
            self.known.lock().clone_from(&wanted);
            self.update(wanted).await;
        }
    }

    async fn update(&mut self, wanted: BTreeMap<Rank, Vec<SourceSpec>>) {
        let channels = wanted
            .into_iter()
            .flat_map(|(rank, sources)| sources.into_iter().filter_map(move |source| Some(((rank, source.publisher_id), source.channel?))));
        let channels: BTreeMap<(Rank, u64), EventChannel> = channels.collect();
        let gone = self.heard.extract_if(.., |key, (channel, _)| channels.get(key) != Some(channel));
        let gone: Vec<_> = gone.map(|((rank, publisher_id), (_, task))| ((rank, publisher_id), task)).collect();
        for (_, task) in &gone {
            task.abort();
        }
        let notices = gone.iter().map(|(((worker_id, dp_rank), publisher_id), _)| {
            let notice = KvNotice::Gone { worker_id: *worker_id, dp_rank: *dp_rank, publisher_id: *publisher_id };
            // Nobody reads any more.
            async { drop(self.to.send(notice).await) }
        });
        join_all(notices).await;
        for (key, channel) in channels {
            if self.heard.contains_key(&key) {
                continue;
            }
            let subscription = self.subscriptions.subscribe(&channel);
            let task = self.handle.spawn(hear(subscription, key, self.to.clone()));
            self.heard.insert(key, (channel, AbortOnDropHandle::new(task)));
        }
    }
}

/// Hands on what one publisher says.
async fn hear(mut subscription: Subscription, ((worker_id, dp_rank), publisher_id): (Rank, u64), to: mpsc::Sender<KvNotice>) {
    let missed = || KvNotice::Missed { worker_id, dp_rank, publisher_id };
    loop {
        let mut notices = Vec::new();
        match subscription.next().await {
            PlaneEvent::Connected => notices.push(KvNotice::Connected { worker_id, dp_rank, publisher_id }),
            PlaneEvent::Disconnected { .. } => {}
            PlaneEvent::Dropped { .. } | PlaneEvent::Malformed { .. } => notices.push(missed()),
            PlaneEvent::Envelope(envelope) => match decode_events(&envelope.payload) {
                Ok(events) => notices.extend(events.into_iter().map(|event| match event {
                    Ok(event) => KvNotice::Event { publisher_id, event: Box::new(event) },
                    Err(_) => missed(),
                })),
                Err(_) => notices.push(missed()),
            },
        }
        for notice in notices {
            if to.send(notice).await.is_err() {
                return;
            }
        }
    }
}
