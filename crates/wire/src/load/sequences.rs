//! Requests that begin, finish their prefill and end. On ZMQ several come in one message, on NATS one: both are read anywhere.

use std::time::Duration;

use bytes::Bytes;

use super::{LoadError, map, optional, small, text, unsigned};
use crate::{
    cursor::{Cursor, Item},
    out::Out,
};

/// No event is written in fewer bytes than its keys take.
const BYTES_PER_EVENT: usize = 32;

/// A request of one worker begins, is prefilled or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveSequenceEvent {
    /// The request.
    pub request_id: String,
    /// The instance that serves it.
    pub worker_id: u64,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// What happened.
    pub data: SequenceData,
    /// Who tells it: a router ignores its own; a worker names itself.
    pub router_id: u64,
    /// The adapter.
    pub lora_name: Option<String>,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceData {
    /// It was sent to the worker.
    AddRequest(AddRequest),
    /// Its first token came.
    MarkPrefillCompleted,
    /// It is over.
    Free,
}

/// The load a request brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddRequest {
    /// Chained hashes of its prompt's whole blocks.
    pub token_sequence: Option<Vec<u64>>,
    /// Whether its prefill counts as load.
    pub track_prefill_tokens: bool,
    /// How many tokens it will generate, if known.
    pub expected_output_tokens: Option<u32>,
    /// What its prefill costs, if known.
    pub prefill_load_hint: Option<PrefillHint>,
}

/// The cost of a prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillHint {
    /// Tokens that are not cached.
    pub initial_effective_prefill_tokens: u64,
    /// How long they take, if a model of it is known.
    pub expected_prefill_duration: Option<Duration>,
}

/// The payload of an envelope on `active_sequences_events` over ZMQ. Over NATS each event is one message: [`ActiveSequenceEvent::encode`].
pub fn encode_sequences(events: &[ActiveSequenceEvent]) -> Bytes {
    let mut out = Out::default();
    out.map(1);
    out.text("events");
    out.array(events.len());
    for one in events {
        one.write(&mut out);
    }
    out.finish()
}

/// Reads a payload of either form.
pub fn decode_sequences(payload: &[u8]) -> Result<Vec<ActiveSequenceEvent>, LoadError> {
    let mut cursor = Cursor::new(payload);
    let pairs = map(&mut cursor, "map")?;
    let start = cursor;
    for _ in 0..pairs {
        if cursor.key()? != Some(b"events") {
            cursor.skip(1)?;
            continue;
        }
        let count = cursor.item()?.elements().ok_or(LoadError::Field("events"))?;
        if count > cursor.remaining() / BYTES_PER_EVENT {
            return Err(LoadError::TooManyEvents(count));
        }
        return (0..count)
            .map(|_| {
                let pairs = map(&mut cursor, "events")?;
                event(&mut cursor, pairs)
            })
            .collect();
    }
    cursor = start;
    Ok(vec![event(&mut cursor, pairs)?])
}

impl ActiveSequenceEvent {
    /// The payload of an envelope over NATS.
    pub fn encode(&self) -> Bytes {
        let mut out = Out::default();
        self.write(&mut out);
        out.finish()
    }

    fn write(&self, out: &mut Out) {
        out.map(5);
        out.text("request_id");
        out.text(&self.request_id);
        out.text("worker");
        out.map(2);
        out.text("worker_id");
        out.unsigned(self.worker_id);
        out.text("dp_rank");
        out.unsigned(self.dp_rank.into());
        out.text("data");
        match &self.data {
            SequenceData::AddRequest(add) => {
                out.map(1);
                out.text("AddRequest");
                add.write(out);
            }
            SequenceData::MarkPrefillCompleted => out.text("MarkPrefillCompleted"),
            SequenceData::Free => out.text("Free"),
        }
        out.text("router_id");
        out.unsigned(self.router_id);
        out.text("lora_name");
        out.optional(self.lora_name.as_deref(), Out::text);
    }
}

impl AddRequest {
    fn write(&self, out: &mut Out) {
        out.map(4);
        out.text("token_sequence");
        out.optional(self.token_sequence.as_ref(), |out, hashes| {
            out.array(hashes.len());
            for hash in hashes {
                out.unsigned(*hash);
            }
        });
        out.text("track_prefill_tokens");
        out.boolean(self.track_prefill_tokens);
        out.text("expected_output_tokens");
        out.optional(self.expected_output_tokens, |out, tokens| out.unsigned(tokens.into()));
        out.text("prefill_load_hint");
        out.optional(self.prefill_load_hint, |out, hint| {
            out.map(2);
            out.text("initial_effective_prefill_tokens");
            out.unsigned(hint.initial_effective_prefill_tokens);
            out.text("expected_prefill_duration");
            out.optional(hint.expected_prefill_duration, |out, duration| {
                out.map(2);
                out.text("secs");
                out.unsigned(duration.as_secs());
                out.text("nanos");
                out.unsigned(duration.subsec_nanos().into());
            });
        });
    }
}

/// Reads the event whose map of so many pairs has been entered.
fn event(cursor: &mut Cursor<'_>, pairs: usize) -> Result<ActiveSequenceEvent, LoadError> {
    let (mut request_id, mut worker, mut data, mut router_id, mut lora_name) = (None, None, None, None, None);
    for _ in 0..pairs {
        match cursor.key()? {
            Some(b"request_id") => request_id = text(cursor, "request_id")?,
            Some(b"worker") => worker = Some(worker_of(cursor)?),
            Some(b"data") => data = Some(sequence_data(cursor)?),
            Some(b"router_id") => router_id = Some(unsigned(cursor, "router_id")?),
            Some(b"lora_name") => lora_name = text(cursor, "lora_name")?,
            _ => cursor.skip(1)?,
        }
    }
    let (worker_id, dp_rank) = worker.ok_or(LoadError::Field("worker"))?;
    Ok(ActiveSequenceEvent {
        request_id: request_id.ok_or(LoadError::Field("request_id"))?,
        worker_id,
        dp_rank,
        data: data.ok_or(LoadError::Field("data"))?,
        router_id: router_id.ok_or(LoadError::Field("router_id"))?,
        lora_name,
    })
}

fn worker_of(cursor: &mut Cursor<'_>) -> Result<(u64, u32), LoadError> {
    let (mut worker_id, mut dp_rank) = (None, 0);
    for _ in 0..map(cursor, "worker")? {
        match cursor.key()? {
            Some(b"worker_id") => worker_id = Some(unsigned(cursor, "worker_id")?),
            Some(b"dp_rank") => dp_rank = small(cursor, "dp_rank")?,
            _ => cursor.skip(1)?,
        }
    }
    Ok((worker_id.ok_or(LoadError::Field("worker_id"))?, dp_rank))
}

fn sequence_data(cursor: &mut Cursor<'_>) -> Result<SequenceData, LoadError> {
    let item = cursor.item()?;
    if item == Item::Text(b"Free") {
        Ok(SequenceData::Free)
    } else if item == Item::Text(b"MarkPrefillCompleted") {
        Ok(SequenceData::MarkPrefillCompleted)
    } else if item == Item::Map(1) && cursor.key()? == Some(b"AddRequest") {
        add_request(cursor).map(SequenceData::AddRequest)
    } else {
        Err(LoadError::Field("data"))
    }
}

fn add_request(cursor: &mut Cursor<'_>) -> Result<AddRequest, LoadError> {
    const EXPECTED: &str = "expected_output_tokens";
    let mut add = AddRequest { token_sequence: None, track_prefill_tokens: true, expected_output_tokens: None, prefill_load_hint: None };
    for _ in 0..map(cursor, "AddRequest")? {
        match cursor.key()? {
            Some(b"token_sequence") => add.token_sequence = hashes(cursor)?,
            Some(b"track_prefill_tokens") => {
                let Item::Bool(track) = cursor.item()? else { return Err(LoadError::Field("track_prefill_tokens")) };
                add.track_prefill_tokens = track;
            }
            Some(b"expected_output_tokens") => {
                let tokens = optional(cursor, EXPECTED)?.map(u32::try_from).transpose();
                add.expected_output_tokens = tokens.map_err(|_| LoadError::Field(EXPECTED))?;
            }
            Some(b"prefill_load_hint") => add.prefill_load_hint = hint(cursor)?,
            _ => cursor.skip(1)?,
        }
    }
    Ok(add)
}

fn hashes(cursor: &mut Cursor<'_>) -> Result<Option<Vec<u64>>, LoadError> {
    let item = cursor.item()?;
    if item == Item::Nil {
        return Ok(None);
    }
    let count = item.elements().ok_or(LoadError::Field("token_sequence"))?;
    (0..count).map(|_| unsigned(cursor, "token_sequence")).collect::<Result<_, _>>().map(Some)
}

fn hint(cursor: &mut Cursor<'_>) -> Result<Option<PrefillHint>, LoadError> {
    const TOKENS: &str = "initial_effective_prefill_tokens";
    let item = cursor.item()?;
    if item == Item::Nil {
        return Ok(None);
    }
    let pairs = item.pairs().ok_or(LoadError::Field("prefill_load_hint"))?;
    let (mut tokens, mut expected_prefill_duration) = (None, None);
    for _ in 0..pairs {
        match cursor.key()? {
            Some(b"initial_effective_prefill_tokens") => tokens = Some(unsigned(cursor, TOKENS)?),
            Some(b"expected_prefill_duration") => expected_prefill_duration = duration(cursor)?,
            _ => cursor.skip(1)?,
        }
    }
    let initial_effective_prefill_tokens = tokens.ok_or(LoadError::Field(TOKENS))?;
    Ok(Some(PrefillHint { initial_effective_prefill_tokens, expected_prefill_duration }))
}

fn duration(cursor: &mut Cursor<'_>) -> Result<Option<Duration>, LoadError> {
    let item = cursor.item()?;
    if item == Item::Nil {
        return Ok(None);
    }
    let pairs = item.pairs().ok_or(LoadError::Field("expected_prefill_duration"))?;
    let (mut secs, mut nanos) = (0, 0);
    for _ in 0..pairs {
        match cursor.key()? {
            Some(b"secs") => secs = unsigned(cursor, "secs")?,
            Some(b"nanos") => nanos = small(cursor, "nanos")?,
            _ => cursor.skip(1)?,
        }
    }
    // More nanoseconds than a second has would carry over, and a carry can overflow.
    Ok(Some(Duration::from_secs(secs).saturating_add(Duration::from_nanos(nanos.into()))))
}
