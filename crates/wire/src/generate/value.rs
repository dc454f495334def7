//! Values passed through as they are: MessagePack to JSON's model and back.

use serde_json::{Map, Number, Value};

use super::{
    GenerateError, MAX_DEPTH,
    read::{utf8, wrong},
};
use crate::{
    cursor::{Cursor, Item},
    out::Out,
};

/// Reads one value, nested no deeper than [`MAX_DEPTH`]. Keys that are numbers become text; a float that is none becomes null.
pub(super) fn read(cursor: &mut Cursor<'_>, field: &'static str) -> Result<Value, GenerateError> {
    // A value that is whole has as many elements as its headers say, at every level.
    cursor.clone().skip(1)?;
    read_at(cursor, field, 0)
}

fn read_at(cursor: &mut Cursor<'_>, field: &'static str, depth: usize) -> Result<Value, GenerateError> {
    if depth > MAX_DEPTH {
        return Err(GenerateError::Field { field, found: "nested too deeply" });
    }
    Ok(match cursor.item()? {
        Item::Nil => Value::Null,
        Item::Bool(value) => Value::Bool(value),
        Item::Unsigned(number) => number.into(),
        Item::Negative(number) => number.into(),
        Item::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        Item::Text(text) => Value::String(utf8(text, field)?.to_owned()),
        Item::Array(count) => {
            let mut list = Vec::with_capacity(count);
            for _ in 0..count {
                list.push(read_at(cursor, field, depth + 1)?);
            }
            Value::Array(list)
        }
        Item::Map(pairs) => {
            let mut map = Map::with_capacity(pairs);
            for _ in 0..pairs {
                let key = match cursor.item()? {
                    Item::Text(key) => utf8(key, field)?.to_owned(),
                    Item::Unsigned(key) => key.to_string(),
                    Item::Negative(key) => key.to_string(),
                    other => return wrong(field, other),
                };
                map.insert(key, read_at(cursor, field, depth + 1)?);
            }
            Value::Object(map)
        }
        other @ (Item::Binary(_) | Item::Extension) => return wrong(field, other),
    })
}

/// Writes a value, maps in the order they have.
pub(super) fn write(out: &mut Out, value: &Value) {
    match value {
        Value::Null => out.nil(),
        Value::Bool(value) => out.boolean(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => out.unsigned(number),
            (None, Some(number)) => out.integer(number),
            (None, None) => out.float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => out.text(text),
        Value::Array(list) => {
            out.array(list.len());
            list.iter().for_each(|value| write(out, value));
        }
        Value::Object(map) => {
            out.large_map(map.len());
            for (key, value) in map {
                out.text(key);
                write(out, value);
            }
        }
    }
}
