//! The simulated engine as a worker on Dynamo's planes: it takes token ids over the request plane, publishes its own KV events through
//! [`worker::KvEventPublisher`] under hashes of its own, and describes itself on a model card.
//!
//! It does all of a request, or one part: a prefill worker computes the prompt and hands it over, a decode worker goes on from what was
//! handed over and refuses a request for which nothing was ([`meeting`]).

mod answer;
mod config;
mod generate;
mod logprobs;
mod meeting;
mod model;

use std::{path::PathBuf, sync::Arc};

use transport::discovery::Registration;
use wire::discovery::EndpointId;
use worker::{KvEventPublisher, KvPublisherOptions, LoadPublisher, Runtime, Served};

use self::{generate::Generating, meeting::Rooms};
use crate::{config::ServeError, http::App, outlet::PlaneOutlet};

pub use self::config::{DynamoConfig, HandOver, Role};

/// What is on the planes.
pub(crate) struct Dynamo {
    runtime: Runtime,
    id: EndpointId,
    config: DynamoConfig,
    load: Arc<LoadPublisher>,
    served: Option<Served>,
    models: Vec<Registration>,
    /// Of a prefill worker.
    rooms: Option<Rooms>,
    /// Where an embedded model folder was written.
    folder: Option<PathBuf>,
}

impl Dynamo {
    /// Takes part in the planes, and makes what each rank publishes with; nothing is served yet.
    pub(crate) async fn start(config: &DynamoConfig, block_size: u32, ranks: u32) -> Result<(Self, Vec<PlaneOutlet>), ServeError> {
        let runtime = Runtime::start(config.runtime.clone()).await.map_err(failed)?;
        let component = runtime.component(config.component());
        let endpoint = component.endpoint(&config.endpoint);
        let load = Arc::new(LoadPublisher::new(&endpoint, None).await.map_err(failed)?);
        let mut outlets = Vec::new();
        for dp_rank in 0..ranks {
            let options = KvPublisherOptions { dp_rank, enable_local_indexer: true, ..KvPublisherOptions::new(block_size) };
            let publisher = match config.publishes_kv_events() {
                true => Some(KvEventPublisher::new(&endpoint, options).await.map_err(failed)?),
                false => None,
            };
            outlets.push(PlaneOutlet::new(publisher, load.clone(), dp_rank, block_size));
        }
        let rooms = match config.role {
            Role::Prefill => Some(Rooms::open(config).await?),
            Role::Aggregated | Role::Decode => None,
        };
        let (id, config) = (endpoint.id().clone(), config.clone());
        Ok((Self { runtime, id, config, load, served: None, models: Vec::new(), rooms, folder: None }, outlets))
    }

    /// Serves requests, and then says so on model cards.
    pub(crate) async fn serve(&mut self, app: &Arc<App>) -> Result<(), ServeError> {
        let endpoint = self.runtime.namespace(&self.id.namespace).component(&self.id.component).endpoint(&self.id.endpoint);
        let handler = Generating::new(app.clone(), &self.config, self.rooms.as_ref());
        self.served = Some(endpoint.serve_generate(handler).map_err(failed)?);
        let (spec, folder) = model::spec(app, &self.config, self.rooms.as_ref()).await?;
        self.folder = folder;
        self.models.push(endpoint.register_model(&spec));
        for adapter in app.adapters.names() {
            self.models.push(endpoint.register_model(&worker::ModelSpec { adapter: Some(adapter), ..spec.clone() }));
        }
        Ok(())
    }

    /// The process in records and events.
    pub(crate) fn instance_id(&self) -> u64 {
        self.runtime.instance_id()
    }

    /// The endpoint that is served.
    pub(crate) fn id(&self) -> &EndpointId {
        &self.id
    }

    /// Withdraws its records and lets what runs finish.
    pub(crate) async fn drain(&mut self) {
        self.runtime.shutdown(self.config.drain).await;
    }

    /// Ends everything.
    pub(crate) async fn close(self) {
        self.load.shutdown(self.config.drain).await;
        if let Some(rooms) = self.rooms {
            rooms.close().await;
        }
        if let Some(folder) = self.folder {
            // What is left in the folder for temporary files is in nobody's way.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn failed(error: impl std::fmt::Display) -> ServeError {
    ServeError::Planes(error.to_string())
}
