//! Load on the event plane: what workers publish of theirs (`kv_metrics`), and what routers and workers tell each other of the
//! requests they carry (`active_sequences_events`).

mod sequences;

use bytes::Bytes;

pub use sequences::{ActiveSequenceEvent, AddRequest, PrefillHint, SequenceData, decode_sequences, encode_sequences};

use crate::{
    cursor::{Broken, Cursor, Item},
    out::Out,
};

/// A payload of these topics that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The bytes end inside a value, or are not MessagePack.
    #[error("the payload is no complete messagepack value")]
    Broken,
    /// A field is missing, or something else than its kind of value.
    #[error("the payload's {0} is missing or not of its kind")]
    Field(&'static str),
    /// More events than so few bytes can hold.
    #[error("the payload claims {0} events, more than its bytes can hold")]
    TooManyEvents(usize),
}

impl From<Broken> for LoadError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// The load of one rank, as its worker tells it, whenever it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActiveLoad {
    /// The instance.
    pub worker_id: u64,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Blocks of requests being decoded, if known.
    pub active_decode_blocks: Option<u64>,
    /// Tokens still to be prefilled, if known.
    pub active_prefill_tokens: Option<u64>,
    /// Blocks of the cache in use, if known.
    pub kv_used_blocks: Option<u64>,
}

impl ActiveLoad {
    /// The payload of an envelope on `kv_metrics`.
    pub fn encode(&self) -> Bytes {
        let mut out = Out::default();
        out.map(5);
        out.text("worker_id");
        out.unsigned(self.worker_id);
        out.text("dp_rank");
        out.unsigned(self.dp_rank.into());
        for (key, value) in [
            ("active_decode_blocks", self.active_decode_blocks),
            ("active_prefill_tokens", self.active_prefill_tokens),
            ("kv_used_blocks", self.kv_used_blocks),
        ] {
            out.text(key);
            out.optional(value, Out::unsigned);
        }
        out.finish()
    }

    /// Reads such a payload. Unknown keys are skipped.
    pub fn decode(payload: &[u8]) -> Result<Self, LoadError> {
        let mut cursor = Cursor::new(payload);
        let (mut load, mut worker_id) = (Self::default(), None);
        for _ in 0..map(&mut cursor, "map")? {
            match cursor.key()? {
                Some(b"worker_id") => worker_id = Some(unsigned(&mut cursor, "worker_id")?),
                Some(b"dp_rank") => load.dp_rank = small(&mut cursor, "dp_rank")?,
                Some(b"active_decode_blocks") => load.active_decode_blocks = optional(&mut cursor, "active_decode_blocks")?,
                Some(b"active_prefill_tokens") => load.active_prefill_tokens = optional(&mut cursor, "active_prefill_tokens")?,
                Some(b"kv_used_blocks") => load.kv_used_blocks = optional(&mut cursor, "kv_used_blocks")?,
                _ => cursor.skip(1)?,
            }
        }
        Ok(Self { worker_id: worker_id.ok_or(LoadError::Field("worker_id"))?, ..load })
    }
}

fn map(cursor: &mut Cursor<'_>, field: &'static str) -> Result<usize, LoadError> {
    cursor.item()?.pairs().ok_or(LoadError::Field(field))
}

fn unsigned(cursor: &mut Cursor<'_>, field: &'static str) -> Result<u64, LoadError> {
    optional(cursor, field)?.ok_or(LoadError::Field(field))
}

fn small(cursor: &mut Cursor<'_>, field: &'static str) -> Result<u32, LoadError> {
    u32::try_from(unsigned(cursor, field)?).map_err(|_| LoadError::Field(field))
}

fn optional(cursor: &mut Cursor<'_>, field: &'static str) -> Result<Option<u64>, LoadError> {
    match cursor.item()? {
        Item::Nil => Ok(None),
        item => item.unsigned().map(Some).ok_or(LoadError::Field(field)),
    }
}

fn text(cursor: &mut Cursor<'_>, field: &'static str) -> Result<Option<String>, LoadError> {
    let item = cursor.item()?;
    if item == Item::Nil {
        return Ok(None);
    }
    let text = item.text().and_then(|text| std::str::from_utf8(text).ok()).ok_or(LoadError::Field(field))?;
    Ok(Some(text.to_owned()))
}
