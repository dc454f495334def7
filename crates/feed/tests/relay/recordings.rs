//! Every recorded stream of a real engine.

use feed::ReplayMode;
use testkit::captures;
use wire::Framed;

use crate::Both;

/// Adapters are known only by number there, and get a stand-in that is another one for a publisher, which has names only.
const NUMBERED: &str = "legacy/vllm-0.12.0.post2";

#[test]
fn what_is_published_is_what_an_index_fed_directly_holds() {
    let (mut streams, mut messages) = (0, 0);
    for capture in captures::all("vllm").into_iter().chain(captures::all("legacy")) {
        let mut both = Both::new(capture.scenario.block_size, ReplayMode::Unavailable);
        for live in capture.live() {
            let Framed::Batch(message) = wire::message(&live.frames).unwrap() else { continue };
            both.live(&message);
            let [indexed, published] = both.held();
            let at = format!("{} message {}", capture.name, message.seq);
            assert_eq!(indexed.0, published.0, "{at}");
            if capture.name != NUMBERED {
                assert_eq!(indexed.1, published.1, "{at}");
            }
            messages += 1;
        }
        assert!(both.refused.is_empty(), "{}: {:?}", capture.name, both.refused);
        streams += 1;
    }
    assert!(streams > 15 && messages > 700, "{streams} {messages}");
}
