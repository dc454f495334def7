//! The connection a worker opened to answer one call. Until the answer has ended in good order, letting go of it tells the
//! worker to stop.

use bytes::BytesMut;
use tokio::net::TcpStream;
use wire::request::Control;

#[derive(Debug)]
pub(super) struct Line {
    /// `None` once it is over.
    stream: Option<TcpStream>,
    /// What has arrived and was not read yet.
    pub(super) input: BytesMut,
}

impl Line {
    pub(super) fn new(stream: TcpStream, input: BytesMut) -> Self {
        Self { stream: Some(stream), input }
    }

    /// The socket and its input, while it is not over.
    pub(super) fn parts(&mut self) -> Option<(&mut TcpStream, &mut BytesMut)> {
        self.stream.as_mut().map(|stream| (stream, &mut self.input))
    }

    /// The worker has said everything, and waits for us to close. That is done in order: a worker of 1.6.1 that finds its
    /// connection reset counts its answer as cancelled. Its port is free at once; what rests for a minute is our side's state,
    /// in whose place the kernel takes a new connection from the same port.
    pub(super) fn finish(&mut self) {
        self.stream = None;
        self.input = BytesMut::new();
    }

    /// What the worker still says is of no interest.
    pub(super) fn hang_up(&mut self) {
        if let Some(stream) = self.stream.take() {
            // 30 bytes on a socket that was never written to find room; where they do not, closing says the same.
            let _ = stream.try_write(&Control::Kill.encode().encode());
        }
        self.input = BytesMut::new();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.hang_up();
    }
}
