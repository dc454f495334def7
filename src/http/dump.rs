//! `GET /dump`: the whole index as events that rebuild it, one `RouterEvent` as JSON per line.
//!
//! One index is copied at one instant, so what is told of a target is what it held then. Requests that look something up in
//! that index may wait meanwhile: about a millisecond for a million blocks of long prompts, longer where prompts branch often,
//! as the work is per branch (see [`KvIndexer::dump`]). Indexes are copied one after the other. Lines are made lane by lane on
//! a thread of their own, and only as fast as the client reads; nobody waits for that. Beside the event a line has `model`,
//! `block_size` and `worker`: several models have an index each, and a worker's id need not be a number.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::header;
use index::{Catalog, DumpEvent, KvIndexer, Lane, Parent, Target};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use wire::router::{Domain, KvCacheEvent, KvData, RouterEvent, StoredBlock, StoredBlocks, Tier};

use super::ApiError;
use crate::{app::App, fleet::View};

/// Dumps at once: each keeps a copy of an index alive.
const AT_ONCE: usize = 2;
/// Bytes of lines that are handed on together.
const PIECE_BYTES: usize = 64 * 1024;
/// Pieces that wait for the client.
const PIECES_AHEAD: usize = 4;

/// Bounds the dumps that are under way.
pub(crate) struct Dumps(Arc<Semaphore>);

impl Dumps {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

pub(super) async fn dump(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let turn = app.dumps.0.clone().try_acquire_owned();
    let turn = turn.map_err(|_| ApiError::unavailable(format!("{AT_ONCE} dumps are under way already; try again")))?;
    let (to, pieces) = mpsc::channel(PIECES_AHEAD);
    let (catalog, owners) = (app.fleet.catalog.clone(), Owners::of(&app.fleet.view()));
    tokio::task::spawn_blocking(move || tell(&catalog, &owners, Lines::to(to), turn));
    let body = stream::unfold(pieces, async |mut pieces| {
        let piece: Bytes = pieces.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), pieces))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(body)).into_response())
}

/// Whose a target is.
struct Owners(BTreeMap<Target, Owner>);

struct Owner {
    worker: String,
    dp_rank: u32,
}

impl Owners {
    fn of(view: &View) -> Self {
        let serving = view.workers.iter().filter_map(|worker| Some((worker, worker.serving()?)));
        let of_worker = serving.flat_map(|(worker, serving)| {
            let owner = |dp_rank| Owner { worker: worker.id().to_owned(), dp_rank };
            serving.ranks.iter().map(|rank| (rank.target, owner(rank.dp_rank))).collect::<Vec<_>>()
        });
        Self(of_worker.collect())
    }
}

/// The client left.
struct Left;

/// `turn` is given back at the end.
fn tell(catalog: &Catalog, owners: &Owners, mut lines: Lines, turn: OwnedSemaphorePermit) {
    for (model, indexer) in catalog.all() {
        if tell_one(&model, &indexer, owners, &mut lines).is_err() {
            return;
        }
    }
    // A client that left has no use for the rest.
    let _ = lines.flush();
    drop(turn);
}

fn tell_one(model: &str, indexer: &KvIndexer, owners: &Owners, lines: &mut Lines) -> Result<(), Left> {
    let dump = indexer.dump();
    let mut next_ids: BTreeMap<Target, u64> = BTreeMap::new();
    for (target, lane) in dump.lanes() {
        let (Some(owner), Some(storage_tier)) = (owners.0.get(&target), tier(lane)) else { continue };
        let ending = ending(model, indexer.block_size().get(), &owner.worker);
        let next_id = next_ids.entry(target).or_default();
        for told in dump.events(target, lane) {
            let event = RouterEvent {
                worker_id: number(&owner.worker),
                storage_tier,
                domain: Domain::Worker,
                event: KvCacheEvent { event_id: *next_id, data: data(told), dp_rank: owner.dp_rank },
                state_source: None,
                session_id: None,
            };
            *next_id += 1;
            lines.push(&event.to_json(), &ending)?;
        }
    }
    Ok(())
}

/// What events tell. Predictions and confirmations are this process's own.
fn tier(lane: Lane) -> Option<Tier> {
    match lane {
        Lane::Device => Some(Tier::Device),
        Lane::Host => Some(Tier::HostPinned),
        Lane::Disk => Some(Tier::Disk),
        Lane::Predicted | Lane::Confirmed => None,
    }
}

fn data(told: DumpEvent) -> KvData {
    match told {
        DumpEvent::Stored { parent, locals, hashes } => KvData::Stored(StoredBlocks {
            parent_hash: match parent {
                // The seed is in the hashes of the blocks.
                Parent::Root(_) => None,
                Parent::Block(hash) => Some(hash.0),
            },
            start_position: None,
            blocks: locals
                .iter()
                .zip(&hashes)
                .map(|(local, hash)| StoredBlock { block_hash: hash.0, tokens_hash: local.0, media: None })
                .collect(),
        }),
        DumpEvent::Removed { hashes } => KvData::Removed(hashes.iter().map(|hash| hash.0).collect()),
    }
}

/// A worker's id as the number that events carry: itself where it is one, else one made of it (53 bits, so that JSON
/// readers keep it), the same in every process.
fn number(worker: &str) -> u64 {
    const JSON_SAFE: u64 = (1 << 53) - 1;
    worker.parse().unwrap_or_else(|_| index::Seed::new(Some(worker), None).get() & JSON_SAFE)
}

/// What a line has beside the event.
fn ending(model: &str, block_size: u32, worker: &str) -> String {
    format!(",\"model\":{},\"block_size\":{block_size},\"worker\":{}}}\n", Value::from(model), Value::from(worker))
}

/// Lines on their way to the client.
struct Lines {
    to: mpsc::Sender<Bytes>,
    piece: Vec<u8>,
}

impl Lines {
    fn to(to: mpsc::Sender<Bytes>) -> Self {
        Self { to, piece: Vec::new() }
    }

    /// Adds an event, a JSON object, with more keys at its end. Waits while the client does not read.
    fn push(&mut self, event: &str, ending: &str) -> Result<(), Left> {
        self.piece.extend_from_slice(event.strip_suffix('}').unwrap_or(event).as_bytes());
        self.piece.extend_from_slice(ending.as_bytes());
        if self.piece.len() >= PIECE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Left> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        self.to.blocking_send(piece.into()).map_err(|_| Left)
    }
}
