//! Replays as engines really answer them, to a frontend that joins late or comes back: how every gap ends, and what is
//! shown of it.

use bytes::Bytes;
use serde_json::{Value, json};
use testkit::captures::{self, Capture, Line};

use crate::support::{
    engine::{Kept, ScriptedEngine, Setup},
    eventually,
    frontend::Frontend,
    seen,
};

/// Tokens per block in every recording.
const BLOCK: usize = 32;

/// A frontend in front of one engine, which has this to replay.
async fn joined(capture: &Capture, kept: Kept) -> (Frontend, ScriptedEngine) {
    let topic = capture.scenario.topic.clone().unwrap_or_default();
    let engine = ScriptedEngine::start(Setup { topic, adapters: vec!["sql".to_owned()], ..Setup::default() }).await;
    engine.keep(kept);
    let worker = format!("{},id=engine", engine.url());
    let frontend = Frontend::start(&["--router-mode", "kv", "--worker", &worker]);
    engine.subscribed().await;
    (frontend, engine)
}

/// The answer of a recorded replay. Its end marker is the engine's to send.
fn recorded(capture: &Capture, label: &str) -> Kept {
    let replay = capture.replays().find(|replay| replay.label == label).unwrap();
    let sequence = |frames: &[Bytes]| u64::from_be_bytes(frames[frames.len() - 2][..].try_into().unwrap());
    let messages = replay.reply.iter().map(|message| (sequence(&message.frames), message.frames.clone()));
    Kept { messages: messages.filter(|(seq, _)| *seq != u64::MAX).collect(), arrive_at_most: None }
}

async fn settled(frontend: &Frontend, last_seq: u64, trust: &str) -> Value {
    eventually(&format!("applied {last_seq}, {trust}"), async || {
        let rank = frontend.rank("engine").await;
        seen(rank["connected"] == true && rank["last_seq"] == last_seq && rank["trust"] == trust, &rank).map(|()| rank)
    })
    .await
}

async fn overlap(frontend: &Frontend, model: &str, prompt: &[u32], salt: Option<&str>) -> Value {
    let mut body = json!({"model": model, "prompt": prompt});
    if let Some(salt) = salt {
        body["cache_salt"] = json!(salt);
    }
    frontend.candidate("engine", &body).await["overlap_blocks"].take()
}

/// The recording keeps the first 6 and the last 7 of 110 messages, so the answer has a hole that never closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_with_a_hole_is_folded_and_degraded() {
    let capture = captures::load("vllm/09-replay");
    let (frontend, engine) = joined(&capture, recorded(&capture, "from 0 (DEALER)")).await;
    let rank = settled(&frontend, 109, "degraded").await;
    assert_eq!(rank["trust_reason"], "messages 6 to 102 are missing");
    assert_eq!((&rank["gaps"], &rank["degraded_gaps"]), (&json!(1), &json!(1)), "{rank}");
    // It asked for what the hole swallowed before it gave up.
    let asked = engine.replays_asked();
    assert!(asked[0] == 0 && asked[1..].iter().all(|from| *from == 5) && asked.len() > 1, "{asked:?}");
    let last = capture.requests().next().unwrap();
    assert_eq!(overlap(&frontend, "tiny", &last.prompts[0], None).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reconnect_the_last_batch_tells_whether_it_is_the_same_engine() {
    let capture = captures::load("vllm/09-replay");
    let (frontend, mut engine) = joined(&capture, recorded(&capture, "last 3")).await;
    settled(&frontend, 109, "degraded").await;
    let prompt = &capture.requests().next().unwrap().prompts[0];
    assert_eq!(overlap(&frontend, "tiny", prompt, None).await, 2);

    // The same engine has the same batch.
    engine.keep(recorded(&capture, "exactly the last"));
    let asked = engine.replays_asked();
    engine.cut_events().await;
    eventually("it asks for the last batch", async || seen(engine.replays_asked().len() > asked.len(), &asked)).await;
    assert_eq!(engine.replays_asked().last(), Some(&109));
    let rank = settled(&frontend, 109, "degraded").await;
    assert_eq!(rank["restarts"], 0, "{rank}");
    assert_eq!(overlap(&frontend, "tiny", prompt, None).await, 2);

    // Another engine has not: all that was known is void, and its own stream is replayed from the start.
    let other = captures::load("vllm/14-engine-restart");
    engine.keep(recorded(&other, "from 0 after the restart"));
    engine.cut_events().await;
    let rank = settled(&frontend, 1, "exact").await;
    assert_eq!(rank["restarts"], 1, "{rank}");
    assert_eq!(overlap(&frontend, "tiny", prompt, None).await, 0);
    for request in other.requests().skip(1) {
        assert_eq!(overlap(&frontend, "tiny", &request.prompts[0], None).await, 6, "{}", request.id);
    }
}

/// "vllm/16-replay-buffer-gap": asked for 0, the engine begins with 6. It lives on in "vllm/17-scale-out".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_begins_too_late_is_degraded_and_goes_on_live() {
    let capture = captures::load("vllm/16-replay-buffer-gap");
    let (frontend, engine) = joined(&capture, recorded(&capture, "from 0 with a buffer of 5")).await;
    let rank = settled(&frontend, 10, "degraded").await;
    assert_eq!(rank["trust_reason"], "joined at message 6; the ones before it are gone");
    let blocks = rank["blocks"].as_u64().unwrap();

    let live = captures::load("vllm/17-scale-out");
    for message in live.live() {
        engine.publish(&message.frames);
    }
    let rank = settled(&frontend, 12, "degraded").await;
    // Each of the two batches adds two blocks, and removes two that were stored before the frontend came.
    assert_eq!(rank["blocks"], blocks + 4, "{rank}");
    // Asking again would bring nothing: the buffer only moves on.
    assert_eq!(engine.replays_asked(), [0]);
    let generated = live.lines.iter().filter_map(|line| match line {
        Line::Control(control) if control.path == "/inference/v1/generate" => Some(&control.json["body"]),
        Line::Control(_) | Line::Request(_) | Line::Live(_) | Line::Replay(_) | Line::Other { .. } => None,
    });
    let bodies: Vec<&Value> = generated.collect();
    assert_eq!(bodies.len(), 3);
    for body in bodies {
        let prompt: Vec<u32> = serde_json::from_value(body["token_ids"].clone()).unwrap();
        assert_eq!(overlap(&frontend, body["model"].as_str().unwrap(), &prompt, body["cache_salt"].as_str()).await, 2, "{body}");
    }
}

/// The messages that "vllm/13-replay-many" counts, without their content: 1359 in all, here one recorded store each.
fn many(capture: &Capture) -> Kept {
    let note = capture.lines.iter().find_map(|line| match line {
        Line::Other { kind, json } if kind == "note" => json["last_seq"].as_u64(),
        Line::Control(_) | Line::Request(_) | Line::Live(_) | Line::Replay(_) | Line::Other { .. } => None,
    });
    let plain = captures::load("vllm/01-plain-store");
    let payload = plain.live().next().unwrap().frames[2].clone();
    let message = |seq: u64| (seq, vec![Bytes::new(), Bytes::new(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload.clone()]);
    Kept { messages: (0..=note.unwrap()).map(message).collect(), arrive_at_most: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_replay_makes_a_late_joiner_exact() {
    let capture = captures::load("vllm/13-replay-many");
    let (frontend, engine) = joined(&capture, many(&capture)).await;
    let rank = settled(&frontend, 1358, "exact").await;
    assert_eq!((&rank["messages"], &rank["blocks"]), (&json!(1359), &json!(3)), "{rank}");
    assert_eq!(engine.replays_asked(), [0]);
    let plain = captures::load("vllm/01-plain-store");
    let prompt = &plain.requests().next().unwrap().prompts[0];
    assert_eq!(prompt.len() / BLOCK, 3);
    assert_eq!(overlap(&frontend, "tiny", prompt, None).await, 3);
}

/// Up to vLLM 0.32 the replay socket drops what a reader has not taken, the end marker with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_cut_short_without_a_marker_is_asked_for_again() {
    let capture = captures::load("vllm/13-replay-many");
    let (frontend, engine) = joined(&capture, Kept { arrive_at_most: Some(1000), ..many(&capture) }).await;
    let rank = settled(&frontend, 1358, "exact").await;
    assert_eq!(rank["messages"], 1359, "{rank}");
    assert_eq!(engine.replays_asked(), [0, 999]);
}
