//! An engine that plays a script: it answers HTTP as told, publishes the frames it is given, and replays what it is told
//! to have kept. It shares no code with what reads the events.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router as Routes, body::Body, extract::State};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use serde_json::{Value, json};
use testkit::servers::bind_again;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::task::AbortOnDropHandle;
use transport::zmtp::{Endpoint, Options, Pub, Router};

/// Whose questions it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Vllm,
    Sglang,
}

/// What the engine is.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) family: Family,
    pub(crate) model: String,
    pub(crate) adapters: Vec<String>,
    pub(crate) block_size: u32,
    pub(crate) topic: String,
    /// Frames of a replayed message as a DEALER gets it, 3 or 4; `None`: no replay socket.
    pub(crate) replay_frames: Option<u32>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            family: Family::Vllm,
            model: "tiny".to_owned(),
            adapters: Vec::new(),
            block_size: 32,
            topic: "kv-events".to_owned(),
            replay_frames: Some(4),
        }
    }
}

/// What is sent back for a path.
#[derive(Clone, Debug)]
struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
}

/// What the replay socket has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// Sequence and frames as a DEALER gets them.
    pub(crate) messages: Vec<(u64, Vec<Bytes>)>,
    /// So many messages of an answer arrive at most; the rest, and the end marker with them, is lost on the way.
    pub(crate) arrive_at_most: Option<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    /// By path, without its query.
    replies: Mutex<HashMap<String, Reply>>,
    /// Paths whose answers wait for a permit each.
    gates: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Paths that were asked for, in order.
    asked: Mutex<Vec<String>>,
    kept: Mutex<Kept>,
    /// First sequence number of each replay that was asked for.
    replays_asked: Mutex<Vec<u64>>,
}

/// A running engine; it ends when dropped.
pub(crate) struct ScriptedEngine {
    pub(crate) address: SocketAddr,
    setup: Setup,
    shared: Arc<Shared>,
    /// `None` only while it is being replaced.
    publisher: Option<Pub>,
    life: u32,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl ScriptedEngine {
    pub(crate) async fn start(setup: Setup) -> Self {
        let shared = Arc::new(Shared::default());
        let publisher = Pub::bind(&any_port(), Options::default()).await.unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Routes::new().fallback(answer).with_state(shared.clone());
        let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() }))];
        let mut replay = None;
        if let Some(frames) = setup.replay_frames {
            let router = Router::bind(&any_port(), Options::default()).await.unwrap();
            replay = Some(port(&router.endpoint()));
            tasks.push(AbortOnDropHandle::new(tokio::spawn(replays(router, shared.clone(), frames))));
        }
        let engine = Self { address, setup, shared, publisher: Some(publisher), life: 1, _tasks: tasks };
        engine.introduce(port(&engine.publisher().endpoint()), replay);
        engine
    }

    /// What an engine says about itself.
    fn introduce(&self, events: u16, replay: Option<u16>) {
        let Setup { family, model, adapters, block_size, topic, .. } = &self.setup;
        let adapter = |name: &String| json!({"id": name, "object": "model", "parent": model, "max_model_len": null});
        let cards = [json!({"id": model, "object": "model", "parent": null, "max_model_len": 2048})];
        let cards: Vec<Value> = cards.into_iter().chain(adapters.iter().map(adapter)).collect();
        self.reply("/v1/models", 200, &json!({"object": "list", "data": cards}));
        self.reply("/health", 200, &Value::Null);
        match family {
            Family::Vllm => {
                let replay_endpoint = replay.map(|port| format!("tcp://*:{port}"));
                let source = json!({
                    "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": format!("tcp://*:{events}"),
                    "replay_endpoint": replay_endpoint, "topic": topic,
                });
                self.reply("/kv_event_sources", 200, &json!({"0": source}));
                self.show_metrics();
            }
            Family::Sglang => {
                let events = json!({
                    "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": events, "topic": topic,
                    "block_size": block_size, "dp_size": 1, "replay_endpoint_port_base": replay,
                });
                self.reply("/server_info", 200, &json!({"page_size": block_size, "dp_size": 1, "kv_events": events}));
            }
        }
    }

    fn show_metrics(&self) {
        let Self { setup: Setup { block_size, .. }, life, .. } = self;
        let page = format!(
            "vllm:cache_config_info{{block_size=\"{block_size}\",engine=\"0\",num_gpu_blocks=\"100\"}} 1.0\n\
             process_start_time_seconds {life}.0\n"
        );
        self.set("/metrics", Reply { status: StatusCode::OK, content_type: "text/plain", body: page.into() });
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on this is the answer on `path`: text as an event stream, anything else as JSON.
    pub(crate) fn reply(&self, path: &str, status: u16, body: &Value) {
        let (content_type, body) = match body {
            Value::Null => ("text/plain", Bytes::new()),
            Value::String(stream) => ("text/event-stream; charset=utf-8", Bytes::from(stream.clone())),
            json => ("application/json", Bytes::from(json.to_string())),
        };
        self.set(path, Reply { status: StatusCode::from_u16(status).unwrap(), content_type, body });
    }

    fn set(&self, path: &str, reply: Reply) {
        self.shared.replies.lock().unwrap().insert(path.to_owned(), reply);
    }

    /// From now on each answer on `path` waits for a permit of what is returned, and uses it up.
    pub(crate) fn gate(&self, path: &str) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.shared.gates.lock().unwrap().insert(path.to_owned(), gate.clone());
        gate
    }

    /// How often `path` was asked for.
    pub(crate) fn asked(&self, path: &str) -> usize {
        self.shared.asked.lock().unwrap().iter().filter(|asked| *asked == path).count()
    }

    /// First sequence number of each replay that was asked for.
    pub(crate) fn replays_asked(&self) -> Vec<u64> {
        self.shared.replays_asked.lock().unwrap().clone()
    }

    fn publisher(&self) -> &Pub {
        self.publisher.as_ref().unwrap()
    }

    /// Waits for a subscriber: what is published from then on reaches it.
    pub(crate) async fn subscribed(&self) {
        tokio::time::timeout(super::PATIENCE, self.publisher().subscribed(1)).await.expect("the frontend subscribes");
    }

    /// Publishes topic, sequence and payload, and keeps them for replay.
    pub(crate) fn publish(&self, frames: &[Bytes]) {
        let [topic, sequence, payload] = frames else { panic!("{} frames", frames.len()) };
        let seq = u64::from_be_bytes(sequence[..].try_into().unwrap());
        let replayed = match self.setup.replay_frames {
            Some(3) => vec![Bytes::new(), sequence.clone(), payload.clone()],
            _ => vec![Bytes::new(), topic.clone(), sequence.clone(), payload.clone()],
        };
        self.shared.kept.lock().unwrap().messages.push((seq, replayed));
        self.send(frames);
    }

    /// Publishes and does not keep.
    pub(crate) fn send(&self, frames: &[Bytes]) {
        self.publisher().send(frames.to_vec());
    }

    /// Replaces what the replay socket has.
    pub(crate) fn keep(&self, kept: Kept) {
        *self.shared.kept.lock().unwrap() = kept;
    }

    /// The event socket's connections break; whoever comes back finds the same process.
    pub(crate) async fn cut_events(&mut self) {
        let publisher = self.publisher.take().unwrap();
        let endpoint = publisher.endpoint();
        publisher.shutdown(Duration::from_secs(1)).await;
        self.publisher = Some(bind_again(async || Pub::bind(&endpoint, Options::default()).await).await);
    }

    /// Another process takes its place on the same ports, with nothing to replay.
    pub(crate) async fn restart(&mut self) {
        self.life += 1;
        self.keep(Kept::default());
        if self.setup.family == Family::Vllm {
            self.show_metrics();
        }
        self.cut_events().await;
    }
}

fn any_port() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

fn port(endpoint: &Endpoint) -> u16 {
    match endpoint {
        Endpoint::Tcp { port, .. } => *port,
        Endpoint::Ipc(_) => panic!("not tcp"),
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    shared.asked.lock().unwrap().push(path.clone());
    let gate = shared.gates.lock().unwrap().get(&path).cloned();
    if let Some(gate) = gate {
        gate.acquire().await.unwrap().forget();
    }
    let found = shared.replies.lock().unwrap().get(&path).cloned();
    let not_found = || Reply { status: StatusCode::NOT_FOUND, content_type: "application/json", body: r#"{"detail":"Not Found"}"#.into() };
    let Reply { status, content_type, body } = found.unwrap_or_else(not_found);
    Response::builder().status(status).header(header::CONTENT_TYPE, content_type).body(Body::from(body)).unwrap()
}

/// Answers replay requests as vLLM does: an empty frame and 8 bytes of sequence; others get no answer.
async fn replays(router: Router, shared: Arc<Shared>, frames: u32) {
    let marker_sequence = Bytes::from_static(&[0xff; 8]);
    let mut marker = vec![Bytes::new(); frames as usize];
    marker[frames as usize - 2] = marker_sequence;
    loop {
        let (peer, request) = router.recv().await;
        let [delimiter, start] = &request[..] else { continue };
        let (true, Ok(start)) = (delimiter.is_empty(), start[..].try_into()) else { continue };
        let start = u64::from_be_bytes(start);
        shared.replays_asked.lock().unwrap().push(start);
        let kept = shared.kept.lock().unwrap().clone();
        let messages = kept.messages.into_iter().filter(|(seq, _)| *seq >= start).map(|(_, frames)| frames);
        let most = kept.arrive_at_most.unwrap_or(usize::MAX);
        for message in messages.chain([marker.clone()]).take(most) {
            if router.send(&peer, &message).await.is_err() {
                break;
            }
        }
    }
}
