//! One event: its form (tagged array or map with a `type`), its fields in any order, and what they add up to.
//!
//! A field means the same in every type and form, so fields are read before the type need be known. A field that
//! cannot be read is skipped and remembered: it spoils its event only, and an event of unknown type not at all.

use crate::{
    Adapter, Carries, Event, EventError, Group, Kind, Locality, Medium, Naming, Removed, Stored, Tokens,
    cursor::{Broken, Cursor, Item},
    extra_keys,
    layout::{self, Field},
    media::Media,
    values,
};

/// What ends the reading of an event.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The payload itself: where the next event starts is not known.
    Broken,
    /// Something about this event.
    Event(EventError),
}

impl From<Broken> for Fault {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl From<EventError> for Fault {
    fn from(error: EventError) -> Self {
        Self::Event(error)
    }
}

/// Reads one event. After [`Fault::Event`] the cursor is behind the event, as after success.
pub(crate) fn event(cursor: &mut Cursor<'_>) -> Result<Event, Fault> {
    let item = cursor.item()?;
    if let Item::Array(slots) = item {
        from_array(cursor, slots)
    } else if let Item::Map(pairs) = item {
        from_map(cursor, pairs)
    } else {
        Err(EventError::Untagged.into())
    }
}

fn from_array(cursor: &mut Cursor<'_>, slots: usize) -> Result<Event, Fault> {
    let Some(rest) = slots.checked_sub(1) else { return Err(EventError::Untagged.into()) };
    let tag = cursor.item()?;
    let Item::Text(tag) = tag else {
        cursor.skip_inside(tag)?;
        cursor.skip(rest)?;
        return Err(EventError::Untagged.into());
    };
    let tag = Tag::new(tag);
    let known = match tag {
        Tag::Stored => layout::STORED,
        Tag::Removed => layout::REMOVED,
        Tag::Cleared | Tag::Unknown(_) => &[],
    };
    let mut fields = Fields::default();
    let read = rest.min(known.len());
    for field in &known[..read] {
        fields.read(*field, cursor)?;
    }
    cursor.skip(rest - read)?;
    fields.carries = array_carries(&known[..read]);
    fields.event(tag)
}

fn from_map(cursor: &mut Cursor<'_>, pairs: usize) -> Result<Event, Fault> {
    let mut fields = Fields::default();
    let mut tag = None;
    for _ in 0..pairs {
        let key = cursor.key()?;
        if let Some(field) = key.and_then(Field::of_key) {
            fields.read(field, cursor)?;
        } else if key == Some(b"type") {
            let value = cursor.item()?;
            cursor.skip_inside(value)?;
            if let Item::Text(value) = value {
                tag = Some(Tag::new(value));
            }
        } else {
            cursor.skip(1)?;
        }
    }
    fields.event(tag.ok_or(EventError::Untagged)?)
}

#[derive(Clone, Copy)]
enum Tag<'a> {
    Stored,
    Removed,
    Cleared,
    Unknown(&'a [u8]),
}

impl<'a> Tag<'a> {
    fn new(tag: &'a [u8]) -> Self {
        match tag {
            b"BlockStored" => Self::Stored,
            b"BlockRemoved" => Self::Removed,
            b"AllBlocksCleared" => Self::Cleared,
            other => Self::Unknown(other),
        }
    }
}

/// The fields read so far. A repeated map key counts as it was sent last.
#[derive(Default)]
struct Fields<'a> {
    block_hashes: Option<Vec<u64>>,
    parent: Option<u64>,
    tokens: Option<Tokens>,
    block_size: Option<u32>,
    lora_id: Option<i64>,
    lora_name: Option<&'a str>,
    cache_salt: Option<&'a str>,
    medium: Medium,
    /// Where the extra keys are: what they mean depends on other fields, which may follow.
    extra_keys: Option<Cursor<'a>>,
    media: Media,
    group: Group,
    locality: Locality,
    /// Remote if an owner is named: vLLM names a secondary cache there, and none for its own memory.
    owner: Locality,
    /// By its form alone.
    carries: Carries,
    /// The first field that could not be read.
    error: Option<EventError>,
}

impl<'a> Fields<'a> {
    /// Reads a field's value, whatever it is, and leaves the cursor behind it.
    fn read(&mut self, field: Field, cursor: &mut Cursor<'a>) -> Result<(), Broken> {
        let start = *cursor;
        match self.value(field, cursor) {
            Ok(()) => Ok(()),
            Err(Fault::Broken) => Err(Broken),
            Err(Fault::Event(error)) => {
                self.error.get_or_insert(error);
                *cursor = start;
                cursor.skip(1)
            }
        }
    }

    fn value(&mut self, field: Field, cursor: &mut Cursor<'a>) -> Result<(), Fault> {
        match field {
            Field::BlockHashes => self.block_hashes = Some(values::hashes(cursor)?),
            Field::Parent => self.parent = values::parent(cursor)?,
            Field::TokenIds => self.tokens = Some(values::tokens(cursor)?),
            Field::BlockSize => self.block_size = Some(values::number(cursor, field)?),
            Field::LoraId => self.lora_id = values::lora_id(cursor)?,
            Field::Medium => self.medium = medium(values::text(cursor, field)?),
            Field::LoraName => self.adapter_or_salt(cursor)?,
            Field::CacheSalt => self.cache_salt = values::text(cursor, field)?,
            Field::ExtraKeys => {
                self.extra_keys = Some(*cursor);
                cursor.skip(1)?;
            }
            Field::MediaInfos => self.media = values::media_infos(cursor)?,
            Field::GroupIdx => self.group.idx = values::optional_number(cursor, field)?,
            Field::Kind => self.group.kind = values::text(cursor, field)?.map(kind),
            Field::SlidingWindow => cursor.skip(1)?,
            Field::Locality => self.locality = local_if(values::text(cursor, field)?, "LOCAL"),
            Field::Ownership => self.owner = local_if(values::text(cursor, field)?, ""),
        }
        Ok(())
    }

    /// The slot in which vLLM has the adapter's name, and some SGLang releases a map with the salt.
    fn adapter_or_salt(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Fault> {
        let start = *cursor;
        let Item::Map(pairs) = cursor.item()? else {
            *cursor = start;
            self.lora_name = values::text(cursor, Field::LoraName)?;
            return Ok(());
        };
        for _ in 0..pairs {
            if cursor.key()? == Some(b"cache_salt") {
                self.cache_salt = values::text(cursor, Field::CacheSalt)?;
            } else {
                cursor.skip(1)?;
            }
        }
        Ok(())
    }

    fn event(mut self, tag: Tag<'_>) -> Result<Event, Fault> {
        let sound = self.error.take().map_or(Ok(()), Err);
        match tag {
            Tag::Stored => {
                sound?;
                self.stored().map(Event::Stored)
            }
            Tag::Removed => {
                sound?;
                Ok(Event::Removed(Removed {
                    block_hashes: self.block_hashes.ok_or(missing(Field::BlockHashes))?,
                    medium: self.medium,
                    group: self.group,
                    locality: self.locality.or(self.owner),
                }))
            }
            Tag::Cleared => Ok(Event::Cleared),
            Tag::Unknown(tag) => Ok(Event::Unknown(clip(&String::from_utf8_lossy(tag)))),
        }
    }

    fn stored(mut self) -> Result<Stored, Fault> {
        let name = self.lora_name.filter(|name| !name.is_empty());
        let keys = match self.extra_keys {
            Some(mut cursor) => extra_keys::read(&mut cursor, name, self.parent.is_none())?,
            None => extra_keys::Found::default(),
        };
        let adapter = match (name, self.lora_id) {
            (Some(name), _) => Adapter::Named(name.to_owned()),
            // Engines number adapters from 1, and some publishers write 0 for none.
            (None, None | Some(0)) => Adapter::Base,
            (None, Some(number)) => Adapter::Numbered(number),
        };
        let salt = self.cache_salt.filter(|salt| !salt.is_empty()).or(keys.salt);
        // What was said can be said: SGLang has maps with a salt in the place of a name, and early releases of vLLM sent
        // numbers in arrays as short as those of SGLang, which never do.
        let said = match adapter {
            Adapter::Base => Naming::Nothing,
            Adapter::Numbered(_) => Naming::Numbers,
            Adapter::Named(_) => Naming::Names,
        };
        let carries = Carries { adapter: self.carries.adapter.max(said), salt: self.carries.salt || salt.is_some() };
        let block_hashes = self.block_hashes.take().ok_or(missing(Field::BlockHashes))?;
        let media = [self.media, keys.media].into_iter().filter_map(|media| media.from(block_hashes.len()));
        Ok(Stored {
            media_from: media.min(),
            block_hashes,
            parent: self.parent,
            tokens: self.tokens.take().ok_or(missing(Field::TokenIds))?,
            block_size: self.block_size.ok_or(missing(Field::BlockSize))?,
            adapter,
            salt: salt.map(str::to_owned),
            medium: self.medium,
            group: self.group,
            locality: self.locality.or(self.owner),
            carries,
        })
    }
}

/// What an array with these fields can say. The shortest are SGLang's, whose number is never set. Those of its releases that
/// add the medium cannot be told from vLLM 0.12, whose number is.
fn array_carries(fields: &[Field]) -> Carries {
    let adapter = if fields.contains(&Field::LoraName) {
        Naming::Names
    } else if fields.contains(&Field::Medium) {
        Naming::Numbers
    } else {
        Naming::Nothing
    };
    Carries { adapter, salt: fields.contains(&Field::ExtraKeys) }
}

fn missing(field: Field) -> EventError {
    EventError::Missing(field.name())
}

impl Locality {
    fn or(self, other: Self) -> Self {
        match self {
            Self::Local => other,
            Self::Remote => self,
        }
    }
}

/// A missing, empty or `local` name is the engine's own memory; what another name means is not known to be.
fn local_if(name: Option<&str>, local: &str) -> Locality {
    let name = name.unwrap_or_default();
    if name.is_empty() || name.eq_ignore_ascii_case(local) { Locality::Local } else { Locality::Remote }
}

fn medium(name: Option<&str>) -> Medium {
    let name = name.unwrap_or_default();
    let any = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
    if any(&["", "GPU", "DEVICE"]) {
        Medium::Device
    } else if any(&["CPU", "CPU_PINNED", "CPU_TIER1"]) {
        Medium::Host
    } else if any(&["DISK", "NVME", "STORAGE", "CPU_TIER2"]) {
        Medium::Disk
    } else if any(&["EXTERNAL", "NETWORK", "REMOTE", "SHARED"]) {
        Medium::External
    } else {
        Medium::Unknown(clip(name))
    }
}

fn kind(name: &str) -> Kind {
    match name {
        "full_attention" | "mla_attention" | "sink_full_attention" => Kind::FullAttention,
        other => Kind::Other(clip(other)),
    }
}

fn clip(text: &str) -> String {
    crate::clip(text, Event::UNKNOWN_BYTES)
}
