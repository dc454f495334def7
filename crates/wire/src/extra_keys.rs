//! What vLLM's extra keys of a store say: the cache salt, and whether media are involved.
//!
//! There is one entry per block, nil or a list of, in order: the adapter's name; one `[identifier, offset]` per
//! image or other medium in the block; the cache salt, in the first block of a sequence only; digests of prompt
//! embeddings (binary). Nothing is tagged, so a string is told by its place: the first one equal to the adapter's
//! name is the name, and a string left over in a sequence's first block is the salt.
//!
//! Whatever cannot be explained this way is taken for a medium: its block and those after it never match a text prompt,
//! which costs hits and never gives false ones. That is a foreign string in a block that is not a sequence's first, a
//! number, and, where a first block has several foreign strings, all but the last.

use crate::{
    EventError,
    cursor::{Cursor, Item},
    fields::Fault,
    layout::Field,
    media::Media,
    values,
};

/// A salt can be marked as one; with the mark it is accepted in the first block of any store.
const SALT_MARK: &str = "dynamo-cache-salt:";

const FIELD: Field = Field::ExtraKeys;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) salt: Option<&'a str>,
    pub(crate) media: Media,
}

impl<'a> Found<'a> {
    /// A string of a first block that may be the salt. One that was taken for it until now is something else.
    fn salt_is(&mut self, salt: &'a str) {
        if self.salt.replace(salt).is_some() {
            self.media.is_in(0);
        }
    }
}

/// Reads the extra keys of a store by adapter `name`, which starts a sequence if `root`.
pub(crate) fn read<'a>(cursor: &mut Cursor<'a>, name: Option<&str>, root: bool) -> Result<Found<'a>, Fault> {
    let blocks = match cursor.item()? {
        Item::Nil => return Ok(Found::default()),
        Item::Array(blocks) => blocks,
        other => return Err(EventError::Field { field: FIELD.name(), found: other.kind() }.into()),
    };
    let mut found = Found { salt: None, media: Media::none_in(blocks) };
    let mut marked = false;
    for block in 0..blocks {
        let keys = match cursor.item()? {
            Item::Nil => continue,
            Item::Array(keys) => keys,
            other => return Err(EventError::Field { field: FIELD.name(), found: other.kind() }.into()),
        };
        let mut name = name;
        for _ in 0..keys {
            let key = cursor.item()?;
            let Item::Text(text) = key else {
                if key != Item::Nil {
                    found.media.is_in(block);
                }
                cursor.skip_inside(key)?;
                continue;
            };
            let text = values::utf8(text, FIELD)?;
            if name == Some(text) {
                name = None;
            } else if let Some(salt) = text.strip_prefix(SALT_MARK) {
                if block == 0 && !salt.is_empty() {
                    found.salt_is(salt);
                    marked = true;
                }
            } else if root && block == 0 && !marked {
                found.salt_is(text);
            } else {
                found.media.is_in(block);
            }
        }
    }
    Ok(found)
}
