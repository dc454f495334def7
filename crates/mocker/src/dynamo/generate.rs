//! From a request to an answer that runs.

use std::sync::{Arc, atomic::Ordering};

use futures_util::{StreamExt, stream};
use wire::{
    generate::{BootstrapInfo, GenerateRequest},
    request::TypedError,
};
use worker::{Context, Failure, GenerateHandler, Outputs};

use super::{
    answer::{Answer, Asked},
    config::{DynamoConfig, HandOver, Role},
    meeting::{self, Desk, Known, Opened, Prefilled, Rooms},
};
use crate::{
    faults::Freeze,
    http::App,
    model::{NewRequest, Refused, digest},
    rank::Rank,
};

/// The handler of a simulated engine's endpoint.
#[derive(Clone)]
pub(super) struct Generating(Arc<Parts>);

struct Parts {
    app: Arc<App>,
    role: Role,
    hand_over: HandOver,
    decodes_alone: bool,
    /// Of a prefill worker: its rooms, and where they are.
    rooms: Option<(Arc<Desk>, String, u16)>,
}

impl Generating {
    pub(super) fn new(app: Arc<App>, config: &DynamoConfig, rooms: Option<&Rooms>) -> Self {
        let rooms = rooms.map(|rooms| (rooms.desk().clone(), rooms.host().to_owned(), rooms.port()));
        let (role, hand_over, decodes_alone) = (config.role, config.hand_over, config.decodes_alone);
        Self(Arc::new(Parts { app, role, hand_over, decodes_alone, rooms }))
    }
}

impl GenerateHandler for Generating {
    fn generate(&self, request: GenerateRequest, _: Context) -> Outputs {
        let parts = self.0.clone();
        Box::pin(stream::once(async move { parts.begin(request).await }).flat_map(|begun| match begun {
            Ok(answer) => outputs(answer),
            Err(error) => Box::pin(stream::iter([Err(error)])),
        }))
    }
}

fn outputs(answer: Answer) -> Outputs {
    Box::pin(stream::unfold(answer, |mut answer| async move { answer.next().await.map(|output| (output, answer)) }))
}

fn invalid<T>(message: String) -> Result<T, TypedError> {
    Err(Failure::InvalidArgument.error(message))
}

impl Parts {
    async fn begin(&self, request: GenerateRequest) -> Result<Answer, TypedError> {
        let app = &self.app;
        app.requests.fetch_add(1, Ordering::Relaxed);
        app.switches.until(|faults| faults.freeze != Freeze::Process).await;
        let faults = app.switches.now();
        tokio::time::sleep(faults.latency()).await;
        if let Some(status) = faults.status {
            return Err(of_status(status).error("a fault was asked for"));
        }
        let rank = self.rank(&request)?;
        let adapter = self.adapter(&request)?;
        let size = app.text.vocabulary_size();
        if let Some(stranger) = request.token_ids.iter().find(|token| **token >= size) {
            return invalid(format!("token id {stranger} is not in the vocabulary of {size}"));
        }
        let (hand_over, prefilled) = match self.role {
            Role::Aggregated => (None, false),
            Role::Prefill => (Some(self.open_room(&request)?), false),
            Role::Decode => (None, self.collect(&request).await?),
        };
        let salt = request.routing.as_ref().and_then(|routing| routing.cache_salt.as_deref());
        let stop = &request.stop_conditions;
        let max_tokens = if hand_over.is_some() { 1 } else { stop.max_tokens.unwrap_or(app.config.max_model_len).max(1) };
        let asked = Asked::of(&request, app);
        let new = NewRequest {
            adapter: adapter.map(Into::into),
            salt: salt.filter(|salt| !salt.is_empty()).map(Into::into),
            max_tokens,
            ignore_eos: stop.ignore_eos.unwrap_or_default(),
            min_tokens: stop.min_tokens.unwrap_or_default(),
            choice: 0,
            prefilled,
            prompt: request.token_ids,
        };
        // Bounded by the longest sequence once the engine has taken it.
        let prompt_tokens = u32::try_from(new.prompt.len()).unwrap_or(u32::MAX);
        let generation = rank.submit(new).map_err(|refused| self.refused(refused))?;
        let app = app.clone();
        Ok(Answer { app, generation, prompt_tokens, asked, hand_over, sent: 0, cached_tokens: 0, finish: None, over: false })
    }

    /// The rank that is asked for, else the one with the least to do.
    fn rank(&self, request: &GenerateRequest) -> Result<&Arc<Rank>, TypedError> {
        let ranks = &self.app.ranks;
        match request.routing.as_ref().and_then(|routing| routing.dp_rank) {
            Some(rank) => match ranks.get(rank as usize) {
                Some(rank) => Ok(rank),
                None => invalid(format!("dp_rank {rank} is out of bounds for dp_size {}", ranks.len())),
            },
            None => {
                let load = |rank: &&Arc<Rank>| rank.view().gauges.running + rank.view().gauges.waiting;
                ranks.iter().min_by_key(load).ok_or_else(|| Failure::Internal.error("there is no rank"))
            }
        }
    }

    /// By the routing hints, or by the model that is asked for.
    fn adapter(&self, request: &GenerateRequest) -> Result<Option<String>, TypedError> {
        let hinted = request.routing.as_ref().and_then(|routing| routing.lora_name.clone());
        let names = self.app.adapters.names();
        match hinted {
            Some(name) if !names.contains(&name) => invalid(format!("the adapter {name:?} is not loaded")),
            Some(name) => Ok(Some(name)),
            None => Ok(names.into_iter().find(|name| *name == request.model)),
        }
    }

    fn refused(&self, refused: Refused) -> TypedError {
        match refused {
            Refused::Empty => Failure::InvalidArgument.error(refused.to_string()),
            Refused::TooLong { tokens } => {
                let most = self.app.config.max_model_len;
                Failure::InvalidArgument.error(format!("the prompt has {tokens} tokens, and at most {most} fit with an answer"))
            }
            Refused::Busy => Failure::Overloaded.error(refused.to_string()),
        }
    }

    /// A room for what this prefill worker computes: the one both legs were told, or one of its own.
    fn open_room(&self, request: &GenerateRequest) -> Result<(Opened, Prefilled, BootstrapInfo), TypedError> {
        let Some((desk, host, port)) = &self.rooms else { return Err(Failure::Internal.error("there are no rooms")) };
        let room = match (&request.bootstrap_info, self.hand_over) {
            (Some(told), _) => told.room,
            (None, HandOver::Answer) => rand::random(),
            (None, HandOver::Bootstrap { .. }) => return invalid("a prefill worker with bootstrap needs bootstrap_info".to_owned()),
        };
        let opened = desk.open(room).ok_or_else(|| Failure::InvalidArgument.error(format!("room {room} is in use")))?;
        let prefilled = Prefilled { tokens: request.token_ids.len(), digest: digest(&request.token_ids) };
        Ok((opened, prefilled, BootstrapInfo { host: host.clone(), port: *port, room, handoff_id: None }))
    }

    /// Takes what a prefill worker handed over. False: nothing was, and this worker does it all.
    async fn collect(&self, request: &GenerateRequest) -> Result<bool, TypedError> {
        let Some((host, port, room, known)) = place(request)? else {
            if self.decodes_alone || request.is_probe {
                return Ok(false);
            }
            return invalid("a decode worker needs what a prefill worker handed over: prefill_result or bootstrap_info".to_owned());
        };
        let prefilled = meeting::collect(&host, port, room, known).await.map_err(|why| Failure::Unavailable.error(why))?;
        let expected = Prefilled { tokens: request.token_ids.len(), digest: digest(&request.token_ids) };
        if prefilled != expected {
            let (theirs, ours) = (prefilled.tokens, expected.tokens);
            return invalid(format!("room {room} holds another prompt: {theirs} tokens were prefilled, {ours} are to be decoded"));
        }
        Ok(true)
    }
}

/// Where something is handed over.
fn place(request: &GenerateRequest) -> Result<Option<(String, u16, u64, Known)>, TypedError> {
    if let Some(told) = &request.bootstrap_info {
        return Ok(Some((told.host.clone(), told.port, told.room, Known::Expected)));
    }
    let Some(result) = &request.prefill_result else { return Ok(None) };
    let params = &result.disaggregated_params;
    let place = || {
        let port = u16::try_from(params.get("bootstrap_port")?.as_u64()?).ok()?;
        let host = params.get("bootstrap_host")?.as_str()?.to_owned();
        Some((host, port, params.get("bootstrap_room")?.as_u64()?, Known::Opened))
    };
    match place() {
        Some(place) => Ok(Some(place)),
        None => invalid(format!("prefill_result is not one of a simulated prefill worker: {params}")),
    }
}

fn of_status(status: u16) -> Failure {
    match status {
        429 | 529 => Failure::Overloaded,
        400..=499 => Failure::InvalidArgument,
        502..=504 => Failure::Unavailable,
        _ => Failure::Internal,
    }
}
