//! Where the fields of a body lie. Several readers want fields of one body, each its own; the text is gone through once. Long
//! arrays of token ids are most of a body that has any, so they are read in that same pass.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize as _;
use serde_json::value::RawValue;

use crate::error::BadRequest;
use crate::fields::{self, Raw};
use crate::{ids, plain};

/// A body, and where its fields lie.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    body: Bytes,
    /// In their order; `None` for a body that is to be read with more care: it is no JSON object, or has a key with escapes.
    fields: Option<Arc<[Field]>>,
}

#[derive(Debug)]
pub(crate) struct Field {
    key: Range<usize>,
    value: Range<usize>,
    /// The value, where it is an array of whole numbers that are written plainly and may be token ids.
    ids: Option<Arc<[u32]>>,
}

impl Source {
    /// Goes through a body.
    ///
    /// # Errors
    /// It is no text.
    pub(crate) fn of(body: &Bytes) -> Result<Self, BadRequest> {
        let fields = fields_of(body).map(Arc::from);
        if fields.is_none() {
            fields::utf8(body)?;
        }
        Ok(Self { body: body.clone(), fields })
    }

    pub(crate) fn body(&self) -> &Bytes {
        &self.body
    }

    pub(crate) fn fields(&self) -> Option<&[Field]> {
        self.fields.as_deref()
    }
}

impl Field {
    /// Key and value in the body.
    pub(crate) fn parts<'a>(&'a self, body: &'a [u8]) -> (&'a str, Raw<'a>) {
        let value = &body[self.value.clone()];
        let value = self.ids.as_ref().map_or_else(|| Raw::Text(text(value)), |ids| Raw::Ids(ids, value));
        (text(&body[self.key.clone()]), value)
    }
}

/// What was found to be text before.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// The fields of a valid JSON object without escapes in its keys, and nothing for anything else. Keys and values are looked at
/// alone, whether they are text: ids, most of a body that has them, are.
fn fields_of(json: &[u8]) -> Option<Vec<Field>> {
    let mut at = 0;
    let mut fields = Vec::with_capacity(8);
    pass(json, &mut at, b'{')?;
    if pass(json, &mut at, b'}').is_some() {
        return at_end(json, at).then_some(fields);
    }
    loop {
        pass(json, &mut at, b'"')?;
        let key = at..at + json[at..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
        std::str::from_utf8(&json[key.clone()]).ok()?;
        at = key.end;
        pass(json, &mut at, b'"')?;
        pass(json, &mut at, b':')?;
        ids::skip_space(json, &mut at);
        let start = at;
        let ids = plain::array(json, &mut at);
        if ids.is_none() {
            at = start + <&RawValue>::deserialize(&mut serde_json::Deserializer::from_slice(&json[start..])).ok()?.get().len();
        }
        fields.push(Field { key, value: start..at, ids });
        if pass(json, &mut at, b',').is_none() {
            pass(json, &mut at, b'}')?;
            return at_end(json, at).then_some(fields);
        }
    }
}

/// Goes behind this byte, and the space before it.
fn pass(json: &[u8], at: &mut usize, wanted: u8) -> Option<()> {
    ids::skip_space(json, at);
    (*json.get(*at)? == wanted).then(|| *at += 1)
}

fn at_end(json: &[u8], mut at: usize) -> bool {
    ids::skip_space(json, &mut at);
    at == json.len()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    /// Key, value, and ids.
    type Found = (String, String, Option<Vec<u32>>);

    fn found(text: &str) -> Option<Vec<Found>> {
        let owned = |field: Field| {
            let (key, value) = field.parts(text.as_bytes());
            (key.to_owned(), value.get().to_owned(), value.ids().map(|ids| ids.to_vec()))
        };
        fields_of(text.as_bytes()).map(|fields| fields.into_iter().map(owned).collect())
    }

    #[test]
    fn each_field_as_it_is_written() {
        let text = " { \"a\" : [ 1 ,2] ,\"b\":{\"c\":[1]},\"a\":\"}\\\"\" , \"d\":1.5e3,\"e\":[01],\"f\":[]}\n";
        assert_eq!(found(text), None, "numbers do not begin with 0");
        let text = text.replace("[01]", "[-1,2]");
        let named = |key: &str, value: &str, ids: Option<&[u32]>| (key.to_owned(), value.to_owned(), ids.map(<[u32]>::to_vec));
        let expected = vec![
            named("a", "[ 1 ,2]", Some(&[1, 2])),
            named("b", "{\"c\":[1]}", None),
            named("a", "\"}\\\"\"", None),
            named("d", "1.5e3", None),
            named("e", "[-1,2]", None),
            named("f", "[]", Some(&[])),
        ];
        assert_eq!(found(&text), Some(expected));
        assert_eq!(found("{}"), Some(vec![]));
    }

    #[test]
    fn nothing_of_what_is_no_object() {
        for text in
            ["", "{", "[]", "{} 1", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1 \"b\":2}", "{\"a\":[1,]}", "{\"a\":[1 2]}", "{a:1}"]
        {
            assert_eq!(found(text), None, "{text}");
        }
        assert_eq!(found("{\"\\u0061\":1}"), None, "a key with escapes");
    }

    #[test]
    fn a_body_that_is_no_text() {
        let good = "{\"é\":\"ü\",\"a\":[1,2],\"b\":{\"ö\":[\"ä\"]}} ".as_bytes();
        for at in 0..good.len() {
            for byte in [0x80, 0xc3, 0xff] {
                let mut body = good.to_vec();
                body[at] = byte;
                let Err(error) = std::str::from_utf8(&body) else { continue };
                assert!(fields_of(&body).is_none(), "{at}");
                let said = Source::of(&Bytes::from(body)).expect_err("no text").message;
                assert_eq!(said, format!("could not parse the body as a JSON object: {error}"));
            }
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            prop::collection::vec(any::<u32>(), 0..40).prop_map(Value::from),
            prop::collection::vec(0..20_000_000_u64, 0..40).prop_map(Value::from),
        ];
        leaf.prop_recursive(2, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-c\"é]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_a_parser_finds(object in prop::collection::hash_map("[a-z é]{0,3}", value(), 0..6), pretty: bool) {
            let object: Map<String, Value> = object.into_iter().collect();
            let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.expect("JSON");
            // A float that was written and read is not always the same.
            let object: Map<String, Value> = serde_json::from_str(&text).expect("JSON");
            let found = found(&text).expect("an object");
            prop_assert_eq!(found.len(), object.len());
            for (key, value, ids) in found {
                let expected = &object[&key];
                prop_assert_eq!(&serde_json::from_str::<Value>(&value).expect("valid"), expected);
                if let Some(ids) = ids {
                    prop_assert_eq!(&Value::from(ids), expected);
                }
            }
        }

        /// Whatever is cut out of or put into a text: what is taken is valid.
        #[test]
        fn nothing_invalid_is_taken(
            mut text in "\\{\"a\":\\[[0-9 ,]{0,24}\\](,\"b\":[0-9.eE+-]{0,6})?\\}",
            cut in any::<prop::sample::Index>(),
        ) {
            for _ in 0..2 {
                let valid = serde_json::from_str::<HashMap<String, &RawValue>>(&text).is_ok();
                prop_assert_eq!(found(&text).is_some(), valid, "{}", text);
                text.remove(cut.index(text.len()));
            }
        }
    }
}
