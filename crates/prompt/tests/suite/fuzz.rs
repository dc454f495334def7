//! Bodies made of anything, through all that reads them: no panic. (Templates are fuzzed beside their code.)

use std::panic::AssertUnwindSafe;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use prompt::{Counters, Endpoint, Generation};

use crate::tiny;

const TIME: Duration = Duration::from_secs(3);

/// Pieces that get past the first check more often than bytes alone.
const BODY: [&str; 48] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"model\":\"m\"",
    "\"prompt\":",
    "\"messages\":[",
    "{\"role\":\"user\",\"content\":",
    "\"x\"",
    "1",
    "-1",
    "4294967296",
    "1e999",
    "null",
    "true",
    "\"tools\":[",
    "\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]",
    "\"type\":\"image_url\"",
    "\\u0065",
    "\\ud800",
    "\"nvext\":{",
    "\"prompt\":\"p\"",
    "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]",
    "\"temperature\":",
    "\"stop\":",
    "\"stop_token_ids\":[",
    "\"logit_bias\":{",
    "\"n\":",
    "\"tool_choice\":",
    "\"required\"",
    "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":",
    "}}]",
    "\"$ref\":\"#\"",
    "\"$defs\":{",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":",
    "\"structured_outputs\":{",
    "\"token_data\":[",
    "\"agent_hints\":{",
    "\"thinking\":",
    "{\"type\":\"enabled\"}",
    "\"chat_template_args\":{",
    "\"cache_salt\":\"s\"",
    "\"continue_final_message\":true",
    " ",
    "\u{e9}",
];

#[test]
fn bodies() {
    let folder = AssertUnwindSafe(tiny());
    let counters = Counters::default();
    bolero::check!().with_test_time(TIME).with_max_len(256).for_each(|input: &[u8]| {
        let pieces: Vec<u8> = input
            .iter()
            .flat_map(|byte| match BODY.get(usize::from(*byte)) {
                Some(piece) => piece.as_bytes().to_vec(),
                None => vec![*byte],
            })
            .collect();
        for body in [Bytes::copy_from_slice(input), Bytes::from(pieces)] {
            for endpoint in [Endpoint::Completions, Endpoint::Chat] {
                if let Ok(request) = prompt::parse(endpoint, &body) {
                    // Both may fail; neither may panic.
                    let _ = folder.tokens(&request, UNIX_EPOCH, &counters);
                    let _ = prompt::remote::asks(&request);
                }
                if let Ok(generation) = Generation::parse(endpoint, &body) {
                    // What is let through keeps its bounds.
                    assert!((1..=128).contains(&generation.n) && generation.stop.len() <= 32);
                    assert!(generation.sampling.temperature.is_none_or(|value| (0.0..=2.0).contains(&value)));
                }
            }
        }
    });
}
