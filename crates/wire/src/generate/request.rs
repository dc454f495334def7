//! The body of a request.

use bytes::Bytes;
use serde_json::Value;

use super::{
    BootstrapInfo, GenerateError, OutputOptions, PrefillResult, RoutingHints, SamplingOptions, StopConditions, json,
    read::{Reader, wrong},
    value,
};
use crate::{
    cursor::{Cursor, Item},
    out::Out,
    request::Codec,
};

/// Tokens to go on from, and how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateRequest {
    /// The model, or its adapter, by the name clients use.
    pub model: String,
    /// The prompt.
    pub token_ids: Vec<u32>,
    /// When to stop.
    pub stop_conditions: StopConditions,
    /// How to choose tokens.
    pub sampling_options: SamplingOptions,
    /// What to tell beside them.
    pub output_options: OutputOptions,
    /// The model's ends of sequence.
    pub eos_token_ids: Vec<u32>,
    /// A checksum of the model card that the ids were made with.
    pub mdc_sum: Option<String>,
    /// What else the client asked to be told.
    pub annotations: Vec<String>,
    /// Where it is to go.
    pub routing: Option<RoutingHints>,
    /// What the prefill worker handed over, to a decode worker.
    pub prefill_result: Option<PrefillResult>,
    /// Where the two meet instead.
    pub bootstrap_info: Option<BootstrapInfo>,
    /// What is passed to the engine as it is, such as the client's `nvext`.
    pub extra_args: Option<Value>,
    /// Whether an answer may reason before guided decoding begins.
    pub require_reasoning: bool,
    /// When the client sent it, in milliseconds since 1970.
    pub request_timestamp_ms: Option<f64>,
    /// Whether it is a probe by 1.6.1's health checks, which no other worker takes part in.
    pub is_probe: bool,
}

impl GenerateRequest {
    /// The body.
    pub fn encode(&self, codec: Codec) -> Bytes {
        let mut out = Out::with_capacity(2048 + 5 * self.token_ids.len());
        self.write(&mut out, codec);
        match codec {
            Codec::Msgpack => out.finish(),
            Codec::Json => json::of_msgpack(&out.finish()),
        }
    }

    /// Reads a body. Only the tokens must be there.
    pub fn decode(body: &[u8], codec: Codec) -> Result<Self, GenerateError> {
        match codec {
            Codec::Msgpack => Self::read(body),
            Codec::Json => Self::read(&json::to_msgpack(body)?),
        }
    }

    fn write(&self, out: &mut Out, codec: Codec) {
        let optional = [
            self.routing.is_some(),
            self.prefill_result.is_some(),
            self.bootstrap_info.is_some(),
            self.extra_args.is_some(),
            self.require_reasoning,
            self.request_timestamp_ms.is_some(),
            self.is_probe,
        ];
        out.map(9 + optional.into_iter().map(u16::from).sum::<u16>());
        out.text("model");
        out.text(&self.model);
        out.text("token_ids");
        out.ids(&self.token_ids);
        out.text("stop_conditions");
        self.stop_conditions.write(out);
        out.text("sampling_options");
        self.sampling_options.write(out);
        out.text("output_options");
        self.output_options.write(out);
        out.text("eos_token_ids");
        out.ids(&self.eos_token_ids);
        out.field("mdc_sum", self.mdc_sum.as_deref(), Out::text);
        out.text("annotations");
        out.texts(&self.annotations);
        out.present("routing", self.routing.as_ref(), |out, hints| hints.write(out));
        // Between routers of 1.6.1, and never of use to a worker.
        out.field("router_config_override", None::<()>, |_, ()| {});
        out.present("prefill_result", self.prefill_result.as_ref(), |out, result| result.write(out));
        out.present("bootstrap_info", self.bootstrap_info.as_ref(), |out, info| info.write(out, codec));
        out.present("extra_args", self.extra_args.as_ref(), value::write);
        out.present("require_reasoning", Some(true).filter(|_| self.require_reasoning), Out::boolean);
        out.present("request_timestamp_ms", self.request_timestamp_ms, Out::float);
        out.present("_HEALTH_CHECK", Some(true).filter(|_| self.is_probe), Out::boolean);
    }

    fn read(body: &[u8]) -> Result<Self, GenerateError> {
        let mut cursor = Cursor::new(body);
        let pairs = match cursor.item()? {
            Item::Map(pairs) => pairs,
            other => return wrong("the request", other),
        };
        let (mut request, mut token_ids) = (Self::default(), None);
        for _ in 0..pairs {
            let Some(key) = cursor.key()? else {
                cursor.skip(1)?;
                continue;
            };
            match key {
                b"token_ids" => token_ids = Reader { cursor: &mut cursor }.ids("token_ids")?,
                b"stop_conditions" => request.stop_conditions = StopConditions::read(&mut cursor)?,
                b"sampling_options" => request.sampling_options = SamplingOptions::read(&mut cursor)?,
                b"output_options" => request.output_options = OutputOptions::read(&mut cursor)?,
                b"routing" => request.routing = RoutingHints::read(&mut cursor)?,
                b"prefill_result" => request.prefill_result = PrefillResult::read(&mut cursor)?,
                b"bootstrap_info" => request.bootstrap_info = BootstrapInfo::read(&mut cursor)?,
                other => request.read_plain(other, &mut Reader { cursor: &mut cursor })?,
            }
        }
        if cursor.remaining() > 0 {
            return Err(GenerateError::Broken);
        }
        request.token_ids = token_ids.ok_or(GenerateError::Missing("token_ids"))?;
        Ok(request)
    }

    fn read_plain(&mut self, key: &[u8], value: &mut Reader<'_, '_>) -> Result<(), GenerateError> {
        match key {
            b"model" => self.model = value.text("model")?.unwrap_or_default(),
            b"eos_token_ids" => self.eos_token_ids = value.ids("eos_token_ids")?.unwrap_or_default(),
            b"mdc_sum" => self.mdc_sum = value.text("mdc_sum")?,
            b"annotations" => self.annotations = value.texts("annotations")?.unwrap_or_default(),
            b"extra_args" => self.extra_args = value.json("extra_args")?,
            b"require_reasoning" => self.require_reasoning = value.boolean("require_reasoning")?.unwrap_or_default(),
            b"request_timestamp_ms" => self.request_timestamp_ms = value.float("request_timestamp_ms")?,
            b"_HEALTH_CHECK" => self.is_probe = value.boolean("_HEALTH_CHECK")?.unwrap_or_default(),
            _ => value.skip()?,
        }
        Ok(())
    }
}
