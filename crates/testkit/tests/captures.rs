//! The capture files are all there and have the shapes the tests built on them expect.

use testkit::captures::{self, Line};

#[test]
fn every_capture_loads() {
    let names: Vec<String> = captures::all("vllm").into_iter().map(|capture| capture.name).collect();
    assert_eq!(names.len(), 15, "{names:?}");
    assert_eq!(captures::all("legacy").len(), 8);
}

#[test]
fn lines_keep_their_order_and_fields() {
    let capture = captures::load("vllm/07-cache-salt");
    assert_eq!(capture.scenario.block_size, 32);
    assert_eq!(capture.scenario.topic.as_deref(), Some("kv-events"));
    let salted = capture.requests().find(|request| request.cache_salt.is_some()).unwrap();
    assert!(salted.prompts[0].len() > 128);
    assert_eq!(salted.path, "/v1/completions");
    assert_eq!(salted.body["cache_salt"].as_str(), salted.cache_salt.as_deref());
    let seqs: Vec<u64> = capture.live().map(|live| live.seq).collect();
    assert_eq!(seqs, [88, 89, 90, 91, 92]);
    assert!(capture.live().all(|live| live.frames.len() == 3 && live.frames[1][..] == live.seq.to_be_bytes()));
}

#[test]
fn a_request_of_several_prompts_has_them_all() {
    let capture = captures::load("vllm/08-multi-sequence");
    let prompts = |id: &str| capture.requests().find(|request| request.id == id).unwrap().prompts.clone();
    assert_eq!(prompts("r89").len(), 1);
    assert_eq!(prompts("r90").len(), 3);
    assert!(prompts("r90").iter().all(|prompt| !prompt.is_empty()));
    assert!(prompts("r91").is_empty(), "token ids of texts in a list were not recorded");
}

#[test]
fn replays_have_their_answers() {
    let capture = captures::load("vllm/09-replay");
    let replay = capture.replays().next().unwrap();
    assert_eq!((replay.start_seq, replay.messages_total), (0, 111));
    assert_eq!(replay.request[1][..], 0_u64.to_be_bytes());
    assert_eq!(replay.reply.len(), 14);
    assert!(replay.reply.iter().all(|message| message.frames.len() == 4));
}

#[test]
fn a_legacy_capture_has_five_parts() {
    let capture = captures::load("legacy/vllm-0.12.0.post2");
    assert_eq!(capture.scenario.replay_frames, Some(3));
    let parts = capture.parts();
    assert_eq!(parts.len(), 5);
    assert!(parts.iter().all(|lines| lines.iter().any(|line| matches!(line, Line::Live(_)))));
}
