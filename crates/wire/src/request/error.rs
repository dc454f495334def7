//! Errors with a class, as answerers send them before or instead of an item.

use serde_json::{Map, Value, json};

use crate::{
    cursor::{Broken, Cursor, Item},
    out::Out,
};

/// An error as 1.6.1 writes it. Only the public message is meant for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypedError {
    /// The older name of the class, such as `InvalidArgument`.
    pub error_type: String,
    /// The class, such as `InvalidRequest`.
    pub class: String,
    /// The cause, such as `request.invalid_argument`.
    pub reason: String,
    /// For operators.
    pub message: String,
    /// For clients.
    pub public: Option<String>,
}

impl TypedError {
    /// As JSON, in 1.6.1's order.
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!({
            "error_type": self.error_type, "class": self.class, "reason": self.reason,
            "message": self.message, "diagnostic": self.message,
        });
        if let (Some(public), Value::Object(fields)) = (&self.public, &mut value) {
            fields.insert("public".to_owned(), json!({"type": "message", "message": public}));
        }
        value
    }

    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        let fields: &Map<String, Value> = value.as_object()?;
        let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let public = fields.get("public").and_then(|public| public.get("message")).and_then(Value::as_str);
        Some(Self {
            error_type: match fields.get("error_type").and_then(Value::as_object) {
                // A class of the backend's is named inside.
                Some(nested) => nested.values().next().and_then(Value::as_str).unwrap_or_default().to_owned(),
                None => text("error_type"),
            },
            class: text("class"),
            reason: text("reason"),
            message: text("message"),
            public: public.map(str::to_owned),
        })
    }

    /// An item's data in MessagePack: `{"event": "error", "error": {..}}`.
    pub fn encode_item(&self) -> bytes::Bytes {
        let mut out = Out::default();
        out.map(2);
        out.text("event");
        out.text("error");
        out.text("error");
        out.map(5 + u16::from(self.public.is_some()));
        for (key, value) in [
            ("error_type", &self.error_type),
            ("class", &self.class),
            ("reason", &self.reason),
            ("message", &self.message),
            ("diagnostic", &self.message),
        ] {
            out.text(key);
            out.text(value);
        }
        if let Some(public) = &self.public {
            out.text("public");
            out.map(2);
            out.text("type");
            out.text("message");
            out.text("message");
            out.text(public);
        }
        out.finish()
    }

    /// The error in an item's data in MessagePack, if it is one.
    pub fn of_item(data: &[u8]) -> Option<Self> {
        Self::read_item(&mut Cursor::new(data)).ok().flatten()
    }

    fn read_item(cursor: &mut Cursor<'_>) -> Result<Option<Self>, Broken> {
        // An error takes two; nearly every item has but its data.
        let Item::Map(pairs @ 2..) = cursor.item()? else { return Ok(None) };
        let (mut is_error, mut error) = (false, None);
        for _ in 0..pairs {
            match cursor.key()? {
                Some(b"event") => {
                    let value = cursor.item()?;
                    cursor.skip_inside(value)?;
                    is_error = value == Item::Text(b"error");
                }
                Some(b"error") => error = Self::read(cursor)?,
                _ => cursor.skip(1)?,
            }
        }
        Ok(error.filter(|_| is_error))
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Option<Self>, Broken> {
        let start = *cursor;
        let Item::Map(pairs) = cursor.item()? else {
            *cursor = start;
            cursor.skip(1)?;
            return Ok(None);
        };
        let mut error = Self::default();
        for _ in 0..pairs {
            let key = cursor.key()?;
            if key == Some(b"public") {
                error.public = public(cursor)?;
                continue;
            }
            let value = cursor.item()?;
            cursor.skip_inside(value)?;
            let Item::Text(text) = value else { continue };
            let text = String::from_utf8_lossy(text).into_owned();
            match key {
                Some(b"error_type") => error.error_type = text,
                Some(b"class") => error.class = text,
                Some(b"reason") => error.reason = text,
                Some(b"message") => error.message = text,
                _ => {}
            }
        }
        Ok(Some(error))
    }
}

fn public(cursor: &mut Cursor<'_>) -> Result<Option<String>, Broken> {
    let start = *cursor;
    let Item::Map(pairs) = cursor.item()? else {
        *cursor = start;
        cursor.skip(1)?;
        return Ok(None);
    };
    let mut message = None;
    for _ in 0..pairs {
        let key = cursor.key()?;
        let value = cursor.item()?;
        cursor.skip_inside(value)?;
        if let (Some(b"message"), Item::Text(text)) = (key, value) {
            message = Some(String::from_utf8_lossy(text).into_owned());
        }
    }
    Ok(message)
}
