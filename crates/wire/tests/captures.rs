//! Every recorded frame, of every generation, decodes to what its JSON says, and encodes back to the same bytes.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod oracle;

use bytes::Bytes;
use serde_json::Value;
use testkit::captures::{self, Capture};
use wire::{
    Event, FrameError, Framed, Message,
    encode::{Encoder, Generation, Hashes},
};

/// Frames and their JSON: the live stream, then the replays.
fn frames(capture: &Capture) -> impl Iterator<Item = (&[Bytes], &Value)> {
    let live = capture.live().map(|live| (&live.frames[..], &live.decoded));
    let replies = capture.replays().flat_map(|replay| &replay.reply);
    live.chain(replies.map(|message| (&message.frames[..], &message.decoded)))
}

fn captures() -> Vec<Capture> {
    let mut captures = captures::all("vllm");
    captures.extend(captures::all("legacy"));
    captures
}

#[test]
fn every_frame_decodes_to_what_its_json_says() {
    let (mut batches, mut ends, mut events) = (0, 0, 0);
    for capture in captures() {
        for (frames, json) in frames(&capture) {
            let message = match wire::message(frames).unwrap() {
                Framed::EndOfReplay => {
                    assert!(json.is_null(), "{}", capture.name);
                    ends += 1;
                    continue;
                }
                Framed::Batch(message) => message,
            };
            let at = format!("{} sequence {}", capture.name, message.seq);
            assert_eq!(message.seq.to_be_bytes(), frames[frames.len() - 2][..], "{at}");
            let batch = wire::batch(&message.payload).unwrap();
            let seconds_apart = batch.timestamp.unwrap() - json[0].as_f64().unwrap();
            assert!(seconds_apart.abs() < 1e-6, "{at}: JSON rounds the last digit");
            assert_eq!(batch.rank, json[2].as_u64().map(|rank| rank.try_into().unwrap()), "{at}");
            let expected: Vec<_> = json[1].as_array().unwrap().iter().map(|event| Ok(oracle::event(event))).collect();
            assert_eq!(batch.events, expected, "{at}");
            batches += 1;
            events += expected.len();
        }
    }
    assert_eq!((batches, ends, events), (840, 8, 2204), "all the captures were read");
}

/// The adapters of the capture by load number, as of a message: adapters were loaded again in between.
fn adapters(json: &Value) -> Vec<String> {
    let mut adapters = Vec::new();
    for event in json[1].as_array().unwrap() {
        let (number, name) = match event {
            Value::Array(slots) => (slots.get(5), slots.get(7)),
            event => (event.get("lora_id"), event.get("lora_name")),
        };
        if let (Some(number), Some(name)) = (number.and_then(Value::as_u64), name.and_then(Value::as_str)) {
            let number = usize::try_from(number).unwrap();
            adapters.resize(adapters.len().max(number), String::new());
            adapters[number - 1] = name.to_owned();
        }
    }
    adapters
}

#[test]
fn encoding_again_gives_the_engines_own_bytes() {
    let mut equal = 0;
    for capture in captures() {
        let generation = match capture.name.as_str() {
            "legacy/vllm-0.12.0.post2" => Generation::Vllm012,
            "legacy/vllm-0.16.0" => Generation::Vllm016,
            "legacy/vllm-0.23.0" => Generation::Vllm023,
            "legacy/vllm-0.24.0" => Generation::Vllm024,
            "legacy/vllm-0.26.0" => Generation::Vllm026,
            "legacy/vllm-0.33.0" => Generation::Vllm033,
            "legacy/sglang-0.5.6" => Generation::Sglang056,
            "legacy/sglang-0.5.23" => Generation::Sglang0523,
            _ => Generation::Vllm026,
        };
        for (frames, json) in frames(&capture) {
            let Framed::Batch(message) = wire::message(frames).unwrap() else { continue };
            let whole = json.to_string();
            // Digests have 24 bytes, and sessions a field, that an event does not keep.
            if whole.contains("b64") || whole.contains("session_id") {
                continue;
            }
            let batch = wire::batch(&message.payload).unwrap();
            let events: Vec<Event> = batch.events.into_iter().map(Result::unwrap).collect();
            let encoder = Encoder { generation, hashes: Hashes::Integer, adapters: adapters(json) };
            let payload = encoder.batch(batch.timestamp.unwrap(), batch.rank.unwrap(), &events);
            assert_eq!(payload, message.payload, "{} sequence {}", capture.name, message.seq);
            equal += 1;
        }
    }
    assert!(equal > 800, "{equal}");
}

#[test]
fn replayed_frames_have_the_shape_of_their_generation() {
    let message = Message { seq: 7, payload: Bytes::from_static(b"\x90") };
    let topic = Bytes::from_static(b"kv-events");
    for capture in captures::all("legacy") {
        let name = capture.name.rsplit('/').next().unwrap();
        let generation = Generation::ALL.into_iter().find(|generation| name.starts_with(generation.name())).unwrap();
        let expected = usize::try_from(capture.scenario.replay_frames.unwrap()).unwrap();
        let replayed = generation.replayed(&topic, &message);
        assert_eq!(replayed.len(), expected, "{name}");
        assert_eq!(wire::message(&replayed), Ok(Framed::Batch(message.clone())), "{name}");
        let end = generation.replay_end();
        assert_eq!(end.len(), expected, "{name}");
        assert_eq!(wire::message(&end), Ok(Framed::EndOfReplay), "{name}");
    }
    let capture = captures::load("vllm/09-replay");
    let last = capture.replays().next().unwrap().reply.last().unwrap();
    assert_eq!(Generation::Vllm026.replay_end(), last.frames);
}

#[test]
fn a_replay_request_is_read_as_an_engine_reads_it() {
    let capture = captures::load("vllm/09-replay");
    for replay in capture.replays().filter(|replay| replay.request.len() == 2) {
        assert_eq!(wire::replay_request(replay.start_seq)[..], replay.request[..], "{}", replay.label);
        assert_eq!(wire::replay_start(&replay.request), Some(replay.start_seq), "{}", replay.label);
    }
    let frames = |parts: &[&'static [u8]]| parts.iter().map(|part| Bytes::from_static(part)).collect::<Vec<_>>();
    assert_eq!(wire::replay_start(&frames(&[b"", b""])), Some(0));
    assert_eq!(wire::replay_start(&frames(&[b"", b"\0\0\0m"])), Some(109));
    assert_eq!(wire::replay_start(&frames(&[b"", b"\0\0\0\0\0\0\0\0\0m"])), Some(109));
    assert_eq!(wire::replay_start(&frames(&[b"", b"\x01\0\0\0\0\0\0\0\0"])), Some(u64::MAX));
    assert_eq!(wire::replay_start(&frames(&[b"\0\0\0\0\0\0\0m"])), None, "no delimiter: no answer");
    assert_eq!(wire::replay_start(&frames(&[b"", b"\0\0\0\0\0\0\0m", b"x"])), None, "one frame more: no answer");
    assert_eq!(wire::replay_start(&frames(&[b"x", b"\0\0\0\0\0\0\0m"])), None);
}

#[test]
fn the_last_two_frames_decide() {
    let payload = Bytes::from_static(b"payload");
    let sequence = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 1, 2]);
    let other = Bytes::from_static(b"anything");
    let batch = Ok(Framed::Batch(Message { seq: 258, payload: payload.clone() }));
    let read = |frames: &[&Bytes]| wire::message(&frames.iter().copied().cloned().collect::<Vec<_>>());
    assert_eq!(read(&[&sequence, &payload]), batch);
    assert_eq!(read(&[&other, &sequence, &payload]), batch);
    assert_eq!(read(&[&other, &other, &sequence, &payload]), batch);
    assert_eq!(read(&[]), Err(FrameError::Count(0)));
    assert_eq!(read(&[&payload]), Err(FrameError::Count(1)));
    assert_eq!(read(&[&other, &other, &other, &sequence, &payload]), Err(FrameError::Count(5)));
    assert_eq!(read(&[&other, &payload, &payload]), Err(FrameError::Sequence(7)));
    let end = Bytes::from_static(&[0xff; 8]);
    assert_eq!(read(&[&end, &Bytes::new()]), Ok(Framed::EndOfReplay));
    assert_eq!(read(&[&end, &payload]), Err(FrameError::EndMarker(7)));
    assert_eq!(read(&[&sequence, &Bytes::new()]), Ok(Framed::Batch(Message { seq: 258, payload: Bytes::new() })));
}

#[test]
fn generations_are_known_by_name() {
    for generation in Generation::ALL {
        assert_eq!(generation.to_string().parse(), Ok(generation));
    }
    let error = "vllm".parse::<Generation>().unwrap_err().to_string();
    assert!(error.contains("\"vllm\"") && error.contains("sglang-0.5.23"), "{error}");
}
