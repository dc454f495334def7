//! A wire to NATS that loses and doubles messages: it reads what a client publishes, message by message.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio::{
    io::{self, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tokio_util::task::AbortOnDropHandle;

use crate::planes::lossy::Faults;

/// Only what carries these is touched.
const TOPIC: &str = "kv-events";

/// It ends when it is dropped, and with it all connections through it.
pub(super) struct NatsWire {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl NatsWire {
    /// To the server at this port.
    pub(super) async fn to(port: u16, faults: Arc<Faults>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut connections = Vec::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.push(AbortOnDropHandle::new(tokio::spawn(carry(client, port, faults.clone()))));
            }
        });
        Self { address, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }
}

/// Until either side is gone; then neither is there.
async fn carry(client: TcpStream, port: u16, faults: Arc<Faults>) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    let ((mut from_server, to_server), (from_client, mut to_client)) = (server.into_split(), client.into_split());
    // How either ends is what the other side sees.
    let _ = tokio::select! {
        told = io::copy(&mut from_server, &mut to_client) => told.map(|_| ()),
        said = publish(from_client, to_server, &faults) => said,
    };
}

async fn publish(from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: &Faults) -> io::Result<()> {
    let mut from = BufReader::with_capacity(1 << 16, from);
    let mut message = Vec::new();
    loop {
        message.clear();
        if from.read_until(b'\n', &mut message).await? == 0 {
            return Ok(());
        }
        let line = String::from_utf8_lossy(&message).trim().to_owned();
        if !line.starts_with("PUB ") && !line.starts_with("HPUB ") {
            to.write_all(&message).await?;
            continue;
        }
        let bytes: usize = line.rsplit(' ').next().and_then(|bytes| bytes.parse().ok()).unwrap();
        let head = message.len();
        message.resize(head + bytes + 2, 0);
        from.read_exact(&mut message[head..]).await?;
        for _ in 0..if line.contains(TOPIC) { faults.copies() } else { 1 } {
            to.write_all(&message).await?;
        }
    }
}
