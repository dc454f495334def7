//! The recovery service of one publisher: queries of those who missed events, answered beside the publishing.
//!
//! The published state is held for one decision; what is large is told from a snapshot or a list of shared events, on threads for
//! such work, page by page as fast as the asker reads.

use std::sync::Arc;

use feed::publisher::{Items as Pages, Reply};
use futures_util::stream;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};
use transport::request::{Answer as Begun, Handler, Items, Request};
use wire::{
    recovery::{Answer, Item, Query},
    request::{Codec, TypedError},
};

use crate::{failure::Failure, work::Desk};

/// Dumps that are told at once, as with 1.6.1. One that is asked for in one piece counts as two, as it is in memory whole.
const DUMPS: usize = 8;
const WHOLE_DUMP: u32 = 2;
/// Ranges of events that are told at once.
const RANGES: usize = 32;
/// Most names of a dump in one piece: about 1 GiB, more than which nobody reads.
const WHOLE_NAMES: usize = 12_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    /// Names the publisher in errors.
    label: Arc<str>,
    desk: Arc<Desk>,
    dumps: Arc<Semaphore>,
    ranges: Arc<Semaphore>,
}

impl Recovery {
    pub(crate) fn new(publisher_id: u64, desk: Arc<Desk>) -> Self {
        let label = {
            let state = desk.state.lock();
            let config = state.config();
            format!("publisher {publisher_id:x} of worker {:x} rank {}", config.worker_id, config.dp_rank).into()
        };
        Self { label, desk, dumps: Arc::new(Semaphore::new(DUMPS)), ranges: Arc::new(Semaphore::new(RANGES)) }
    }

    async fn answer(self, request: Request) -> Result<Items, TypedError> {
        if request.control.codec != Codec::Msgpack {
            return Err(invalid(format!("{} answers in msgpack only, as its endpoint's record says: ask in msgpack", self.label)));
        }
        let query = Query::decode(&request.body).map_err(|error| invalid(format!("{}: {error}", self.label)))?;
        // Whoever holds the state may be hashing a long prompt.
        let (desk, asked) = (self.desk.clone(), query);
        let is_dump = spawn_blocking(move || desk.state.lock().is_dump(&asked)).await.map_err(|_| failed(&self.label))?;
        let label = self.label;
        let turns = if is_dump { self.dumps } else { self.ranges };
        let share = if is_dump && !query.pages { WHOLE_DUMP } else { 1 };
        let turn = turns.acquire_many_owned(share).await.map_err(|_| failed(&label))?;
        let desk = self.desk;
        if query.pages {
            let pages = spawn_blocking(move || {
                let reply = desk.state.lock().reply(&query);
                reply.into_items()
            });
            return Ok(paged(pages.await.map_err(|_| failed(&label))?, turn, label));
        }
        let item = spawn_blocking(move || {
            let reply = desk.state.lock().reply(&query);
            Item::from(whole(reply, &query)).encode()
        });
        let item = item.await.map_err(|_| failed(&label))?;
        // The turn is over once the item has been read.
        Ok(Box::pin(stream::unfold((Some(item), turn), |(item, turn)| async move { item.map(|item| (Ok(item), (None, turn))) })))
    }
}

impl Handler for Recovery {
    fn call(&self, request: Request) -> Begun {
        Box::pin(self.clone().answer(request))
    }
}

/// Each page is made when the asker has read the one before.
fn paged(pages: Pages, turn: OwnedSemaphorePermit, label: Arc<str>) -> Items {
    Box::pin(stream::unfold(Some((pages, turn, label)), |rest| async move {
        let (mut pages, turn, label) = rest?;
        let made = spawn_blocking(move || {
            let page = pages.next().map(|item| item.encode());
            (page, pages)
        });
        match made.await {
            Ok((page, pages)) => page.map(|page| (Ok(page), Some((pages, turn, label)))),
            Err(_) => Some((Err(failed(&label)), None)),
        }
    }))
}

fn whole(reply: Reply, query: &Query) -> Answer {
    match &reply {
        Reply::Dump { snapshot, last_event_id, .. } if snapshot.names() > WHOLE_NAMES => {
            let message = format!("{} blocks are too many for one answer: ask for pages", snapshot.names());
            if query.supports_tree_dump_failed {
                Answer::TreeDumpFailed { last_event_id: *last_event_id, message }
            } else {
                Answer::Error(message)
            }
        }
        Reply::Dump { .. } | Reply::Events { .. } | Reply::Ready(_) => reply.into_answer(),
    }
}

fn invalid(message: String) -> TypedError {
    Failure::InvalidArgument.error(message)
}

fn failed(label: &str) -> TypedError {
    Failure::Internal.error(format!("{label} failed while making its answer: ask again, and see its log"))
}
