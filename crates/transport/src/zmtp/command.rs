//! Command bodies (RFC 37): a name with its length before it, then data. Parsing and writing, no state.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::error::{Error, quoted};
use super::frame::put_command;

/// A PING's context is echoed in its PONG, up to this many bytes.
const MAX_CONTEXT_BYTES: usize = 16;

/// A command from the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The peer's metadata; ends its part of the handshake.
    Ready {
        kind: String,
        identity: Bytes,
    },
    /// The peer gives up, and says why.
    Error(String),
    /// Answer with a PONG of the same context. A `ttl` above zero asks us to hang up if we hear nothing for so long.
    Ping {
        ttl: Duration,
        context: Bytes,
    },
    /// Answer to our PING.
    Pong,
    Subscribe(Bytes),
    Cancel(Bytes),
    /// A name we do not know, to be ignored.
    Unknown,
}

impl Command {
    pub(crate) fn parse(mut body: Bytes) -> Result<Self, Error> {
        let name = take_short(&mut body, "a command ends within its name")?;
        Ok(match &*name {
            b"READY" => parse_ready(body)?,
            b"ERROR" => Self::Error(quoted(&take_short(&mut body, "an ERROR ends within its reason")?)),
            b"PING" => {
                let tenths = body.try_get_u16().map_err(|_| Error::Malformed("a PING is without its time to live"))?;
                body.truncate(MAX_CONTEXT_BYTES);
                Self::Ping { ttl: Duration::from_millis(u64::from(tenths) * 100), context: body }
            }
            b"PONG" => Self::Pong,
            b"SUBSCRIBE" => Self::Subscribe(body),
            b"CANCEL" => Self::Cancel(body),
            _ => Self::Unknown,
        })
    }
}

fn take_short(body: &mut Bytes, otherwise: &'static str) -> Result<Bytes, Error> {
    let size = usize::from(body.try_get_u8().map_err(|_| Error::Malformed(otherwise))?);
    if body.len() < size {
        return Err(Error::Malformed(otherwise));
    }
    Ok(body.split_to(size))
}

fn parse_ready(mut body: Bytes) -> Result<Command, Error> {
    const CUT: &str = "a READY ends within its metadata";
    let (mut kind, mut identity) = (None, Bytes::new());
    while !body.is_empty() {
        let name = take_short(&mut body, CUT)?;
        let size = body.try_get_u32().map_err(|_| Error::Malformed(CUT))?;
        let size = usize::try_from(size).ok().filter(|size| *size <= body.len()).ok_or(Error::Malformed(CUT))?;
        let value = body.split_to(size);
        // Property names are case-insensitive.
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            kind = Some(quoted(&value));
        } else if name.eq_ignore_ascii_case(b"Identity") {
            identity = value;
        }
    }
    let kind = kind.ok_or(Error::Malformed("a READY is without a socket type"))?;
    Ok(Command::Ready { kind, identity })
}

/// Appends our READY. An identity beyond the 255 bytes the protocol allows is cut.
pub(crate) fn put_ready(out: &mut BytesMut, kind: &str, identity: &[u8]) {
    let mut body = named(b"READY");
    put_property(&mut body, b"Socket-Type", kind.as_bytes());
    put_property(&mut body, b"Identity", &identity[..identity.len().min(255)]);
    put_command(out, &body);
}

fn put_property(body: &mut BytesMut, name: &[u8], value: &[u8]) {
    body.put_u8(name.len() as u8);
    body.put_slice(name);
    body.put_u32(value.len() as u32);
    body.put_slice(value);
}

/// Appends a PING with a time to live of zero: the peer is not to hang up when it hears nothing more of us. It would do
/// so while it is busy publishing, because we ping a peer only when it is silent.
pub(crate) fn put_ping(out: &mut BytesMut) {
    let mut body = named(b"PING");
    body.put_u16(0);
    put_command(out, &body);
}

pub(crate) fn put_pong(out: &mut BytesMut, context: &[u8]) {
    let mut body = named(b"PONG");
    body.put_slice(context);
    put_command(out, &body);
}

pub(crate) fn put_subscribe(out: &mut BytesMut, topic: &[u8]) {
    let mut body = named(b"SUBSCRIBE");
    body.put_slice(topic);
    put_command(out, &body);
}

/// Only called with our own short names.
fn named(name: &[u8]) -> BytesMut {
    let mut body = BytesMut::with_capacity(64);
    body.put_u8(name.len() as u8);
    body.put_slice(name);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &[u8]) -> Result<Command, Error> {
        Command::parse(Bytes::copy_from_slice(body))
    }

    /// The one command in `wire`, which is a single short frame.
    fn reparse(wire: &BytesMut) -> Command {
        assert_eq!((wire[0], usize::from(wire[1])), (4, wire.len() - 2));
        parse(&wire[2..]).unwrap()
    }

    #[test]
    fn commands_are_the_bytes_of_the_protocol() {
        let mut out = BytesMut::new();
        put_ping(&mut out);
        assert_eq!(&out[..], b"\x04\x07\x04PING\x00\x00");
        assert_eq!(reparse(&out), Command::Ping { ttl: Duration::ZERO, context: Bytes::new() });
        let mut out = BytesMut::new();
        put_subscribe(&mut out, b"kv");
        assert_eq!(&out[..], b"\x04\x0c\x09SUBSCRIBEkv");
        let mut out = BytesMut::new();
        put_ready(&mut out, "SUB", b"me");
        let ready = b"\x04\x28\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x02me";
        assert_eq!(&out[..], ready);
        assert_eq!(reparse(&out), Command::Ready { kind: "SUB".into(), identity: Bytes::from_static(b"me") });
    }

    #[test]
    fn any_body_is_parsed_or_refused() {
        bolero::check!().for_each(|bytes| {
            if let Ok(Command::Ping { context, .. }) = parse(bytes) {
                assert!(context.len() <= MAX_CONTEXT_BYTES);
            }
            for name in [&b"\x05READY"[..], b"\x05ERROR", b"\x04PING"] {
                let _ = parse(&[name, bytes].concat());
            }
        });
    }

    #[test]
    fn malformed_ready_commands_are_errors() {
        for body in [
            &b""[..],
            b"\x06READY",
            b"\x05READY",
            b"\x05READY\x0bSocket-Type",
            b"\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB",
            b"\x05READY\x08Identity\x00\x00\x00\x00",
        ] {
            assert!(parse(body).is_err(), "{body:?}");
        }
        assert_eq!(parse(b"\x03NEWdata").unwrap(), Command::Unknown);
    }

    #[test]
    fn a_reason_in_an_error_command_is_bounded_and_printable() {
        let mut body = b"\x05ERROR\xff".to_vec();
        body.extend_from_slice(&[b'\n'; 255]);
        let Command::Error(reason) = parse(&body).unwrap() else { panic!("not an error") };
        assert!(reason.len() <= 400 && reason.starts_with("\\n"), "{reason}");
    }
}
