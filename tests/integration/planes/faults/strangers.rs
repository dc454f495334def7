//! Those who connect to whatever listens and are nobody we know: they stay silent, talk rubbish, or begin and never go on.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{io::AsyncWriteExt, net::TcpStream, time::sleep};

use transport::plane::PlaneKind;

use super::{processes, stand::Stand};
use crate::{
    planes::sidecar::Sidecar,
    support::{eventually, seen, simulated},
};

/// Connections to each port.
const STRANGERS: usize = 120;
/// How long they stay.
const STAY: Duration = Duration::from_secs(3);
/// What all of them may cost a process while they stay: for each what the kernel and one small buffer take.
const WHILE_BYTES: u64 = 48 << 20;
/// Bytes of one who talks.
const RUBBISH: usize = 64 << 10;

/// To a frontend, a publisher and a sidecar.
pub(super) async fn cost_nothing(stand: &mut Stand, plane: PlaneKind) {
    let engine = simulated::quick().await;
    let sidecar = Sidecar::with(&stand.place, &engine, &["--event-plane", plane.as_str()]);
    for frontend in &stand.frontends {
        frontend.serves(3, "exact").await;
    }
    let processes =
        [("frontend", stand.frontends[0].process()), ("publisher", stand.publishers[0].process()), ("sidecar", sidecar.process())];
    let mut guests = Vec::new();
    let mut before = Vec::new();
    for (name, process) in processes {
        let ports = processes::listens_at(process);
        assert!(!ports.is_empty(), "{name}");
        before.push((name, process, ports.len(), processes::resident_bytes(process), processes::open_files(process)));
        for port in ports {
            guests.extend(visit(port).await);
        }
    }
    sleep(STAY).await;
    let grown: Vec<u64> =
        before.iter().map(|(_, process, _, bytes, _)| processes::resident_bytes(*process).saturating_sub(*bytes)).collect();
    // While they are here everything goes on.
    stand.row("strangers on every port", Instant::now()).await;
    for ((name, _, ports, _, _), grown) in before.iter().zip(&grown) {
        println!("{name}: {STRANGERS} strangers on each of {ports} ports cost {} KiB", grown >> 10);
        // The events that flow meanwhile cost something, too.
        assert!(*grown <= WHILE_BYTES, "{name}: {grown}");
    }
    drop(guests);
    for (name, process, _, _, files) in before {
        eventually(&format!("{name} has let go of them"), async || {
            let now = processes::open_files(process);
            seen(now <= files + STRANGERS / 10, (files, now))
        })
        .await;
    }
}

/// Some may find the door closed.
async fn visit(port: SocketAddr) -> Vec<TcpStream> {
    let mut guests = Vec::new();
    for number in 0..STRANGERS {
        let Ok(mut guest) = TcpStream::connect(port).await else { continue };
        let said: &[u8] = match number % 4 {
            0 => b"",
            1 => &[0xff; RUBBISH],
            2 => b"GET /workers HTTP/1.1\r\nhost: ",
            _ => b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
        };
        // Whoever is hung up on has been understood.
        let _ = tokio::time::timeout(Duration::from_millis(50), guest.write_all(said)).await;
        guests.push(guest);
    }
    guests
}
