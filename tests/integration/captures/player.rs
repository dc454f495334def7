//! Plays a recording to a frontend: frames are published, requests asked about and sent, resets passed on.

use serde_json::{Value, json};
use testkit::captures::{self, Capture, Control, Line, Live, Request};

use super::{
    difference::{Difference, Found, assert_listed},
    oracle::Oracle,
};
use crate::support::{
    engine::{Family, ScriptedEngine, Setup},
    eventually,
    frontend::Frontend,
    seen,
};

const MODEL_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/tiny-llama");

/// One engine that plays the recording, and how the frontend listens to it.
struct Seat {
    name: &'static str,
    worker: String,
    engine: ScriptedEngine,
    replays: bool,
    oracle: Oracle,
    last_seq: Option<u64>,
    /// Answers that must have been compared by the frontend itself: as predicted, predicted more, predicted less.
    checks: [u64; 3],
}

/// A recording on its way through a frontend.
struct Player<'a> {
    frontend: &'a Frontend,
    seats: Vec<Seat>,
    block_size: u64,
    part: Option<String>,
    compared: usize,
    hits: usize,
    found: Vec<Found>,
    /// Resets that were passed on, refused ones included.
    resets: usize,
    /// Requests for full reports that were sent, to any seat.
    full_reports: usize,
}

/// Plays a recording of vLLM itself: the requests as the clients sent them, the answers as the engine gave them.
pub(super) async fn play_vllm(file: &str, compared: usize, listed: &[Difference]) {
    let capture = captures::load(&format!("vllm/{file}"));
    let frontend = Frontend::start(&["--router-mode", "kv", "--model-path", MODEL_FOLDER]);
    let seats = seats(&frontend, &capture, None).await;
    let mut player = Player::new(&frontend, &capture, seats, None);
    for line in &capture.lines {
        player.line(line).await;
    }
    player.frontend_agrees().await;
    assert_eq!(player.compared, compared, "requests that were compared");
    assert_eq!(player.resets, if file.starts_with("05") { 4 } else { 0 }, "resets that were passed on");
    let full_reports = if file.starts_with("08") { player.seats.len() } else { 0 };
    assert_eq!(player.full_reports, full_reports, "requests for full reports");
    assert_listed(&player.found, listed, &["replayed", "live only"]);
}

/// Plays a recording that was re-encoded as another release writes it. It has no answers, so nothing is sent.
pub(super) async fn play_legacy(file: &str, listed: &[Difference]) {
    let capture = captures::load(&format!("legacy/{file}"));
    let frontend = Frontend::start(&["--router-mode", "kv"]);
    let (mut found, mut compared, mut hits, mut names) = (Vec::new(), 0, 0, Vec::new());
    for lines in capture.parts() {
        let part = lines[0].part().unwrap().to_owned();
        let seats = seats(&frontend, &capture, Some(&part)).await;
        names = seats.iter().map(|seat| seat.name).collect();
        let mut player = Player::new(&frontend, &capture, seats, Some(part));
        for line in lines {
            player.line(line).await;
        }
        compared += player.compared;
        hits += player.hits;
        found.append(&mut player.found);
        for seat in player.seats {
            assert_eq!(frontend.delete(&format!("/workers/{}", seat.worker)).await.status, 200);
        }
    }
    assert_eq!(compared, 45, "requests that were compared");
    assert!(hits >= 8 * names.len(), "{hits} hits");
    assert_listed(&found, listed, &names);
}

/// Engines that play the same recording, and differ in how they are listened to.
async fn seats(frontend: &Frontend, capture: &Capture, part: Option<&str>) -> Vec<Seat> {
    let frames = capture.scenario.replay_frames.unwrap_or(4);
    let mut kinds = vec![("replayed", Some(frames), json!([])), ("live only", None, json!([]))];
    if capture.name.contains("vllm-0.12") {
        kinds.push(("mapped", Some(frames), json!(["1:chat", "2:sql", "3:sql2", "5:sql2"])));
    }
    let mut seats = Vec::new();
    for (name, replay_frames, lora) in kinds {
        let family = if capture.name.contains("sglang") { Family::Sglang } else { Family::Vllm };
        let engine = ScriptedEngine::start(Setup {
            family,
            adapters: ["sql", "chat", "sql2"].map(str::to_owned).to_vec(),
            block_size: capture.scenario.block_size,
            topic: capture.scenario.topic.clone().unwrap_or_default(),
            replay_frames,
            ..Setup::default()
        })
        .await;
        let worker = format!("{}-{}", name.replace(' ', "-"), part.unwrap_or("all"));
        let added = frontend.post("/workers", &json!({"url": engine.url(), "id": worker, "lora": lora})).await;
        assert_eq!(added.status, 201, "{}", added.text());
        engine.subscribed().await;
        let replays = replay_frames.is_some();
        let oracle = Oracle::joined(replays, name == "mapped");
        let seat = Seat { name, worker, engine, replays, oracle, last_seq: None, checks: [0; 3] };
        seat.settled(frontend).await;
        // It is shown a moment before requests see it.
        let body = json!({"model": frontend.worker(&seat.worker).await["model"], "prompt": [1, 2]});
        eventually(&format!("{} is a candidate", seat.worker), async || {
            let route = frontend.route(&body).await;
            seen(route["candidates"].as_array().unwrap().iter().any(|candidate| candidate["worker_id"] == *seat.worker), &route)
        })
        .await;
        seats.push(seat);
    }
    seats
}

impl Seat {
    /// Waits until the last message is folded in and the trust is what it must be.
    async fn settled(&self, frontend: &Frontend) -> Value {
        let what = format!("{} has applied {:?} and is {}", self.worker, self.last_seq, self.oracle.trust());
        eventually(&what, async || {
            let rank = frontend.rank(&self.worker).await;
            let settled = rank["connected"] == true && rank["last_seq"].as_u64() == self.last_seq && rank["trust"] == self.oracle.trust();
            seen(settled, &rank).map(|()| rank)
        })
        .await
    }
}

impl<'a> Player<'a> {
    fn new(frontend: &'a Frontend, capture: &Capture, seats: Vec<Seat>, part: Option<String>) -> Self {
        let block_size = u64::from(capture.scenario.block_size);
        Self { frontend, seats, block_size, part, compared: 0, hits: 0, found: Vec::new(), resets: 0, full_reports: 0 }
    }

    async fn line(&mut self, line: &Line) {
        match line {
            Line::Live(live) => self.publish(live),
            Line::Request(request) => self.request(request).await,
            Line::Control(control) => self.control(control).await,
            Line::Other { kind, json } if kind == "note" && json.get("restart_seconds").is_some() => self.restart().await,
            // Replays are played in a test of their own; what else there is has no effect on the cache.
            Line::Replay(_) | Line::Other { .. } => {}
        }
    }

    fn publish(&mut self, live: &Live) {
        for seat in &mut self.seats {
            seat.engine.publish(&live.frames);
            seat.oracle.heard(live.seq, &live.decoded);
            seat.last_seq = Some(live.seq);
        }
    }

    async fn control(&mut self, control: &Control) {
        // The recordings begin with a reset by whoever made them, before there is anything to forget.
        if control.path != "/reset_prefix_cache" || self.seats.iter().any(|seat| seat.last_seq.is_none()) {
            return;
        }
        self.resets += 1;
        self.settled().await;
        let succeeded = control.json["response"]["success"] == true;
        for seat in &mut self.seats {
            seat.engine.reply("/reset_prefix_cache", control.status, &control.json["response"]);
            if succeeded {
                seat.oracle.reset();
            }
        }
        let answer = self.frontend.post("/reset_prefix_cache", &Value::Null).await.json();
        for worker in answer["workers"].as_array().unwrap() {
            assert_eq!(worker["reset"], succeeded, "{answer}");
        }
        for seat in self.seats.iter().filter(|_| succeeded) {
            assert_eq!(self.frontend.rank(&seat.worker).await["blocks"], 0, "rule 5: it clears at once");
        }
    }

    async fn restart(&mut self) {
        for seat in &mut self.seats {
            seat.engine.restart().await;
            seat.engine.subscribed().await;
            seat.oracle.restarted(seat.replays);
            if seat.replays {
                seat.last_seq = None;
            }
        }
    }

    async fn settled(&self) {
        for seat in &self.seats {
            let rank = seat.settled(self.frontend).await;
            let carries = (rank["carries_adapter"].as_bool(), rank["carries_salt"].as_bool());
            assert_eq!(carries, seat.oracle.carries(), "{rank}");
        }
    }

    async fn request(&mut self, request: &Request) {
        self.settled().await;
        let body = body(request);
        if request.cache_salt.as_deref() == Some("") {
            let refused = self.frontend.post("/route", &body).await;
            assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("cache_salt")));
            return;
        }
        let route = self.frontend.route(&body).await;
        assert_eq!(route["tokenized"], true, "{}: {route}", request.id);
        if let [prompt] = &request.prompts[..] {
            assert_eq!(route["prompt_tokens"], prompt.len(), "{}: other tokens than the engine's", request.id);
        }
        let found = route["candidates"].as_array().unwrap();
        for at in 0..self.seats.len() {
            let worker = &self.seats[at].worker;
            let candidate = found.iter().find(|candidate| candidate["worker_id"] == **worker).unwrap();
            let trust = self.seats[at].oracle.trust_for(request.lora.is_some(), request.cache_salt.is_some());
            assert_eq!(candidate["trust"], trust, "{}: {candidate}", request.id);
            self.compare(at, request, self.predicted(request, candidate));
            if !request.path.is_empty() {
                self.send(at, request, &body, candidate).await;
            }
        }
        self.compared += usize::from(request.engine_cached_tokens.is_some());
    }

    /// Rule 3. What was only predicted counts in the cost, and not here.
    fn predicted(&self, request: &Request, candidate: &Value) -> u64 {
        let overlap = candidate["overlap_blocks"].as_u64().unwrap();
        match &request.prompts[..] {
            [prompt] => self.block_size * overlap.min((prompt.len() as u64 - 1) / self.block_size),
            // The overlap of a list is a sum, and no prompt of a recorded list was ever cached.
            _ => self.block_size * overlap,
        }
    }

    fn compare(&mut self, at: usize, request: &Request, predicted: u64) {
        let Some(cached) = request.engine_cached_tokens.map(u64::from) else { return };
        let seat = self.seats[at].name;
        if predicted == cached {
            self.hits += usize::from(cached > 0);
        } else {
            self.found.push(Found { part: self.part.clone(), request: request.id.clone(), seat, predicted, cached });
        }
    }

    /// Sends the request itself, and lets the engine answer as it did.
    async fn send(&mut self, at: usize, request: &Request, body: &Value, candidate: &Value) {
        let predicted = self.predicted(request, candidate);
        let seat = &mut self.seats[at];
        let status = request.status.unwrap();
        seat.engine.reply(&request.path, status, &request.response);
        if body["vllm_xargs"]["kv_cache_report_mode"] == "full" {
            seat.oracle.asked_for_full_reports();
            self.full_reports += 1;
        }
        let pin = [("x-dynamo-worker-instance-id", seat.worker.as_str())];
        let answer = self.frontend.open(&request.path, &pin, body).await.whole().await;
        assert_eq!(answer.status, status, "{}: {}", request.id, answer.text());
        let said = request.response.as_str().map_or_else(|| request.response.to_string(), str::to_owned);
        assert_eq!(answer.text(), said, "{}: the answer is passed on as it is", request.id);
        if status != 200 {
            return;
        }
        assert_eq!(answer.header("x-dynamo-worker-id"), seat.worker);
        assert_eq!(answer.header("x-dynamo-overlap-blocks"), candidate["overlap_blocks"].to_string(), "{}", request.id);
        // Rule 11: lists of prompts and several choices prove nothing.
        if request.prompts.len() == 1 && request.body.get("n").is_none() {
            let kind = match predicted.cmp(&u64::from(request.engine_cached_tokens.unwrap())) {
                std::cmp::Ordering::Equal => 0,
                std::cmp::Ordering::Greater => 1,
                std::cmp::Ordering::Less => 2,
            };
            seat.checks[kind] += 1;
        }
    }

    /// The frontend's own counts of right and wrong predictions are those of this test, and every event was read.
    async fn frontend_agrees(&self) {
        for seat in &self.seats {
            let [equal, over, under] = seat.checks;
            let expected = json!({"observations": equal + over + under, "equal": equal, "over": over, "under": under});
            eventually(&format!("{} has checked {expected}", seat.worker), async || {
                let rank = seat.settled(self.frontend).await;
                seen(rank["accuracy"] == expected && rank["decode_errors"] == 0 && rank["ignored"] == json!({}), &rank)
            })
            .await;
        }
    }
}

/// The body as the client sent it; where the recording has none, one of token ids.
fn body(request: &Request) -> Value {
    if !request.body.is_null() {
        return request.body.clone();
    }
    let mut body = json!({"model": request.lora.as_deref().unwrap_or("tiny"), "prompt": request.prompts[0]});
    if let Some(salt) = &request.cache_salt {
        body["cache_salt"] = json!(salt);
    }
    body
}
