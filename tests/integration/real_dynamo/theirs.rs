//! What real workers say of themselves: their sources in discovery, and the dumps of their recovery endpoints.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use transport::{
    discovery::{Change, Discovery, Options, Watch},
    request::{Call, Client, ClientOptions},
};
use wire::{
    discovery::{Bucket, EventSource, Key, Record},
    recovery::{Answer, Item, Query},
};

use super::{held::Held, peers::Planes};

/// Follows the sources and asks them.
pub(super) struct Theirs {
    sources: Arc<Mutex<BTreeMap<Key, EventSource>>>,
    client: Client,
    _discovery: Discovery,
    _follow: AbortOnDropHandle<()>,
}

impl Theirs {
    pub(super) async fn open(planes: &Planes) -> Self {
        let discovery = Discovery::open(planes.backend.clone(), Options::default()).unwrap();
        let watch = discovery.watch(&Bucket::EventSources.prefix());
        let sources = Arc::new(Mutex::new(BTreeMap::new()));
        let follow = AbortOnDropHandle::new(tokio::spawn(follow(watch, sources.clone())));
        let client = Client::new(ClientOptions::default()).await.unwrap();
        Self { sources, client, _discovery: discovery, _follow: follow }
    }

    pub(super) fn sources(&self) -> Vec<EventSource> {
        self.sources.lock().values().cloned().collect()
    }

    /// The dumps of all. What cannot be asked, because it has just died, is an error in words.
    pub(super) async fn held(&self) -> Result<Held, String> {
        let mut held = Held::default();
        for source in self.sources() {
            let query = Query::everything(source.worker_id, source.dp_rank);
            let target = source.recovery_target.as_ref().expect("a real worker can be asked");
            let call = Call::to(target, query.encode()).unwrap();
            let mut answers = self.client.call(call).await.map_err(|error| error.to_string())?;
            let item = answers.next().await.ok_or("no answer")?.map_err(|error| error.to_string())?;
            let (Item { answer: Answer::TreeDump { events, .. }, .. }, 0) = Item::decode(&item).map_err(|error| error.to_string())? else {
                return Err(format!("no dump of {source:?}"));
            };
            for event in events {
                held.apply(&serde_json::from_str(&event.to_json()).unwrap());
            }
        }
        Ok(held.settled())
    }
}

async fn follow(mut watch: Watch, sources: Arc<Mutex<BTreeMap<Key, EventSource>>>) {
    let source = |value: &[u8]| match Record::from_json(value) {
        Ok(Record::EventSource(source)) => Some(source),
        _ => None,
    };
    while let Some(change) = watch.next().await {
        let mut sources = sources.lock();
        match change {
            Change::Reset(all) => {
                *sources = all.iter().filter_map(|(key, value)| Some((key.clone(), source(value)?))).collect();
            }
            Change::Add(key, value) => {
                if let Some(source) = source(&value) {
                    sources.insert(key, source);
                }
            }
            Change::Remove(key) => {
                sources.remove(&key);
            }
        }
    }
}
