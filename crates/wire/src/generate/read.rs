//! The values of fields. Nil is a field that is not set.

use serde_json::Value;

use super::{GenerateError, value};
use crate::cursor::{Broken, Cursor, Item};

impl From<Broken> for GenerateError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// At the value of a field.
pub(super) struct Reader<'c, 'a> {
    pub(super) cursor: &'c mut Cursor<'a>,
}

pub(super) fn wrong<T>(field: &'static str, found: Item<'_>) -> Result<T, GenerateError> {
    Err(GenerateError::Field { field, found: found.kind() })
}

/// Reads a map, or nil, which is an empty one. `read` is given each key with its value and must take the value.
pub(super) fn nested<'a>(
    cursor: &mut Cursor<'a>,
    field: &'static str,
    mut read: impl FnMut(&'a [u8], &mut Reader<'_, 'a>) -> Result<(), GenerateError>,
) -> Result<(), GenerateError> {
    let pairs = match cursor.item()? {
        Item::Nil => 0,
        Item::Map(pairs) => pairs,
        other => return wrong(field, other),
    };
    for _ in 0..pairs {
        match cursor.key()? {
            Some(key) => read(key, &mut Reader { cursor })?,
            None => cursor.skip(1)?,
        }
    }
    Ok(())
}

impl<'a> Reader<'_, 'a> {
    pub(super) fn skip(&mut self) -> Result<(), GenerateError> {
        Ok(self.cursor.skip(1)?)
    }

    /// A whole number that fits.
    pub(super) fn number<N: TryFrom<u64>>(&mut self, field: &'static str) -> Result<Option<N>, GenerateError> {
        match self.cursor.item()? {
            Item::Nil => Ok(None),
            Item::Unsigned(number) => fitting(number, field).map(Some),
            other => wrong(field, other),
        }
    }

    /// The same with a sign.
    pub(super) fn integer<N: TryFrom<i64>>(&mut self, field: &'static str) -> Result<Option<N>, GenerateError> {
        let number = match self.cursor.item()? {
            Item::Nil => return Ok(None),
            Item::Unsigned(number) => fitting::<i64>(number, field)?,
            Item::Negative(number) => number,
            other => return wrong(field, other),
        };
        N::try_from(number).map(Some).map_err(|_| out_of_range(field))
    }

    pub(super) fn float(&mut self, field: &'static str) -> Result<Option<f64>, GenerateError> {
        match self.cursor.item()? {
            Item::Nil => Ok(None),
            item => item.as_float().map_or_else(|| wrong(field, item), |number| Ok(Some(number))),
        }
    }

    /// In single precision, as 1.6.1 has it.
    #[expect(clippy::cast_possible_truncation, reason = "the nearest number of single precision is what is meant")]
    pub(super) fn single(&mut self, field: &'static str) -> Result<Option<f32>, GenerateError> {
        Ok(self.float(field)?.map(|number| number as f32))
    }

    pub(super) fn boolean(&mut self, field: &'static str) -> Result<Option<bool>, GenerateError> {
        match self.cursor.item()? {
            Item::Nil => Ok(None),
            Item::Bool(value) => Ok(Some(value)),
            other => wrong(field, other),
        }
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<Option<String>, GenerateError> {
        match self.cursor.item()? {
            Item::Nil => Ok(None),
            Item::Text(text) => utf8(text, field).map(|text| Some(text.to_owned())),
            other => wrong(field, other),
        }
    }

    /// Ids of tokens: a list, or packed in little-endian words of 32 bits, as 1.6.1 writes on demand.
    pub(super) fn ids(&mut self, field: &'static str) -> Result<Option<Vec<u32>>, GenerateError> {
        match self.cursor.item()? {
            Item::Nil => Ok(None),
            Item::Array(count) => {
                let mut ids = Vec::with_capacity(count);
                for _ in 0..count {
                    match self.cursor.item()? {
                        Item::Unsigned(id) => ids.push(fitting(id, field)?),
                        other => return wrong(field, other),
                    }
                }
                Ok(Some(ids))
            }
            Item::Binary(packed) => {
                let (words, []) = packed.as_chunks() else {
                    return Err(GenerateError::Field { field, found: "packed, and no whole number of words" });
                };
                Ok(Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect()))
            }
            other => wrong(field, other),
        }
    }

    /// A list of what `read` takes, each of at least so many bytes.
    pub(super) fn list<T>(
        &mut self,
        field: &'static str,
        least_bytes: usize,
        mut read: impl FnMut(&mut Reader<'_, 'a>) -> Result<T, GenerateError>,
    ) -> Result<Option<Vec<T>>, GenerateError> {
        let count = match self.cursor.item()? {
            Item::Nil => return Ok(None),
            Item::Array(count) => count,
            other => return wrong(field, other),
        };
        let mut list = Vec::with_capacity(count.min(self.cursor.remaining() / least_bytes + 1));
        for _ in 0..count {
            list.push(read(&mut Reader { cursor: self.cursor })?);
        }
        Ok(Some(list))
    }

    pub(super) fn texts(&mut self, field: &'static str) -> Result<Option<Vec<String>>, GenerateError> {
        self.list(field, 1, |value| value.text(field)?.ok_or(GenerateError::Field { field, found: "a list with nil in it" }))
    }

    /// A value that is passed on as it is.
    pub(super) fn json(&mut self, field: &'static str) -> Result<Option<Value>, GenerateError> {
        let value = value::read(self.cursor, field)?;
        Ok(Some(value).filter(|value| !value.is_null()))
    }
}

fn fitting<N: TryFrom<u64>>(number: u64, field: &'static str) -> Result<N, GenerateError> {
    N::try_from(number).map_err(|_| out_of_range(field))
}

fn out_of_range(field: &'static str) -> GenerateError {
    GenerateError::Field { field, found: "an integer out of range" }
}

pub(super) fn utf8<'a>(text: &'a [u8], field: &'static str) -> Result<&'a str, GenerateError> {
    std::str::from_utf8(text).map_err(|_| GenerateError::Field { field, found: "a string that is not UTF-8" })
}
