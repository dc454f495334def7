//! Typed errors as items, in either codec: `{"event": "error", "error": {..}}`.

use bytes::Bytes;
use serde_json::{Value, json};
use wire::request::{Codec, TypedError};

/// No error item is larger, in bytes; larger items are not searched for one.
const MAX_ERROR_ITEM_BYTES: usize = 64 << 10;

/// The error an item is, if it is one.
pub(super) fn of_item(codec: Codec, item: &[u8]) -> Option<TypedError> {
    if item.len() > MAX_ERROR_ITEM_BYTES {
        return None;
    }
    match codec {
        Codec::Msgpack => TypedError::of_item(item),
        Codec::Json => {
            let item: Value = serde_json::from_slice(item).ok()?;
            let is_error = item.get("event").and_then(Value::as_str) == Some("error");
            is_error.then(|| from_json(item.get("error"))).flatten()
        }
    }
}

/// The item that tells an error.
pub(super) fn item(codec: Codec, error: &TypedError) -> Bytes {
    match codec {
        Codec::Msgpack => error.encode_item(),
        Codec::Json => json!({"event": "error", "error": to_json(error)}).to_string().into(),
    }
}

fn from_json(error: Option<&Value>) -> Option<TypedError> {
    let fields = error?.as_object()?;
    let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(TypedError {
        error_type: text("error_type"),
        class: text("class"),
        reason: text("reason"),
        message: text("message"),
        public: fields.get("public").and_then(|public| public.get("message")).and_then(Value::as_str).map(str::to_owned),
    })
}

fn to_json(error: &TypedError) -> Value {
    let mut fields = json!({
        "error_type": error.error_type, "class": error.class, "reason": error.reason,
        "message": error.message, "diagnostic": error.message,
    });
    if let Some(public) = &error.public {
        fields["public"] = json!({"type": "message", "message": public});
    }
    fields
}
