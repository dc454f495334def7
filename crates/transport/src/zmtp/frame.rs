//! Frames (RFC 23): one byte of flags, a size of one or eight bytes, a body. The decoder joins frames to messages and
//! judges every size when its header arrives; it never reserves memory, the caller grows the input as data comes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::error::Error;
use super::options::Limits;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const KNOWN_FLAGS: u8 = MORE | LONG | COMMAND;
const SHORT_HEADER_BYTES: usize = 2;
const LONG_HEADER_BYTES: usize = 9;

/// What arrived whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// The frames of one message; never empty.
    Message(Vec<Bytes>),
    /// The body of a command frame.
    Command(Bytes),
}

/// Splits a byte stream into messages and commands.
#[derive(Debug)]
pub(crate) struct Decoder {
    limits: Limits,
    /// Header of the frame whose body is still arriving; its size is within the limits.
    header: Option<Header>,
    parts: Vec<Bytes>,
    parts_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    flags: u8,
    size: usize,
}

impl Decoder {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, header: None, parts: Vec::new(), parts_bytes: 0 }
    }

    /// Judges headers by these limits from now on.
    pub(crate) fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Takes the next item off the front of `input`, or nothing if more bytes are needed. After an error the stream
    /// cannot be read any further.
    pub(crate) fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Item>, Error> {
        loop {
            let header = match self.header {
                Some(header) => header,
                None => match self.read_header(input)? {
                    Some(header) => *self.header.insert(header),
                    None => return Ok(None),
                },
            };
            if input.len() < header.size {
                return Ok(None);
            }
            self.header = None;
            // An empty body must not keep a share of the input buffer alive.
            let body = match header.size {
                0 => Bytes::new(),
                size => input.split_to(size).freeze(),
            };
            if header.flags & COMMAND != 0 {
                return Ok(Some(Item::Command(body)));
            }
            self.parts_bytes += body.len();
            self.parts.push(body);
            if header.flags & MORE == 0 {
                self.parts_bytes = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.parts))));
            }
        }
    }

    /// How many bytes beyond `input` the frame in progress still needs; zero when that is not known yet.
    pub(crate) fn missing(&self, input: &BytesMut) -> usize {
        self.header.map_or(0, |header| header.size.saturating_sub(input.len()))
    }

    fn read_header(&self, input: &mut BytesMut) -> Result<Option<Header>, Error> {
        let Some(&flags) = input.first() else {
            return Ok(None);
        };
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Error::Malformed("reserved bits are set in a frame's flags"));
        }
        if flags & COMMAND != 0 && flags & MORE != 0 {
            return Err(Error::Malformed("a command is marked as continued"));
        }
        let (size, header_bytes) = if flags & LONG == 0 {
            (input.get(1).map(|size| u64::from(*size)), SHORT_HEADER_BYTES)
        } else {
            (input.get(1..).and_then(|rest| rest.first_chunk()).map(|size| u64::from_be_bytes(*size)), LONG_HEADER_BYTES)
        };
        let Some(size) = size else {
            return Ok(None);
        };
        let size = self.judge(flags, size)?;
        input.advance(header_bytes);
        Ok(Some(Header { flags, size }))
    }

    fn judge(&self, flags: u8, bytes: u64) -> Result<usize, Error> {
        let Limits { max_frame_bytes, max_message_bytes, max_frames, max_command_bytes } = self.limits;
        let within = |what, bytes: u64, limit: usize| match usize::try_from(bytes) {
            Ok(size) if size <= limit => Ok(size),
            _ => Err(Error::TooLarge { what, bytes, limit }),
        };
        if flags & COMMAND != 0 {
            return within("command", bytes, max_command_bytes);
        }
        if self.parts.len() >= max_frames {
            return Err(Error::TooManyFrames(max_frames));
        }
        within("message", bytes.saturating_add(self.parts_bytes as u64), max_message_bytes)?;
        within("frame", bytes, max_frame_bytes)
    }
}

/// Appends one command frame.
pub(crate) fn put_command(out: &mut BytesMut, body: &[u8]) {
    put_header(out, COMMAND, body.len());
    out.put_slice(body);
}

/// One message as it goes over the wire.
pub(crate) fn encode(frames: &[Bytes]) -> Bytes {
    let size = frames.iter().map(|frame| LONG_HEADER_BYTES + frame.len()).sum();
    let mut out = BytesMut::with_capacity(size);
    for (at, frame) in frames.iter().enumerate() {
        put_header(&mut out, if at + 1 < frames.len() { MORE } else { 0 }, frame.len());
        out.put_slice(frame);
    }
    out.freeze()
}

fn put_header(out: &mut BytesMut, flags: u8, size: usize) {
    match u8::try_from(size) {
        Ok(size) => out.put_slice(&[flags, size]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(size as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits { max_frame_bytes: 1000, max_message_bytes: 2000, max_frames: 4, max_command_bytes: 100 };

    /// Feeds `bytes` in pieces of the given sizes (cycled) and returns what came out, as a socket would.
    fn decode_in_pieces(limits: Limits, bytes: &[u8], pieces: &[u8]) -> Result<Vec<Item>, Error> {
        let mut decoder = Decoder::new(limits);
        let mut input = BytesMut::new();
        let mut items = Vec::new();
        let mut rest = bytes;
        let mut sizes = pieces.iter().map(|size| usize::from(*size).max(1)).cycle();
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(sizes.next().unwrap_or(rest.len()).min(rest.len()));
            rest = later;
            input.extend_from_slice(piece);
            while let Some(item) = decoder.decode(&mut input)? {
                items.push(item);
            }
            let held = decoder.parts_bytes + decoder.missing(&input) + input.len();
            assert!(held <= limits.max_message_bytes + LONG_HEADER_BYTES + piece.len(), "{held} bytes wanted");
        }
        Ok(items)
    }

    #[test]
    fn encode_then_decode_is_identity_at_any_cut() {
        bolero::check!().with_type::<(Vec<Vec<Vec<u8>>>, Vec<u8>)>().for_each(|(messages, pieces)| {
            let messages: Vec<Vec<Bytes>> = messages
                .iter()
                .filter(|frames| !frames.is_empty())
                .map(|frames| frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect())
                .collect();
            let wire: Vec<u8> = messages.iter().flat_map(|frames| encode(frames)).collect();
            let items = decode_in_pieces(Limits { max_frames: 1 << 16, ..Limits::default() }, &wire, pieces).unwrap();
            assert_eq!(items, messages.into_iter().map(Item::Message).collect::<Vec<_>>());
        });
    }

    #[test]
    fn any_bytes_neither_panic_nor_ask_for_more_than_the_limits() {
        bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(bytes, pieces)| {
            for item in decode_in_pieces(SMALL, bytes, pieces).into_iter().flatten() {
                match item {
                    Item::Message(frames) => {
                        assert!(!frames.is_empty() && frames.len() <= SMALL.max_frames);
                        assert!(frames.iter().all(|frame| frame.len() <= SMALL.max_frame_bytes));
                        assert!(frames.iter().map(Bytes::len).sum::<usize>() <= SMALL.max_message_bytes);
                    }
                    Item::Command(body) => assert!(body.len() <= SMALL.max_command_bytes),
                }
            }
        });
    }

    #[test]
    fn frame_header_claims_are_judged_before_a_byte_of_the_body() {
        for claim in [1001, 1 << 30, 1 << 40, 1 << 47, 1 << 61, 1 << 62, u64::MAX] {
            for flags in [LONG, LONG | MORE, LONG | COMMAND] {
                let mut header = vec![flags];
                header.extend_from_slice(&claim.to_be_bytes());
                let error = decode_in_pieces(SMALL, &header, &[9]).unwrap_err();
                assert!(matches!(error, Error::TooLarge { bytes, .. } if bytes == claim), "{error}");
            }
        }
    }

    #[test]
    fn a_message_within_frame_limits_is_still_bounded_as_a_whole() {
        let frame = Bytes::from(vec![0; 900]);
        let wire = encode(&[frame.clone(), frame.clone(), frame]);
        let error = decode_in_pieces(SMALL, &wire, &[200]).unwrap_err();
        assert!(matches!(error, Error::TooLarge { what: "message", bytes: 2700, limit: 2000 }), "{error}");
        let many = encode(&vec![Bytes::new(); 5]);
        assert!(matches!(decode_in_pieces(SMALL, &many, &[]), Err(Error::TooManyFrames(4))));
    }

    #[test]
    fn a_command_between_the_frames_of_a_message_is_read() {
        // libzmq's heartbeat timer can put a PING there.
        let mut wire = BytesMut::new();
        wire.put_slice(&[MORE, 1, b'a']);
        put_command(&mut wire, b"\x04PING\0\0");
        wire.put_slice(&[0, 1, b'b']);
        let items = decode_in_pieces(SMALL, &wire, &[]).unwrap();
        assert_eq!(items[0], Item::Command(Bytes::from_static(b"\x04PING\0\0")));
        assert_eq!(items[1], Item::Message(vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")]));
    }

    #[test]
    fn reserved_flags_and_continued_commands_are_refused() {
        assert!(matches!(decode_in_pieces(SMALL, &[8, 0], &[]), Err(Error::Malformed(_))));
        assert!(matches!(decode_in_pieces(SMALL, &[COMMAND | MORE, 0], &[]), Err(Error::Malformed(_))));
    }
}
