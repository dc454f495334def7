//! [`KvFollower`]: an index of what every publisher of a component holds, as a frontend keeps it.

use std::{collections::BTreeMap, sync::Arc};

use feed::plane::{PlaneConfig, PlaneLimits};
use index::{BlockSize, Catalog, KvIndexer, Lanes, Levels, Limits, Seed, Target, Targets, Window, local_hashes};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use transport::{
    discovery::Watch,
    follow::{FollowOptions, FollowSpec, Follower, PlaneClient, spawn},
    reins::Link,
    stream::Turns,
};

use super::{
    Followed, clients,
    publishers::{Publishers, Rank},
};
use crate::runtime::{Runtime, RuntimeError};

/// The catalog has one model: publishers do not tell theirs.
const MODEL: &str = "";

/// One rank, and how far what is known of it can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The worker.
    pub worker_id: u64,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Whether a publisher of it is connected.
    pub connected: bool,
    /// `exact`, `recovering`, `degraded` or `blind`.
    pub trust: &'static str,
    /// Why it is not exact.
    pub reason: String,
    /// Blocks it holds in the accelerator's memory.
    pub blocks: usize,
    /// The last event in it.
    pub last_event_id: Option<u64>,
}

/// Follows every publisher of KV events of a component, and of those that come. What was missed is asked for.
///
/// Dropping it ends it; [`KvFollower::stop`] waits for that.
#[derive(Debug)]
pub struct KvFollower {
    index: Arc<KvIndexer>,
    ranks: Arc<Mutex<Ranks>>,
    client: transport::request::Client,
    /// Follows discovery. Taken by the stop.
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// The ranks that are followed, each with its target in the index. Held for a copy, or while discovery's word is handed out.
type Ranks = BTreeMap<Rank, (Arc<Follower>, Target)>;

/// What the task owns.
struct Keeper {
    block_size: BlockSize,
    handle: tokio::runtime::Handle,
    plane: Arc<PlaneClient>,
    catalog: Arc<Catalog>,
    targets: Targets,
    ranks: Arc<Mutex<Ranks>>,
}

impl KvFollower {
    /// Follows from now on, whether or not any plane is there. Events of other block sizes are left out.
    pub async fn start(runtime: &Runtime, of: Followed, block_size: BlockSize) -> Result<Self, RuntimeError> {
        let (subscriptions, client) = clients(runtime).await?;
        let plane = Arc::new(PlaneClient { subscriptions, requests: client.clone(), turns: Turns::default() });
        let catalog = Arc::new(Catalog::new(Limits::default()));
        // Kept here, so that it is the one that every rank writes.
        let index = catalog.indexer(MODEL, block_size);
        let ranks = Arc::new(Mutex::new(Ranks::new()));
        let keeper = Keeper { block_size, handle: runtime.handle().clone(), plane, catalog, targets: Targets::new(), ranks: ranks.clone() };
        let task = AbortOnDropHandle::new(runtime.handle().spawn(keeper.run(runtime.discovery().watch("v1/"), Publishers::new(of))));
        Ok(Self { index, ranks, client, task: Mutex::new(Some(task)) })
    }

    /// Leading blocks of a prompt that each rank holds in the accelerator's memory; ranks that hold none are left out.
    pub fn find_matches(&self, token_ids: &[u32], lora_name: Option<&str>, cache_salt: Option<&str>) -> BTreeMap<(u64, u32), u32> {
        let (mut chain, mut levels) = (Vec::new(), Levels::new());
        local_hashes(token_ids, self.index.block_size(), Seed::new(lora_name, cache_salt), Window::Plain, &mut chain);
        self.index.lookup(&chain, Lanes::DEVICE, &mut levels);
        let ranks = self.ranks.lock();
        let depths = ranks.iter().map(|(rank, (_, target))| (*rank, levels.depth(target.slot)));
        depths.filter(|(_, depth)| *depth > 0).collect()
    }

    /// Every rank there is.
    pub fn holders(&self) -> Vec<Holder> {
        let followers: Vec<_> = self.ranks.lock().iter().map(|(rank, (follower, _))| (*rank, follower.clone())).collect();
        let holder = |((worker_id, dp_rank), follower): &(Rank, Arc<Follower>)| {
            let status = follower.reins().status().rank(*dp_rank)?;
            Some(Holder {
                worker_id: *worker_id,
                dp_rank: *dp_rank,
                connected: follower.reins().link() == Link::Up,
                trust: status.trust.as_str(),
                reason: status.reason.to_string(),
                blocks: status.blocks,
                last_event_id: status.last_seq,
            })
        };
        followers.iter().filter_map(holder).collect()
    }

    /// Distinct blocks in the index.
    pub fn blocks(&self) -> usize {
        self.index.distinct_blocks()
    }

    /// Ends it. Once this returns its connections are closed and the index is empty.
    pub async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
            // It was aborted, or it had ended.
            let _ = task.await;
        }
        let ranks = std::mem::take(&mut *self.ranks.lock());
        for (follower, _) in ranks.values() {
            follower.reins().stop().await;
        }
        self.client.stop().await;
    }
}

impl Keeper {
    async fn run(self, mut watch: Watch, mut publishers: Publishers) {
        while let Some(change) = watch.next().await {
            publishers.take(change);
            for (follower, target) in self.hand_out(&publishers) {
                follower.reins().stop().await;
                self.targets.release(target);
            }
        }
    }

    /// Tells each rank its publishers; those of whom there is none any more come back.
    fn hand_out(&self, publishers: &Publishers) -> Vec<(Arc<Follower>, Target)> {
        let wanted = publishers.by_rank();
        let mut ranks = self.ranks.lock();
        let gone: Vec<Rank> = ranks.keys().filter(|rank| !wanted.contains_key(rank)).copied().collect();
        let gone = gone.into_iter().filter_map(|rank| ranks.remove(&rank)).collect();
        for (rank, sources) in wanted {
            if let Some((follower, _)) = ranks.get(&rank) {
                follower.set_sources(sources);
            } else if let Some(target) = self.targets.allocate() {
                let follower = self.follow(rank, target);
                follower.set_sources(sources);
                ranks.insert(rank, (Arc::new(follower), target));
            } else {
                tracing::warn!(worker = rank.0, rank = rank.1, "no slot is free for a rank: it is not followed");
            }
        }
        gone
    }

    fn follow(&self, (worker_id, dp_rank): Rank, target: Target) -> Follower {
        let feed = PlaneConfig {
            label: format!("{worker_id} rank {dp_rank}"),
            model: MODEL.to_owned(),
            block_size: Some(self.block_size),
            worker_id,
            dp_rank,
            target,
            limits: PlaneLimits::default(),
        };
        spawn(&self.handle, FollowSpec { feed, options: FollowOptions::default() }, self.plane.clone(), self.catalog.clone())
    }
}
