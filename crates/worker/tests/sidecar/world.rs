//! An engine, a sidecar, and what discovery has of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io::BufReader,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use mocker::{Config, EventsConfig, Handle, ReplayConfig, SocketKind};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use transport::{
    discovery::{Backend, Change, Discovery, Options, Watch},
    nats::{Nats, NatsOptions},
    plane::{PlaneEvent, Subscription, SubscriptionOptions, Subscriptions},
    request::{Call, Client, ClientOptions},
};
use wire::{
    discovery::{EventChannel, EventSource, Key, OpenAiWorker, Record},
    recovery::{Answer, Item, Query},
    router::{KvData, RouterEvent},
};

/// Longer than anything here takes.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

/// An engine on free ports, as fast as it can be, whose answers take no time.
pub(crate) fn config() -> Config {
    let events = EventsConfig {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: 0,
        replay: Some(ReplayConfig { port: 0, buffer_steps: 10_000 }),
        topic: String::new(),
        sockets: SocketKind::Own,
    };
    Config { speedup: 0.0, events: Some(events), ..Config::default() }
}

pub(crate) async fn engine(config: Config) -> Handle {
    mocker::serve(config).await.unwrap()
}

/// Sends a prompt of so many tokens, all made of `seed`, to an engine and waits for its answer.
pub(crate) async fn complete(engine: &Handle, seed: u32, tokens: u32) {
    let prompt: Vec<u32> = (0..tokens).map(|at| 2 + (seed * 31 + at) % 200).collect();
    let body = format!(r#"{{"model":"mock-model","prompt":{prompt:?},"max_tokens":2}}"#);
    let text = post(engine.address(), "/v1/completions", &body).await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

async fn post(address: SocketAddr, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon("an answer of the engine", stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

/// A sidecar's process; killed when it is dropped.
pub(crate) struct Sidecar(pub(crate) Child);

impl Sidecar {
    /// Beside this engine, with discovery in a folder.
    pub(crate) fn start(folder: &Path, engine: &str, more: &[&str]) -> Self {
        let folder = folder.to_str().unwrap();
        Self::over(&["--discovery-backend", "file", "--file-kv", folder], engine, more)
    }

    /// Beside this engine, on these planes.
    pub(crate) fn over(planes: &[&str], engine: &str, more: &[&str]) -> Self {
        let mut command = command();
        command.args(["--engine", engine]).args(planes).args(more);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// The same, and its log.
    pub(crate) fn logged(folder: &Path, engine: &str) -> (Self, BufReader<ChildStderr>) {
        let mut command = command();
        command.args(["--engine", engine, "--discovery-backend", "file", "--file-kv", folder.to_str().unwrap()]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        (Self(child), log)
    }

    pub(crate) fn terminate(&self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM).unwrap();
    }

    /// How it ended.
    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        let wait = async {
            loop {
                if let Some(status) = self.0.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("the sidecar to end", wait).await
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The binary, without what the surroundings may have set.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynamo-worker"));
    let ours = |name: &str| ["DYN_", "ETCD_", "NATS_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command
}

/// What a frontend sees.
pub(crate) struct Frontend {
    pub(crate) folder: TempDir,
    _discovery: Discovery,
    watch: Watch,
    records: BTreeMap<Key, Record>,
    pub(crate) subscriptions: Subscriptions,
    client: Client,
}

impl Frontend {
    /// With discovery in a folder.
    pub(crate) async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let backend = Backend::File { root: folder.path().to_owned() };
        Self::over(folder, backend, "nats://127.0.0.1:1".to_owned()).await
    }

    pub(crate) async fn over(folder: TempDir, backend: Backend, nats: String) -> Self {
        let discovery = Discovery::open(backend, Options::default()).unwrap();
        let watch = discovery.watch("v1/");
        let connect = move || Nats::connect(&nats, NatsOptions::default()).unwrap();
        Self {
            folder,
            watch,
            _discovery: discovery,
            records: BTreeMap::new(),
            subscriptions: Subscriptions::new(connect, SubscriptionOptions::default()),
            client: Client::new(ClientOptions::default()).await.unwrap(),
        }
    }

    /// Waits until the records are such that `look` finds something in them.
    pub(crate) async fn until<T>(&mut self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = look(self) {
                    return found;
                }
                match self.watch.next().await.unwrap() {
                    Change::Reset(all) => self.records = all.into_iter().map(|(key, bytes)| (key, read(&bytes))).collect(),
                    Change::Add(key, bytes) => drop(self.records.insert(key, read(&bytes))),
                    Change::Remove(key) => drop(self.records.remove(&key)),
                }
            }
        };
        timeout(SOON, found).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
    }

    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn worker(&self) -> Option<OpenAiWorker> {
        self.records.values().find_map(|record| if let Record::OpenAiWorker(worker) = record { Some(worker.clone()) } else { None })
    }

    /// The source of a rank, once there is a channel for it.
    pub(crate) fn source(&self, dp_rank: u32) -> Option<EventSource> {
        let source = self.records.values().find_map(|record| match record {
            Record::EventSource(source) if source.dp_rank == dp_rank => Some(source.clone()),
            _ => None,
        });
        source.filter(|source| self.channel("kv-events", Some(source.publisher_id)).is_some())
    }

    pub(crate) fn channel(&self, topic: &str, publisher: Option<u64>) -> Option<EventChannel> {
        let channels =
            self.records.values().filter_map(|record| if let Record::EventChannel(channel) = record { Some(channel) } else { None });
        channels.filter(|channel| channel.topic == topic).find(|channel| publisher.is_none_or(|id| id == channel.instance_id)).cloned()
    }

    /// What a source answers.
    pub(crate) async fn ask(&self, source: &EventSource, query: Query) -> Vec<Answer> {
        self.items(source, query).await.into_iter().map(|item| item.answer).collect()
    }

    /// The same, as it comes.
    pub(crate) async fn items(&self, source: &EventSource, query: Query) -> Vec<Item> {
        let target = source.recovery_target.as_ref().unwrap();
        let call = Call::to(target, query.encode()).unwrap();
        let mut responses = soon("an acknowledgement", self.client.call(call)).await.unwrap();
        let mut items = Vec::new();
        while let Some(item) = soon("an answer", responses.next()).await {
            items.push(Item::decode(&item.unwrap()).unwrap().0);
        }
        items
    }

    /// The engine's names of the blocks that a source says its rank holds.
    pub(crate) async fn held(&self, source: &EventSource) -> BTreeSet<u64> {
        let answers = self.ask(source, Query::everything(source.worker_id, source.dp_rank)).await;
        let mut held = BTreeSet::new();
        for answer in answers {
            match answer {
                Answer::TreeDump { events, .. } => fold(&events, &mut held),
                other => panic!("{other:?}"),
            }
        }
        held
    }

    /// Waits until a source holds what the engine's rank has.
    pub(crate) async fn holds_the_truth(&self, source: &EventSource, engine: &Handle, rank: usize) -> usize {
        let same = async {
            loop {
                let truth: BTreeSet<u64> = engine.cached_blocks(rank).unwrap().into_keys().collect();
                if self.held(source).await == truth {
                    return truth.len();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon("what is published to be what the engine has", same).await
    }
}

/// Applies events to a set of names.
pub(crate) fn fold(events: &[RouterEvent], held: &mut BTreeSet<u64>) {
    for event in events {
        match &event.event.data {
            KvData::Stored(stored) => held.extend(stored.blocks.iter().map(|block| block.block_hash)),
            KvData::Removed(hashes) => held.retain(|hash| !hashes.contains(hash)),
            KvData::Cleared => held.clear(),
        }
    }
}

/// The payload of the next message.
pub(crate) async fn message(subscription: &mut Subscription) -> Bytes {
    let next = async {
        loop {
            match subscription.next().await {
                PlaneEvent::Envelope(envelope) => return envelope.payload,
                // NATS is dialled by the first who subscribes.
                PlaneEvent::Connected | PlaneEvent::Disconnected { .. } => {}
                other @ (PlaneEvent::Dropped { .. } | PlaneEvent::Malformed { .. }) => panic!("{other:?}"),
            }
        }
    };
    soon("a message", next).await
}

fn read(bytes: &Bytes) -> Record {
    Record::from_json(bytes).unwrap()
}
