//! The task behind a [`Nats`](super::Nats): makes the client and keeps what is shown of its state true.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Connection, NatsOptions, Shared};

/// How often the client's state is looked at even if it says nothing.
const LOOK: Duration = Duration::from_secs(1);
/// Pause before options that could not be used (a credentials file that is not there) are tried again.
const OPTIONS_PAUSE: Duration = Duration::from_secs(2);
/// Commands that wait in the client; messages beyond wait in their publisher's queue, which counts bytes.
const CLIENT_COMMANDS: usize = 64;
/// Bytes the client reads at once. Small enough that one turn of its task, 128 reads, brings no more messages than a
/// subject's task takes in its next.
const READ_BYTES: u16 = 8 << 10;
/// At most this many characters of a reason are kept.
const MAX_REASON_CHARS: usize = 200;

/// What the client says about itself between two looks.
#[derive(Debug, Default)]
struct Heard {
    /// Held for one copy.
    said: Mutex<Said>,
    something: Notify,
}

#[derive(Debug, Default)]
struct Said {
    /// Why the last attempt to connect failed.
    failure: Option<String>,
    /// What kind of failure it was, where no more is told.
    kind: Option<String>,
    /// What the server of a connection complained about: a subject that is forbidden, for example.
    complaint: Option<String>,
}

/// Runs until it is dropped.
pub(super) async fn run(shared: Arc<Shared>, servers: Vec<ServerAddr>, stop: CancellationToken) {
    let heard = Arc::new(Heard::default());
    let part = shared.board.part();
    let client = loop {
        match open(&shared, &servers, &heard, &stop).await {
            Ok(client) => break client,
            Err(reason) => {
                part.stale(reason.as_str());
                shared.down(&reason);
            }
        }
        sleep(OPTIONS_PAUSE).await;
    };
    let statistics = client.statistics();
    let mut complaint = String::new();
    loop {
        let connects = statistics.connects.load(Ordering::Relaxed);
        match client.connection_state() {
            State::Connected => {
                part.fresh();
                shared.up(&client, connects);
                let said = std::mem::take(&mut *heard.said.lock());
                if let Some(new) = said.complaint.filter(|new| *new != complaint) {
                    tracing::warn!(servers = %shared.servers, complaint = new, "NATS refuses something");
                    complaint = new;
                }
            }
            State::Pending | State::Disconnected => {
                let said = heard.said.lock();
                let reason = said.failure.as_ref().or(said.complaint.as_ref()).or(said.kind.as_ref()).cloned();
                drop(said);
                // Before the first attempt has failed there is nothing to tell.
                if connects > 0 || reason.is_some() {
                    let reason = reason.as_deref().unwrap_or("the connection was lost");
                    part.stale(reason);
                    shared.down(reason);
                }
            }
        }
        // Woken or not, the next look is all that counts.
        let _ = timeout(LOOK, heard.something.notified()).await;
    }
}

async fn open(shared: &Arc<Shared>, servers: &[ServerAddr], heard: &Arc<Heard>, stop: &CancellationToken) -> Result<Client, String> {
    let options = &shared.options;
    let told = heard.clone();
    let (stop, failed, delays) = (stop.clone(), heard.clone(), Delays::of(options));
    let mut connect = ConnectOptions::new()
        .name(&options.name)
        .ping_interval(options.ping_interval)
        .connection_timeout(options.connect_timeout)
        .request_timeout(Some(options.call_timeout))
        .subscription_capacity(options.subject_messages.max(1))
        .client_capacity(CLIENT_COMMANDS)
        .read_buffer_capacity(READ_BYTES)
        .retry_on_initial_connect()
        .reconnect_delay_callback(move |attempts| delays.before(attempts))
        // Called before each attempt: the only place that tells why the last one failed, and where a client that tries for ever
        // can be told that nobody wants it any more.
        .reconnect_to_server_callback(move |servers, _| {
            if let Some(error) = servers.into_iter().find_map(|server| server.last_error) {
                failed.hear(|said| &mut said.failure, error);
            }
            let stop = stop.clone();
            async move { if stop.is_cancelled() { std::future::pending().await } else { None } }
        })
        .event_callback(move |event| {
            hear(&told, event);
            std::future::ready(())
        });
    if let Some(authority) = &options.tls.authority {
        connect = connect.add_root_certificates(authority.clone());
    }
    if let Some((certificate, key)) = &options.tls.client {
        connect = connect.add_client_certificate(certificate.clone(), key.clone());
    }
    let connect = options.auth.apply(connect, servers).await?;
    connect.connect(servers.to_vec()).await.map_err(|error| error.to_string())
}

fn hear(heard: &Heard, event: Event) {
    match event {
        // Whose messages went is not said; their numbers tell.
        Event::SlowConsumer(_) => {}
        Event::ServerError(error) => heard.hear(|said| &mut said.complaint, error.to_string()),
        Event::ClientError(error) => heard.hear(|said| &mut said.kind, error.to_string()),
        Event::Connected | Event::Disconnected | Event::LameDuckMode | Event::Draining | Event::Closed => {
            heard.something.notify_one();
        }
    }
}

impl Heard {
    fn hear(&self, what: impl FnOnce(&mut Said) -> &mut Option<String>, text: String) {
        *what(&mut self.said.lock()) = Some(text.chars().take(MAX_REASON_CHARS).collect());
        self.something.notify_one();
    }
}

impl Shared {
    fn up(&self, client: &Client, epoch: u64) {
        let changed = self.link.send_if_modified(|link| {
            let news = !matches!(link, Connection::Up { epoch: known, .. } if *known == epoch);
            if news {
                *link = Connection::Up { client: client.clone(), epoch };
            }
            news
        });
        if changed && epoch > 1 {
            self.reconnects.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn down(&self, reason: &str) {
        self.link.send_if_modified(|link| {
            let news = !matches!(link, Connection::Down { reason: known } if &**known == reason);
            if news {
                *link = Connection::Down { reason: Arc::from(reason) };
            }
            news
        });
    }
}

/// Delays between attempts: doubling, with jitter, so that a fleet does not come back in one instant.
#[derive(Clone, Copy, Debug)]
struct Delays {
    min: Duration,
    max: Duration,
}

impl Delays {
    fn of(options: &NatsOptions) -> Self {
        Self { min: options.reconnect_min.min(options.reconnect_max), max: options.reconnect_max }
    }

    fn before(self, attempts: usize) -> Duration {
        if attempts <= 1 {
            return Duration::ZERO;
        }
        let doubled = u32::try_from(attempts - 2).ok().and_then(|n| 2u32.checked_pow(n));
        let step = doubled.and_then(|factor| self.min.checked_mul(factor)).map_or(self.max, |step| step.min(self.max));
        step.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_spread_and_never_further_apart_than_told() {
        let delays = Delays::of(&NatsOptions::default());
        assert_eq!(delays.before(1), Duration::ZERO);
        for attempts in 2..2000 {
            let delay = delays.before(attempts);
            assert!(delay >= Duration::from_millis(25) && delay <= Duration::from_secs(2), "{attempts}: {delay:?}");
        }
        assert!(delays.before(500) >= Duration::from_secs(1));
    }
}
