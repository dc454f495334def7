//! The answer of a watch: one JSON object per line, for as long as the connection lives.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::error::CallError;

/// The longest line. etcd puts as many events into one as fit its own limits.
const MAX_LINE_BYTES: usize = 64 << 20;

pub(super) struct Lines {
    /// Whose answer it is.
    base: String,
    body: Incoming,
    buffer: BytesMut,
    /// So much of the buffer has no end of a line.
    searched: usize,
}

impl Lines {
    pub(super) fn new(base: &str, body: Incoming) -> Self {
        Self { base: base.to_owned(), body, buffer: BytesMut::new(), searched: 0 }
    }

    /// The next line that is not empty. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Bytes, CallError> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1).freeze();
                self.searched = 0;
                if !line.trim_ascii().is_empty() {
                    return Ok(line);
                }
                continue;
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(CallError::Away(format!("{} sent a line of more than {MAX_LINE_BYTES} bytes", self.base)));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Err(CallError::Away(format!("the watch at {} broke: {error}", self.base))),
                None => return Err(CallError::Away(format!("{} ended the watch", self.base))),
            }
        }
    }
}
