//! The event stream through real sockets, against a consumer that only counts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::*;
use mocker::{EventsConfig, Faults, Generation, Handle, Hashes, ReplayConfig, SocketKind};
use serde_json::{Value, json};
use transport::zmtp::{Endpoint, Options, Sub, SubEvent};
use wire::Adapter;

const KINDS: [SocketKind; 2] = [SocketKind::Own, SocketKind::Zeromq];

/// `tokens` ids that only prompts of the same family begin with.
fn prompt(family: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|at| 100 + (family * 97 + at * 13) % 1_000).collect()
}

async fn complete(handle: &Handle, mut body: Value, headers: &[(&str, &str)]) -> Value {
    body["ignore_eos"] = true.into();
    let answer = call(handle, "POST", "/v1/completions", headers, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// Subscribes, and asks with throw-away prompts until something is heard: a subscription has no acknowledgement.
/// What was missed comes by replay.
async fn subscribe(handle: &Handle, fold: &mut Fold) -> Sub {
    let endpoints = handle.events().remove(0);
    let mut sub = Sub::connect(endpoints.events, b"", Options::default());
    let (seen, asked) = (live(&mut sub), async {
        for family in 500.. {
            complete(handle, json!({"prompt": prompt(family, BLOCK + 1), "max_tokens": 1}), &[]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let (_, first) = tokio::select! {
        first = seen => first,
        () = asked => unreachable!("asks for ever"),
    };
    for message in replay(&endpoints.replay.unwrap(), 0).await.batches {
        if message.seq < first.seq {
            fold.apply(&message, 0);
        }
    }
    fold.apply(&first, 0);
    sub
}

/// Applies live messages until every batch numbered so far has come.
async fn catch_up(handle: &Handle, sub: &mut Sub, fold: &mut Fold) {
    while fold.next_seq < handle.counters().batches {
        let (_, message) = live(sub).await;
        fold.apply(&message, 0);
    }
}

fn counted(fold: &Fold) -> BTreeMap<u64, usize> {
    fold.copies.iter().map(|(&hash, &copies)| (hash, copies)).collect()
}

/// The main promise, for both socket implementations and every form of events: the counted stream is the cache, and it
/// tells what the next request finds (rules 3 and 4).
#[tokio::test]
async fn counted_events_are_the_cache_and_tell_the_next_hit() {
    for kind in KINDS {
        for generation in Generation::ALL {
            let events = EventsConfig { sockets: kind, ..EventsConfig::default() };
            let config = mocker::Config { generation, events: Some(events), adapters: vec!["sql".to_owned()], ..quick() };
            let handle = start(config).await;
            let mut fold = Fold::default();
            let mut sub = subscribe(&handle, &mut fold).await;
            let mut hits = 0;
            for round in 0..40usize {
                catch_up(&handle, &mut sub, &mut fold).await;
                let prompt = prompt(round as u32 % 5, [40, 64, 100, 17, 128, 5][round % 6]);
                // Only events of this generation carry adapter and salt in full.
                let full = generation == Generation::Vllm033;
                let (model, adapter) =
                    if full && round % 7 == 0 { ("sql", Adapter::Named("sql".to_owned())) } else { ("mock-model", Adapter::Base) };
                let salt = (full && round % 4 == 1).then_some("tenant");
                let expected = fold.cached_tokens(&prompt, &adapter, salt);
                let mut body = json!({"model": model, "prompt": prompt, "max_tokens": 1 + round % 20});
                if let Some(salt) = salt {
                    body["cache_salt"] = salt.into();
                }
                let answer = complete(&handle, body, &[]).await;
                assert_eq!(cached(&answer), expected as u64, "{kind:?} {generation} round {round}");
                hits += expected;
            }
            catch_up(&handle, &mut sub, &mut fold).await;
            assert_eq!(Some(counted(&fold)), handle.cached_blocks(0), "{kind:?} {generation}");
            assert!(hits > 0, "some request hit");
            assert!(handle.totals(0).unwrap().preemptions == 0 && fold.next_seq > 40);
            handle.shutdown().await;
        }
    }
}

#[tokio::test]
async fn concurrent_requests_keep_events_and_cache_equal() {
    let handle = start(quick()).await;
    let mut fold = Fold::default();
    let mut sub = subscribe(&handle, &mut fold).await;
    let bodies = (0..60u32).map(|at| json!({"prompt": prompt(at % 7, 30 + at as usize), "max_tokens": 20, "n": 1 + at % 3}));
    let answers = futures_util::future::join_all(bodies.map(|body| complete(&handle, body, &[]))).await;
    assert_eq!(answers.len(), 60);
    catch_up(&handle, &mut sub, &mut fold).await;
    assert_eq!(Some(counted(&fold)), handle.cached_blocks(0));
    assert_eq!(handle.gauges(0).unwrap().used_blocks, 0);
    handle.shutdown().await;
}

#[tokio::test]
async fn replay_begins_where_asked_or_at_the_oldest_kept_and_ends_with_the_marker() {
    for kind in KINDS {
        for (generation, frames) in [(Generation::Vllm023, 3), (Generation::Vllm026, 4), (Generation::Sglang0523, 4)] {
            let replay_config = ReplayConfig { buffer_steps: 3, ..ReplayConfig::default() };
            let events = EventsConfig { sockets: kind, replay: Some(replay_config), topic: "kv".to_owned(), ..EventsConfig::default() };
            let handle = start(mocker::Config { generation, events: Some(events), ..quick() }).await;
            for family in 0..5 {
                complete(&handle, json!({"prompt": prompt(family, 20), "max_tokens": 1}), &[]).await;
            }
            let endpoint = handle.events()[0].replay.clone().unwrap();
            for (start, seqs) in [(0, vec![2, 3, 4]), (4, vec![4]), (5, vec![]), (u64::MAX, vec![])] {
                let replay = replay(&endpoint, start).await;
                assert_eq!(
                    replay.batches.iter().map(|message| message.seq).collect::<Vec<_>>(),
                    seqs,
                    "{kind:?} {generation} from {start}"
                );
                assert_eq!(replay.frames, vec![frames; seqs.len() + 1]);
            }
            let counters = handle.counters();
            assert_eq!((counters.batches, counters.replays, counters.replayed_batches), (5, 4, 4));
            handle.shutdown().await;
        }
    }
}

#[tokio::test]
async fn a_dropped_batch_can_be_replayed_and_a_lost_one_cannot() {
    let handle = start(quick()).await;
    let mut fold = Fold::default();
    let mut sub = subscribe(&handle, &mut fold).await;
    catch_up(&handle, &mut sub, &mut fold).await;
    let first = fold.next_seq;
    handle.set_faults(|faults| (faults.drop_batches, faults.lose_batches) = (1, 1));
    for family in 0..3 {
        complete(&handle, json!({"prompt": prompt(family, 20), "max_tokens": 1}), &[]).await;
    }
    let (_, next) = live(&mut sub).await;
    assert_eq!(next.seq, first + 2);
    let replayed = replay(&handle.events()[0].replay.clone().unwrap(), first).await.batches;
    assert_eq!(replayed.iter().map(|message| message.seq).collect::<Vec<_>>(), [first, first + 2]);
    assert_eq!(replayed[1], next);
    assert_eq!(handle.faults(), Faults::default(), "both were counted off");
    assert_eq!(handle.counters().unsent_batches, 2);
    handle.shutdown().await;
}

#[tokio::test]
async fn a_restart_numbers_from_zero_on_the_same_ports_under_new_hashes() {
    for kind in KINDS {
        let events = EventsConfig { sockets: kind, ..EventsConfig::default() };
        let mut handle = start(mocker::Config { events: Some(events), ..quick() }).await;
        let mut fold = Fold::default();
        let mut sub = subscribe(&handle, &mut fold).await;
        catch_up(&handle, &mut sub, &mut fold).await;
        let body = json!({"prompt": prompt(1, 40), "max_tokens": 1});
        complete(&handle, body.clone(), &[]).await;
        let before = handle.cached_blocks(0).unwrap();
        let (url, events) = (handle.url(), handle.events());
        handle.restart().await.unwrap();
        assert_eq!((handle.url(), handle.events()), (url, events));
        assert_eq!(handle.cached_blocks(0).unwrap().len(), 0);
        assert!(replay(&handle.events()[0].replay.clone().unwrap(), 0).await.batches.is_empty());
        assert_eq!(cached(&complete(&handle, body, &[]).await), 0);
        let after = handle.cached_blocks(0).unwrap();
        assert_eq!(after.len(), 5);
        assert!(after.keys().all(|hash| !before.contains_key(hash)), "hashes are drawn anew");
        let replayed = replay(&handle.events()[0].replay.clone().unwrap(), 0).await.batches;
        assert_eq!(replayed.first().map(|message| message.seq), Some(0));
        handle.shutdown().await;
    }
}

#[tokio::test]
async fn a_subscriber_finds_the_restarted_engine_by_itself() {
    let mut handle = start(quick()).await;
    let mut fold = Fold::default();
    let mut sub = subscribe(&handle, &mut fold).await;
    for family in 0..40 {
        complete(&handle, json!({"prompt": prompt(family, 20), "max_tokens": 1}), &[]).await;
    }
    catch_up(&handle, &mut sub, &mut fold).await;
    handle.restart().await.unwrap();
    assert!(matches!(next(&mut sub).await, SubEvent::Disconnected { .. }));
    while !matches!(next(&mut sub).await, SubEvent::Connected { .. }) {}
    let asking = async {
        for family in 0.. {
            complete(&handle, json!({"prompt": prompt(family, 20), "max_tokens": 1}), &[]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (_, message) = tokio::select! {
        message = live(&mut sub) => message,
        () = asking => unreachable!("asks for ever"),
    };
    assert!(message.seq < fold.next_seq, "numbering began again: {}", message.seq);
    handle.shutdown().await;
}

#[tokio::test]
async fn a_fixed_seed_names_blocks_alike_in_every_life() {
    let config = mocker::Config { hash_seed: Some(7), ..quick() };
    let mut handle = start(config.clone()).await;
    let other = start(config).await;
    let body = json!({"prompt": prompt(1, 40), "max_tokens": 1});
    complete(&handle, body.clone(), &[]).await;
    complete(&other, body.clone(), &[]).await;
    let first = handle.cached_blocks(0);
    assert_eq!(first, other.cached_blocks(0));
    handle.restart().await.unwrap();
    complete(&handle, body, &[]).await;
    assert_eq!(first, handle.cached_blocks(0));
    handle.shutdown().await;
    other.shutdown().await;
}

#[tokio::test]
async fn each_rank_has_its_own_cache_sequence_and_neighbouring_ports() {
    for kind in KINDS {
        let events = EventsConfig { sockets: kind, ..EventsConfig::default() };
        let handle = start(mocker::Config { ranks: 3, events: Some(events), ..quick() }).await;
        let ports: Vec<u16> = handle
            .events()
            .iter()
            .map(|endpoints| match &endpoints.events {
                Endpoint::Tcp { port, .. } => *port,
                Endpoint::Ipc(path) => panic!("{}", path.display()),
            })
            .collect();
        assert_eq!(ports, [ports[0], ports[0] + 1, ports[0] + 2]);
        let body = json!({"prompt": prompt(1, 40), "max_tokens": 1});
        // In turn without the header: the same prompt is cold on each rank.
        for expected in [0, 0, 0, 32] {
            assert_eq!(cached(&complete(&handle, body.clone(), &[]).await), expected);
        }
        complete(&handle, json!({"prompt": prompt(2, 40), "max_tokens": 1}), &[("X-data-parallel-rank", "2")]).await;
        for (rank, batches) in [(0usize, 2), (1, 1), (2, 2)] {
            let mut fold = Fold::default();
            let endpoint = handle.events()[rank].replay.clone().unwrap();
            replay(&endpoint, 0).await.batches.iter().for_each(|message| fold.apply(message, rank as u32));
            assert_eq!(fold.next_seq, batches, "rank {rank}");
            assert_eq!(Some(counted(&fold)), handle.cached_blocks(rank));
        }
        // Ranks of one start name blocks alike.
        assert!(handle.cached_blocks(1).unwrap().keys().all(|hash| handle.cached_blocks(2).unwrap().contains_key(hash)));
        handle.shutdown().await;
    }
}

#[tokio::test]
async fn a_reset_is_told_late() {
    let handle = start(quick()).await;
    let body = json!({"prompt": prompt(1, 40), "max_tokens": 1});
    complete(&handle, body.clone(), &[]).await;
    assert_eq!(post(&handle, "/reset_prefix_cache", Value::Null).await.json(), json!({"success": true}));
    assert_eq!(handle.counters().batches, 1, "nothing is sent while the engine is idle");
    assert_eq!(cached(&complete(&handle, body, &[]).await), 0);
    let batches = replay(&handle.events()[0].replay.clone().unwrap(), 0).await.batches;
    let events = wire::batch(&batches[1].payload).unwrap().events;
    assert!(matches!(events[..], [Ok(wire::Event::Cleared), Ok(wire::Event::Stored(_))]), "{events:?}");
    handle.shutdown().await;
}

#[tokio::test]
async fn topic_hash_form_and_first_batch_are_the_engines() {
    let events = EventsConfig { topic: "kv-events".to_owned(), ..EventsConfig::default() };
    let config = mocker::Config { events: Some(events), hashes: Hashes::Binary, ..quick() };
    let handle = start(config).await;
    let mut sub = Sub::connect(handle.events().remove(0).events, b"kv-", Options::default());
    let asking = async {
        for family in 0.. {
            complete(&handle, json!({"prompt": prompt(family, 20), "max_tokens": 1}), &[]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (topic, message) = tokio::select! {
        message = live(&mut sub) => message,
        () = asking => unreachable!("asks for ever"),
    };
    assert_eq!(topic, "kv-events");
    let hash = *handle.cached_blocks(0).unwrap().keys().next().unwrap();
    let all = replay(&handle.events()[0].replay.clone().unwrap(), 0).await.batches;
    assert!(all.contains(&message));
    // 32 bytes of binary, of which the last 8 are the hash.
    let form = [&[0xc4, 32][..], &hash.to_be_bytes().repeat(4)].concat();
    assert!(all.iter().any(|message| message.payload.windows(form.len()).any(|window| window == form)));
    handle.shutdown().await;

    let handle = start(mocker::Config { generation: Generation::Sglang0523, ..quick() }).await;
    complete(&handle, json!({"prompt": prompt(1, 20), "max_tokens": 1}), &[]).await;
    let batches = replay(&handle.events()[0].replay.clone().unwrap(), 0).await.batches;
    let events = wire::batch(&batches[0].payload).unwrap().events;
    assert!(matches!(events.first(), Some(Ok(wire::Event::Cleared))), "a restarted SGLang announces itself");
    handle.shutdown().await;
}

#[tokio::test]
async fn without_events_no_socket_is_open() {
    let handle = start(mocker::Config { events: None, ..quick() }).await;
    complete(&handle, json!({"prompt": prompt(1, 40), "max_tokens": 1}), &[]).await;
    assert!(handle.events().is_empty());
    assert_eq!(get(&handle, "/kv_event_sources").await.json()["0"]["enable_kv_cache_events"], false);
    handle.shutdown().await;
}
