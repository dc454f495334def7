//! What the answer to a request looks like: its OpenAI shape, its annotations, and what `nvext` tells of it.

use std::{
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use answer::{
    Answer, Echo, Prompt, ResponseNvext, Shape, Stops, Timing, Workers,
    reasoning::ReasoningParser,
    tools::{Plan, Schemas, ToolParser},
};
use axum::{body::Body, response::Response};
use bytes::BytesMut;
use http::{HeaderValue, header};
use prompt::{Endpoint, Inputs, ToolChoice};

use super::{Job, attempt::Running, prefill::Helper};
use crate::{
    fleet::Member,
    http::ApiError,
    walk::{Prepared, respond::Routed, target},
};

/// The answer to a request of which nothing has come.
pub(super) fn answer(job: &Job, prepared: &Prepared) -> Answer {
    let generation = &job.work.generation;
    let model = &job.work.model;
    let endpoint = prepared.request.endpoint;
    let (kind, is_chat) = match endpoint {
        Endpoint::Completions => ("cmpl", false),
        Endpoint::Chat => ("chatcmpl", true),
    };
    // Names that nobody knows are told when the model is loaded; its text is then left as it is.
    let reasoning = model.reasoning_parser.as_deref().filter(|_| is_chat).and_then(|name| ReasoningParser::by_name(name).ok());
    let tools = model.tool_parser.as_deref().filter(|_| is_chat).and_then(|name| ToolParser::by_name(name).ok());
    let choice = if is_chat && generation.tools.offered() { generation.tools.choice.clone() } else { ToolChoice::None };
    let shape = Shape {
        endpoint,
        stream: generation.stream,
        id: format!("{kind}-{}", job.id),
        model: prepared.request.model.clone(),
        created: unix(job.received).as_secs(),
        prompts: prompts(job, prepared),
        n: job.work.n(),
        stops: Stops {
            strings: generation.stop.clone(),
            include: generation.include_stop,
            hidden_ids: generation.stop_token_ids.clone(),
            visible_ids: Vec::new(),
            eos_ids: model.eos_token_ids.clone(),
            ignore_eos: generation.ignore_eos,
            min_tokens: generation.min_tokens.unwrap_or(0),
            max_tokens: generation.max_tokens,
        },
        skip_special_tokens: generation.skip_special_tokens,
        logprobs: generation.logprobs,
        tokens_as_ids: generation.return_tokens_as_ids,
        usage: generation.usage,
        parse: Plan {
            reasoning,
            tools,
            choice,
            parallel: generation.tools.parallel,
            schemas: Arc::new(Schemas::of_request(&generation.tools.tools)),
        },
        seed: rand::random(),
        fields: generation.nvext.extra_fields,
    };
    Answer::new(shape, model.folder.vocabulary())
}

fn prompts(job: &Job, prepared: &Prepared) -> Vec<Prompt> {
    let echo = |at: usize| match &prepared.request.inputs {
        Inputs::Prompts(prompts) => Some(match prompts.get(at) {
            Some(prompt::Prompt::Text(text)) => Echo::Text(text.to_string()),
            Some(prompt::Prompt::Ids(_)) | None => Echo::Ids,
        }),
        Inputs::Chat(_) | Inputs::Opaque => None,
    };
    let prompt = |(at, tokens): (usize, &prompt::Tokens)| Prompt {
        ids: tokens.ids.clone(),
        echo: if job.work.generation.echo { echo(at) } else { None },
    };
    job.work.prompts.iter().enumerate().map(prompt).collect()
}

/// What the client asked to be told before the first chunk.
pub(super) fn annotate(job: &Job, prepared: &Prepared, answer: &mut Answer, out: &mut BytesMut) {
    let nvext = &job.work.generation.nvext;
    if nvext.annotations.is_empty() {
        return;
    }
    if nvext.annotates("formatted_prompt") {
        let text = match &prepared.request.inputs {
            Inputs::Chat(chat) => job.work.model.folder.chat_text(chat, job.received).ok(),
            Inputs::Prompts(prompts) => match prompts.as_slice() {
                [prompt::Prompt::Text(text)] => Some(text.to_string()),
                _ => None,
            },
            Inputs::Opaque => None,
        };
        if let Some(text) = text {
            answer.annotate("formatted_prompt", &text, out);
        }
    }
    if nvext.annotates("token_ids") {
        for tokens in &job.work.prompts {
            answer.annotate("token_ids", &format!("[{}]", tokens.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")), out);
        }
    }
}

/// A dry run: who would work for the request, and its tokens. Nothing is booked or sent.
pub(super) fn dry_run(job: &Job, prepared: &Prepared) -> Result<Response, ApiError> {
    let scheduler = &job.app.fleet.scheduler;
    let preview = scheduler.preview(Instant::now(), &prepared.ask(), &prepared.candidates(&[]), &mut rand::rng());
    let chosen = preview.chosen.map_err(|refusal| target::refused(&refusal))?;
    // The scheduler chooses among the candidates, which are made of the members one by one.
    let at = prepared.members.iter().position(|member| member.target() == chosen).expect("the chosen target is a member");
    let member = &prepared.members[at];
    let mut answer = answer(job, prepared);
    answer.served_by(0, workers(member, None));
    let mut out = BytesMut::new();
    answer.advise(&mut out);
    let mut response = Response::new(Body::from(out.freeze()));
    let kind = if job.work.generation.stream { "text/event-stream" } else { "application/json" };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Routed::new(member, prepared.held[at].overlap.device_blocks(), &job.request_id).write(response.headers_mut());
    Ok(response)
}

/// As `nvext.worker_id` tells it: a worker that does all of a request is both.
pub(super) fn workers(decode: &Member, helper: Option<&Helper>) -> Workers {
    let prefill = helper.map_or(decode, |helper| &helper.member);
    Workers {
        prefill_worker_id: prefill.worker.id().parse().ok(),
        prefill_dp_rank: Some(prefill.rank.dp_rank),
        decode_worker_id: decode.worker.id().parse().ok(),
        decode_dp_rank: Some(decode.rank.dp_rank),
    }
}

/// When what happened to the first leg, for `nvext.timing`.
#[derive(Default)]
pub(super) struct Times {
    sent: Option<Instant>,
    first: Option<Instant>,
    hit_rate: Option<f64>,
}

impl Times {
    /// Its first output is there.
    pub(super) fn begun(running: &Running, prepared: &Prepared) -> Self {
        let blocks = prepared.plan.tokens() / u64::from(running.member.block_size.get());
        let held = running.helper.as_ref().map_or(running.overlap_blocks, |helper| helper.overlap_blocks);
        let hit_rate = (blocks > 0).then(|| (held as f64 / blocks as f64).min(1.0));
        Self { sent: Some(running.sent), first: Some(Instant::now()), hit_rate }
    }

    /// At the end of the answer.
    pub(super) fn told(&self, job: &Job) -> ResponseNvext {
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1000.0;
        let timing = Timing {
            request_received_ms: Some(unix(job.received).as_millis() as u64),
            prefill_wait_time_ms: self.sent.map(|sent| ms(job.started, sent)),
            prefill_time_ms: self.sent.zip(self.first).map(|(sent, first)| ms(sent, first)),
            ttft_ms: self.first.map(|first| ms(job.started, first)),
            total_time_ms: Some(ms(job.started, Instant::now())),
            kv_hit_rate: self.hit_rate,
            router_queue_depth: None,
        };
        ResponseNvext { timing }
    }
}

fn unix(time: SystemTime) -> std::time::Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
