//! A simulated engine server in this process: [`serve`] and its [`Handle`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use transport::zmtp::Endpoint;
use wire::discovery::EndpointId;

use crate::adapters::Adapters;
use crate::config::{Config, ServeError};
use crate::dynamo::Dynamo;
use crate::events::{self, Endpoints, Publisher, ReplayCounts};
use crate::faults::{Faults, Switches};
use crate::http::{self, App, Parts};
use crate::model::{Gauges, Totals};
use crate::outlet::Outlet;
use crate::rank::Rank;
use crate::server::Server;
use crate::text::Text;

/// Starts a server. It is reachable when this returns.
pub async fn serve(config: Config) -> Result<Handle, ServeError> {
    config.check()?;
    let text = Arc::new(match &config.model_path {
        Some(dir) => Text::load(dir)?,
        None => Text::embedded()?,
    });
    let config = Arc::new(config);
    let adapters = Arc::new(Adapters::new(&config.adapters));
    let engine = config.engine(&text, hash_seed(&config));
    let ranks = (0..config.ranks).map(|_| Rank::new(engine.clone()).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let (mut dynamo, outlets, publishers) = outlets(&config, &adapters).await?;
    let switches = Switches::new();
    let app = Arc::new(App::new(Parts {
        config: config.clone(),
        text,
        ranks,
        adapters,
        endpoints: publishers.endpoints,
        replays: publishers.replays,
        switches: switches.clone(),
    }));
    let stop = CancellationToken::new();
    let server = Server::start(config.http, switches, stop.clone(), http::router(app.clone())).await?;
    let drivers = Drivers::start(&app, outlets);
    if let Some(dynamo) = &mut dynamo {
        dynamo.serve(&app).await?;
    }
    Ok(Handle { app, stop: stop.drop_guard(), server, drivers, dynamo })
}

/// What raw publishers tell the server.
#[derive(Default)]
struct Told {
    endpoints: Vec<Endpoints>,
    replays: Vec<Arc<ReplayCounts>>,
}

async fn outlets(config: &Config, adapters: &Arc<Adapters>) -> Result<(Option<Dynamo>, Vec<Outlet>, Told), ServeError> {
    if let Some(dynamo) = &config.dynamo {
        let (dynamo, outlets) = Dynamo::start(dynamo, config.block_size.get(), config.ranks).await?;
        return Ok((Some(dynamo), outlets.into_iter().map(|outlet| Outlet::Plane(Box::new(outlet))).collect(), Told::default()));
    }
    let publishers = events::publishers(config, adapters).await?;
    let told = Told {
        endpoints: publishers.iter().map(|publisher| publisher.endpoints().clone()).collect(),
        replays: publishers.iter().map(Publisher::replay_counts).collect(),
    };
    Ok((None, publishers.into_iter().map(|publisher| Outlet::Raw(Box::new(publisher))).collect(), told))
}

fn hash_seed(config: &Config) -> u64 {
    config.hash_seed.unwrap_or_else(rand::random)
}

/// A running server. Dropping it stops the server soon; [`Handle::shutdown`] waits for that.
pub struct Handle {
    app: Arc<App>,
    stop: DropGuard,
    server: Server,
    drivers: Drivers,
    dynamo: Option<Dynamo>,
}

/// Where one rank publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEndpoints {
    /// The PUB socket.
    pub events: Endpoint,
    /// The ROUTER socket that replays.
    pub replay: Option<Endpoint>,
}

/// What a server did so far, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Generation requests, refused ones included.
    pub requests: u64,
    /// Event batches numbered.
    pub batches: u64,
    /// Batches of these that a fault kept from being sent.
    pub unsent_batches: u64,
    /// Replay requests answered.
    pub replays: u64,
    /// Batches sent in these answers.
    pub replayed_batches: u64,
}

impl Handle {
    /// Where HTTP is served.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Base URL of HTTP.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Where each rank publishes, by rank; empty without events.
    pub fn events(&self) -> Vec<RankEndpoints> {
        let told = |Endpoints { events, replay }: &Endpoints| RankEndpoints { events: events.clone(), replay: replay.clone() };
        self.app.endpoints.iter().map(told).collect()
    }

    /// On Dynamo's planes: the endpoint that is served, and the instance. `None` for a server of its own.
    pub fn instance(&self) -> Option<(&EndpointId, u64)> {
        self.dynamo.as_ref().map(|dynamo| (dynamo.id(), dynamo.instance_id()))
    }

    /// The faults that are on.
    pub fn faults(&self) -> Faults {
        self.app.switches.now()
    }

    /// Changes the faults; what stands still or waits for one takes notice at once.
    pub fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
        self.app.switches.set(change);
    }

    /// What the server did so far.
    pub fn counters(&self) -> Counters {
        let sum = |count: fn(&ReplayCounts) -> u64| self.app.replays.iter().map(|counts| count(counts)).sum();
        let batches = self.app.ranks.iter().map(|rank| rank.batches());
        let (batches, unsent_batches) = batches.fold((0, 0), |(all, unsent), (more, more_unsent)| (all + more, unsent + more_unsent));
        Counters {
            requests: self.app.requests.load(Ordering::Relaxed),
            batches,
            unsent_batches,
            replays: sum(|counts| counts.requests.load(Ordering::Relaxed)),
            replayed_batches: sum(|counts| counts.batches.load(Ordering::Relaxed)),
        }
    }

    /// How full a rank is; a sequence counts as running until its last token was handed to HTTP. `None` beyond the
    /// last rank.
    pub fn gauges(&self, rank: usize) -> Option<Gauges> {
        self.app.ranks.get(rank).map(|rank| rank.view().gauges)
    }

    /// What a rank's engine did since its (re)start. `None` beyond the last rank.
    pub fn totals(&self, rank: usize) -> Option<Totals> {
        self.app.ranks.get(rank).map(|rank| rank.view().totals)
    }

    /// Every block hash a rank holds, with its number of copies: the truth its events describe. `None` beyond the
    /// last rank.
    pub fn cached_blocks(&self, rank: usize) -> Option<BTreeMap<u64, usize>> {
        self.app.ranks.get(rank).map(|rank| rank.contents())
    }

    /// What a restarted process would show: connections cut, requests gone, caches empty, block hashes drawn anew
    /// (unless the seed is fixed), events numbered from 0 on the same endpoints with nothing to replay.
    pub async fn restart(&mut self) -> Result<(), ServeError> {
        self.server.cut().await;
        let mut outlets = Vec::new();
        for outlet in self.drivers.stop().await {
            outlets.push(outlet.restart().await?);
        }
        let engine = self.app.config.engine(&self.app.text, hash_seed(&self.app.config));
        for rank in &self.app.ranks {
            rank.restart(engine.clone())?;
        }
        *self.app.started.write() = SystemTime::now();
        self.drivers = Drivers::start(&self.app, outlets);
        Ok(())
    }

    /// Stops serving, cuts what is open, and waits until every socket is closed. On Dynamo's planes, what runs is finished first.
    pub async fn shutdown(self) {
        let Self { app: _, stop, server, mut drivers, mut dynamo } = self;
        if let Some(dynamo) = &mut dynamo {
            dynamo.drain().await;
        }
        drop(stop);
        server.join().await;
        for outlet in drivers.stop().await {
            outlet.close().await;
        }
        if let Some(dynamo) = dynamo {
            dynamo.close().await;
        }
    }
}

/// The tasks that drive the ranks.
struct Drivers {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<Option<Outlet>>>,
}

impl Drivers {
    fn start(app: &Arc<App>, outlets: Vec<Outlet>) -> Self {
        let stop = CancellationToken::new();
        let mut outlets = outlets.into_iter();
        let tasks = app
            .ranks
            .iter()
            .map(|rank| tokio::spawn(rank.clone().drive(app.config.clone(), app.switches.clone(), outlets.next(), stop.clone())))
            .collect();
        Self { stop, tasks }
    }

    /// Stops the tasks and takes their outlets back.
    async fn stop(&mut self) -> Vec<Outlet> {
        self.stop.cancel();
        let mut outlets = Vec::new();
        for task in self.tasks.drain(..) {
            match task.await {
                Ok(outlet) => outlets.extend(outlet),
                Err(error) => tracing::error!(%error, "a rank of a simulated engine failed"),
            }
        }
        outlets
    }
}

impl Drop for Drivers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
