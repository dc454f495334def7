//! What a request says about where it goes, and what a worker before this one hands over.

use serde_json::Value;

use super::{
    GenerateError,
    parts::{read_cached_tokens, write_cached_tokens},
    read::{Reader, nested},
    value,
};
use crate::{
    cursor::{Cursor, Item},
    out::Out,
    request::Codec,
};

/// Where a request is to go. Engines read the ranks, the priority, the adapter and the salt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutingHints {
    /// The worker.
    pub backend_instance_id: Option<u64>,
    /// The worker of the prefill leg.
    pub prefill_worker_id: Option<u64>,
    /// The worker of the decode leg.
    pub decode_worker_id: Option<u64>,
    /// The data-parallel rank.
    pub dp_rank: Option<u32>,
    /// The rank of the prefill leg.
    pub prefill_dp_rank: Option<u32>,
    /// How many tokens of answer are expected.
    pub expected_output_tokens: Option<u32>,
    /// The adapter.
    pub lora_name: Option<String>,
    /// What keeps cached blocks apart.
    pub cache_salt: Option<String>,
    /// Seconds a request is ahead of its arrival in a queue.
    pub priority_jump: Option<f64>,
    /// A tier in a queue.
    pub strict_priority: Option<u32>,
    /// For the engine's own queue.
    pub priority: Option<i32>,
    /// The only workers that may serve it.
    pub allowed_worker_ids: Option<Vec<u64>>,
    /// Taints that are required or preferred.
    pub routing_constraints: Option<Value>,
}

/// What the prefill worker's answer handed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefillResult {
    /// For the decode worker's engine.
    pub disaggregated_params: Value,
    /// Tokens of the prompt that were cached there.
    pub cached_tokens: Option<u32>,
}

/// Where a decode worker meets the prefill worker, which may still be at work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootstrapInfo {
    /// The prefill worker's host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What both legs of one request say.
    pub room: u64,
    /// The same as a UUID, for simulated workers of 1.6.1.
    pub handoff_id: Option<[u8; 16]>,
}

impl RoutingHints {
    pub(super) fn write(&self, out: &mut Out) {
        let set = [
            self.backend_instance_id.is_some(),
            self.prefill_worker_id.is_some(),
            self.decode_worker_id.is_some(),
            self.dp_rank.is_some(),
            self.prefill_dp_rank.is_some(),
            self.expected_output_tokens.is_some(),
            self.lora_name.is_some(),
            self.cache_salt.is_some(),
            self.priority_jump.is_some(),
            self.strict_priority.is_some(),
            self.priority.is_some(),
            self.allowed_worker_ids.is_some(),
            self.routing_constraints.is_some(),
        ];
        out.map(set.into_iter().map(u16::from).sum());
        let number = |out: &mut Out, number: u32| out.unsigned(number.into());
        out.present("backend_instance_id", self.backend_instance_id, Out::unsigned);
        out.present("prefill_worker_id", self.prefill_worker_id, Out::unsigned);
        out.present("decode_worker_id", self.decode_worker_id, Out::unsigned);
        out.present("dp_rank", self.dp_rank, number);
        out.present("prefill_dp_rank", self.prefill_dp_rank, number);
        out.present("expected_output_tokens", self.expected_output_tokens, number);
        out.present("lora_name", self.lora_name.as_deref(), Out::text);
        out.present("cache_salt", self.cache_salt.as_deref(), Out::text);
        out.present("priority_jump", self.priority_jump, Out::float);
        out.present("strict_priority", self.strict_priority, number);
        out.present("priority", self.priority, |out, number| out.integer(number.into()));
        out.present("allowed_worker_ids", self.allowed_worker_ids.as_deref(), |out, ids| {
            out.array(ids.len());
            ids.iter().for_each(|id| out.unsigned(*id));
        });
        out.present("routing_constraints", self.routing_constraints.as_ref(), value::write);
    }

    /// `None` for nil.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Option<Self>, GenerateError> {
        if is_nil(cursor)? {
            return Ok(None);
        }
        let mut hints = Self::default();
        nested(cursor, "routing", |key, value| {
            match key {
                b"backend_instance_id" => hints.backend_instance_id = value.number("routing.backend_instance_id")?,
                b"prefill_worker_id" => hints.prefill_worker_id = value.number("routing.prefill_worker_id")?,
                b"decode_worker_id" => hints.decode_worker_id = value.number("routing.decode_worker_id")?,
                b"dp_rank" => hints.dp_rank = value.number("routing.dp_rank")?,
                b"prefill_dp_rank" => hints.prefill_dp_rank = value.number("routing.prefill_dp_rank")?,
                b"expected_output_tokens" => hints.expected_output_tokens = value.number("routing.expected_output_tokens")?,
                b"lora_name" => hints.lora_name = value.text("routing.lora_name")?,
                b"cache_salt" => hints.cache_salt = value.text("routing.cache_salt")?,
                b"priority_jump" => hints.priority_jump = value.float("routing.priority_jump")?,
                b"strict_priority" => hints.strict_priority = value.number("routing.strict_priority")?,
                b"priority" => hints.priority = value.integer("routing.priority")?,
                b"allowed_worker_ids" => hints.allowed_worker_ids = worker_ids(value)?,
                b"routing_constraints" => hints.routing_constraints = value.json("routing.routing_constraints")?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(Some(hints))
    }
}

fn worker_ids(value: &mut Reader<'_, '_>) -> Result<Option<Vec<u64>>, GenerateError> {
    const FIELD: &str = "routing.allowed_worker_ids";
    value.list(FIELD, 1, |id| id.number(FIELD)?.ok_or(GenerateError::Field { field: FIELD, found: "a list with nil in it" }))
}

impl PrefillResult {
    pub(super) fn write(&self, out: &mut Out) {
        out.map(1 + u16::from(self.cached_tokens.is_some()));
        out.text("disaggregated_params");
        value::write(out, &self.disaggregated_params);
        out.present("prompt_tokens_details", self.cached_tokens, write_cached_tokens);
    }

    /// `None` for nil.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Option<Self>, GenerateError> {
        if is_nil(cursor)? {
            return Ok(None);
        }
        let mut result = Self::default();
        nested(cursor, "prefill_result", |key, value| {
            match key {
                b"disaggregated_params" => {
                    result.disaggregated_params = value.json("prefill_result.disaggregated_params")?.unwrap_or_default();
                }
                b"prompt_tokens_details" => {
                    result.cached_tokens = read_cached_tokens(value, "prefill_result.prompt_tokens_details")?;
                }
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(Some(result))
    }
}

impl BootstrapInfo {
    pub(super) fn write(&self, out: &mut Out, codec: Codec) {
        out.map(3 + u16::from(self.handoff_id.is_some()));
        out.text("bootstrap_host");
        out.text(&self.host);
        out.text("bootstrap_port");
        out.unsigned(self.port.into());
        out.text("bootstrap_room");
        out.unsigned(self.room);
        out.present("handoff_id", self.handoff_id.as_ref(), |out, id| match codec {
            Codec::Msgpack => out.binary(id),
            Codec::Json => out.text(&uuid_text(id)),
        });
    }

    /// `None` for nil.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Option<Self>, GenerateError> {
        if is_nil(cursor)? {
            return Ok(None);
        }
        let (mut host, mut port, mut room, mut handoff_id) = (None, None, None, None);
        nested(cursor, "bootstrap_info", |key, value| {
            match key {
                b"bootstrap_host" => host = value.text("bootstrap_info.bootstrap_host")?,
                b"bootstrap_port" => port = value.number("bootstrap_info.bootstrap_port")?,
                b"bootstrap_room" => room = value.number("bootstrap_info.bootstrap_room")?,
                b"handoff_id" => handoff_id = uuid(value)?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(Some(Self {
            host: host.ok_or(GenerateError::Missing("bootstrap_info.bootstrap_host"))?,
            port: port.ok_or(GenerateError::Missing("bootstrap_info.bootstrap_port"))?,
            room: room.ok_or(GenerateError::Missing("bootstrap_info.bootstrap_room"))?,
            handoff_id,
        }))
    }
}

/// Takes a nil, if that is next.
fn is_nil(cursor: &mut Cursor<'_>) -> Result<bool, GenerateError> {
    let mut ahead = *cursor;
    let nil = ahead.item()? == Item::Nil;
    if nil {
        *cursor = ahead;
    }
    Ok(nil)
}

/// 16 bytes, or 32 hex digits with or without hyphens.
fn uuid(value: &mut Reader<'_, '_>) -> Result<Option<[u8; 16]>, GenerateError> {
    const WRONG: GenerateError = GenerateError::Field { field: "bootstrap_info.handoff_id", found: "no UUID" };
    match value.cursor.item()? {
        Item::Nil => Ok(None),
        Item::Binary(bytes) => bytes.try_into().map(Some).map_err(|_| WRONG),
        Item::Text(text) => {
            let digits: Vec<u8> = text.iter().copied().filter(|digit| *digit != b'-').collect();
            let text = std::str::from_utf8(&digits).map_err(|_| WRONG)?;
            if text.len() != 32 || text.starts_with('+') {
                return Err(WRONG);
            }
            u128::from_str_radix(text, 16).map(|id| Some(id.to_be_bytes())).map_err(|_| WRONG)
        }
        _ => Err(WRONG),
    }
}

fn uuid_text(id: &[u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(*id));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
