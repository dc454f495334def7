//! What is asked. In MessagePack alone, as every record of a recovery endpoint says.

use bytes::Bytes;

use crate::{
    cursor::{Broken, Cursor, Item},
    out::Out,
};

/// The one kind of query that is answered.
const RECOVERY: &str = "recovery";

/// A query to one publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Whose events; another worker's publisher refuses.
    pub worker_id: u64,
    /// Of which rank.
    pub dp_rank: u32,
    /// The first event wanted, inclusive. `None` or 0: everything, as a dump.
    pub start_event_id: Option<u64>,
    /// The last event wanted. It is only checked against the start: more may come.
    pub end_event_id: Option<u64>,
    /// Whether the asker knows [`Answer::TreeDumpFailed`](super::Answer::TreeDumpFailed).
    pub supports_tree_dump_failed: bool,
    /// Whether the asker takes the answer in pages. Ours; written only if true.
    pub pages: bool,
}

/// Why a body is not a query for recovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The bytes end inside a value, or are not MessagePack.
    #[error("the query is not one complete messagepack value")]
    Broken,
    /// A field is missing, or something else than its kind of value.
    #[error("the query's {0} is missing or not of its kind")]
    Field(&'static str),
    /// A kind of query that is not answered here.
    #[error("a query of another kind than \"recovery\"")]
    Kind,
}

impl From<Broken> for QueryError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl Query {
    /// Everything of this worker's rank, as a dump.
    pub fn everything(worker_id: u64, dp_rank: u32) -> Self {
        Self { worker_id, dp_rank, supports_tree_dump_failed: true, ..Self::default() }
    }

    /// The body of the request, in MessagePack.
    pub fn encode(&self) -> Bytes {
        let mut out = Out::default();
        out.map(6 + u16::from(self.pages));
        out.text("worker_id");
        out.unsigned(self.worker_id);
        out.text("dp_rank");
        out.unsigned(self.dp_rank.into());
        out.text("start_event_id");
        out.optional(self.start_event_id, Out::unsigned);
        out.text("end_event_id");
        out.optional(self.end_event_id, Out::unsigned);
        out.text("supports_tree_dump_failed");
        out.boolean(self.supports_tree_dump_failed);
        out.text("kind");
        out.text(RECOVERY);
        if self.pages {
            out.text("pages");
            out.boolean(true);
        }
        out.finish()
    }

    /// Reads such a body. Without a `kind` it is a query for recovery; unknown keys are skipped.
    pub fn decode(body: &[u8]) -> Result<Self, QueryError> {
        let mut cursor = Cursor::new(body);
        let Item::Map(pairs) = cursor.item()? else { return Err(QueryError::Field("map")) };
        let (mut query, mut worker_id) = (Self::default(), None);
        for _ in 0..pairs {
            match cursor.key()? {
                Some(b"worker_id") => worker_id = number(&mut cursor, "worker_id")?,
                Some(b"dp_rank") => query.dp_rank = rank(number(&mut cursor, "dp_rank")?)?,
                Some(b"start_event_id") => query.start_event_id = number(&mut cursor, "start_event_id")?,
                Some(b"end_event_id") => query.end_event_id = number(&mut cursor, "end_event_id")?,
                Some(b"supports_tree_dump_failed") => query.supports_tree_dump_failed = flag(&mut cursor)?,
                Some(b"pages") => query.pages = flag(&mut cursor)?,
                Some(b"kind") => {
                    if cursor.item()? != Item::Text(RECOVERY.as_bytes()) {
                        return Err(QueryError::Kind);
                    }
                }
                _ => cursor.skip(1)?,
            }
        }
        Ok(Self { worker_id: worker_id.ok_or(QueryError::Field("worker_id"))?, ..query })
    }
}

fn number(cursor: &mut Cursor<'_>, field: &'static str) -> Result<Option<u64>, QueryError> {
    match cursor.item()? {
        Item::Nil => Ok(None),
        item => item.unsigned().map(Some).ok_or(QueryError::Field(field)),
    }
}

fn rank(number: Option<u64>) -> Result<u32, QueryError> {
    u32::try_from(number.unwrap_or(0)).map_err(|_| QueryError::Field("dp_rank"))
}

/// A boolean; anything else is none.
fn flag(cursor: &mut Cursor<'_>) -> Result<bool, QueryError> {
    let item = cursor.item()?;
    cursor.skip_inside(item)?;
    Ok(item == Item::Bool(true))
}
