//! What one token of a stream costs: engine output in, SSE chunk out. A small real vocabulary; a buffer that is reused as a connection's is.

use std::{hint::black_box, path::Path, sync::Arc};

use answer::{
    Answer, Prompt, Shape, Stops,
    reasoning::ReasoningParser,
    tools::{Plan, ToolParser},
};
use bytes::BytesMut;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use prompt::{Endpoint, ExtraFields, Folder, LoadOptions, ToolChoice, UsageWanted, Vocabulary};
use wire::generate::{EngineOutput, TopLogprob};

/// Tokens of one answer.
const TOKENS: u64 = 1000;

fn shape(endpoint: Endpoint) -> Shape {
    Shape {
        endpoint,
        stream: true,
        id: "chatcmpl-3570f76a-d046-49b0-8a59-31635b440cce".to_owned(),
        model: "meta-llama/Llama-3.1-8B-Instruct".to_owned(),
        created: 1_796_046_660,
        prompts: vec![Prompt { ids: [5; 64].into(), echo: None }],
        n: 1,
        stops: Stops { eos_ids: vec![u32::MAX], ..Stops::default() },
        skip_special_tokens: true,
        logprobs: None,
        tokens_as_ids: false,
        parse: Plan { reasoning: None, tools: None, choice: ToolChoice::None, parallel: true, schemas: Arc::default() },
        seed: 1,
        usage: UsageWanted::default(),
        fields: ExtraFields::default(),
    }
}

fn run(shape: &Shape, vocabulary: &Arc<Vocabulary>, outputs: &[EngineOutput], out: &mut BytesMut) {
    let mut answer = Answer::new(shape.clone(), vocabulary.clone());
    for output in outputs {
        out.clear();
        let _ = black_box(answer.push(0, output, out));
    }
}

fn answers(criterion: &mut Criterion) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-llama");
    let folder = Folder::load(&folder, &LoadOptions::default()).expect("a model folder");
    let vocabulary = folder.vocabulary();
    let size = u32::try_from(vocabulary.size()).expect("small");
    let ids = (0..size).filter(|id| !vocabulary.is_special(*id) && std::str::from_utf8(vocabulary.token_bytes(*id)).is_ok());
    let ids: Vec<u32> = ids.collect();
    let output = |at: u64| EngineOutput { token_ids: vec![ids[(at * 7919) as usize % ids.len()]], ..EngineOutput::default() };
    let outputs: Vec<EngineOutput> = (0..TOKENS).map(output).collect();
    let told = |output: &EngineOutput| EngineOutput {
        log_probs: Some(vec![-0.123_456]),
        top_logprobs: Some(vec![(0..5).map(|at| TopLogprob { token_id: ids[at], logprob: -1.5, ..TopLogprob::default() }).collect()]),
        ..output.clone()
    };
    let with_logprobs: Vec<EngineOutput> = outputs.iter().map(told).collect();

    let mut stopped = shape(Endpoint::Chat);
    stopped.stops.strings = ["</s>", "\n\nHuman:", "###", "<|im_end|>"].map(str::to_owned).into();
    let mut parsed = shape(Endpoint::Chat);
    parsed.parse.reasoning = Some(ReasoningParser::Think);
    parsed.parse.tools = Some(ToolParser::Hermes);
    parsed.parse.choice = ToolChoice::Auto;
    let mut logprobs = shape(Endpoint::Chat);
    logprobs.logprobs = Some(5);
    let cases = [
        ("chat", shape(Endpoint::Chat), &outputs),
        ("completion", shape(Endpoint::Completions), &outputs),
        ("chat, four stop strings", stopped, &outputs),
        ("chat, thoughts and calls looked for", parsed, &outputs),
        ("chat, five logprobs", logprobs, &with_logprobs),
    ];
    let mut group = criterion.benchmark_group("a chunk of one token");
    group.throughput(Throughput::Elements(TOKENS));
    let mut out = BytesMut::with_capacity(1 << 16);
    for (name, shape, outputs) in &cases {
        group.bench_function(*name, |bencher| bencher.iter(|| run(shape, &vocabulary, outputs, &mut out)));
    }
    group.finish();
}

criterion_group!(benches, answers);
criterion_main!(benches);
