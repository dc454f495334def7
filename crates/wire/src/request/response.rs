//! The stream that calls home, from hand-shake to sentinel. An item's data is handed on while the rest is still read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Codec, FrameError, Handshake, MAX_HEADER_BYTES, PART_HEAD_BYTES, Prologue, TwoPart, two_part};
use crate::{
    cursor::{Broken, Cursor, Item},
    scan::{Container, Scan, token},
};

/// The header that ends a stream.
const SENTINEL: &[u8] = b"\"sentinel\"";

/// The longest key of an item's map that is read, in bytes, and the longest value beside its data.
const MAX_WRAPPING_BYTES: usize = 4 << 10;

/// Bounds of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest item, in bytes. One in MessagePack is handed on in pieces; one in JSON is gathered first.
    pub item_bytes: usize,
}

/// What a stream says, in its order: hand-shake, prologue, data of items, final, sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Which request it answers.
    Handshake(Handshake),
    /// Whether there will be items.
    Prologue(Prologue),
    /// A piece of an item's data, in the codec.
    Data {
        /// The piece.
        bytes: Bytes,
        /// Whether the item's data ends with it.
        end: bool,
    },
    /// All items have come.
    Final,
    /// The stream is over.
    Sentinel,
}

/// What an answerer writes.
#[derive(Clone, Copy, Debug)]
pub struct Response;

impl Response {
    /// An item: what comes before its data, to be followed by the data and [`behind`](Self::behind).
    pub fn put_before(codec: Codec, data_bytes: usize, out: &mut BytesMut) {
        let before: &[u8] = match codec {
            Codec::Msgpack => b"\x82\xa4data",
            Codec::Json => b"{\"data\":",
        };
        two_part::put_head(out, 0, before.len() + data_bytes + Self::behind(codec).len());
        out.put_slice(before);
    }

    /// What comes behind an item's data.
    pub fn behind(codec: Codec) -> &'static [u8] {
        match codec {
            Codec::Msgpack => b"\xaecomplete_final\xc2",
            Codec::Json => b",\"complete_final\":false}",
        }
    }

    /// An item in one piece.
    pub fn item(codec: Codec, data: &[u8]) -> Bytes {
        let mut item = BytesMut::with_capacity(PART_HEAD_BYTES + data.len() + 64);
        Self::put_before(codec, data.len(), &mut item);
        item.put_slice(data);
        item.put_slice(Self::behind(codec));
        item.freeze()
    }

    /// The message behind the last item.
    pub fn finale(codec: Codec) -> Bytes {
        let body: &'static [u8] = match codec {
            Codec::Msgpack => b"\x81\xaecomplete_final\xc3",
            Codec::Json => b"{\"complete_final\":true}",
        };
        TwoPart { header: Bytes::new(), body: Bytes::from_static(body) }.encode()
    }

    /// The last message.
    pub fn sentinel() -> Bytes {
        TwoPart::of_header(SENTINEL).encode()
    }
}

/// Reads a stream.
#[derive(Debug)]
pub struct ResponseDecoder {
    codec: Codec,
    limits: Limits,
    state: State,
}

#[derive(Debug)]
enum State {
    Handshake,
    Prologue,
    /// Between messages.
    Message,
    /// In an item of MessagePack with so many bytes left.
    Item {
        left: usize,
        inside: Inside,
    },
    /// Behind the last item: only the sentinel can come.
    Final,
    Over,
}

/// Where in an item's map.
#[derive(Clone, Copy, Debug)]
enum Inside {
    /// Before its head.
    Head,
    /// Before the next of so many pairs.
    Pairs { pairs: u64, has_data: bool, is_final: bool },
    /// In the value of `data`, with so many pairs behind it.
    Data { scan: Scan, pairs: u64, is_final: bool },
}

impl ResponseDecoder {
    /// At the beginning of a stream whose items are in this codec.
    pub fn new(codec: Codec, limits: Limits) -> Self {
        Self { codec, limits, state: State::Handshake }
    }

    /// For a stream whose hand-shake was read to find out which it is.
    pub fn after_handshake(codec: Codec, limits: Limits) -> Self {
        Self { codec, limits, state: State::Prologue }
    }

    /// Takes what is next off the buffer. `Ok(None)`: more bytes are needed, of which the buffer then holds at most a few KiB, or an item
    /// in JSON.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Reply>, FrameError> {
        loop {
            match &mut self.state {
                State::Handshake => {
                    let Some(message) = TwoPart::take(buffer, 0)? else { return Ok(None) };
                    self.state = State::Prologue;
                    return Handshake::decode(&message.header).map(|handshake| Some(Reply::Handshake(handshake)));
                }
                State::Prologue => {
                    let Some(message) = TwoPart::take(buffer, 0)? else { return Ok(None) };
                    self.state = State::Message;
                    return Prologue::decode(&message.header).map(|prologue| Some(Reply::Prologue(prologue)));
                }
                State::Message | State::Final => match self.message(buffer)? {
                    Step::On => {}
                    Step::Starved => return Ok(None),
                    Step::Reply(reply) => return Ok(Some(reply)),
                },
                State::Item { .. } => match self.item(buffer)? {
                    Step::On => {}
                    Step::Starved => return Ok(None),
                    Step::Reply(reply) => return Ok(Some(reply)),
                },
                State::Over if buffer.is_empty() => return Ok(None),
                State::Over => return Err(FrameError::Order("bytes behind the sentinel")),
            }
        }
    }

    fn message(&mut self, buffer: &mut BytesMut) -> Result<Step, FrameError> {
        let Some((header, body)) = two_part::lengths(buffer) else { return Ok(Step::Starved) };
        let body = two_part::bounded("item", body, self.limits.item_bytes)?;
        if header > 0 {
            let Some(message) = TwoPart::take(buffer, 0)? else { return Ok(Step::Starved) };
            if message.header[..] != *SENTINEL {
                return Err(FrameError::Order("a header that is not the sentinel"));
            }
            self.state = State::Over;
            return Ok(Step::Reply(Reply::Sentinel));
        }
        if matches!(self.state, State::Final) {
            return Err(FrameError::Order("an item behind the last"));
        }
        match self.codec {
            Codec::Msgpack => {
                buffer.advance(PART_HEAD_BYTES);
                self.state = State::Item { left: body, inside: Inside::Head };
                Ok(Step::On)
            }
            Codec::Json => {
                let Some(message) = TwoPart::take(buffer, self.limits.item_bytes)? else { return Ok(Step::Starved) };
                self.json(&message.body)
            }
        }
    }

    fn json(&mut self, body: &Bytes) -> Result<Step, FrameError> {
        #[derive(Deserialize)]
        struct ItemJson<'a> {
            #[serde(borrow, default)]
            data: Option<&'a RawValue>,
            #[serde(default)]
            complete_final: bool,
        }
        let item: ItemJson<'_> = serde_json::from_slice(body).map_err(FrameError::json("item"))?;
        if item.complete_final {
            self.state = State::Final;
        }
        match item.data {
            Some(data) => Ok(Step::Reply(Reply::Data { bytes: body.slice_ref(data.get().as_bytes()), end: true })),
            None if item.complete_final => Ok(Step::Reply(Reply::Final)),
            None => Err(FrameError::Item("item without data")),
        }
    }

    fn item(&mut self, buffer: &mut BytesMut) -> Result<Step, FrameError> {
        let State::Item { left, inside } = &mut self.state else { return Ok(Step::On) };
        let here = buffer.len().min(*left);
        match *inside {
            Inside::Head => {
                let Some(head) = token(&buffer[..here]).map_err(broken)? else { return starved(here, *left) };
                if head.container != Some(Container::Map) {
                    return Err(FrameError::Item("item"));
                }
                buffer.advance(head.head);
                *left -= head.head;
                *inside = Inside::Pairs { pairs: head.values / 2, has_data: false, is_final: false };
                Ok(Step::On)
            }
            Inside::Pairs { pairs: 0, has_data, is_final } => {
                if *left > 0 {
                    return Err(FrameError::Item("item: bytes behind it"));
                }
                self.state = if is_final { State::Final } else { State::Message };
                match (has_data, is_final) {
                    (_, true) => Ok(Step::Reply(Reply::Final)),
                    (true, false) => Ok(Step::On),
                    (false, false) => Err(FrameError::Item("item without data")),
                }
            }
            Inside::Pairs { pairs, has_data, is_final } => {
                let Some(key) = small(&buffer[..here])? else { return starved(here, *left) };
                if Cursor::new(&buffer[..key]).item().map_err(broken)? == Item::Text(b"data") {
                    buffer.advance(key);
                    *left -= key;
                    *inside = Inside::Data { scan: Scan::one(), pairs: pairs - 1, is_final };
                    return Ok(Step::On);
                }
                let Some(value) = small(&buffer[key..here])? else { return starved(here, *left) };
                let mut pair = Cursor::new(&buffer[..key + value]);
                let names_final = pair.item().map_err(broken)? == Item::Text(b"complete_final");
                let is_true = pair.item().map_err(broken)? == Item::Bool(true);
                let is_final = is_final || names_final && is_true;
                buffer.advance(key + value);
                *left -= key + value;
                *inside = Inside::Pairs { pairs: pairs - 1, has_data, is_final };
                Ok(Step::On)
            }
            Inside::Data { mut scan, pairs, is_final } => {
                let taken = scan.advance(&buffer[..here]).map_err(broken)?;
                let end = scan.is_done();
                if taken == 0 && !end {
                    return starved(here, *left);
                }
                *left -= taken;
                *inside = if end { Inside::Pairs { pairs, has_data: true, is_final } } else { Inside::Data { scan, pairs, is_final } };
                Ok(Step::Reply(Reply::Data { bytes: buffer.split_to(taken).freeze(), end }))
            }
        }
    }
}

enum Step {
    /// Something was read that is no reply.
    On,
    Starved,
    Reply(Reply),
}

/// More bytes are needed: broken if the item has none left.
fn starved(here: usize, left: usize) -> Result<Step, FrameError> {
    if here == left { Err(FrameError::Item("item: it ends too early")) } else { Ok(Step::Starved) }
}

/// The length of a small value, once it is whole.
fn small(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    let mut scan = Scan::one();
    let length = scan.advance(bytes).map_err(broken)?;
    if length > MAX_WRAPPING_BYTES || !scan.is_done() && bytes.len() > MAX_WRAPPING_BYTES {
        let bound = MAX_WRAPPING_BYTES as u64;
        return Err(FrameError::TooLong { part: "item's wrapping", bytes: length as u64, bound });
    }
    Ok(scan.is_done().then_some(length))
}

fn broken(_: Broken) -> FrameError {
    FrameError::Item("item")
}

/// Headers fit into what is buffered while a message is awaited.
const _: () = assert!(MAX_HEADER_BYTES >= MAX_WRAPPING_BYTES);
