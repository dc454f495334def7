//! Bytes as they arrive on a socket. Memory grows with what has arrived, not with what is announced; what the bytes mean and how
//! long they may be is judged in [`wire::request`].

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use wire::request::TwoPart;

/// Room made for a read where little is expected, in bytes.
pub(super) const READ_BYTES: usize = 4 << 10;
/// Longest first message on a connection, in bytes: a handshake has 99.
pub(super) const MAX_GREETING_BYTES: usize = 4 << 10;

/// Why no further bytes came.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The peer closed.
    Closed,
    /// The connection broke.
    Broken(io::Error),
}

/// Appends what arrives, waiting for it; how many bytes came. The room is at least this. A read that does not fill it is the last
/// until more arrives, so none is tried in vain. Cancel-safe, and fair to other tasks as all waiting of the runtime is.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin), input: &mut BytesMut, room: usize) -> Result<usize, ReadError> {
    input.reserve(room);
    match stream.read_buf(input).await {
        Ok(0) => Err(ReadError::Closed),
        Ok(count) => Ok(count),
        Err(error) => Err(ReadError::Broken(error)),
    }
}

/// Appends what has arrived, without waiting; `None` where nothing has.
pub(super) fn read_ready(stream: &TcpStream, input: &mut BytesMut, room: usize) -> Result<Option<usize>, ReadError> {
    input.reserve(room);
    match stream.try_read_buf(input) {
        Ok(0) => Err(ReadError::Closed),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(ReadError::Broken(error)),
    }
}

/// The header a connection begins with; `None` where it begins with something else, or ends. Cancel-safe.
pub(super) async fn greeting(stream: &mut TcpStream, input: &mut BytesMut) -> Option<Bytes> {
    loop {
        match TwoPart::take(input, 0) {
            Ok(Some(message)) => return Some(message.header),
            Ok(None) if input.len() < MAX_GREETING_BYTES => {}
            Ok(None) | Err(_) => return None,
        }
        read(stream, input, READ_BYTES).await.ok()?;
    }
}
