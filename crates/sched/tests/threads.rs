//! Many threads, one scheduler.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fleet;

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use fleet::{ask, cold_fleet, prompt, rng, scheduler, target, unique_prompt};
use rand::Rng;
use sched::{Counters, Load, Mode, Ticket};

const THREADS: usize = 4;

#[test]
fn choice_and_booking_are_one_step() {
    for round in 0..300 {
        let (scheduler, barrier, now) = (scheduler(Mode::Kv), Barrier::new(THREADS), Instant::now());
        let prompts = [unique_prompt(round, 8)];
        let tickets: Vec<Ticket> = thread::scope(|scope| {
            let reserve = |seed| {
                let (scheduler, barrier, prompts) = (&scheduler, &barrier, &prompts);
                scope.spawn(move || {
                    barrier.wait();
                    scheduler.reserve(now, &ask(prompts), &cold_fleet(1), &mut rng(seed)).unwrap()
                })
            };
            let threads: Vec<_> = (0..THREADS as u64).map(reserve).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut seen: Vec<(u64, u64)> =
            tickets.iter().map(|ticket| (ticket.costed().active_requests, ticket.costed().active_prefill_tokens)).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(0, 0), (1, 129), (2, 258), (3, 387)]);
    }
}

#[test]
fn all_is_zero_once_every_thread_is_done() {
    let (scheduler, now) = (scheduler(Mode::Kv), Instant::now());
    thread::scope(|scope| {
        for seed in 0..THREADS as u64 {
            let scheduler = &scheduler;
            scope.spawn(move || {
                let mut rng = rng(seed);
                let mut live: Vec<Ticket> = Vec::new();
                for _ in 0..1_500 {
                    // Prefixes that threads share, some longer than one lock hold covers.
                    let blocks = if rng.random_range(0..50) == 0 { 1_300 } else { rng.random_range(0..40) };
                    let mut contents: Vec<u32> = (0..blocks).collect();
                    if let Some(last) = contents.last_mut() {
                        *last += rng.random_range(0..3_u32);
                    }
                    let prompts = [prompt(&contents, 3)];
                    live.push(scheduler.reserve(now, &ask(&prompts), &cold_fleet(5), &mut rng).unwrap());
                    if live.len() > 8 {
                        live[rng.random_range(0..9)].first_event(now);
                        drop(live.swap_remove(rng.random_range(0..9)));
                    }
                }
            });
        }
    });
    for slot in 0..5 {
        assert_eq!(scheduler.load(now, target(slot)), Load::default());
    }
    assert_eq!(scheduler.counters(), Counters::default());
}
