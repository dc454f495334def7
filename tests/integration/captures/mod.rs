//! Recorded streams of real engines through real sockets: before each request, the overlap that the frontend shows must
//! be what the engine then reported as cached (rule 3). The differences that no consumer of events can avoid are listed
//! here one by one, each with its reason; one that is listed and does not occur fails the test as well.

mod difference;
mod oracle;
mod player;

use difference::{ALL, Difference, difference};
use player::{play_legacy, play_vllm};

const UNSEEN_RESET: &str = "the cache was reset past the frontend, and the engine's event comes only with its next step";
const COPIES: &str = "the engine reports what the later copies hit of the first one";
const REPOINTED: &str = "an adapter was re-pointed in place: the engine's hash covers its path, the event has only its name";
const RESTART: &str = "without a replay socket only the first message of the new life tells of the restart";
const NUMBERED: &str = "the event names the adapter by a number that nobody mapped";
const UNNAMED: &str = "the event does not say that there is an adapter";
const UNSALTED: &str = "the event does not carry the salt";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_store() {
    play_vllm("01-plain-store", 11, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_multiturn() {
    play_vllm("03-chat-multiturn", 6, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction() {
    play_vllm("04-eviction", 11, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_blocks_cleared() {
    // /reset_prefix_cache goes through the frontend, /pause and /sleep do not.
    let differences = [difference("r53", 192, 0, ALL, UNSEEN_RESET), difference("r58", 192, 0, ALL, UNSEEN_RESET)];
    play_vllm("05-all-blocks-cleared", 5, &differences).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lora() {
    play_vllm("06-lora", 10, &[difference("r76", 96, 0, ALL, REPOINTED)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_salt() {
    play_vllm("07-cache-salt", 8, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_sequence() {
    let differences = [difference("r89", 0, 64, ALL, COPIES), difference("r90", 0, 64, ALL, COPIES), difference("r91", 0, 32, ALL, COPIES)];
    play_vllm("08-multi-sequence", 9, &differences).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_join_without_a_clear() {
    play_vllm("09-replay", 1, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort() {
    play_vllm("10-abort", 2, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints() {
    play_vllm("11-endpoints", 1, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_blocks() {
    play_vllm("12-duplicate-blocks", 11, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_restart() {
    play_vllm("14-engine-restart", 3, &[difference("r2", 192, 0, &["live only"], RESTART)]).await;
}

/// What every release gets wrong: its resets are not in the recording, so they do not go through the frontend.
fn of_every_release() -> Vec<Difference> {
    let unseen_resets = ["r44", "r53", "r58"].map(|request| difference(request, 192, 0, ALL, UNSEEN_RESET));
    unseen_resets.into_iter().map(|difference| difference.within("05-all-blocks-cleared")).collect()
}

fn adapter_hits(seats: &'static [&'static str], why: &'static str) -> impl Iterator<Item = Difference> {
    ["r62", "r65", "r73"].into_iter().map(move |request| difference(request, 0, 96, seats, why).within("06-lora"))
}

fn repointed(seats: &'static [&'static str]) -> Difference {
    difference("r76", 96, 0, seats, REPOINTED).within("06-lora")
}

fn salted_hits() -> impl Iterator<Item = Difference> {
    [difference("r81", 0, 128, ALL, UNSALTED), difference("r85", 0, 64, ALL, UNSALTED)]
        .into_iter()
        .map(|difference| difference.within("07-cache-salt"))
}

/// Releases whose events carry all that makes a key.
async fn play_complete(release: &str) {
    let mut differences = of_every_release();
    differences.push(repointed(ALL));
    play_legacy(release, &differences).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_vllm_0_12() {
    let mut differences = of_every_release();
    differences.extend(adapter_hits(&["replayed", "live only"], NUMBERED));
    differences.push(repointed(&["mapped"]));
    differences.extend(salted_hits());
    play_legacy("vllm-0.12.0.post2", &differences).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_vllm_0_16() {
    let mut differences = of_every_release();
    differences.push(repointed(ALL));
    differences.extend(salted_hits());
    play_legacy("vllm-0.16.0", &differences).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_vllm_0_23() {
    play_complete("vllm-0.23.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_vllm_0_24() {
    play_complete("vllm-0.24.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_vllm_0_26() {
    play_complete("vllm-0.26.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_vllm_0_33() {
    play_complete("vllm-0.33.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_sglang_0_5_6() {
    let mut differences = of_every_release();
    differences.extend(adapter_hits(ALL, UNNAMED));
    differences.extend(salted_hits());
    play_legacy("sglang-0.5.6", &differences).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_sglang_0_5_23() {
    let mut differences = of_every_release();
    differences.push(repointed(ALL));
    differences.extend(salted_hits());
    play_legacy("sglang-0.5.23", &differences).await;
}

/// Every recording is played here or in `replays`.
#[test]
fn no_recording_is_left_out() {
    let sources = concat!(include_str!("mod.rs"), include_str!("../replays.rs"));
    for capture in testkit::captures::all("vllm").iter().chain(&testkit::captures::all("legacy")) {
        let (_, file) = capture.name.split_once('/').unwrap();
        assert!(sources.contains(&format!("{file}\"")), "{} is not played", capture.name);
    }
}
