//! A record as a worker of the fleet.

use std::sync::Arc;

use tracing::warn;
use wire::discovery::OpenAiWorker;

use super::Hands;
use crate::{
    config::worker_flag::{Events, Role, WorkerSpec},
    fleet::{
        AddError,
        clip::clipped,
        introspect::EventPlan,
        origin::{Discovered, Origin},
        reach::{Reach, Told},
        records::{Edition, Instance, Kind},
        worker::Worker,
    },
};

/// Most bytes of a url or a model's name in a record: both are told again with each answer of `/workers`.
pub(super) const MOST_TEXT_BYTES: usize = 2048;

impl Hands {
    /// Whether the worker is what its record says, where necessary after taking over what is new.
    pub(super) fn can_stay(&self, worker: &Worker, kind: &Kind<'_>) -> bool {
        match (&worker.reach, kind) {
            (Reach::OpenAi(server), Kind::Server(record)) => self.spec(record).is_ok_and(|spec| spec == server.spec),
            (Reach::Tokens(tokens), Kind::Tokens { endpoint, models, edition }) => {
                if **endpoint != *tokens.endpoint() {
                    return false;
                }
                if !tokens.was_told(*edition)
                    && let Ok(told) = self.told(models, *edition)
                {
                    tokens.tell(told);
                }
                true
            }
            (Reach::OpenAi(_), Kind::Tokens { .. }) | (Reach::Tokens(_), Kind::Server(_)) => false,
        }
    }

    pub(super) fn add(&mut self, instance: Instance, kind: &Kind<'_>) -> Option<Arc<Worker>> {
        match self.try_add(&instance, kind) {
            Ok(worker) => {
                self.refused.remove(&instance);
                self.changed = true;
                self.fleet.directory.0.write().insert(instance, worker.clone());
                Some(worker)
            }
            Err(reason) => {
                if self.refused.get(&instance) != Some(&reason) {
                    warn!(worker = instance.number, reason = &*clipped(&reason), "a worker that discovery found cannot be added");
                    self.refused.insert(instance, reason);
                }
                None
            }
        }
    }

    fn try_add(&self, instance: &Instance, kind: &Kind<'_>) -> Result<Arc<Worker>, String> {
        let text = |error: AddError| error.to_string();
        let origin = Origin::Discovered(Discovered::new(instance.number, instance.endpoint.clone()));
        match kind {
            Kind::Server(record) => self.fleet.add_server(self.spec(record)?, origin).map_err(text),
            Kind::Tokens { endpoint, models, edition } => {
                let told = self.told(models, *edition)?;
                // One process may serve several endpoints; the first that came has the number alone.
                let number = instance.number.to_string();
                let id = match self.fleet.directory.worker(instance.number) {
                    None => number,
                    Some(_) => [number.as_str(), &endpoint.id.namespace, &endpoint.id.component, &endpoint.id.endpoint].join("."),
                };
                self.fleet.add_tokens(id, (*endpoint).clone(), told, origin).map_err(text)
            }
        }
    }

    fn told(&self, models: &[&wire::discovery::Model], edition: Edition) -> Result<Told, String> {
        let listens = self.fleet.config.listens_to_events();
        Told::of(models, edition, if listens { EventPlan::Plane } else { |_| EventPlan::Off })
    }

    /// What an operator would have written for it.
    fn spec(&self, record: &OpenAiWorker) -> Result<WorkerSpec, String> {
        let block_size = record.block_size.and_then(std::num::NonZeroU32::new);
        for (what, text) in [("url", &record.url), ("model", &record.model)] {
            if text.len() > MOST_TEXT_BYTES {
                return Err(format!("its {what} has {} bytes, and {MOST_TEXT_BYTES} are allowed", text.len()));
            }
        }
        Ok(WorkerSpec {
            url: record.url.parse().map_err(|error| format!("its url '{}' cannot be used: {error}", record.url))?,
            id: record.instance_id.to_string(),
            events: record.no_events.clone().map_or(Events::Plane, Events::Absent),
            replay: Vec::new(),
            topic: None,
            model: Some(record.model.clone()).filter(|model| !model.is_empty()),
            block_size: block_size.or(self.fleet.config.block_size),
            dp_size: std::num::NonZeroU32::new(record.dp_size.clamp(1, engine::discover::MAX_RANKS)),
            dp_start: Some(record.dp_start.min(crate::config::worker_flag::HIGHEST_RANK)),
            role: Role::Aggregated,
            lora: Vec::new(),
        })
    }
}
