//! What each mode chooses, and what it never does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fleet;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fleet::{BLOCK, ask, block_size, cold, cold_fleet, prompt, rng, scheduler, target, unique_prompt, warm};
use index::{BlockSize, Target};
use proptest::prelude::*;
use sched::{Answer, Ask, Candidate, Config, Depths, Exclusion, Mode, NoWorker, Prompt, Scheduler, Ticket};

/// How many of the tickets each target got, by slot.
fn counts(tickets: &[Ticket], targets: usize) -> Vec<usize> {
    let mut counts = vec![0; targets];
    for ticket in tickets {
        counts[ticket.target().slot.index()] += 1;
    }
    counts
}

#[test]
fn a_burst_of_cold_requests_lands_about_evenly() {
    for seed in 0..20 {
        let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(seed), Instant::now());
        let reserve = |number: u32| {
            // Lengths differ by a factor of two, as do those of real prompts of one kind.
            let prompts = [unique_prompt(number, 40 + number * 7 % 40)];
            scheduler.reserve(now, &ask(&prompts), &cold_fleet(4), &mut rng).unwrap()
        };
        let tickets: Vec<Ticket> = (0..100).map(reserve).collect();
        let counts = counts(&tickets, 4);
        assert!(counts.iter().all(|count| (20..=30).contains(count)), "seed {seed}: {counts:?}");
    }
}

#[test]
fn equal_cold_requests_in_a_burst_stick_to_no_single_target() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(3), Instant::now());
    let prompts = [unique_prompt(1, 64)];
    let tickets: Vec<Ticket> = (0..100).map(|_| scheduler.reserve(now, &ask(&prompts), &cold_fleet(4), &mut rng).unwrap()).collect();
    let counts = counts(&tickets, 4);
    assert!(counts.iter().all(|count| *count >= 15), "{counts:?}");
}

#[test]
fn cold_requests_one_after_the_other_spread_too() {
    for mode in [Mode::Kv, Mode::LeastLoaded, Mode::PowerOfTwo, Mode::Random] {
        let (scheduler, mut rng, now) = (scheduler(mode), rng(11), Instant::now());
        let mut counts = [0_u32; 4];
        for number in 0..400 {
            let prompts = [unique_prompt(number, 8)];
            let ticket = scheduler.reserve(now, &ask(&prompts), &cold_fleet(4), &mut rng).unwrap();
            counts[ticket.target().slot.index()] += 1;
        }
        assert!(counts.iter().all(|count| (60..=140).contains(count)), "{mode}: {counts:?}");
    }
}

#[test]
fn kv_goes_to_the_prefix_until_load_outweighs_it() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(5), Instant::now());
    let prompts = [unique_prompt(1, 100)];
    let tokens = prompts[0].tokens;
    let candidates = [cold(target(0)), warm(target(1), tokens, 60), cold(target(2))];
    let ticket = scheduler.reserve(now, &ask(&prompts), &candidates, &mut rng).unwrap();
    assert_eq!(ticket.target(), target(1));
    let costed = ticket.costed();
    assert_eq!((costed.overlap.device_blocks(), costed.cached_tokens), (60, 60 * 16));
    assert_eq!(costed.new_prefill_tokens, u64::from(tokens) - 60 * 16);
    assert_eq!((costed.prompt_blocks, costed.decode_blocks, costed.active_prefill_tokens), (101, 100, 0));
    // 41 blocks of prefill and 100 of decode are booked there now: a different prompt with an equal prefix hit goes elsewhere.
    let prompts = [unique_prompt(2, 100)];
    let ticket = scheduler.reserve(now, &ask(&prompts), &candidates, &mut rng).unwrap();
    assert_ne!(ticket.target(), target(1));
}

#[test]
fn every_lane_but_the_slower_tiers_weighs_one() {
    let scheduler = scheduler(Mode::Kv);
    let prompts = [unique_prompt(1, 100)];
    let depths = |device, near, host, disk| Depths { device, near, host, disk, shared: 0 };
    let all = [depths(8, 8, 8, 8), depths(0, 8, 8, 8), depths(0, 0, 8, 8), depths(0, 0, 0, 8)];
    let candidates: Vec<Candidate> = (0..4)
        .map(|slot| {
            let mut candidate = cold(target(slot));
            candidate.overlap.add(prompts[0].tokens, block_size(), all[usize::from(slot)]);
            candidate
        })
        .collect();
    let preview = scheduler.preview(Instant::now(), &ask(&prompts), &candidates, &mut rng(1));
    let saved: Vec<f64> = preview.candidates.iter().map(|costed| (1601.0 + 1600.0 - costed.cost) / 16.0).collect();
    assert_eq!(saved, [8.0, 8.0, 6.0, 2.0]);
    let cached: Vec<u64> = preview.candidates.iter().map(|costed| costed.cached_tokens).collect();
    assert_eq!(cached, [128, 128, 96, 32]);
}

#[test]
fn targets_with_different_block_sizes_are_compared_in_tokens() {
    let scheduler = scheduler(Mode::Kv);
    let large = BlockSize::new(64).unwrap();
    let mut prompts = [unique_prompt(1, 32)];
    prompts[0].chains.push(sched::Chain { block_size: large, hashes: prompts[0].chains[0].hashes.iter().step_by(4).copied().collect() });
    let tokens = prompts[0].tokens;
    let mut other = cold(target(1));
    other.block_size = large;
    other.overlap.add(tokens, large, Depths { device: 2, near: 2, host: 2, disk: 2, shared: 0 });
    let candidates = [warm(target(0), tokens, 7), other];
    let preview = scheduler.preview(Instant::now(), &ask(&prompts), &candidates, &mut rng(1));
    assert_eq!(preview.chosen, Ok(target(1)));
    assert_eq!(preview.candidates[0].cost - preview.candidates[1].cost, 16.0);
    assert_eq!((preview.candidates[1].prompt_blocks, preview.candidates[1].decode_blocks), (9, 8));
}

#[test]
fn a_list_of_prompts_is_one_request_with_sums() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(5), Instant::now());
    let prompts = [prompt(&[1, 2, 3], 5), prompt(&[1, 2, 4], 0), prompt(&[9], 3)];
    let mut candidate = cold(target(0));
    for (prompt, device) in prompts.iter().zip([2, 3, 0]) {
        candidate.overlap.add(prompt.tokens, block_size(), Depths { device, near: device, host: device, disk: device, shared: 0 });
    }
    let request = Ask { answers_per_prompt: 2, ..ask(&prompts) };
    let ticket = scheduler.reserve(now, &request, &[candidate], &mut rng).unwrap();
    let costed = ticket.costed();
    assert_eq!((costed.prompt_blocks, costed.overlap.device_blocks()), (4 + 3 + 2, 5));
    // Of the second prompt the last block is recomputed for its last token.
    assert_eq!(costed.cached_tokens, 16 * (2 + 2));
    let load = scheduler.load(now, target(0));
    assert_eq!(load.active_prefill_tokens, (53 + 48 + 19) - 64);
    // The first two blocks of the first two prompts are the same.
    assert_eq!((load.active_blocks, load.active_requests, load.in_flight), (5, 6, 1));
}

#[test]
fn blocks_without_a_hash_are_shared_with_nobody() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(5), Instant::now());
    let untokenised = [Prompt { tokens: 10 * BLOCK + 3, chains: Vec::new() }];
    let mut partly = prompt(&[1, 2], 0);
    partly.tokens = 5 * BLOCK;
    let partly = [partly];
    let candidates = cold_fleet(1);
    let first = scheduler.reserve(now, &ask(&untokenised), &candidates, &mut rng).unwrap();
    let second = scheduler.reserve(now, &ask(&untokenised), &candidates, &mut rng).unwrap();
    assert_eq!((first.costed().decode_blocks, second.costed().decode_blocks), (10, 20));
    let third = scheduler.reserve(now, &ask(&partly), &candidates, &mut rng).unwrap();
    let fourth = scheduler.reserve(now, &ask(&partly), &candidates, &mut rng).unwrap();
    assert_eq!((third.costed().decode_blocks, fourth.costed().decode_blocks), (25, 28));
    drop((first, third));
    assert_eq!(scheduler.load(now, target(0)).active_blocks, 15);
}

#[test]
fn prefill_ends_at_the_first_event_and_blocks_at_drop() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(5), Instant::now());
    let prompts = [unique_prompt(1, 4)];
    let ticket = scheduler.reserve(now, &ask(&prompts), &[warm(target(0), 65, 2)], &mut rng).unwrap();
    assert_eq!(scheduler.load(now, target(0)).active_prefill_tokens, 33);
    ticket.first_event(now);
    ticket.first_event(now);
    let load = scheduler.load(now, target(0));
    assert_eq!((load.active_prefill_tokens, load.active_blocks, load.active_requests), (0, 4, 1));
    drop(ticket);
    assert_eq!(scheduler.load(now, target(0)), sched::Load::default());
}

#[test]
fn the_prefill_of_a_plain_answer_ends_at_the_pace_that_streams_have_shown() {
    let (scheduler, mut rng, start) = (scheduler(Mode::Kv), rng(5), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    let prompts = [unique_prompt(1, 100)];
    let plain = Ask { answer: Answer::Plain, ..ask(&prompts) };
    let fleet = cold_fleet(1);
    let tokens = |now| scheduler.load(now, target(0)).active_prefill_tokens;
    let unknown = scheduler.reserve(start, &plain, &fleet, &mut rng).unwrap();
    assert_eq!(tokens(after(1_000)), 1_601);
    drop(unknown);
    let stream = scheduler.reserve(start, &ask(&prompts), &fleet, &mut rng).unwrap();
    stream.first_event(after(2));
    assert_eq!(scheduler.load(after(2), target(0)).prefill_tokens_per_second, Some(800.5));
    let _first = scheduler.reserve(after(2), &plain, &fleet, &mut rng).unwrap();
    let second = scheduler.reserve(after(2), &plain, &fleet, &mut rng).unwrap();
    assert_eq!([tokens(after(3)), tokens(after(4)), tokens(after(5))], [3_202, 1_601, 1_601]);
    drop(second);
    assert_eq!(tokens(after(5)), 0);
}

#[test]
fn without_tracked_prefill_none_is_booked() {
    let scheduler = Scheduler::new(Config { track_prefill: false, ..Config::default() }).unwrap();
    let now = Instant::now();
    let prompts = [unique_prompt(1, 4)];
    let ticket = scheduler.reserve(now, &ask(&prompts), &cold_fleet(1), &mut rng(1)).unwrap();
    assert_eq!(scheduler.load(now, ticket.target()).active_prefill_tokens, 0);
    assert_eq!(ticket.costed().cost, 64.0);
}

#[test]
fn a_weight_out_of_range_is_refused_when_the_scheduler_is_made() {
    let error = Scheduler::new(Config { overlap_credit: f64::NAN, ..Config::default() }).unwrap_err();
    assert_eq!(error.name, "overlap credit");
}

#[test]
fn round_robin_takes_turns_also_with_two_models_and_with_targets_out() {
    let (scheduler, mut rng, now) = (scheduler(Mode::RoundRobin), rng(5), Instant::now());
    let prompts = [unique_prompt(1, 1)];
    let mut take = |candidates: &[Candidate]| scheduler.reserve(now, &ask(&prompts), candidates, &mut rng).unwrap().target().slot.index();
    let fleet = cold_fleet(3);
    assert_eq!([take(&fleet), take(&fleet), take(&fleet), take(&fleet)], [0, 1, 2, 0]);
    // Requests for two models in strict alternation: a counter modulo the number of candidates would use half of each fleet.
    let other = [cold(target(7)), cold(target(8))];
    let turns: Vec<(usize, usize)> = (0..3).map(|_| (take(&fleet), take(&other))).collect();
    assert_eq!(turns, [(1, 7), (2, 8), (0, 7)]);
    let mut fleet = fleet;
    fleet[1].excluded = Some(Exclusion::BreakerOpen);
    assert_eq!([take(&fleet), take(&fleet), take(&fleet)], [2, 0, 2]);
    fleet[1].excluded = None;
    assert_eq!([take(&fleet), take(&fleet), take(&fleet)], [1, 0, 2]);
}

#[test]
fn least_loaded_counts_sequences_and_ignores_caches() {
    let (scheduler, mut rng, now) = (scheduler(Mode::LeastLoaded), rng(5), Instant::now());
    let one = [unique_prompt(1, 10)];
    let list = [unique_prompt(2, 1), unique_prompt(3, 1), unique_prompt(4, 1)];
    let only = |slot| [cold(target(slot))];
    let _first = scheduler.reserve(now, &ask(&list), &only(0), &mut rng).unwrap();
    let _second = scheduler.reserve(now, &ask(&one), &only(1), &mut rng).unwrap();
    let candidates = [warm(target(0), one[0].tokens, 9), cold(target(1))];
    let third = scheduler.reserve(now, &ask(&one), &candidates, &mut rng).unwrap();
    let fourth = scheduler.reserve(now, &ask(&one), &candidates, &mut rng).unwrap();
    assert_eq!([third.target(), fourth.target()], [target(1), target(1)]);
    // The figures of the cost are there in every mode.
    assert_eq!((third.costed().active_requests, third.costed().decode_blocks), (1, 10));
    assert!(third.costed().cost > 0.0);
}

#[test]
fn direct_goes_only_where_the_request_says() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Direct), rng(5), Instant::now());
    let prompts = [unique_prompt(1, 1)];
    let mut candidates = cold_fleet(3);
    let unpinned = scheduler.reserve(now, &ask(&prompts), &candidates, &mut rng);
    assert_eq!(unpinned.err(), Some(NoWorker::TargetRequired));
    candidates[0].excluded = Some(Exclusion::NotPinned);
    candidates[2].excluded = Some(Exclusion::NotPinned);
    let pinned = Ask { pinned: true, ..ask(&prompts) };
    for _ in 0..10 {
        assert_eq!(scheduler.reserve(now, &pinned, &candidates, &mut rng).unwrap().target(), target(1));
    }
    candidates[1].excluded = Some(Exclusion::Draining);
    let Err(NoWorker::AllExcluded(reasons)) = scheduler.reserve(now, &pinned, &candidates, &mut rng) else { panic!("all are out") };
    assert_eq!(reasons.iter().collect::<Vec<_>>(), [(Exclusion::Draining, 1), (Exclusion::NotPinned, 2)]);
}

#[test]
fn a_preference_lowers_the_cost_unless_the_request_is_pinned() {
    let scheduler = scheduler(Mode::Kv);
    let prompts = [unique_prompt(1, 8)];
    let mut candidates = cold_fleet(2);
    candidates[1].preference = 0.5;
    let cost = |request: &Ask<'_>| {
        let preview = scheduler.preview(Instant::now(), request, &candidates, &mut rng(1));
        preview.candidates[1].cost / preview.candidates[0].cost
    };
    assert!((cost(&ask(&prompts)) - (-0.5_f64.tanh()).exp()).abs() < 1e-12);
    assert_eq!(cost(&Ask { pinned: true, ..ask(&prompts) }), 1.0);
}

#[test]
fn a_backlog_fades_the_credit_only_where_a_decay_is_set() {
    let saved = |overlap_credit_decay| {
        let scheduler = Scheduler::new(Config { overlap_credit_decay, ..Config::default() }).unwrap();
        let (mut rng, now) = (rng(1), Instant::now());
        let prompts = [unique_prompt(1, 9)];
        let backlog = [unique_prompt(2, 9)];
        let _ticket = scheduler.reserve(now, &ask(&backlog), &[cold(target(0))], &mut rng).unwrap();
        let candidates = [warm(target(0), 145, 5), cold(target(1))];
        let preview = scheduler.preview(now, &ask(&prompts), &candidates, &mut rng);
        // Without credit: the backlog and the prompt, and the blocks of both.
        (145.0 + 145.0 + 16.0 * 18.0 - preview.candidates[0].cost) / 16.0
    };
    assert!((saved(0.0) - 5.0).abs() < 1e-9);
    assert!((saved(1.0) - 5.0 / (1.0 + 145.0 / 16.0 / 10.0)).abs() < 1e-9);
}

#[test]
fn a_preview_lists_all_and_books_nothing() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(5), Instant::now());
    let prompts = [unique_prompt(1, 10)];
    let mut candidates = [cold(target(0)), warm(target(1), prompts[0].tokens, 5), cold(target(2))];
    candidates[1].excluded = Some(Exclusion::Draining);
    let preview = scheduler.preview(now, &ask(&prompts), &candidates, &mut rng);
    assert_ne!(preview.chosen, Ok(target(1)));
    let out: Vec<Option<Exclusion>> = preview.candidates.iter().map(|costed| costed.excluded).collect();
    assert_eq!(out, [None, Some(Exclusion::Draining), None]);
    assert!(preview.candidates[1].cost < preview.candidates[0].cost);
    for slot in 0..3 {
        assert_eq!(scheduler.load(now, target(slot)), sched::Load::default());
    }
    assert_eq!(scheduler.counters().active_blocks, 0);
}

#[test]
fn a_target_removed_after_it_was_listed_is_out() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(5), Instant::now());
    let prompts = [unique_prompt(1, 10)];
    let candidates = [cold(target(0))];
    let old = scheduler.reserve(now, &ask(&prompts), &candidates, &mut rng).unwrap();
    scheduler.remove_target(now, target(0));
    let refused = scheduler.reserve(now, &ask(&prompts), &candidates, &mut rng).unwrap_err();
    assert_eq!(refused.to_string(), "no worker can take the request: 1 removed");
    assert_eq!(scheduler.preview(now, &ask(&prompts), &candidates, &mut rng).candidates[0].excluded, Some(Exclusion::Removed));
    // The slot's next target starts from zero, whatever the old ticket does.
    let next = Target { generation: 1, ..target(0) };
    let new = scheduler.reserve(now, &ask(&prompts), &[cold(next)], &mut rng).unwrap();
    assert_eq!((new.costed().active_requests, new.costed().decode_blocks), (0, 10));
    let before = scheduler.load(now, next);
    old.first_event(now);
    drop(old);
    assert_eq!(scheduler.load(now, next), before);
    assert_eq!(scheduler.counters().active_blocks, 10);
    drop(new);
    assert_eq!(scheduler.counters().active_blocks, 0);
}

#[test]
fn without_candidates_there_is_no_worker() {
    for mode in [Mode::Kv, Mode::RoundRobin, Mode::Random, Mode::PowerOfTwo, Mode::LeastLoaded] {
        let refused = scheduler(mode).reserve(Instant::now(), &ask(&[]), &[], &mut rng(1));
        assert_eq!(refused.err(), Some(NoWorker::NoCandidates), "{mode}");
    }
}

#[test]
fn temperature_spreads_requests_by_cost() {
    let scheduler = Scheduler::new(Config { temperature: 0.5, ..Config::default() }).unwrap();
    let (mut rng, now) = (rng(9), Instant::now());
    let prompts = [unique_prompt(1, 10)];
    let candidates = [warm(target(0), 161, 10), warm(target(1), 161, 5), cold(target(2))];
    let mut counts: HashMap<usize, f64> = HashMap::new();
    for _ in 0..10_000 {
        let ticket = scheduler.reserve(now, &ask(&prompts), &candidates, &mut rng).unwrap();
        *counts.entry(ticket.target().slot.index()).or_default() += 1e-4;
    }
    // Costs scaled to 0, 1/2, 1 and divided by the temperature.
    let weights = [1.0, (-1.0_f64).exp(), (-2.0_f64).exp()];
    for (slot, weight) in weights.iter().enumerate() {
        let expected = weight / weights.iter().sum::<f64>();
        assert!((counts[&slot] - expected).abs() < 0.02, "{slot}: {counts:?}");
    }
}

fn modes() -> impl Strategy<Value = Mode> {
    prop::sample::select(Mode::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pickers_never_pick_an_excluded_candidate(
        mode in modes(),
        temperature in prop::sample::select(vec![0.0, 0.5, 100.0]),
        candidates in prop::collection::vec((0..20_u32, prop::option::weighted(0.5, 0..8_usize)), 1..12),
        requests in 1..20_u32,
        seed in any::<u64>(),
    ) {
        let scheduler = Scheduler::new(Config { mode, temperature, ..Config::default() }).unwrap();
        let (mut rng, now) = (rng(seed), Instant::now());
        let candidates: Vec<Candidate> = (0_u16..).zip(&candidates).map(|(slot, (blocks, excluded))| {
            let excluded = excluded.map(|at| Exclusion::ALL[at]);
            Candidate { excluded, ..warm(target(slot), 321, *blocks) }
        }).collect();
        let all_out = candidates.iter().all(|candidate| candidate.excluded.is_some());
        let mut tickets = Vec::new();
        for number in 0..requests {
            let prompts = [unique_prompt(number, 20)];
            let request = Ask { pinned: mode == Mode::Direct, ..ask(&prompts) };
            let preview = scheduler.preview(now, &request, &candidates, &mut rng);
            prop_assert_eq!(preview.candidates.len(), candidates.len());
            match scheduler.reserve(now, &request, &candidates, &mut rng) {
                Ok(ticket) => {
                    let chosen = &candidates[ticket.target().slot.index()];
                    prop_assert_eq!(chosen.excluded, None);
                    let previewed = preview.chosen.unwrap();
                    prop_assert_eq!(candidates[previewed.slot.index()].excluded, None);
                    tickets.push(ticket);
                }
                Err(NoWorker::AllExcluded(reasons)) => {
                    prop_assert!(all_out);
                    prop_assert_eq!(reasons.iter().map(|(_, count)| count as usize).sum::<usize>(), candidates.len());
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
