//! Bytes on their way into one socket: small parts are gathered, large ones go out as they are.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;

use bytes::{Buf, Bytes, BytesMut};
use tokio::net::TcpStream;

/// Parts below this are copied together: one system call then carries many of them.
const GATHER_BELOW_BYTES: usize = 4096;
/// Room for a few small parts.
const ROOM_BYTES: usize = 512;
/// Parts handed to one system call.
const MAX_SLICES: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    parts: VecDeque<Bytes>,
    gathered: BytesMut,
    bytes: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, part: Bytes) {
        if part.len() < GATHER_BELOW_BYTES {
            self.gather(|gathered| gathered.extend_from_slice(&part));
        } else {
            self.bytes += part.len();
            self.seal();
            self.parts.push_back(part);
        }
    }

    /// Lets small parts be written where they are gathered.
    pub(super) fn gather(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.gathered.len();
        if before == 0 {
            self.gathered.reserve(ROOM_BYTES);
        }
        write(&mut self.gathered);
        self.bytes += self.gathered.len() - before;
    }

    /// Bytes not yet taken by the socket.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Gives the socket what it takes without waiting; the number of bytes it took.
    pub(super) fn write_to(&mut self, stream: &TcpStream) -> io::Result<usize> {
        self.seal();
        let before = self.bytes;
        while !self.parts.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = self.parts.len().min(MAX_SLICES);
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = IoSlice::new(part);
            }
            match stream.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => self.advance(taken),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(before - self.bytes)
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            // The whole buffer goes, so that a quiet connection keeps none.
            self.parts.push_back(mem::take(&mut self.gathered).freeze());
        }
    }

    fn advance(&mut self, mut taken: usize) {
        self.bytes -= taken;
        while let Some(part) = self.parts.front_mut()
            && taken > 0
        {
            let here = taken.min(part.len());
            part.advance(here);
            taken -= here;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
    }
}
