//! The ledger equals the sum of the live tickets, whatever happened before.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fleet;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use fleet::{BLOCK, ask, cold, prompt, rng, scheduler, target, unique_prompt, warm};
use index::{Slot, Target};
use proptest::prelude::*;
use sched::{Answer, Ask, Candidate, Load, Mode, Prompt, Scheduler, Ticket};

const SLOTS: u16 = 4;

/// One prompt: contents of its full blocks, out of few, so that prompts share prefixes; tokens after them.
type Text = (Vec<u32>, u32);

#[derive(Clone, Debug)]
enum Step {
    Reserve { texts: Vec<Text>, hashed: bool, answers: u32, stream: bool, cached_blocks: u32 },
    FirstEvent(usize),
    Drop(usize),
    Remove(u16),
}

/// A live ticket as the test knows it.
struct Live {
    ticket: Ticket,
    target: Target,
    texts: Vec<Text>,
    hashed: bool,
    sequences: u64,
    prefill_tokens: u64,
}

struct World {
    scheduler: Arc<Scheduler>,
    now: Instant,
    generations: [u32; SLOTS as usize],
    live: Vec<Live>,
}

impl World {
    fn target(&self, slot: u16) -> Target {
        Target { slot: Slot::new(slot), generation: self.generations[usize::from(slot)] }
    }

    /// All prefixes of prompts active on a target: each is one block.
    fn prefixes(&self, target: Target) -> HashSet<&[u32]> {
        let on_target = self.live.iter().filter(|live| live.hashed && live.target == target);
        on_target.flat_map(|live| &live.texts).flat_map(|(contents, _)| (1..=contents.len()).map(|end| &contents[..end])).collect()
    }

    fn private_blocks(&self, target: Target) -> usize {
        let on_target = self.live.iter().filter(|live| !live.hashed && live.target == target);
        on_target.flat_map(|live| &live.texts).map(|(contents, _)| contents.len()).sum()
    }

    fn expected_load(&self, target: Target) -> Load {
        let on_target = || self.live.iter().filter(|live| live.target == target);
        Load {
            active_prefill_tokens: on_target().map(|live| live.prefill_tokens).sum(),
            active_blocks: (self.prefixes(target).len() + self.private_blocks(target)) as u64,
            active_requests: on_target().map(|live| live.sequences).sum(),
            in_flight: on_target().count() as u64,
            prefill_tokens_per_second: None,
        }
    }

    /// Blocks that are active on a target once this request is there too, each prompt of it counted alone.
    fn expected_decode_blocks(&self, target: Target, texts: &[Text], hashed: bool) -> u64 {
        let prefixes = self.prefixes(target);
        let new = |(contents, _): &Text| (1..=contents.len()).filter(|end| !hashed || !prefixes.contains(&contents[..*end])).count();
        self.expected_load(target).active_blocks + texts.iter().map(new).sum::<usize>() as u64
    }

    fn check(&self) {
        for slot in 0..SLOTS {
            let target = self.target(slot);
            assert_eq!(self.scheduler.load(self.now, target), self.expected_load(target), "{target:?}");
        }
        let distinct: HashSet<&[u32]> = self.live.iter().map(|live| live.target).flat_map(|target| self.prefixes(target)).collect();
        assert_eq!(self.scheduler.counters().active_blocks, distinct.len());
    }

    fn apply(&mut self, step: Step, rng: &mut rand::rngs::SmallRng) {
        match step {
            Step::Reserve { texts, hashed, answers, stream, cached_blocks } => {
                let prompts: Vec<Prompt> = texts
                    .iter()
                    .map(|(contents, tail)| {
                        let prompt = prompt(contents, *tail);
                        if hashed { prompt } else { Prompt { chains: Vec::new(), ..prompt } }
                    })
                    .collect();
                let candidates: Vec<Candidate> = (0..SLOTS).map(|slot| warm(self.target(slot), prompts[0].tokens, cached_blocks)).collect();
                let answer = if stream { Answer::Stream } else { Answer::Plain };
                let request = Ask { answers_per_prompt: answers, answer, ..ask(&prompts) };
                let preview = self.scheduler.preview(self.now, &request, &candidates, rng);
                for costed in &preview.candidates {
                    assert_eq!(costed.decode_blocks, self.expected_decode_blocks(costed.target, &texts, hashed));
                }
                let ticket = self.scheduler.reserve(self.now, &request, &candidates, rng).unwrap();
                let tokens: u32 = prompts.iter().map(|prompt| prompt.tokens).sum();
                let cached = BLOCK * cached_blocks.min(prompts[0].tokens.saturating_sub(1) / BLOCK);
                self.live.push(Live {
                    target: ticket.target(),
                    ticket,
                    sequences: u64::from(answers) * texts.len() as u64,
                    prefill_tokens: u64::from(tokens - cached),
                    texts,
                    hashed,
                });
            }
            Step::FirstEvent(at) if !self.live.is_empty() => {
                let at = at % self.live.len();
                self.live[at].ticket.first_event(self.now);
                self.live[at].prefill_tokens = 0;
            }
            Step::Drop(at) if !self.live.is_empty() => {
                let at = at % self.live.len();
                drop(self.live.swap_remove(at));
            }
            Step::Remove(slot) => {
                self.scheduler.remove_target(self.now, self.target(slot));
                assert_eq!(self.scheduler.load(self.now, self.target(slot)), Load::default());
                self.generations[usize::from(slot)] += 1;
            }
            Step::FirstEvent(_) | Step::Drop(_) => {}
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let text = || (prop::collection::vec(0..2_u32, 0..9), 1..BLOCK);
    let reserve = (prop::collection::vec(text(), 1..4), prop::bool::weighted(0.9), 1..4_u32, any::<bool>(), 0..9_u32)
        .prop_map(|(texts, hashed, answers, stream, cached_blocks)| Step::Reserve { texts, hashed, answers, stream, cached_blocks });
    let step = prop_oneof![
        6 => reserve,
        3 => any::<usize>().prop_map(Step::FirstEvent),
        5 => any::<usize>().prop_map(Step::Drop),
        1 => (0..SLOTS).prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_ledger_equals_the_sum_of_live_tickets(steps in steps(), mode in prop::sample::select(vec![Mode::Kv, Mode::Random]), seed in any::<u64>()) {
        let mut rng = rng(seed);
        let mut world = World { scheduler: scheduler(mode), now: Instant::now(), generations: [0; SLOTS as usize], live: Vec::new() };
        for step in steps {
            world.apply(step, &mut rng);
            world.check();
        }
        world.live.clear();
        world.check();
        prop_assert_eq!(world.scheduler.counters().active_blocks, 0);
    }
}

#[test]
fn long_prompts_are_counted_and_freed_whole() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(1), Instant::now());
    let contents: Vec<u32> = (0..8_192).collect();
    let mut forked = contents.clone();
    forked[5_000] = u32::MAX;
    let only = |slot| [cold(target(slot))];
    let tickets: Vec<Ticket> = [(&contents[..], 0), (&forked[..], 0), (&contents[..3_333], 1), (&contents[..1], 2)]
        .into_iter()
        .map(|(contents, slot)| scheduler.reserve(now, &ask(&[prompt(contents, 1)]), &only(slot), &mut rng).unwrap())
        .collect();
    let forked_blocks = 8_192 - 5_000;
    let active: Vec<u64> = (0..4).map(|slot| scheduler.load(now, target(slot)).active_blocks).collect();
    assert_eq!(active, [8_192 + forked_blocks, 3_333, 1, 0]);
    let fleet: Vec<Candidate> = (0..4).map(|slot| cold(target(slot))).collect();
    let preview = scheduler.preview(now, &ask(&[prompt(&contents, 1)]), &fleet, &mut rng);
    let decode: Vec<u64> = preview.candidates.iter().map(|costed| costed.decode_blocks).collect();
    assert_eq!(decode, [8_192 + forked_blocks, 8_192, 8_192, 8_192]);
    drop(tickets);
    assert_eq!(scheduler.counters(), sched::Counters::default());
}

#[test]
fn a_request_that_reaches_the_bound_of_one_lock_hold_is_counted() {
    let (scheduler, mut rng, now) = (scheduler(Mode::Kv), rng(1), Instant::now());
    let prompts: Vec<Prompt> = (0..600).map(|number| unique_prompt(number, 1)).collect();
    let fleet = [cold(target(0))];
    let ticket = scheduler.reserve(now, &ask(&prompts), &fleet, &mut rng).unwrap();
    assert_eq!(scheduler.load(now, target(0)).active_blocks, 600);
    let again = scheduler.reserve(now, &ask(&prompts), &fleet, &mut rng).unwrap();
    assert_eq!(scheduler.counters().short_walks, 2);
    // Only what was looked up is known to be shared when choosing; what is booked is exact.
    assert_eq!(again.costed().decode_blocks, 600 + (600 - 512));
    assert_eq!(scheduler.load(now, target(0)).active_blocks, 600);
    drop((ticket, again));
    assert_eq!(scheduler.counters().active_blocks, 0);
}
