//! What targets hold, told by events that rebuild it.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::Value;

use crate::support::frontend::Frontend;

/// Worker and rank.
type Target = (u64, u32);

/// By target, the names its events give to all device blocks, each with its place: all local hashes from the root to it, as one
/// number. Equal are those that hold the same places; names are the teller's own.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(BTreeMap<Target, BTreeMap<u64, u64>>);

impl Held {
    /// What `GET /dump` says.
    pub(super) async fn of_frontend(frontend: &Frontend) -> Self {
        let answer = frontend.get("/dump").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut held = Self::default();
        for line in answer.text().lines() {
            held.apply(&serde_json::from_str(line).unwrap());
        }
        held.settled()
    }

    /// One RouterEvent.
    pub(super) fn apply(&mut self, event: &Value) {
        if event["storage_tier"] != "device" {
            return;
        }
        let rank = event["event"]["dp_rank"].as_u64().unwrap() as u32;
        let blocks = self.0.entry((event["worker_id"].as_u64().unwrap(), rank)).or_default();
        let data = &event["event"]["data"];
        if let Some(stored) = data.get("stored") {
            let mut place = stored["parent_hash"].as_u64().map(|parent| blocks[&parent]);
            for block in stored["blocks"].as_array().unwrap() {
                let mut hasher = DefaultHasher::new();
                (place, block["tokens_hash"].as_u64().unwrap()).hash(&mut hasher);
                place = Some(hasher.finish());
                blocks.insert(block["block_hash"].as_u64().unwrap(), hasher.finish());
            }
        } else {
            for hash in data["removed"]["block_hashes"].as_array().unwrap() {
                blocks.remove(&hash.as_u64().unwrap());
            }
        }
    }

    /// Without targets that hold nothing: a dump cannot tell them from unknown ones.
    pub(super) fn settled(mut self) -> Self {
        self.0.retain(|_, blocks| !blocks.is_empty());
        self
    }

    pub(super) fn targets(&self) -> usize {
        self.0.len()
    }

    pub(super) fn blocks(&self, worker: u64, rank: u32) -> usize {
        self.0.get(&(worker, rank)).map_or(0, BTreeMap::len)
    }

    fn places(&self, target: &Target) -> BTreeSet<u64> {
        self.0.get(target).into_iter().flat_map(BTreeMap::values).copied().collect()
    }

    /// Where the two do not hold the same, in words.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let targets: BTreeSet<&Target> = self.0.keys().chain(other.0.keys()).collect();
        let differ = targets.into_iter().filter_map(|target| {
            let (theirs, ours) = (self.places(target), other.places(target));
            let (missing, more) = (theirs.difference(&ours).count(), ours.difference(&theirs).count());
            (missing + more > 0).then(|| format!("{target:?}: {} dumped, {missing} not held, {more} held besides", theirs.len()))
        });
        differ.collect()
    }
}
