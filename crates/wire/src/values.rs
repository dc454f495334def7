//! The values of an event's fields.

use crate::{
    EventError, Tokens,
    cursor::{Cursor, Item},
    fields::Fault,
    layout::Field,
    media::Media,
};

fn odd<T>(field: Field, item: Item<'_>) -> Result<T, Fault> {
    Err(EventError::Field { field: field.name(), found: item.kind() }.into())
}

fn out_of_range(field: Field) -> EventError {
    EventError::Field { field: field.name(), found: "an integer out of range" }
}

/// A block hash: an integer by its bits, or the last 8 bytes of a digest.
fn hash(item: Item<'_>, field: Field) -> Result<u64, Fault> {
    match item {
        Item::Unsigned(hash) => Ok(hash),
        Item::Negative(hash) => Ok(hash.cast_unsigned()),
        Item::Binary(digest) => match (digest.len(), digest.last_chunk()) {
            (16 | 32, Some(last)) => Ok(u64::from_be_bytes(*last)),
            (bytes, _) => Err(EventError::HashBytes(bytes).into()),
        },
        other => odd(field, other),
    }
}

pub(crate) fn hashes(cursor: &mut Cursor<'_>) -> Result<Vec<u64>, Fault> {
    const FIELD: Field = Field::BlockHashes;
    match cursor.item()? {
        Item::Array(count) => {
            let mut hashes = Vec::with_capacity(count);
            for _ in 0..count {
                hashes.push(hash(cursor.item()?, FIELD)?);
            }
            Ok(hashes)
        }
        other => odd(FIELD, other),
    }
}

pub(crate) fn parent(cursor: &mut Cursor<'_>) -> Result<Option<u64>, Fault> {
    match cursor.item()? {
        Item::Nil => Ok(None),
        item => hash(item, Field::Parent).map(Some),
    }
}

pub(crate) fn tokens(cursor: &mut Cursor<'_>) -> Result<Tokens, Fault> {
    let count = match cursor.item()? {
        Item::Array(0) => return Ok(Tokens::Plain(Vec::new())),
        Item::Array(count) => count,
        other => return odd(Field::TokenIds, other),
    };
    let first = cursor.item()?;
    if let Item::Array(2) = first {
        return pairs(cursor, count).map(Tokens::Pairs);
    }
    let mut tokens = Vec::with_capacity(count);
    tokens.push(token(first)?);
    for _ in 1..count {
        tokens.push(token(cursor.item()?)?);
    }
    Ok(Tokens::Plain(tokens))
}

fn token(item: Item<'_>) -> Result<u32, Fault> {
    match item {
        Item::Unsigned(token) => Ok(u32::try_from(token).map_err(|_| out_of_range(Field::TokenIds))?),
        other => odd(Field::TokenIds, other),
    }
}

/// Unrolls `count` pairs of neighbours, the first of which has been entered.
fn pairs(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u32>, Fault> {
    let mut tokens = Vec::with_capacity(count + 1);
    tokens.push(token(cursor.item()?)?);
    tokens.push(token(cursor.item()?)?);
    for _ in 1..count {
        match cursor.item()? {
            Item::Array(2) => {}
            other => return odd(Field::TokenIds, other),
        }
        let first = token(cursor.item()?)?;
        if tokens.last() != Some(&first) {
            return Err(EventError::BrokenPairs.into());
        }
        tokens.push(token(cursor.item()?)?);
    }
    Ok(tokens)
}

pub(crate) fn number(cursor: &mut Cursor<'_>, field: Field) -> Result<u32, Fault> {
    match cursor.item()? {
        Item::Unsigned(number) => Ok(u32::try_from(number).map_err(|_| out_of_range(field))?),
        other => odd(field, other),
    }
}

pub(crate) fn optional_number(cursor: &mut Cursor<'_>, field: Field) -> Result<Option<u32>, Fault> {
    let mut ahead = *cursor;
    if ahead.item()? == Item::Nil {
        *cursor = ahead;
        return Ok(None);
    }
    number(cursor, field).map(Some)
}

pub(crate) fn lora_id(cursor: &mut Cursor<'_>) -> Result<Option<i64>, Fault> {
    const FIELD: Field = Field::LoraId;
    match cursor.item()? {
        Item::Nil => Ok(None),
        Item::Unsigned(number) => Ok(Some(i64::try_from(number).map_err(|_| out_of_range(FIELD))?)),
        Item::Negative(number) => Ok(Some(number)),
        other => odd(FIELD, other),
    }
}

pub(crate) fn text<'a>(cursor: &mut Cursor<'a>, field: Field) -> Result<Option<&'a str>, Fault> {
    match cursor.item()? {
        Item::Nil => Ok(None),
        Item::Text(bytes) => utf8(bytes, field).map(Some),
        other => odd(field, other),
    }
}

pub(crate) fn utf8(bytes: &[u8], field: Field) -> Result<&str, Fault> {
    Ok(std::str::from_utf8(bytes).map_err(|_| EventError::Field { field: field.name(), found: "a string that is not UTF-8" })?)
}

/// Where a list of one `{"mm_objects": [..]}` or nil per block, as Dynamo's own publishers send, names objects.
pub(crate) fn media_infos(cursor: &mut Cursor<'_>) -> Result<Media, Fault> {
    const FIELD: Field = Field::MediaInfos;
    let blocks = match cursor.item()? {
        Item::Nil => return Ok(Media::default()),
        Item::Array(blocks) => blocks,
        other => return odd(FIELD, other),
    };
    let mut media = Media::none_in(blocks);
    for block in 0..blocks {
        let pairs = match cursor.item()? {
            Item::Nil => continue,
            Item::Map(pairs) => pairs,
            other => return odd(FIELD, other),
        };
        for _ in 0..pairs {
            cursor.skip(1)?;
            let value = cursor.item()?;
            if matches!(value, Item::Array(1..)) {
                media.is_in(block);
            }
            cursor.skip_inside(value)?;
        }
    }
    Ok(media)
}
