//! Requests through our frontend to workers that take token ids: real ones of Dynamo 1.6.1, and, where it must be known what they
//! answer, simulated ones of ours. Beside it, where that tells more, the real frontend before the same workers at the same time.
//!
//! What fails is told as a table: `row | theirs | ours`.

mod deaths;
mod frozen;
mod moves;
mod outages;
mod serving;
mod stream;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use rand::Rng;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use super::peers::RealFrontend;
use crate::support::{eventually, frontend::Frontend, http, seen};
use stream::{How, Seen, Streaming};

/// Longest wait of a client that asks for one token.
const PROBE_WITHIN: Duration = Duration::from_secs(4);
/// Between two of its requests.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// Token ids that no other prompt begins with.
fn prompt(tokens: usize) -> Vec<u32> {
    let mut random = rand::rng();
    (0..tokens).map(|_| random.random_range(10..1000)).collect()
}

/// A completion that does not end by itself, and says who made which tokens.
fn completion(prompt: &[u32], max_tokens: usize) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true,
        "nvext": {"extra_fields": ["worker_id", "completion_token_ids"]}})
}

/// The same as a stream with usage.
fn streamed(prompt: &[u32], max_tokens: usize) -> Value {
    let mut body = completion(prompt, max_tokens);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    body
}

/// One row of the table.
pub(super) fn row(what: &str, theirs: &str, ours: &str) {
    println!("ROW | {what} | {theirs} | {ours}");
}

/// Waits until a real frontend has prepared itself to ask the workers, which takes it a moment after it lists them.
async fn warm(real: &RealFrontend) {
    eventually("the real frontend answers", async || {
        for _ in 0..6 {
            let answer = http::open(real.address, "POST", "/v1/completions", &[], &completion(&prompt(20), 1)).await.whole().await;
            seen(answer.status == 200, answer.text())?;
        }
        Ok(())
    })
    .await;
}

/// Waits until `count` workers of ours are up and their events are followed.
async fn up(ours: &Frontend, count: usize) {
    ours.serves(count, "exact").await;
    eventually("their model is loaded", async || {
        let answer = ours.post("/v1/completions", &completion(&prompt(20), 1)).await;
        seen(answer.status == 200, answer.text())
    })
    .await;
}

/// Streams that run at once.
fn start(address: SocketAddr, count: usize, max_tokens: usize, patience: Duration) -> Vec<Streaming> {
    (0..count).map(|_| Streaming::start(address, "/v1/completions", streamed(&prompt(PROMPT), max_tokens), patience)).collect()
}

/// Tokens of a prompt of theirs.
const PROMPT: usize = 40;

/// Waits until each has so many tokens.
async fn under_way(streams: &[Streaming], tokens: usize) {
    eventually("all streams are under way", async || {
        let now: Vec<usize> = streams.iter().map(|stream| stream.now().ids.len()).collect();
        seen(now.iter().all(|now| *now >= tokens), streams.iter().map(|stream| format!("{:?}", stream.now())).collect::<Vec<_>>())
    })
    .await;
}

async fn ends(streams: Vec<Streaming>) -> Vec<Seen> {
    let mut ends = Vec::new();
    for stream in streams {
        ends.push(stream.end().await);
    }
    ends
}

/// What became of streams of `max_tokens`, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    streams: usize,
    /// Those that saw more than one worker.
    moved: usize,
    /// Those with all tokens, a finish reason and `[DONE]`.
    complete: usize,
    errors: usize,
    /// Cut off or waited for in vain.
    broken: usize,
    /// Complete, with a usage that is not prompt and answer once each.
    wrong_usage: usize,
    longest_gap_ms: u128,
}

impl Sum {
    fn of(streams: &[Seen], max_tokens: usize) -> Self {
        let mut sum = Self { streams: streams.len(), ..Self::default() };
        for seen in streams {
            let complete = seen.is_complete() && seen.ids.len() == max_tokens;
            sum.moved += usize::from(seen.workers.len() > 1);
            sum.complete += usize::from(complete);
            sum.errors += usize::from(!seen.errors.is_empty());
            sum.broken += usize::from(matches!(seen.how, How::Broken | How::GivenUp) && seen.errors.is_empty());
            sum.wrong_usage += usize::from(complete && seen.usage != Some((PROMPT as u64, max_tokens as u64)));
            sum.longest_gap_ms = sum.longest_gap_ms.max(seen.longest_gap.as_millis());
        }
        sum
    }

    /// Nobody saw anything of it.
    fn is_clean(&self) -> bool {
        self.complete == self.streams && self.errors + self.broken + self.wrong_usage == 0
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { streams, moved, complete, errors, broken, wrong_usage, longest_gap_ms } = self;
        write!(
            f,
            "{complete} of {streams} streams complete, {moved} moved, {errors} errors, {broken} cut or hung, {wrong_usage} wrong usage, longest gap {longest_gap_ms} ms"
        )
    }
}

/// Asks for one token again and again.
struct Probes {
    stop: watch::Sender<bool>,
    task: JoinHandle<Probed>,
}

/// What that gave.
#[derive(Clone, Debug, Default)]
struct Probed {
    asked: usize,
    /// Status and text of each that failed, and when it was sent after the beginning.
    failed: Vec<(Duration, String)>,
    slowest: Duration,
    /// Who answered those sent after the beginning.
    by: Vec<u64>,
}

impl Probes {
    fn start(address: SocketAddr) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let (mut probed, began) = (Probed::default(), Instant::now());
            while !*stopped.borrow() {
                let sent = Instant::now();
                probed.asked += 1;
                match tokio::time::timeout(PROBE_WITHIN, probe(address)).await {
                    Ok(Ok(worker)) => probed.by.extend(worker),
                    Ok(Err(said)) => probed.failed.push((sent - began, said)),
                    Err(_) => probed.failed.push((sent - began, "no answer".to_owned())),
                }
                probed.slowest = probed.slowest.max(sent.elapsed());
                tokio::time::sleep(PROBE_EVERY).await;
            }
            probed
        });
        Self { stop, task }
    }

    async fn end(self) -> Probed {
        self.stop.send(true).unwrap();
        self.task.await.unwrap()
    }
}

/// One request; who answered.
async fn probe(address: SocketAddr) -> Result<Option<u64>, String> {
    let answer = http::open(address, "POST", "/v1/completions", &[], &completion(&prompt(20), 1)).await.whole().await;
    if answer.status != 200 {
        return Err(format!("{} {}", answer.status, answer.text()));
    }
    Ok(answer.json()["nvext"]["worker_id"]["decode_worker_id"].as_u64())
}

impl std::fmt::Display for Probed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} probes failed, slowest {} ms", self.failed.len(), self.asked, self.slowest.as_millis())
    }
}
