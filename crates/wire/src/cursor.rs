//! A reader of MessagePack that owns nothing and trusts no length.
//!
//! One [`Item`] at a time, without recursion: a container is only its header, and its elements are the items that
//! follow. A header that claims more elements or bytes than are left is [`Broken`], so whoever reserves room for
//! the elements of an accepted header stays in proportion to the bytes given.

use rmp::Marker;

/// The bytes end inside a value, claim more than there is, or are not MessagePack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// One value, or the header of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    Nil,
    Bool(bool),
    /// Any integer that is not negative, however it was written.
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    /// Bytes of a string, not yet known to be UTF-8.
    Text(&'a [u8]),
    Binary(&'a [u8]),
    Extension,
    /// That many items follow.
    Array(usize),
    /// Twice that many items follow.
    Map(usize),
}

impl<'a> Item<'a> {
    /// A whole number that is not negative, if it is one.
    pub(crate) fn unsigned(self) -> Option<u64> {
        if let Self::Unsigned(number) = self { Some(number) } else { None }
    }

    /// A string's bytes, if it is one.
    pub(crate) fn text(self) -> Option<&'a [u8]> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// How many items of an array follow, if it is one.
    pub(crate) fn elements(self) -> Option<usize> {
        if let Self::Array(elements) = self { Some(elements) } else { None }
    }

    /// How many pairs of a map follow, if it is one.
    pub(crate) fn pairs(self) -> Option<usize> {
        if let Self::Map(pairs) = self { Some(pairs) } else { None }
    }

    /// How many values follow that belong to this one.
    fn values_inside(self) -> usize {
        match self {
            Self::Array(count) => count,
            Self::Map(count) => 2 * count,
            Self::Nil
            | Self::Bool(_)
            | Self::Unsigned(_)
            | Self::Negative(_)
            | Self::Float(_)
            | Self::Text(_)
            | Self::Binary(_)
            | Self::Extension => 0,
        }
    }

    /// A number, if it is one; a large integer loses its last digits.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn as_float(self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(number),
            Self::Unsigned(number) => Some(number as f64),
            Self::Negative(number) => Some(number as f64),
            Self::Nil | Self::Bool(_) | Self::Text(_) | Self::Binary(_) | Self::Extension | Self::Array(_) | Self::Map(_) => None,
        }
    }

    /// The kind of value, for messages.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "a boolean",
            Self::Unsigned(_) => "an integer",
            Self::Negative(_) => "a negative integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::Binary(_) => "binary",
            Self::Extension => "an extension",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
        }
    }
}

/// A place in a payload. A copy of it remembers the place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// Bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// So many bytes, if there are, and the place behind them.
    pub(crate) fn chunk<const N: usize>(&self) -> Option<(&'a [u8; N], Self)> {
        self.rest.split_first_chunk().map(|(bytes, rest)| (bytes, Self { rest }))
    }

    /// Whether the next value is a float of single precision.
    pub(crate) fn is_single(&self) -> bool {
        self.rest.first() == Some(&Marker::F32.to_u8())
    }

    /// Reads the next value, or enters the next container.
    pub(crate) fn item(&mut self) -> Result<Item<'a>, Broken> {
        let [byte] = self.fixed()?;
        Ok(match Marker::from_u8(byte) {
            Marker::FixPos(value) => Item::Unsigned(value.into()),
            Marker::U8 => Item::Unsigned(u8::from_be_bytes(self.fixed()?).into()),
            Marker::U16 => Item::Unsigned(u16::from_be_bytes(self.fixed()?).into()),
            Marker::U32 => Item::Unsigned(u32::from_be_bytes(self.fixed()?).into()),
            Marker::U64 => Item::Unsigned(u64::from_be_bytes(self.fixed()?)),
            Marker::FixNeg(value) => Item::Negative(value.into()),
            Marker::I8 => integer(i8::from_be_bytes(self.fixed()?).into()),
            Marker::I16 => integer(i16::from_be_bytes(self.fixed()?).into()),
            Marker::I32 => integer(i32::from_be_bytes(self.fixed()?).into()),
            Marker::I64 => integer(i64::from_be_bytes(self.fixed()?)),
            Marker::F32 => Item::Float(f32::from_be_bytes(self.fixed()?).into()),
            Marker::F64 => Item::Float(f64::from_be_bytes(self.fixed()?)),
            Marker::Null => Item::Nil,
            Marker::True => Item::Bool(true),
            Marker::False => Item::Bool(false),
            Marker::FixStr(length) => Item::Text(self.bytes(length.into())?),
            Marker::Str8 => Item::Text(self.length8()?),
            Marker::Str16 => Item::Text(self.length16()?),
            Marker::Str32 => Item::Text(self.length32()?),
            Marker::Bin8 => Item::Binary(self.length8()?),
            Marker::Bin16 => Item::Binary(self.length16()?),
            Marker::Bin32 => Item::Binary(self.length32()?),
            Marker::FixArray(count) => Item::Array(self.elements(count.into(), 1)?),
            Marker::Array16 => {
                let count = u16::from_be_bytes(self.fixed()?);
                Item::Array(self.elements(count.into(), 1)?)
            }
            Marker::Array32 => {
                let count = u32::from_be_bytes(self.fixed()?);
                Item::Array(self.elements(count, 1)?)
            }
            Marker::FixMap(count) => Item::Map(self.elements(count.into(), 2)?),
            Marker::Map16 => {
                let count = u16::from_be_bytes(self.fixed()?);
                Item::Map(self.elements(count.into(), 2)?)
            }
            Marker::Map32 => {
                let count = u32::from_be_bytes(self.fixed()?);
                Item::Map(self.elements(count, 2)?)
            }
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => {
                let length = u8::from_be_bytes(self.fixed()?);
                self.extension(length.into())?
            }
            Marker::Ext16 => {
                let length = u16::from_be_bytes(self.fixed()?);
                self.extension(length.into())?
            }
            Marker::Ext32 => {
                let length = u32::from_be_bytes(self.fixed()?);
                self.extension(length)?
            }
            Marker::Reserved => return Err(Broken),
        })
    }

    /// Reads a map's next key; `None` for one that is no string.
    pub(crate) fn key(&mut self) -> Result<Option<&'a [u8]>, Broken> {
        let key = self.item()?;
        if let Item::Text(key) = key {
            return Ok(Some(key));
        }
        self.skip_inside(key)?;
        Ok(None)
    }

    /// Skips whole values, with everything in them.
    pub(crate) fn skip(&mut self, values: usize) -> Result<(), Broken> {
        let mut pending = values;
        while pending > 0 {
            // Each pending value takes at least one byte, so the sums below stay far from overflow.
            if pending > self.rest.len() {
                return Err(Broken);
            }
            pending = pending - 1 + self.item()?.values_inside();
        }
        Ok(())
    }

    /// Skips what the item just read has in it.
    pub(crate) fn skip_inside(&mut self, item: Item<'_>) -> Result<(), Broken> {
        self.skip(item.values_inside())
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Broken)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn bytes(&mut self, length: u32) -> Result<&'a [u8], Broken> {
        let length = usize::try_from(length).map_err(|_| Broken)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Broken)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn length8(&mut self) -> Result<&'a [u8], Broken> {
        let length = u8::from_be_bytes(self.fixed()?);
        self.bytes(length.into())
    }

    fn length16(&mut self) -> Result<&'a [u8], Broken> {
        let length = u16::from_be_bytes(self.fixed()?);
        self.bytes(length.into())
    }

    fn length32(&mut self) -> Result<&'a [u8], Broken> {
        let length = u32::from_be_bytes(self.fixed()?);
        self.bytes(length)
    }

    fn extension(&mut self, length: u32) -> Result<Item<'a>, Broken> {
        let [_kind] = self.fixed()?;
        self.bytes(length)?;
        Ok(Item::Extension)
    }

    /// Accepts a container's count if its elements, each of `values` values, can be in the bytes left.
    fn elements(&self, count: u32, values: usize) -> Result<usize, Broken> {
        let count = usize::try_from(count).map_err(|_| Broken)?;
        if count > self.rest.len() / values { Err(Broken) } else { Ok(count) }
    }
}

fn integer(value: i64) -> Item<'static> {
    u64::try_from(value).map_or(Item::Negative(value), Item::Unsigned)
}
