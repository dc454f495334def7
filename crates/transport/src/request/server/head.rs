//! The head of a request frame: enough to decide about a frame whose body has not arrived.

/// Longest path of a frame, in bytes; 1.6.1's have under a hundred. Anything else nearly always claims more.
const MAX_PATH_BYTES: usize = 4 << 10;

/// Where things lie in a frame: `u16 length, path, u16 length, headers, u32 length, payload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    path: usize,
    pub(super) payload: usize,
    /// Bytes of the whole frame.
    pub(super) whole: usize,
}

/// No frame begins like this.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoFrame;

impl Head {
    /// `None`: more bytes are needed.
    pub(super) fn peek(buffer: &[u8]) -> Result<Option<Self>, NoFrame> {
        let Some(path) = number(buffer, 0, 2) else { return Ok(None) };
        if path > MAX_PATH_BYTES {
            return Err(NoFrame);
        }
        let Some(headers) = number(buffer, 2 + path, 2) else { return Ok(None) };
        let at = 4 + path + headers;
        Ok(number(buffer, at, 4).map(|payload| Self { path, payload, whole: at + 4 + payload }))
    }

    /// The path, from the buffer that was peeked into; `None` where it is not UTF-8.
    pub(super) fn path(self, buffer: &[u8]) -> Option<&str> {
        str::from_utf8(buffer.get(2..2 + self.path)?).ok()
    }
}

fn number(buffer: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = buffer.get(at..at + width)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use wire::request::RequestFrame;

    use super::*;

    #[test]
    fn a_head_is_known_before_the_payload_and_agrees_with_the_frame() {
        let headers = vec![("request-id".to_owned(), "7".to_owned())];
        let frame = RequestFrame { path: "1f/ns/c/e".into(), headers, payload: bytes::Bytes::from(vec![0; 1000]) };
        let bytes = frame.encode().unwrap();
        let head_bytes = bytes.len() - 1000;
        for cut in 0..head_bytes {
            assert_eq!(Head::peek(&bytes[..cut]), Ok(None), "{cut}");
        }
        let head = Head::peek(&bytes[..head_bytes]).unwrap().unwrap();
        assert_eq!((head.payload, head.whole), (1000, bytes.len()));
        assert_eq!(head.path(&bytes), Some("1f/ns/c/e"));
    }

    #[test]
    fn what_other_protocols_begin_with_is_no_frame() {
        for start in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\x00", b"\xff\0\0\0\0\0\0\0\0\x7f", b"SSH-2.0-x"] {
            assert_eq!(Head::peek(start), Err(NoFrame), "{start:?}");
        }
    }
}
