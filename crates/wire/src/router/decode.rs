//! MessagePack to router events, each alone (rule 8), in one pass over the bytes.
//!
//! Keys come in any order, unknown ones are skipped, of a repeated one the last counts. What a list claims to hold is believed only
//! as far as the bytes behind it could hold it.

use super::{
    Domain, KvCacheEvent, KvData, MediaInfo, MediaObject, RouterEvent, RouterEventError, RouterFault, StoredBlock, StoredBlocks, Tier,
};
use crate::{
    BatchError,
    cursor::{Broken, Cursor, Item},
};

/// Before an unsigned number of 64 bits.
const WIDE: u8 = 0xcf;

/// No event is written in fewer bytes than its keys take ...
const BYTES_PER_EVENT: usize = 32;

/// ... and this many more are counted one by one, so that short odd ones are seen.
const ODD_EVENTS: usize = 1024;

/// No block is written in fewer bytes: a map with `block_hash` and `tokens_hash`.
const BYTES_PER_BLOCK: usize = 26;

/// No object is written in fewer bytes: a map with `mm_hash` and `offsets`.
const BYTES_PER_OBJECT: usize = 19;

/// No pair of offsets is written in fewer bytes.
const BYTES_PER_PAIR: usize = 3;

/// Reads the payload of an envelope on `kv-events`: a list of events or, as from publishers before 1.x, one event alone.
///
/// `Err` only where the payload itself is unreadable. Memory is taken in proportion to the bytes given, whatever lengths they claim.
/// Bytes behind the value are ignored.
pub fn decode_events(payload: &[u8]) -> Result<Vec<Result<RouterEvent, RouterEventError>>, BatchError> {
    let mut cursor = Cursor::new(payload);
    let start = cursor;
    match cursor.item()? {
        Item::Array(count) => {
            if count > ODD_EVENTS + cursor.remaining() / BYTES_PER_EVENT {
                return Err(BatchError::TooManyEvents(count));
            }
            let mut events = Vec::with_capacity(count);
            for _ in 0..count {
                events.push(event(&mut cursor)?);
            }
            Ok(events)
        }
        Item::Map(_) => {
            cursor = start;
            Ok(vec![event(&mut cursor)?])
        }
        other => Err(BatchError::Shape(other.kind())),
    }
}

/// Reads one event and leaves the cursor behind it.
pub(crate) fn event(cursor: &mut Cursor<'_>) -> Result<Result<RouterEvent, RouterEventError>, Broken> {
    let start = *cursor;
    match router_event(cursor) {
        Ok(event) => Ok(Ok(event)),
        Err(Odd::Broken) => Err(Broken),
        Err(Odd::Event(fault)) => {
            *cursor = start;
            cursor.skip(1)?;
            Ok(Err(RouterEventError { event_id: number_of(start), fault }))
        }
    }
}

/// Looks for the number of an event that is odd elsewhere.
fn number_of(mut cursor: Cursor<'_>) -> Option<u64> {
    let mut inner = value_of(&mut cursor, b"event")?;
    value_of(&mut inner, b"event_id")?.item().ok()?.unsigned()
}

/// Where a key's value is in the map the cursor is at.
fn value_of<'a>(cursor: &mut Cursor<'a>, name: &[u8]) -> Option<Cursor<'a>> {
    let Ok(Item::Map(pairs)) = cursor.item() else { return None };
    for _ in 0..pairs {
        if cursor.key().ok()? == Some(name) {
            return Some(*cursor);
        }
        cursor.skip(1).ok()?;
    }
    None
}

/// What ends the reading of an event.
enum Odd {
    /// The payload itself.
    Broken,
    /// Something about the event.
    Event(RouterFault),
}

impl From<Broken> for Odd {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl From<RouterFault> for Odd {
    fn from(fault: RouterFault) -> Self {
        Self::Event(fault)
    }
}

fn odd<T>(field: &'static str, found: Item<'_>) -> Result<T, Odd> {
    Err(RouterFault::Field { field, found: found.kind() }.into())
}

fn missing(field: &'static str) -> Odd {
    RouterFault::Missing(field).into()
}

fn router_event(cursor: &mut Cursor<'_>) -> Result<RouterEvent, Odd> {
    let (mut worker_id, mut storage_tier, mut domain, mut event) = (None, Tier::default(), Domain::Legacy, None);
    let (mut state_source, mut session_id) = (None, None);
    for _ in 0..map(cursor, "event")? {
        match cursor.key()? {
            Some(b"worker_id") => worker_id = Some(unsigned(cursor, "worker_id")?),
            Some(b"storage_tier") => storage_tier = tier(cursor)?,
            Some(b"residency_domain") => domain = residency(cursor)?,
            Some(b"event") => event = Some(cache_event(cursor)?),
            Some(b"state_source") => state_source = text(cursor, "state_source")?,
            Some(b"session_id") => session_id = text(cursor, "session_id")?,
            _ => cursor.skip(1)?,
        }
    }
    Ok(RouterEvent {
        worker_id: worker_id.ok_or_else(|| missing("worker_id"))?,
        storage_tier,
        domain,
        event: event.ok_or_else(|| missing("event"))?,
        state_source,
        session_id,
    })
}

fn tier(cursor: &mut Cursor<'_>) -> Result<Tier, Odd> {
    match cursor.item()? {
        Item::Text(name) => Ok(Tier::of_name(name).ok_or_else(|| RouterFault::Tier(clipped(name)))?),
        other => odd("storage_tier", other),
    }
}

fn residency(cursor: &mut Cursor<'_>) -> Result<Domain, Odd> {
    let value = cursor.item()?;
    cursor.skip_inside(value)?;
    Ok(match value.text() {
        Some(b"worker") => Domain::Worker,
        Some(b"cache_owner") => Domain::CacheOwner,
        Some(name) => Domain::Unknown(clipped(name)),
        None => Domain::Unknown(String::new()),
    })
}

fn cache_event(cursor: &mut Cursor<'_>) -> Result<KvCacheEvent, Odd> {
    let (mut event_id, mut change, mut dp_rank) = (None, None, 0);
    for _ in 0..map(cursor, "event")? {
        match cursor.key()? {
            Some(b"event_id") => event_id = Some(unsigned(cursor, "event_id")?),
            Some(b"data") => change = Some(data(cursor)?),
            Some(b"dp_rank") => dp_rank = small(cursor, "dp_rank")?,
            _ => cursor.skip(1)?,
        }
    }
    let event_id = event_id.ok_or_else(|| missing("event_id"))?;
    Ok(KvCacheEvent { event_id, data: change.ok_or_else(|| missing("data"))?, dp_rank })
}

fn data(cursor: &mut Cursor<'_>) -> Result<KvData, Odd> {
    match cursor.item()? {
        Item::Text(b"cleared") => Ok(KvData::Cleared),
        Item::Text(other) => Err(RouterFault::Data(clipped(other)).into()),
        Item::Map(1) => match cursor.key()? {
            Some(b"stored") => Ok(KvData::Stored(stored(cursor)?)),
            Some(b"removed") => Ok(KvData::Removed(removed(cursor)?)),
            other => Err(RouterFault::Data(clipped(other.unwrap_or_default())).into()),
        },
        other => odd("data", other),
    }
}

fn stored(cursor: &mut Cursor<'_>) -> Result<StoredBlocks, Odd> {
    let (mut parent_hash, mut start_position, mut blocks) = (None, None, None);
    for _ in 0..map(cursor, "stored")? {
        match cursor.key()? {
            Some(b"parent_hash") => parent_hash = optional(cursor, |cursor| unsigned(cursor, "parent_hash"))?,
            Some(b"start_position") => start_position = optional(cursor, |cursor| small(cursor, "start_position"))?,
            Some(b"blocks") => blocks = Some(list(cursor, "blocks", BYTES_PER_BLOCK, block)?),
            _ => cursor.skip(1)?,
        }
    }
    Ok(StoredBlocks { parent_hash, start_position, blocks: blocks.ok_or_else(|| missing("blocks"))? })
}

/// A block as 1.6.1 writes nearly all of them. There are hundreds in an event, so that they are known by their bytes.
fn usual_block(cursor: &mut Cursor<'_>) -> Option<StoredBlock> {
    const BEFORE_BLOCK_HASH: &[u8; 13] = b"\x83\xaablock_hash\xcf";
    const BEFORE_TOKENS_HASH: &[u8; 13] = b"\xabtokens_hash\xcf";
    const BEHIND: &[u8; 15] = b"\xadmm_extra_info\xc0";
    let (before, rest) = cursor.chunk()?;
    let (block_hash, rest) = rest.chunk()?;
    let (between, rest) = rest.chunk()?;
    let (tokens_hash, rest) = rest.chunk()?;
    let (behind, rest) = rest.chunk()?;
    if (before, between, behind) != (BEFORE_BLOCK_HASH, BEFORE_TOKENS_HASH, BEHIND) {
        return None;
    }
    *cursor = rest;
    Some(StoredBlock { block_hash: u64::from_be_bytes(*block_hash), tokens_hash: u64::from_be_bytes(*tokens_hash), media: None })
}

fn block(cursor: &mut Cursor<'_>) -> Result<StoredBlock, Odd> {
    match usual_block(cursor) {
        Some(block) => Ok(block),
        None => any_block(cursor),
    }
}

fn any_block(cursor: &mut Cursor<'_>) -> Result<StoredBlock, Odd> {
    let (mut block_hash, mut tokens_hash, mut media) = (None, None, None);
    for _ in 0..map(cursor, "blocks")? {
        match cursor.key()? {
            Some(b"block_hash") => block_hash = Some(unsigned(cursor, "block_hash")?),
            Some(b"tokens_hash") => tokens_hash = Some(unsigned(cursor, "tokens_hash")?),
            Some(b"mm_extra_info") => media = optional(cursor, media_info)?,
            _ => cursor.skip(1)?,
        }
    }
    let block_hash = block_hash.ok_or_else(|| missing("block_hash"))?;
    Ok(StoredBlock { block_hash, tokens_hash: tokens_hash.ok_or_else(|| missing("tokens_hash"))?, media })
}

fn media_info(cursor: &mut Cursor<'_>) -> Result<MediaInfo, Odd> {
    let mut objects = None;
    for _ in 0..map(cursor, "mm_extra_info")? {
        match cursor.key()? {
            Some(b"mm_objects") => objects = Some(list(cursor, "mm_objects", BYTES_PER_OBJECT, media_object)?),
            _ => cursor.skip(1)?,
        }
    }
    Ok(MediaInfo { objects: objects.ok_or_else(|| missing("mm_objects"))? })
}

fn media_object(cursor: &mut Cursor<'_>) -> Result<MediaObject, Odd> {
    let (mut hash, mut offsets) = (None, None);
    for _ in 0..map(cursor, "mm_objects")? {
        match cursor.key()? {
            Some(b"mm_hash") => hash = Some(unsigned(cursor, "mm_hash")?),
            Some(b"offsets") => offsets = Some(list(cursor, "offsets", BYTES_PER_PAIR, pair)?),
            _ => cursor.skip(1)?,
        }
    }
    let hash = hash.ok_or_else(|| missing("mm_hash"))?;
    Ok(MediaObject { hash, offsets: offsets.ok_or_else(|| missing("offsets"))? })
}

fn pair(cursor: &mut Cursor<'_>) -> Result<(u64, u64), Odd> {
    match cursor.item()? {
        Item::Array(2) => Ok((unsigned(cursor, "offsets")?, unsigned(cursor, "offsets")?)),
        other => odd("offsets", other),
    }
}

fn removed(cursor: &mut Cursor<'_>) -> Result<Vec<u64>, Odd> {
    let mut hashes = None;
    for _ in 0..map(cursor, "removed")? {
        match cursor.key()? {
            Some(b"block_hashes") => hashes = Some(list(cursor, "block_hashes", 1, |cursor| unsigned(cursor, "block_hashes"))?),
            _ => cursor.skip(1)?,
        }
    }
    hashes.ok_or_else(|| missing("block_hashes"))
}

/// A list whose elements take at least so many bytes each.
fn list<T>(
    cursor: &mut Cursor<'_>,
    field: &'static str,
    bytes_each: usize,
    mut element: impl FnMut(&mut Cursor<'_>) -> Result<T, Odd>,
) -> Result<Vec<T>, Odd> {
    let count = match cursor.item()? {
        Item::Array(count) => count,
        other => return odd(field, other),
    };
    let mut elements = Vec::with_capacity(count.min(cursor.remaining() / bytes_each));
    for _ in 0..count {
        elements.push(element(cursor)?);
    }
    Ok(elements)
}

fn map(cursor: &mut Cursor<'_>, field: &'static str) -> Result<usize, Odd> {
    match cursor.item()? {
        Item::Map(pairs) => Ok(pairs),
        other => odd(field, other),
    }
}

fn optional<'a, T>(cursor: &mut Cursor<'a>, read: impl FnOnce(&mut Cursor<'a>) -> Result<T, Odd>) -> Result<Option<T>, Odd> {
    let mut ahead = *cursor;
    if ahead.item()? == Item::Nil {
        *cursor = ahead;
        return Ok(None);
    }
    read(cursor).map(Some)
}

fn unsigned(cursor: &mut Cursor<'_>, field: &'static str) -> Result<u64, Odd> {
    // Nearly every hash, and there are hundreds in an event.
    if let Some(([WIDE, number @ ..], rest)) = cursor.chunk::<9>() {
        *cursor = rest;
        return Ok(u64::from_be_bytes(*number));
    }
    match cursor.item()? {
        Item::Unsigned(number) => Ok(number),
        other => odd(field, other),
    }
}

fn small(cursor: &mut Cursor<'_>, field: &'static str) -> Result<u32, Odd> {
    let number = unsigned(cursor, field)?;
    Ok(u32::try_from(number).map_err(|_| RouterFault::Field { field, found: "an integer out of range" })?)
}

fn text(cursor: &mut Cursor<'_>, field: &'static str) -> Result<Option<String>, Odd> {
    optional(cursor, |cursor| match cursor.item()? {
        Item::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(RouterFault::Field { field, found: "a string that is not UTF-8" }.into()),
        },
        other => odd(field, other),
    })
}

fn clipped(text: &[u8]) -> String {
    crate::clip_bytes(text, crate::Event::UNKNOWN_BYTES)
}

#[cfg(test)]
mod tests;
