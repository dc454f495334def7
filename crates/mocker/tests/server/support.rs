//! What the tests share: an HTTP client, and a consumer of events that counts.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use mocker::{Config, Handle};
use serde_json::Value;
use transport::zmtp::{Dealer, Endpoint, Options, Sub, SubEvent};
use wire::{Adapter, Event, Framed, Message, Tokens};

/// Nothing in these tests takes nearly this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const BLOCK: usize = 8;

/// A small engine that does not wait.
pub(crate) fn quick() -> Config {
    Config {
        block_size: NonZeroU32::new(BLOCK as u32).unwrap(),
        blocks: 64,
        max_model_len: 256,
        max_batched_tokens: 64,
        speedup: 0.0,
        ..Config::default()
    }
}

pub(crate) async fn start(config: Config) -> Handle {
    mocker::serve(config).await.unwrap()
}

/// One whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {:?}", self.text))
    }

    /// Payloads of the events of a stream.
    pub(crate) fn events(&self) -> Vec<String> {
        self.text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("an event").to_owned()).collect()
    }
}

/// Sends a request and gives the answer as soon as its head is there.
pub(crate) async fn send(
    handle: &Handle,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Result<Response<hyper::body::Incoming>, hyper_util::client::legacy::Error> {
    let mut request = Request::builder().method(method).uri(format!("{}{path}", handle.url()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let client = Client::builder(TokioExecutor::new()).build_http();
    client.request(request.body(Full::new(body)).unwrap()).await
}

pub(crate) async fn call(handle: &Handle, method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
    let (head, body) = send(handle, method, path, headers, &body).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { status: head.status, headers: head.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

pub(crate) async fn get(handle: &Handle, path: &str) -> Answer {
    call(handle, "GET", path, &[], Value::Null).await
}

pub(crate) async fn post(handle: &Handle, path: &str, body: Value) -> Answer {
    call(handle, "POST", path, &[], body).await
}

/// Polls until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Everything one replay request brings. Frame counts are of the messages as a DEALER sees them.
pub(crate) struct Replay {
    pub(crate) batches: Vec<Message>,
    pub(crate) frames: Vec<usize>,
}

pub(crate) async fn replay(endpoint: &Endpoint, start: u64) -> Replay {
    let asking = async {
        let mut dealer = Dealer::connect(endpoint, &Options::default()).await.unwrap();
        dealer.send(&[Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())]).await.unwrap();
        let mut replay = Replay { batches: Vec::new(), frames: Vec::new() };
        loop {
            let frames = dealer.recv().await.unwrap();
            replay.frames.push(frames.len());
            match wire::message(&frames).unwrap() {
                Framed::Batch(message) => replay.batches.push(message),
                Framed::EndOfReplay => return replay,
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("a replay ends")
}

/// The next live message, and the topic it came with.
pub(crate) async fn live(sub: &mut Sub) -> (Bytes, Message) {
    let listening = async {
        loop {
            let SubEvent::Message(frames) = sub.next().await else { continue };
            let Framed::Batch(message) = wire::message(&frames).unwrap() else { panic!("an end marker on PUB") };
            return (frames[0].clone(), message);
        }
    };
    tokio::time::timeout(PATIENCE, listening).await.expect("a live message")
}

/// What happens next at a subscriber.
pub(crate) async fn next(sub: &mut Sub) -> SubEvent {
    tokio::time::timeout(PATIENCE, sub.next()).await.expect("something happens")
}

/// (parent, tokens, adapter, salt): what a block is, whatever the engine calls it.
type Said = (Option<u64>, Vec<u32>, Adapter, Option<String>);

/// A consumer that keeps nothing but what the events say.
#[derive(Default)]
pub(crate) struct Fold {
    pub(crate) copies: HashMap<u64, usize>,
    said: HashMap<u64, Said>,
    pub(crate) next_seq: u64,
}

impl Fold {
    /// Applies a batch; the sequence must be without holes.
    pub(crate) fn apply(&mut self, message: &Message, rank: u32) {
        assert_eq!(message.seq, self.next_seq);
        self.next_seq += 1;
        let batch = wire::batch(&message.payload).unwrap();
        assert_eq!(batch.rank, Some(rank));
        assert!(batch.timestamp.is_some_and(|timestamp| timestamp > 1.7e9), "seconds since the epoch");
        for event in batch.events {
            match event.unwrap() {
                Event::Stored(stored) => self.store(&stored),
                Event::Removed(removed) => removed.block_hashes.iter().for_each(|hash| self.remove(*hash)),
                Event::Cleared => self.copies.clear(),
                Event::Unknown(tag) => panic!("unknown event {tag}"),
            }
        }
    }

    fn store(&mut self, stored: &wire::Stored) {
        assert_eq!(stored.block_size as usize, BLOCK);
        let Tokens::Plain(tokens) = &stored.tokens else { panic!("plain tokens") };
        assert_eq!(tokens.len(), BLOCK * stored.block_hashes.len());
        let mut parent = stored.parent;
        for (hash, tokens) in stored.block_hashes.iter().zip(tokens.chunks(BLOCK)) {
            // A child's salt is its parent's, where events name it only at the start.
            let salt = match parent {
                None => stored.salt.clone(),
                Some(parent) => self.said[&parent].3.clone(),
            };
            self.said.insert(*hash, (parent, tokens.to_vec(), stored.adapter.clone(), salt));
            *self.copies.entry(*hash).or_default() += 1;
            parent = Some(*hash);
        }
    }

    fn remove(&mut self, hash: u64) {
        let copies = self.copies.get_mut(&hash).expect("a removal names a stored block");
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&hash);
        }
    }

    /// Rule 3: the tokens an engine should report as cached for a prompt.
    pub(crate) fn cached_tokens(&self, prompt: &[u32], adapter: &Adapter, salt: Option<&str>) -> usize {
        let mut parent = None;
        let mut matched = 0;
        for tokens in prompt.chunks_exact(BLOCK) {
            let key = (parent, tokens.to_vec(), adapter.clone(), salt.map(str::to_owned));
            let Some((hash, _)) = self.said.iter().find(|(hash, said)| **said == key && self.copies.contains_key(hash)) else { break };
            parent = Some(*hash);
            matched += 1;
        }
        BLOCK * matched.min((prompt.len() - 1) / BLOCK)
    }
}
