//! The engine against what its own events say, and against what real engines were seen to do.

use std::collections::HashMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

const BLOCK: usize = 4;

fn config(style: Style, blocks: u32) -> EngineConfig {
    EngineConfig {
        style,
        block_size: NonZeroU32::new(BLOCK as u32).unwrap(),
        blocks,
        max_model_len: 48,
        max_batched_tokens: 16,
        max_sequences: 4,
        prefill_tokens_per_s: 1000.0,
        decode_tokens_per_s: 100.0,
        hash_seed: 7,
        vocabulary: Vocabulary { words: (100..200).collect(), eos: Some(1), mean_tokens: 20 },
    }
}

fn request(prompt: Vec<u32>, max_tokens: u32) -> NewRequest {
    NewRequest { prompt, max_tokens, ignore_eos: true, ..NewRequest::default() }
}

/// Steps until nothing is left to do.
fn drain(engine: &mut Engine) -> Vec<Step> {
    std::iter::from_fn(|| engine.step()).collect()
}

/// (parent, tokens, adapter, salt): what a block is, whatever the engine calls it.
type Said = (Option<u64>, Vec<u32>, Option<String>, Option<String>);

/// What a careful consumer keeps: copies per hash, and what each hash was said to hold.
#[derive(Default)]
struct Fold {
    copies: HashMap<u64, usize>,
    /// Of each hash ever stored.
    said: HashMap<u64, Said>,
}

impl Fold {
    fn apply(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored(stored) => self.store(stored),
                KvEvent::Removed { hash } => {
                    let copies = self.copies.get_mut(hash).expect("a removal names a stored block");
                    *copies -= 1;
                    if *copies == 0 {
                        self.copies.remove(hash);
                    }
                }
                KvEvent::Cleared => self.copies.clear(),
            }
        }
    }

    fn store(&mut self, stored: &StoredBlocks) {
        assert_eq!(stored.tokens.len(), stored.hashes.len() * BLOCK);
        let mut parent = stored.parent;
        for (hash, tokens) in stored.hashes.iter().zip(stored.tokens.chunks(BLOCK)) {
            let key = (parent, tokens.to_vec(), stored.adapter.as_deref().map(str::to_owned), stored.salt.as_deref().map(str::to_owned));
            let before = self.said.insert(*hash, key.clone());
            assert!(before.is_none_or(|before| before == key), "one hash names one block");
            *self.copies.entry(*hash).or_default() += 1;
            parent = Some(*hash);
        }
    }

    /// Leading blocks of a prompt that are cached, walking parents, tokens, adapter and salt only.
    fn overlap(&self, new: &NewRequest) -> usize {
        let mut parent = None;
        let mut depth = 0;
        for tokens in new.prompt.chunks_exact(BLOCK) {
            let key = (parent, tokens.to_vec(), new.adapter.as_deref().map(str::to_owned), new.salt.as_deref().map(str::to_owned));
            let Some((hash, _)) = self.said.iter().find(|(hash, said)| **said == key && self.copies.contains_key(hash)) else { break };
            parent = Some(*hash);
            depth += 1;
        }
        depth
    }
}

#[derive(Clone, Debug)]
enum Op {
    Submit { family: u32, tokens: usize, max_tokens: u32, adapter: bool, salt: bool, ignore_eos: bool },
    Steps(usize),
    Abort(usize),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..3u32, 1..40usize, 1..12u32, prop::bool::weighted(0.2), prop::bool::weighted(0.2), any::<bool>()).prop_map(
            |(family, tokens, max_tokens, adapter, salt, ignore_eos)| Op::Submit { family, tokens, max_tokens, adapter, salt, ignore_eos }
        ),
        4 => (1..6usize).prop_map(Op::Steps),
        1 => (0..8usize).prop_map(Op::Abort),
        1 => Just(Op::Reset),
    ]
}

fn made(op: &Op) -> NewRequest {
    let Op::Submit { family, tokens, max_tokens, adapter, salt, ignore_eos } = op else { panic!("not a submit") };
    NewRequest {
        prompt: (0..*tokens as u32).map(|at| family * 1000 + at).collect(),
        adapter: adapter.then(|| "sql".into()),
        salt: salt.then(|| "tenant".into()),
        max_tokens: *max_tokens,
        ignore_eos: *ignore_eos,
        ..NewRequest::default()
    }
}

/// Runs the operations; after each, the pool must add up and the events must describe it.
fn run(style: Style, blocks: u32, ops: &[Op]) -> Vec<Step> {
    let mut engine = Engine::new(config(style, blocks)).unwrap();
    let mut fold = Fold::default();
    let mut ids = Vec::new();
    let mut steps = Vec::new();
    for op in ops {
        let mut stepped = Vec::new();
        match op {
            Op::Submit { .. } => ids.push(engine.submit(made(op)).unwrap()),
            Op::Steps(n) => stepped.extend(std::iter::from_fn(|| engine.step()).take(*n)),
            Op::Abort(at) => {
                if !ids.is_empty() {
                    engine.abort(ids[at % ids.len()]);
                }
            }
            Op::Reset => {
                engine.reset_cache();
            }
        }
        for step in stepped {
            fold.apply(&step.events);
            steps.push(step);
        }
        let gauges = engine.gauges();
        assert_eq!(gauges.used_blocks + gauges.free_blocks, blocks as usize);
    }
    for step in drain(&mut engine) {
        fold.apply(&step.events);
        steps.push(step);
    }
    assert_eq!(engine.gauges(), Gauges { free_blocks: blocks as usize, ..Gauges::default() });
    // A last request flushes events that an abort or a reset left behind.
    engine.submit(request(vec![9], 1)).unwrap();
    for step in drain(&mut engine) {
        fold.apply(&step.events);
    }
    assert_eq!(fold.copies, engine.contents().collect::<HashMap<_, _>>());
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn counted_events_equal_the_cache_and_blocks_add_up(
        ops in prop::collection::vec(op(), 1..60),
        blocks in 12..40u32,
        sglang in any::<bool>(),
    ) {
        run(if sglang { Style::Sglang } else { Style::Vllm }, blocks, &ops);
    }

    #[test]
    fn one_seed_gives_one_run(ops in prop::collection::vec(op(), 1..40)) {
        let runs = [run(Style::Vllm, 16, &ops), run(Style::Vllm, 16, &ops)];
        prop_assert_eq!(format!("{:?}", runs[0]), format!("{:?}", runs[1]));
    }

    /// Rule 3: one request after another, the events tell what the engine will find.
    #[test]
    fn events_predict_cached_tokens(
        requests in prop::collection::vec(op().prop_filter("submits", |op| matches!(op, Op::Submit { .. })), 1..40),
        blocks in 12..40u32,
        sglang in any::<bool>(),
    ) {
        let mut engine = Engine::new(config(if sglang { Style::Sglang } else { Style::Vllm }, blocks)).unwrap();
        let mut fold = Fold::default();
        for op in &requests {
            let new = made(op);
            let expected = BLOCK * fold.overlap(&new).min((new.prompt.len() - 1) / BLOCK);
            engine.submit(new).unwrap();
            let steps = drain(&mut engine);
            let output = steps.iter().flat_map(|step| &step.outputs).next().expect("one token at least");
            prop_assert_eq!(output.cached_tokens as usize, expected);
            steps.iter().for_each(|step| fold.apply(&step.events));
        }
    }
}

fn stored(step: &Step) -> Vec<usize> {
    step.events
        .iter()
        .filter_map(|event| match event {
            KvEvent::Stored(stored) => Some(stored.hashes.len()),
            KvEvent::Removed { .. } | KvEvent::Cleared => None,
        })
        .collect()
}

fn removed(step: &Step) -> usize {
    step.events.iter().filter(|event| matches!(event, KvEvent::Removed { .. })).count()
}

#[test]
fn a_prompt_of_whole_blocks_stores_its_last_block_again_each_time() {
    let mut engine = Engine::new(config(Style::Vllm, 30)).unwrap();
    let prompt: Vec<u32> = (0..12).collect();
    let mut last = 0;
    for (round, blocks) in [3, 1, 1].into_iter().enumerate() {
        engine.submit(request(prompt.clone(), 1)).unwrap();
        let step = engine.step().unwrap();
        assert_eq!(stored(&step), [blocks], "round {round}");
        assert_eq!(step.outputs[0].cached_tokens, if round == 0 { 0 } else { 8 });
        let KvEvent::Stored(event) = &step.events[0] else { panic!("a store") };
        last = *event.hashes.last().unwrap();
    }
    assert_eq!(engine.contents().find(|(hash, _)| *hash == last), Some((last, 3)));
}

#[test]
fn a_tree_keeps_one_copy() {
    let mut engine = Engine::new(config(Style::Sglang, 30)).unwrap();
    for _ in 0..3 {
        engine.submit(request((0..12).collect(), 1)).unwrap();
        drain(&mut engine);
    }
    assert!(engine.contents().all(|(_, copies)| copies == 1));
}

#[test]
fn a_tree_announces_itself_and_stores_output_at_the_end() {
    let mut engine = Engine::new(config(Style::Sglang, 30)).unwrap();
    engine.submit(request((0..6).collect(), 11)).unwrap();
    let steps = drain(&mut engine);
    assert_eq!(steps[0].events[0], KvEvent::Cleared);
    assert_eq!(stored(&steps[0]), [1]);
    // 16 tokens were computed: the prompt's block, and three with output that come with what follows the end.
    assert!(steps[1..].iter().all(|step| step.events.is_empty() || stored(step) == [3]));
    assert_eq!(engine.contents().count(), 4);
}

#[test]
fn generated_tokens_fill_blocks_one_by_one() {
    let mut engine = Engine::new(config(Style::Vllm, 30)).unwrap();
    engine.submit(request((0..6).collect(), 11)).unwrap();
    let steps = drain(&mut engine);
    // 6 prompt tokens and 10 of 11 generated ones are computed: the last one never is.
    assert_eq!(steps.iter().flat_map(stored).collect::<Vec<_>>(), [1, 1, 1, 1]);
    // The next turn hits the generated blocks.
    let answer = steps.iter().flat_map(|step| &step.outputs).map(|output| output.token);
    let next = (0..6).chain(answer).chain(50..60).collect();
    engine.submit(request(next, 1)).unwrap();
    assert_eq!(drain(&mut engine).last().unwrap().outputs[0].cached_tokens, 16);
}

#[test]
fn a_full_hit_and_a_short_prompt_send_nothing() {
    let mut engine = Engine::new(config(Style::Vllm, 30)).unwrap();
    for prompt in [0..7, 0..7, 100..103] {
        engine.submit(request(prompt.collect(), 1)).unwrap();
    }
    let steps = drain(&mut engine);
    assert_eq!(steps.iter().map(|step| step.events.len()).sum::<usize>(), 1);
}

#[test]
fn requests_of_one_step_hit_each_other() {
    let mut engine = Engine::new(config(Style::Vllm, 40)).unwrap();
    for choice in 0..2 {
        engine.submit(NewRequest { choice, ..request((0..10).collect(), 2) }).unwrap();
    }
    let step = engine.step().unwrap();
    assert_eq!(step.outputs.iter().map(|output| output.cached_tokens).collect::<Vec<_>>(), [0, 8]);
    assert_ne!(step.outputs[0].token, step.outputs[1].token);
}

#[test]
fn long_prompts_are_prefilled_in_chunks() {
    let mut engine = Engine::new(config(Style::Vllm, 40)).unwrap();
    engine.submit(request((0..40).collect(), 1)).unwrap();
    let steps = drain(&mut engine);
    assert_eq!(steps.iter().flat_map(stored).collect::<Vec<_>>(), [4, 4, 2]);
    assert_eq!(steps.iter().map(|step| step.outputs.len()).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(steps.iter().map(|step| step.duration.as_millis()).collect::<Vec<_>>(), [16, 16, 8]);
}

/// As in a capture of a real engine: 30 blocks a prompt in a pool of 99, one more block for the output of each. The
/// fourth prompt takes the 9 blocks without content first, then the tail of the oldest prompt, then of its output.
#[test]
fn eviction_takes_blocks_without_content_then_the_oldest_tail() {
    let mut engine = Engine::new(EngineConfig { max_batched_tokens: 200, max_model_len: 200, ..config(Style::Vllm, 99) }).unwrap();
    let mut first = Vec::new();
    for at in 0..4u32 {
        engine.submit(request((0..120).map(|token| at * 1000 + token).collect(), 4)).unwrap();
        let steps = drain(&mut engine);
        if let (0, KvEvent::Stored(stored)) = (at, &steps[0].events[0]) {
            first = stored.hashes.clone();
        }
        if at < 3 {
            assert_eq!(steps.iter().map(removed).sum::<usize>(), 0);
            continue;
        }
        assert_eq!(removed(&steps[0]), 21);
        let gone: Vec<u64> = steps
            .iter()
            .flat_map(|step| &step.events)
            .filter_map(|event| match event {
                KvEvent::Removed { hash } => Some(*hash),
                KvEvent::Stored(_) | KvEvent::Cleared => None,
            })
            .collect();
        let tail: Vec<u64> = first.iter().rev().take(22).copied().collect();
        assert_eq!(gone, tail);
        assert!(matches!(steps[0].events.last(), Some(KvEvent::Stored(_))), "removals come before the store");
        assert_eq!((removed(&steps[1]), stored(&steps[1]).len()), (1, 0), "the output's block displaces one more");
    }
}

#[test]
fn a_reset_waits_for_idle_and_its_event_for_the_next_step() {
    let mut engine = Engine::new(config(Style::Vllm, 30)).unwrap();
    engine.submit(request((0..8).collect(), 3)).unwrap();
    engine.step().unwrap();
    assert!(!engine.reset_cache());
    drain(&mut engine);
    assert!(engine.reset_cache());
    assert!(engine.step().is_none());
    assert_eq!(engine.contents().count(), 0);
    engine.submit(request((0..8).collect(), 1)).unwrap();
    let step = engine.step().unwrap();
    assert_eq!(step.events[0], KvEvent::Cleared);
    assert_eq!(stored(&step), [2]);
    assert_eq!(step.outputs[0].cached_tokens, 0);
}

#[test]
fn an_aborted_request_keeps_what_it_stored() {
    let mut engine = Engine::new(config(Style::Vllm, 30)).unwrap();
    let id = engine.submit(request((0..9).collect(), 20)).unwrap();
    engine.step().unwrap();
    engine.abort(id);
    assert!(engine.step().is_none());
    engine.submit(request((0..9).collect(), 1)).unwrap();
    assert_eq!(engine.step().unwrap().outputs[0].cached_tokens, 8);
}

#[test]
fn a_full_pool_preempts_the_youngest_and_everyone_ends() {
    let mut engine = Engine::new(config(Style::Vllm, 14)).unwrap();
    for at in 0..4u32 {
        engine.submit(request((0..8).map(|token| at * 100 + token).collect(), 20)).unwrap();
    }
    let ended = drain(&mut engine).iter().flat_map(|step| &step.outputs).filter(|output| output.finish.is_some()).count();
    assert_eq!(ended, 4);
    assert!(engine.totals().preemptions > 0);
    assert_eq!(engine.totals().generated_tokens, 80);
}

#[test]
fn adapters_and_salts_share_nothing_and_seeds_rename_everything() {
    let hashes = |seed, adapter: Option<&str>, salt: Option<&str>| {
        let mut engine = Engine::new(EngineConfig { hash_seed: seed, ..config(Style::Vllm, 30) }).unwrap();
        let new = NewRequest { adapter: adapter.map(Into::into), salt: salt.map(Into::into), ..request((0..9).collect(), 1) };
        engine.submit(new).unwrap();
        engine.step().unwrap();
        engine.contents().map(|(hash, _)| hash).collect::<std::collections::BTreeSet<_>>()
    };
    let base = hashes(1, None, None);
    assert_eq!(base, hashes(1, None, None));
    for other in [hashes(1, Some("sql"), None), hashes(1, None, Some("sql")), hashes(2, None, None)] {
        assert!(base.is_disjoint(&other));
    }
}

#[test]
fn output_depends_on_the_prompt_only() {
    let words = |seed, prompt: Vec<u32>| {
        let mut engine = Engine::new(EngineConfig { hash_seed: seed, ..config(Style::Vllm, 30) }).unwrap();
        engine.submit(request(prompt, 10)).unwrap();
        drain(&mut engine).iter().flat_map(|step| &step.outputs).map(|output| output.token).collect::<Vec<_>>()
    };
    assert_eq!(words(1, vec![1, 2, 3]), words(2, vec![1, 2, 3]));
    assert_ne!(words(1, vec![1, 2, 3]), words(1, vec![1, 2, 4]));
}

#[test]
fn what_cannot_run_is_refused() {
    assert!(Engine::new(config(Style::Vllm, 11)).is_err(), "44 tokens cannot hold 48");
    assert!(Engine::new(EngineConfig { decode_tokens_per_s: 0.0, ..config(Style::Vllm, 30) }).is_err());
    let mut engine = Engine::new(config(Style::Vllm, 30)).unwrap();
    assert_eq!(engine.submit(request(Vec::new(), 1)), Err(Refused::Empty));
    assert_eq!(engine.submit(request(vec![1; 48], 1)), Err(Refused::TooLong { tokens: 48 }));
    assert!(engine.submit(request(vec![1; 47], 100)).is_ok());
    let outputs = drain(&mut engine).iter().map(|step| step.outputs.len()).sum::<usize>();
    assert_eq!(outputs, 1, "the length of the engine ends it");
}

fn answer(new: NewRequest) -> Vec<u32> {
    let mut engine = Engine::new(config(Style::Vllm, 32)).unwrap();
    engine.submit(new).unwrap();
    drain(&mut engine).iter().flat_map(|step| step.outputs.iter().map(|output| output.token)).collect()
}

#[test]
fn an_answer_goes_on_from_any_place_in_another_engine() {
    let whole = answer(request((0..9).collect(), 20));
    for at in [1, 7, 19] {
        let begun = (0..9).chain(whole[..at].iter().copied()).collect();
        assert_eq!(answer(request(begun, 20 - at as u32)), whole[at..]);
    }
    let other = |new: NewRequest| assert_ne!(answer(new), whole);
    other(request((1..10).collect(), 20));
    other(NewRequest { adapter: Some("sql".into()), ..request((0..9).collect(), 20) });
    other(NewRequest { choice: 1, ..request((0..9).collect(), 20) });
}

#[test]
fn a_prompt_that_was_prefilled_elsewhere_is_not_computed_again() {
    let mut engine = Engine::new(config(Style::Vllm, 32)).unwrap();
    let new = NewRequest { prefilled: true, ..request((0..30).collect(), 3) };
    engine.submit(new.clone()).unwrap();
    let steps = drain(&mut engine);
    assert_eq!(steps.len(), 3, "30 tokens would be two steps of 16");
    assert!(steps.iter().all(|step| step.duration < std::time::Duration::from_millis(12)), "{steps:?}");
    assert_eq!(engine.contents().count(), 8, "its blocks are cached all the same");
    assert_eq!(steps[0].outputs[0].cached_tokens, 0);
    let tokens: Vec<u32> = steps.iter().map(|step| step.outputs[0].token).collect();
    assert_eq!(tokens, answer(NewRequest { prefilled: false, ..new }), "and the answer is the same");
}
