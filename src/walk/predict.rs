//! Rule 12: what a dispatched prompt leaves at its worker, before any event says so.

use std::sync::Arc;

use feed::Added;

use super::{Prepared, long};
use crate::{app::App, config::Knowledge, fleet::Member};

/// What was predicted for one dispatch.
pub(super) struct Predicted {
    prepared: Arc<Prepared>,
    member: Member,
    /// For each prompt that was predicted, in order.
    added: Vec<Option<Added>>,
}

impl Predicted {
    /// Books the prompts as held by `member`: a burst of one prompt sticks together before its events arrive.
    pub(super) async fn at(app: &Arc<App>, prepared: &Arc<Prepared>, member: &Member) -> Self {
        let ttl = match app.config.knowledge {
            Knowledge::Events { predicted } => predicted,
            Knowledge::Predicted { ttl } => ttl,
        };
        let mut predicted = Self { prepared: prepared.clone(), member: member.clone(), added: Vec::new() };
        if ttl.is_zero() || prepared.request.skips_cache || !prepared.plan.is_hashed() {
            return predicted;
        }
        let (fleet, prepared, member) = (app.fleet.clone(), prepared.clone(), member.clone());
        let blocks = prepared.plan.blocks();
        let added = long::run(&app.pool, blocks, move || {
            let indexes = fleet.indexes(member.base(), member.block_size);
            prepared.plan.all_chains(member.cut()).map(|chain| member.rank.predict(indexes, ttl, chain)).collect()
        });
        // Where the pool has no room the burst is spread, as if nothing were known.
        predicted.added = added.await.unwrap_or_default();
        predicted
    }

    /// The worker never took the request: it holds nothing of it.
    pub(super) async fn take_back(self, app: &App) {
        if self.added.iter().all(Option::is_none) {
            return;
        }
        let blocks = self.prepared.plan.blocks();
        // Where the pool has no room it runs out by itself.
        let _ = long::run(&app.pool, blocks, move || {
            for (chain, added) in self.prepared.plan.all_chains(self.member.cut()).zip(self.added) {
                if let Some(added) = added {
                    self.member.rank.unpredict(chain, added);
                }
            }
        })
        .await;
    }
}
