//! One recovery query: asked over the request plane, its answer decoded while it arrives and handed on in steps. Reading goes on only
//! as fast as the steps are taken, so an answer of any size costs a few steps and what the kernel buffers.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use feed::plane::QueryId;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use wire::discovery::Endpoint;
use wire::recovery::{self, DumpReader, Part};
use wire::router::{KvData, RouterEvent};

use crate::request::{Call, CallError, Responses};
use crate::stream::steps::STEP_BLOCKS;
use crate::stream::turns::Turn;

use super::{FollowOptions, PlaneClient};

/// Steps that are read ahead of the feed.
const STEPS_AHEAD: usize = 4;
/// How long the end of a complete answer waits for the worker's goodbye, on which nothing depends.
const GOODBYE: Duration = Duration::from_secs(1);

/// A query under way; dropping it ends it, and tells the worker to stop.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) id: QueryId,
    /// From its beginning until its answer is complete.
    pub(super) turn: Option<Turn>,
    /// All of its answer has come.
    pub(super) complete: bool,
    steps: mpsc::Receiver<Step>,
    _reader: AbortOnDropHandle<()>,
}

/// What comes of a query: where it has to wait that, then its beginning, then parts of its answer, then one end.
#[derive(Debug)]
pub(super) enum Step {
    Waits,
    /// With the turn, to be held until what comes is in the index.
    Begins(Turn),
    Parts {
        parts: Vec<Part>,
        /// With these the answer is complete.
        last: bool,
    },
    End(Result<(), String>),
}

/// What is asked of whom.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) query: recovery::Query,
    pub(super) endpoint: Endpoint,
    pub(super) options: FollowOptions,
    /// Bound of the answer, from its turn on.
    pub(super) total: Duration,
    /// Bound of its silence.
    pub(super) silence: Duration,
    /// How long it waits before it asks.
    pub(super) delay: Duration,
}

impl Query {
    pub(super) fn start(id: QueryId, ask: Ask, plane: Arc<PlaneClient>) -> Self {
        let (sender, steps) = mpsc::channel(STEPS_AHEAD);
        let reader = tokio::spawn(Reader { ask, plane, steps: sender }.run());
        Self { id, turn: None, complete: false, steps, _reader: AbortOnDropHandle::new(reader) }
    }
}

/// The next step of any of the queries, by publisher; waits for it. Cancel-safe.
pub(super) async fn next(queries: &mut BTreeMap<u64, Query>) -> (u64, Step) {
    poll_fn(|context| {
        for (publisher, query) in &mut *queries {
            if let Poll::Ready(step) = query.steps.poll_recv(context) {
                let ended = || Step::End(Err("its task ended".to_owned()));
                return Poll::Ready((*publisher, step.unwrap_or_else(ended)));
            }
        }
        Poll::Pending
    })
    .await
}

/// Blocks of work in a part.
pub(super) fn blocks_in(event: &RouterEvent) -> usize {
    match &event.event.data {
        KvData::Stored(stored) => stored.blocks.len(),
        KvData::Removed(hashes) => hashes.len(),
        KvData::Cleared => 1,
    }
}

/// What the reading task knows.
struct Reader {
    ask: Ask,
    plane: Arc<PlaneClient>,
    steps: mpsc::Sender<Step>,
}

impl Reader {
    async fn run(self) {
        let end = match self.begin().await {
            Ok(responses) => match timeout(self.ask.total, self.read(responses)).await {
                Ok(read) => read,
                Err(_) => Err(format!("its answer took over {} ms", self.ask.total.as_millis())),
            },
            Err(why) => Err(why),
        };
        // Nobody listens any more if the query was dropped.
        let _ = self.steps.send(Step::End(end)).await;
    }

    /// Asks, as soon as few enough others are asked, and then waits for the turn: a publisher that is not there, or stays silent,
    /// takes nobody's turn.
    async fn begin(&self) -> Result<Responses, String> {
        sleep(self.ask.delay).await;
        let (place, waited) = match self.plane.turns.place_at_once() {
            Some(place) => (place, false),
            None => {
                self.tell(Step::Waits).await?;
                (self.plane.turns.place().await, true)
            }
        };
        let responses = self.call().await?;
        let (kept, turn) = match self.plane.turns.at_once() {
            Some(turn) => (Some(responses), turn),
            None => {
                if !waited {
                    self.tell(Step::Waits).await?;
                }
                self.wait_with(responses).await
            }
        };
        drop(place);
        self.tell(Step::Begins(turn)).await?;
        match kept {
            Some(responses) => Ok(responses),
            None => self.call().await,
        }
    }

    /// Waits for the turn; for long without the answer that has begun.
    async fn wait_with(&self, responses: Responses) -> (Option<Responses>, Turn) {
        let wait = self.plane.turns.wait();
        tokio::pin!(wait);
        tokio::select! {
            turn = &mut wait => (Some(responses), turn),
            () = sleep(self.ask.options.wait_with_answer) => {
                // The worker would give up on us; it answers again when there is time to listen.
                drop(responses);
                (None, wait.await)
            }
        }
    }

    async fn call(&self) -> Result<Responses, String> {
        let Some(call) = Call::to(&self.ask.endpoint, self.ask.query.encode()) else {
            return Err("its recovery endpoint is reached over neither TCP nor NATS".to_owned());
        };
        let call = self.plane.requests.call(call.item_timeout(self.ask.silence));
        call.await.map_err(|error| error.to_string())
    }

    async fn read(&self, mut responses: Responses) -> Result<(), String> {
        let mut reader = DumpReader::new();
        let (mut received, most) = (0u64, self.ask.options.max_answer_bytes);
        loop {
            let Some(piece) = responses.next_piece().await else {
                return Err(format!("{}: the answer ended before it was complete", responses.peer()));
            };
            let piece = piece.map_err(|error: CallError| error.to_string())?;
            received = received.saturating_add(piece.data.len() as u64);
            if received > most {
                return Err(format!("{}: the answer is over {most} bytes", responses.peer()));
            }
            let mut batch = Batch::default();
            for part in reader.push(&piece.data) {
                let part = part.map_err(|error| format!("{}: {error}", responses.peer()))?;
                if batch.add(part) {
                    self.tell(batch.take()).await?;
                }
            }
            let complete = batch.complete;
            if !batch.parts.is_empty() {
                self.tell(batch.take()).await?;
            }
            if complete {
                // An error in it changes nothing any more.
                let _ = timeout(GOODBYE, responses.next_piece()).await;
                return Ok(());
            }
            if piece.last {
                if !reader.is_done() {
                    return Err(format!("{}: a page of the answer breaks off", responses.peer()));
                }
                reader = DumpReader::new();
            }
        }
    }

    async fn tell(&self, step: Step) -> Result<(), String> {
        self.steps.send(step).await.map_err(|_| "nobody wants it any more".to_owned())
    }
}

/// Parts until they are a step.
#[derive(Default)]
struct Batch {
    parts: Vec<Part>,
    blocks: usize,
    /// The last page is complete.
    complete: bool,
}

impl Batch {
    /// True if it is large enough to be handed on.
    fn add(&mut self, part: Part) -> bool {
        match &part {
            Part::Event(Ok(event)) => self.blocks += blocks_in(event).max(1),
            Part::Event(Err(_)) | Part::Begin(_) => self.blocks += 1,
            Part::End(tail) => self.complete |= tail.last,
            Part::Other(_) => self.complete = true,
        }
        self.parts.push(part);
        self.blocks >= STEP_BLOCKS
    }

    fn take(&mut self) -> Step {
        self.blocks = 0;
        Step::Parts { parts: std::mem::take(&mut self.parts), last: self.complete }
    }
}
