//! Bytes as they arrive on a socket. Memory grows with what has arrived, not with what is announced; what the bytes mean and how
//! long they may be is judged in [`wire::request`].

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;
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
    /// Nothing came for this long.
    Silent(Duration),
    /// The connection broke.
    Broken(io::Error),
}

/// Appends what has arrived, at most `room` bytes, waiting for it at most `patience`; how many bytes came. Cancel-safe.
pub(super) async fn read(stream: &TcpStream, input: &mut BytesMut, room: usize, patience: Duration) -> Result<usize, ReadError> {
    // A peer that always has more must not keep this thread to itself.
    consume_budget().await;
    loop {
        match read_ready(stream, input, room) {
            Ok(Some(count)) => return Ok(count),
            Ok(None) => timeout(patience, stream.readable()).await.map_err(|_| ReadError::Silent(patience))?.map_err(ReadError::Broken)?,
            Err(error) => return Err(error),
        }
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
pub(super) async fn greeting(stream: &TcpStream, input: &mut BytesMut, patience: Duration) -> Option<Bytes> {
    loop {
        match TwoPart::take(input, 0) {
            Ok(Some(message)) => return Some(message.header),
            Ok(None) if input.len() < MAX_GREETING_BYTES => {}
            Ok(None) | Err(_) => return None,
        }
        read(stream, input, READ_BYTES, patience).await.ok()?;
    }
}
