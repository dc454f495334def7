//! Known fields of a JSON object: one pass notes where each lies, then each is read on its own, so that an error can name it.
//! Where engines accept several spellings of a value (`"16"` or `16.0` for a count) so do these readers: what an engine would
//! answer must not be refused on the way to it.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::BadRequest;
use crate::ids::{self, IdError};
use crate::layout::Source;
use crate::plain;

/// Names of unknown fields that are kept for a message.
const MAX_UNKNOWN: usize = 8;
/// Characters of such a name that are shown.
const MAX_UNKNOWN_CHARS: usize = 64;

/// A value as it is written: valid JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw<'a> {
    Text(&'a str),
    /// Of a body: an array that was read as token ids when the body was gone through.
    Ids(&'a Arc<[u32]>, &'a [u8]),
}

impl<'a> Raw<'a> {
    pub(crate) fn get(self) -> &'a str {
        match self {
            Self::Text(text) => text,
            // It has digits, commas, blanks and two brackets.
            Self::Ids(_, text) => std::str::from_utf8(text).unwrap_or_default(),
        }
    }

    /// The value, where it was read before.
    pub(crate) fn ids(self) -> Option<&'a Arc<[u32]>> {
        if let Self::Ids(ids, _) = self { Some(ids) } else { None }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Self::Text(raw.get()))
    }
}

/// Where each field of `names` lies that is there. A field given twice counts by its last value, as engines read it; null is absent.
pub(crate) struct Fields<'a> {
    /// What the object is called in messages; empty for the body itself.
    path: &'static str,
    names: &'static [&'static str],
    /// Few of many: they are searched, not the names.
    found: Vec<(&'static str, Raw<'a>)>,
    /// Fields that are none of `names`, the first few.
    unknown: Vec<String>,
}

impl<'a> Fields<'a> {
    /// Of a whole body.
    pub(crate) fn of_body(source: &'a Source, names: &'static [&'static str]) -> Result<Self, BadRequest> {
        let Some(found) = source.fields() else { return Self::of_text(utf8(source.body())?, names) };
        let mut fields = Self::empty("", names);
        for field in found {
            let (key, value) = field.parts(source.body());
            match fields.known(key) {
                Some(name) => fields.put(name, value),
                None => fields.note_unknown(key),
            }
        }
        Ok(fields)
    }

    /// With the parser's own words for what is wrong.
    fn of_text(text: &'a str, names: &'static [&'static str]) -> Result<Self, BadRequest> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let fields = reader.deserialize_map(Self::empty("", names)).and_then(|fields| reader.end().map(|()| fields));
        fields.map_err(|error| BadRequest::json(&error))
    }

    /// Of a nested object called `path`; all absent where there is none.
    pub(crate) fn nested(path: &'static str, raw: Option<Raw<'a>>, names: &'static [&'static str]) -> Result<Self, BadRequest> {
        let Some(raw) = raw else { return Ok(Self::empty(path, names)) };
        let fields = serde_json::Deserializer::from_str(raw.get()).deserialize_map(Self::empty(path, names));
        fields.map_err(|_| BadRequest::wrong_type(path, "an object"))
    }

    fn empty(path: &'static str, names: &'static [&'static str]) -> Self {
        Self { path, names, found: Vec::new(), unknown: Vec::new() }
    }

    fn known(&self, key: &str) -> Option<&'static str> {
        self.names.iter().copied().find(|known| *known == key)
    }

    fn put(&mut self, name: &'static str, value: Raw<'a>) {
        match self.found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, earlier)) => *earlier = value,
            None => self.found.push((name, value)),
        }
    }

    fn note_unknown(&mut self, key: &str) {
        if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.push(key.chars().take(MAX_UNKNOWN_CHARS).collect());
        }
    }

    /// Refuses what is none of the names, by name.
    pub(crate) fn known_only(&self) -> Result<(), BadRequest> {
        let Some(first) = self.unknown.first() else { return Ok(()) };
        let listed: Vec<String> = self.unknown.iter().map(|name| format!("'{}'", self.named(name))).collect();
        let plural = if listed.len() == 1 { "" } else { "s" };
        let mut message = format!("unknown parameter{plural}: {}", listed.join(", "));
        if !self.path.is_empty() {
            // An object of a few fields; all that a body may hold is what a manual is for.
            message.push_str(&format!("; allowed in '{}' are {}", self.path, self.names.join(", ")));
        }
        Err(BadRequest::new(self.named(first), "unknown_parameter", message))
    }

    /// How messages call the field `name`.
    pub(crate) fn named(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Raw<'a>> {
        let (_, raw) = self.found.iter().find(|(known, _)| *known == name)?;
        (!matches!(raw, Raw::Text("null"))).then_some(*raw)
    }

    fn read<T>(&self, name: &str, read: impl FnOnce(&str, Raw<'a>) -> Result<T, BadRequest>) -> Result<Option<T>, BadRequest> {
        self.get(name).map(|raw| read(&self.named(name), raw)).transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, BadRequest> {
        self.read(name, flag)
    }

    pub(crate) fn count(&self, name: &str, least: u32) -> Result<Option<u32>, BadRequest> {
        self.read(name, |param, raw| count(param, raw, least, u32::MAX))
    }

    pub(crate) fn count_within(&self, name: &str, least: u32, most: u32) -> Result<Option<u32>, BadRequest> {
        self.read(name, |param, raw| count(param, raw, least, most))
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, BadRequest> {
        self.read(name, integer)
    }

    /// A number from `least` to `most`.
    pub(crate) fn number(&self, name: &str, least: f64, most: f64) -> Result<Option<f64>, BadRequest> {
        self.read(name, |param, raw| number(param, raw, least, most))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, BadRequest> {
        self.read(name, |param, raw| string(raw).ok_or_else(|| BadRequest::wrong_type(param, "a string")))
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Option<Vec<Cow<'a, str>>>, BadRequest> {
        self.read(name, |param, raw| strings(raw).ok_or_else(|| BadRequest::wrong_type(param, "an array of strings")))
    }

    /// A list of token ids, perhaps empty.
    pub(crate) fn ids(&self, name: &str) -> Result<Option<Arc<[u32]>>, BadRequest> {
        self.read(name, |param, raw| {
            if let Some(ids) = raw.ids() {
                return Ok(ids.clone());
            }
            if !raw.get().starts_with('[') {
                return Err(BadRequest::wrong_type(param, "an array of token ids"));
            }
            id_list(raw.get().as_bytes(), &mut 0, param)
        })
    }
}

impl<'de> Visitor<'de> for Fields<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(key) = map.next_key::<Key<'_>>()? {
            match self.known(&key.0) {
                Some(name) => self.put(name, map.next_value()?),
                None => {
                    self.note_unknown(&key.0);
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(self)
    }
}

/// A text, borrowed unless it is written with escapes.
#[derive(serde::Deserialize)]
pub(crate) struct Key<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

pub(crate) fn string(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Key<'_>>(raw.get()).ok().map(|key| key.0)
}

pub(crate) fn strings(raw: Raw<'_>) -> Option<Vec<Cow<'_, str>>> {
    let texts: Vec<Key<'_>> = serde_json::from_str(raw.get()).ok()?;
    Some(texts.into_iter().map(|text| text.0).collect())
}

fn flag(param: &str, raw: Raw<'_>) -> Result<bool, BadRequest> {
    match raw.get() {
        "true" | "1" | "\"true\"" => Ok(true),
        "false" | "0" | "\"false\"" => Ok(false),
        _ => Err(BadRequest::wrong_type(param, "a boolean")),
    }
}

pub(crate) fn integer(param: &str, raw: Raw<'_>) -> Result<i64, BadRequest> {
    let text = raw.get();
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if let Ok(value) = text.parse() {
        return Ok(value);
    }
    match text.parse::<f64>() {
        // Saturates, which is what a bound check after it needs.
        Ok(value) if value.fract() == 0.0 && !raw.get().starts_with('"') => Ok(value as i64),
        Ok(_) | Err(_) => Err(BadRequest::wrong_type(param, "an integer")),
    }
}

pub(crate) fn count(param: &str, raw: Raw<'_>, least: u32, most: u32) -> Result<u32, BadRequest> {
    let value = integer(param, raw)?;
    if value < i64::from(least) {
        let message = format!("'{param}' must be at least {least}, not {value}");
        return Err(BadRequest::new(param, "integer_below_min_value", message));
    }
    u32::try_from(value).ok().filter(|value| *value <= most).ok_or_else(|| {
        let message = format!("'{param}' must be at most {most}, not {value}");
        BadRequest::new(param, "integer_above_max_value", message)
    })
}

pub(crate) fn number(param: &str, raw: Raw<'_>, least: f64, most: f64) -> Result<f64, BadRequest> {
    let value: f64 = match raw.get().as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => raw.get().parse().map_err(|_| BadRequest::wrong_type(param, "a number"))?,
        Some(_) | None => return Err(BadRequest::wrong_type(param, "a number")),
    };
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    let code = if value < least { "decimal_below_min_value" } else { "decimal_above_max_value" };
    Err(BadRequest::new(param, code, format!("'{param}' must be between {least} and {most}, not {}", raw.get())))
}

/// Reads the array of token ids at `*at` and leaves `*at` behind it.
pub(crate) fn id_list(json: &[u8], at: &mut usize, param: &str) -> Result<Arc<[u32]>, BadRequest> {
    if let Some(ids) = plain::array(json, at) {
        return Ok(ids);
    }
    ids::array(json, at).map(Arc::from).map_err(|error| match error {
        IdError::Negative(index) => {
            let message = format!("token ids must be at least 0 ('{param}[{index}]')");
            BadRequest::new(format!("{param}[{index}]"), "integer_below_min_value", message)
        }
        IdError::TooLarge(index) => {
            let message = format!("token ids must be at most {} ('{param}[{index}]')", u32::MAX);
            BadRequest::new(format!("{param}[{index}]"), "integer_above_max_value", message)
        }
        IdError::NotAnInteger(index) => BadRequest::wrong_type(format!("{param}[{index}]"), "a token id"),
    })
}

/// The first byte inside an array (`]` where it is empty), nothing for another value.
pub(crate) fn first_of_array(raw: Raw<'_>) -> Option<u8> {
    let json = raw.get().as_bytes();
    if json.first() != Some(&b'[') {
        return None;
    }
    let mut at = 1;
    ids::skip_space(json, &mut at);
    json.get(at).copied()
}

/// `body` as text.
pub(crate) fn utf8(body: &[u8]) -> Result<&str, BadRequest> {
    std::str::from_utf8(body).map_err(|error| BadRequest {
        message: format!("could not parse the body as a JSON object: {error}"),
        param: None,
        code: None,
    })
}
