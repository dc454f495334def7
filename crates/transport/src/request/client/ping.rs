//! A question that starts no work: whether the worker's request plane answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use wire::request::{Ack, PROBE_PATH, RequestFrame};

use super::super::error::Cause;
use super::super::frames::{self, ReadError};
use super::super::net;

/// Asks on a connection of its own: one that is there already would hide that the port is closed to others. A frame for a path
/// that nobody serves is refused at once, by 1.6.1 too, where it is a line in the worker's log.
pub(super) async fn over_tcp(host: &str, within: Duration) -> Result<(), Cause> {
    let until = Instant::now() + within;
    let stream = net::dial(host, within).await.map_err(|error| Cause::Unreachable(error.to_string().into()))?;
    match timeout_at(until, asked(stream)).await {
        Ok(answered) => answered,
        Err(_) => Err(Cause::NoPong(within)),
    }
}

async fn asked(mut stream: TcpStream) -> Result<(), Cause> {
    let frame = RequestFrame { path: PROBE_PATH.to_owned(), headers: Vec::new(), payload: Bytes::new() };
    let frame = frame.encode().ok_or_else(|| Cause::Request("a ping too long for a frame".into()))?;
    stream.write_all(&frame).await.map_err(|error| Cause::Broken(error.to_string().into()))?;
    let mut input = BytesMut::new();
    // Whatever it says, it is there.
    while Ack::take(&mut input).map_err(|error| Cause::Malformed(error.to_string().into()))?.is_none() {
        frames::read(&mut stream, &mut input, frames::READ_BYTES).await.map_err(broken)?;
    }
    Ok(())
}

fn broken(error: ReadError) -> Cause {
    let reason: Arc<str> = match error {
        ReadError::Closed => "the worker closed the connection".into(),
        ReadError::Broken(error) => error.to_string().into(),
    };
    Cause::Broken(reason)
}
