//! Where a MessagePack value ends, told while its bytes still arrive.
//!
//! Nothing is kept but two counters, so a value of any size and depth is followed in constant memory and each byte is looked at once.

use rmp::Marker;

use crate::cursor::Broken;

/// A value being followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    /// Values that have not begun, this one's inner ones included.
    values: u64,
    /// Bytes left of the string, binary or extension that has begun.
    bytes: u64,
}

/// One value's first token: the marker with what belongs to it, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Bytes of the marker and its length or number.
    pub(crate) head: usize,
    /// Bytes of content behind the head.
    pub(crate) bytes: u64,
    /// Values inside that follow.
    pub(crate) values: u64,
    /// What kind of container it is, if one.
    pub(crate) container: Option<Container>,
}

/// A kind of container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    Array,
    Map,
}

impl Scan {
    /// At the beginning of one value.
    pub(crate) fn one() -> Self {
        Self { values: 1, bytes: 0 }
    }

    /// Whether the value has ended.
    pub(crate) fn is_done(self) -> bool {
        self.values == 0 && self.bytes == 0
    }

    /// How many of these bytes belong to the value. Fewer than given either because it ends there, or because the last few are the
    /// beginning of a token whose rest has not come: they are to be given again, with more.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let mut taken = 0;
        loop {
            taken += self.advance_small(&bytes[taken..]);
            let left = bytes.len() - taken;
            let content = usize::try_from(self.bytes).unwrap_or(usize::MAX).min(left);
            taken += content;
            self.bytes -= content as u64;
            if self.bytes > 0 || self.values == 0 {
                return Ok(taken);
            }
            let Some(token) = token(&bytes[taken..])? else { return Ok(taken) };
            taken += token.head;
            self.bytes = token.bytes;
            self.values = (self.values - 1).checked_add(token.values).ok_or(Broken)?;
        }
    }

    /// The bytes of the small values these begin with, of which nearly every item is made.
    fn advance_small(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while self.values > 0 && self.bytes == 0 {
            let small = bytes.get(taken).map_or(0, |first| usize::from(SMALL[usize::from(*first)]));
            if small == 0 || taken + small > bytes.len() {
                break;
            }
            taken += small;
            self.values -= 1;
        }
        taken
    }
}

/// The length of a value that begins with this byte; 0 where the byte alone does not tell it, or values are inside.
const SMALL: [u8; 256] = {
    let mut small = [0; 256];
    let mut first = 0;
    while first < 256 {
        small[first] = match Marker::from_u8(first as u8) {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => 1,
            Marker::U8 | Marker::I8 => 2,
            Marker::U16 | Marker::I16 => 3,
            Marker::U32 | Marker::I32 | Marker::F32 => 5,
            Marker::U64 | Marker::I64 | Marker::F64 => 9,
            Marker::FixStr(length) => 1 + length,
            _ => 0,
        };
        first += 1;
    }
    small
};

/// The first token of these bytes; `None` if it is not whole.
pub(crate) fn token(bytes: &[u8]) -> Result<Option<Token>, Broken> {
    let Some(first) = bytes.first() else { return Ok(None) };
    Ok(token_of(*first, bytes)?.filter(|token| token.head <= bytes.len()))
}

fn token_of(first: u8, bytes: &[u8]) -> Result<Option<Token>, Broken> {
    let plain = |head| Ok(Some(Token { head, bytes: 0, values: 0, container: None }));
    let content = |bytes: u8| Token { head: 1, bytes: bytes.into(), values: 0, container: None };
    match Marker::from_u8(first) {
        Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => plain(1),
        Marker::U8 | Marker::I8 => plain(2),
        Marker::U16 | Marker::I16 => plain(3),
        Marker::U32 | Marker::I32 | Marker::F32 => plain(5),
        Marker::U64 | Marker::I64 | Marker::F64 => plain(9),
        Marker::FixStr(length) => Ok(Some(content(length))),
        Marker::Str8 | Marker::Bin8 => Ok(sized(bytes, 1, 0)),
        Marker::Str16 | Marker::Bin16 => Ok(sized(bytes, 2, 0)),
        Marker::Str32 | Marker::Bin32 => Ok(sized(bytes, 4, 0)),
        Marker::FixExt1 => Ok(Some(content(2))),
        Marker::FixExt2 => Ok(Some(content(3))),
        Marker::FixExt4 => Ok(Some(content(5))),
        Marker::FixExt8 => Ok(Some(content(9))),
        Marker::FixExt16 => Ok(Some(content(17))),
        Marker::Ext8 => Ok(sized(bytes, 1, 1)),
        Marker::Ext16 => Ok(sized(bytes, 2, 1)),
        Marker::Ext32 => Ok(sized(bytes, 4, 1)),
        Marker::FixArray(count) => Ok(Some(container(1, count.into(), Container::Array))),
        Marker::Array16 => Ok(counted(bytes, 2, Container::Array)),
        Marker::Array32 => Ok(counted(bytes, 4, Container::Array)),
        Marker::FixMap(count) => Ok(Some(container(1, count.into(), Container::Map))),
        Marker::Map16 => Ok(counted(bytes, 2, Container::Map)),
        Marker::Map32 => Ok(counted(bytes, 4, Container::Map)),
        Marker::Reserved => Err(Broken),
    }
}

fn sized(bytes: &[u8], width: usize, more: u64) -> Option<Token> {
    number(bytes, width).map(|length| Token { head: 1 + width, bytes: length + more, values: 0, container: None })
}

fn counted(bytes: &[u8], width: usize, kind: Container) -> Option<Token> {
    number(bytes, width).map(|count| container(1 + width, count, kind))
}

fn container(head: usize, count: u64, kind: Container) -> Token {
    let values = match kind {
        Container::Array => count,
        Container::Map => 2 * count,
    };
    Token { head, bytes: 0, values, container: Some(kind) }
}

/// The big-endian number of so many bytes behind the marker.
fn number(bytes: &[u8], width: usize) -> Option<u64> {
    let bytes = bytes.get(1..=width)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
