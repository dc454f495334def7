//! How a publisher publishes, why there is none, why a call is refused, and names of blocks.

use feed::publisher::CallError;
use transport::plane::{OpenError, PublisherOptions};

use crate::{intake::Closed, names::ServeError, runtime::RuntimeError};

/// Default bound of the queue between the engine and the publisher's thread.
const QUEUE_BYTES: usize = 64 << 20;

/// How a publisher publishes.
#[derive(Clone, Debug)]
pub struct KvPublisherOptions {
    /// Tokens per block; the engine's own.
    pub kv_block_size: u32,
    /// Data-parallel rank (0).
    pub dp_rank: u32,
    /// Whether those who missed events can recover here, and overlaps be asked for (false). Without it the publisher is live
    /// only: a consumer that misses an event knows less from then on.
    pub enable_local_indexer: bool,
    /// The worker whose cache it is; the process's own id where none is given.
    pub worker_id: Option<u64>,
    /// Bytes of calls that may wait for the publisher's thread (64 MiB); removals have half as much again.
    pub queue_bytes: usize,
    /// Events kept for those who missed some (100,000).
    pub ring_events: usize,
    /// Bytes of those (64 MiB), whichever bound is met first.
    pub ring_bytes: usize,
    /// What subscribers may cost.
    pub plane: PublisherOptions,
}

impl KvPublisherOptions {
    /// The defaults, for blocks of so many tokens.
    pub fn new(kv_block_size: u32) -> Self {
        Self {
            kv_block_size,
            dp_rank: 0,
            enable_local_indexer: false,
            worker_id: None,
            queue_bytes: QUEUE_BYTES,
            ring_events: 100_000,
            ring_bytes: 64 << 20,
            plane: PublisherOptions::default(),
        }
    }
}

/// Why there is no publisher.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    /// Blocks of no tokens.
    #[error("kv_block_size is 0")]
    BlockSize,
    /// The planes.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Its channel.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its recovery service.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its thread.
    #[error("cannot start the publisher's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a call was refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// An argument is wrong.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The publisher was shut down.
    #[error("the publisher was shut down")]
    Closed,
}

impl From<Closed> for PublishError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// An engine's name of a block: 64 bits, signed or not.
pub trait BlockName: Copy {
    /// The same bits, unsigned.
    fn bits(self) -> u64;
}

impl BlockName for u64 {
    fn bits(self) -> u64 {
        self
    }
}

impl BlockName for i64 {
    fn bits(self) -> u64 {
        self.cast_unsigned()
    }
}

/// Names as a [`StoredCall`](crate::StoredCall) takes them.
pub(crate) fn block_names<N: BlockName>(names: &[N]) -> Vec<u64> {
    names.iter().map(|name| name.bits()).collect()
}
