//! DEALER: one connection to one ROUTER, for one exchange. It does not connect again: a request that broke is asked
//! anew by whoever knows what is missing by then.

use bytes::Bytes;
use tokio::time::timeout;

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::error::Error;
use super::frame::encode;
use super::net::dial;
use super::options::Options;
use super::session::{Event, Kind};

/// A connected DEALER socket. It has no task: bytes move while one of its methods is awaited.
#[derive(Debug)]
pub struct Dealer {
    connection: Connection,
    options: Options,
}

impl Dealer {
    /// Connects, bounded by the connect and handshake time-outs.
    pub async fn connect(endpoint: &Endpoint, options: &Options) -> Result<Self, Error> {
        let stream = dial(endpoint, options).await?;
        let (connection, _) = Connection::open(stream, Kind::Dealer, &Bytes::new(), options).await?;
        Ok(Self { connection, options: options.clone() })
    }

    /// Sends one message, bounded by the send time-out; returns once the kernel has it.
    pub async fn send(&mut self, frames: &[Bytes]) -> Result<(), Error> {
        self.connection.send(encode(frames));
        let after = self.options.send_timeout;
        match timeout(after, self.connection.flush()).await {
            Ok(flushed) => flushed,
            Err(_) => Err(Error::TimedOut { what: "a peer that does not read", after }),
        }
    }

    /// The next message. Waits without a bound of its own while the peer is alive. Cancel-safe.
    pub async fn recv(&mut self) -> Result<Vec<Bytes>, Error> {
        loop {
            match self.connection.event().await? {
                Event::Message(frames) => return Ok(frames),
                Event::Open(_) | Event::Subscribe(_) | Event::Cancel(_) => {}
            }
        }
    }
}
