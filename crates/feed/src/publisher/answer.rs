//! What an asker gets: events of the ring, a dump, or the reason why neither.

use std::sync::Arc;

use wire::{
    recovery::{Answer, Item, Query},
    router::RouterEvent,
};

use super::{
    PAGE_BLOCKS, PublisherState,
    snapshot::{Pages, Snapshot, data_blocks},
};

/// Events of one page, at most.
const PAGE_EVENTS: usize = 4096;

/// The decision, made in a short step; what is large is told from it elsewhere.
#[derive(Debug)]
pub enum Reply {
    /// Small, and final.
    Ready(Answer),
    /// The events asked for and all after them.
    Events {
        /// As they were published.
        events: Vec<Arc<RouterEvent>>,
        /// The last one's id.
        last_event_id: u64,
    },
    /// Everything that is held.
    Dump {
        /// As it was a moment ago.
        snapshot: Arc<Snapshot>,
        /// What was published since.
        tail: Vec<Arc<RouterEvent>>,
        /// The id with which both together agree.
        last_event_id: u64,
    },
}

enum Decision {
    Ready(Answer),
    Events { from: u64 },
    Dump,
}

impl PublisherState {
    /// Decides what the asker gets, in the order 1.6.1 decides: a range upside down is refused; no start means a dump, as
    /// does a start older than the ring; a start beyond the newest is too new; else it is events from the start, or the next
    /// id that exists, to the newest. The end of the range does not limit the answer.
    pub fn reply(&mut self, query: &Query) -> Reply {
        match self.decide(query) {
            Decision::Ready(answer) => Reply::Ready(answer),
            Decision::Events { from } => Reply::Events { events: self.ring.from(from), last_event_id: self.last_event_id() },
            Decision::Dump => self.dump(),
        }
    }

    /// Whether [`PublisherState::reply`] would make a dump now.
    pub fn is_dump(&self, query: &Query) -> bool {
        matches!(self.decide(query), Decision::Dump)
    }

    fn decide(&self, query: &Query) -> Decision {
        if let Err(reason) = self.speaks_for(query) {
            return Decision::Ready(Answer::Error(reason));
        }
        if let (Some(start_id), Some(end_id)) = (query.start_event_id, query.end_event_id)
            && end_id < start_id
        {
            return Decision::Ready(Answer::InvalidRange { start_id, end_id });
        }
        let (Some(start), Some(oldest)) = (query.start_event_id, self.ring.oldest()) else { return Decision::Dump };
        let newest = self.last_event_id();
        if start > newest {
            let requested_end = query.end_event_id.unwrap_or(newest);
            return Decision::Ready(Answer::TooNew { requested_start: start, requested_end, newest_available: newest });
        }
        if start < oldest { Decision::Dump } else { Decision::Events { from: start } }
    }

    /// [`PublisherState::reply`], told at once in one answer: for small states.
    pub fn answer(&mut self, query: &Query) -> Answer {
        self.reply(query).into_answer()
    }

    fn speaks_for(&self, query: &Query) -> Result<(), String> {
        let config = &self.config;
        if query.worker_id != config.worker_id {
            return Err(format!("worker_id mismatch: asked for {}, this is {}", query.worker_id, config.worker_id));
        }
        if query.dp_rank != config.dp_rank {
            return Err(format!("dp_rank mismatch: asked for {}, this is {}", query.dp_rank, config.dp_rank));
        }
        if !config.local_indexer {
            return Err("this publisher is live only: it keeps nothing to recover from".to_owned());
        }
        Ok(())
    }

    fn dump(&mut self) -> Reply {
        let last_event_id = self.last_event_id();
        match self.snapshot() {
            Some((snapshot, tail)) => Reply::Dump { snapshot, tail, last_event_id },
            // Not reached: without an index no query comes here.
            None => Reply::Ready(Answer::Error("this publisher is live only".to_owned())),
        }
    }
}

impl Reply {
    /// All of it in one answer, as 1.6.1 gives it.
    pub fn into_answer(self) -> Answer {
        match self {
            Self::Ready(answer) => answer,
            Self::Events { events, last_event_id } => {
                Kind::Events.answer(events.into_iter().map(Arc::unwrap_or_clone).collect(), last_event_id)
            }
            Self::Dump { snapshot, tail, last_event_id } => {
                let tail = tail.into_iter().map(Arc::unwrap_or_clone);
                Kind::TreeDump.answer(snapshot.pages().flatten().chain(tail).collect(), last_event_id)
            }
        }
    }

    /// In pages, for askers that say they read those. There is at least one, and the last one is marked.
    pub fn into_items(self) -> Items {
        let lacking = matches!(&self, Self::Dump { snapshot, .. } if snapshot.lacking);
        let (kind, dump, events, last_event_id) = match self {
            Self::Ready(answer) => return Items(Told::Whole(Some(answer))),
            Self::Events { events, last_event_id } => (Kind::Events, None, events, last_event_id),
            Self::Dump { snapshot, tail, last_event_id } => (Kind::TreeDump, Some(snapshot.pages()), tail, last_event_id),
        };
        let mut paged = Paged { kind, dump, events: events.into_iter(), last_event_id, lacking, page: 0, upcoming: None };
        paged.upcoming = Some(paged.turn().unwrap_or_default());
        Items(Told::Paged(paged))
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Events,
    TreeDump,
}

impl Kind {
    fn answer(self, events: Vec<RouterEvent>, last_event_id: u64) -> Answer {
        match self {
            Self::Events => Answer::Events { events, last_event_id },
            Self::TreeDump => Answer::TreeDump { events, last_event_id, reset_scope: "all".to_owned() },
        }
    }
}

/// An answer in pages. Only the page that comes next is in memory.
#[derive(Debug)]
pub struct Items(Told);

#[derive(Debug)]
enum Told {
    Whole(Option<Answer>),
    Paged(Paged),
}

#[derive(Debug)]
struct Paged {
    kind: Kind,
    dump: Option<Pages>,
    events: std::vec::IntoIter<Arc<RouterEvent>>,
    last_event_id: u64,
    lacking: bool,
    page: u32,
    /// One page ahead, to know which is the last.
    upcoming: Option<Vec<RouterEvent>>,
}

impl Iterator for Items {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        match &mut self.0 {
            Told::Whole(answer) => answer.take().map(Item::from),
            Told::Paged(paged) => paged.next(),
        }
    }
}

impl Paged {
    fn next(&mut self) -> Option<Item> {
        let events = self.upcoming.take()?;
        self.upcoming = self.turn();
        let page = self.page;
        self.page += 1;
        Some(Item { answer: self.kind.answer(events, self.last_event_id), page, last: self.upcoming.is_none(), lacking: self.lacking })
    }

    fn turn(&mut self) -> Option<Vec<RouterEvent>> {
        if let Some(page) = self.dump.as_mut().and_then(Iterator::next) {
            return Some(page);
        }
        let (mut page, mut blocks) = (Vec::new(), 0);
        while blocks < PAGE_BLOCKS && page.len() < PAGE_EVENTS {
            let Some(event) = self.events.next() else { break };
            blocks += data_blocks(&event.event.data);
            page.push(Arc::unwrap_or_clone(event));
        }
        (!page.is_empty()).then_some(page)
    }
}
