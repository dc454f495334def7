//! The task that asks one worker whether it is there, and drives its [`Pulse`]; and how OpenAI servers are asked.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, Method, uri::PathAndQuery};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    client::{Client, Connection, Fetch, Outgoing},
    error::Failure,
    health::{Limits, Probed},
    pulse::Pulse,
    url::BaseUrl,
};

/// The longest health answer that is read; what follows is not waited for.
const HEALTH_BODY_BYTES: usize = 64 * 1024;

/// Most workers that get no requests and are asked for their health at once: where ten thousand hosts are gone, each is a
/// connection that opens for seconds, and its name may have to be looked up. Twice this, as those that were never asked have
/// turns of their own.
const DOWN_AT_ONCE: usize = 128;

/// The turns of workers that get no requests.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    new: Arc<Semaphore>,
    known: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        let turns = || Arc::new(Semaphore::new(DOWN_AT_ONCE));
        Self { new: turns(), known: turns() }
    }
}

impl Turns {
    /// Waits for a turn. It is over when what is returned is dropped.
    async fn turn(&self, first: bool) -> Option<SemaphorePermit<'_>> {
        // It fails on a closed one only, and none is ever closed.
        if first { &self.new } else { &self.known }.acquire().await.ok()
    }
}

/// How a worker is probed.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// What is asked. Default `/health`.
    pub path: PathAndQuery,
    /// Sent along, for servers that want a key. Default none.
    pub headers: HeaderMap,
    /// A health answer that takes longer is no answer. Default 5 s.
    pub within: Duration,
    /// The limits of the state machine.
    pub limits: Limits,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            path: PathAndQuery::from_static("/health"),
            headers: HeaderMap::new(),
            within: Duration::from_secs(5),
            limits: Limits::default(),
        }
    }
}

/// One worker's probe. Dropping it stops the task, at the next time that waits: nobody waits for that, as all it does is ask.
#[derive(Debug)]
pub struct Probe {
    pulse: Pulse,
    _stop: DropGuard,
}

impl Probe {
    /// Starts probing an OpenAI server, at once. Must be called within a tokio runtime. For workers of the request plane:
    /// [`crate::tokens::TokenClient::probe`].
    pub fn spawn(client: Client, url: BaseUrl, options: ProbeOptions) -> Self {
        let (limits, turns) = (options.limits.clone(), client.probes().clone());
        Self::start(limits, turns, Health { client, url, options })
    }

    /// Starts asking in this way.
    pub(crate) fn start(limits: Limits, turns: Turns, way: impl Ask + Send + 'static) -> Self {
        let (pulse, stop) = (Pulse::new(limits), CancellationToken::new());
        let (asked, until) = (pulse.clone(), stop.clone());
        // Dropping the loop between its awaits loses at most a probe under way.
        tokio::spawn(async move { until.run_until_cancelled(paced(&turns, &asked, &way)).await });
        Self { pulse, _stop: stop.drop_guard() }
    }

    /// The worker's pulse, for its requests and for readers of its state.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }
}

/// A way to ask a worker whether it is there.
pub(crate) trait Ask: Sync {
    /// Asks once.
    fn ask(&self) -> impl Future<Output = Probed> + Send;
}

/// An OpenAI server's health.
struct Health {
    client: Client,
    url: BaseUrl,
    options: ProbeOptions,
}

/// Asks again and again, as the worker's health wants it, and tells the answers to it.
async fn paced(turns: &Turns, pulse: &Pulse, way: &impl Ask) {
    let mut first = true;
    loop {
        let due = pulse.next_probe();
        if due > Instant::now() {
            // Both branches are cancel-safe: a notification that is lost here has moved `next_probe` already.
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                () = pulse.probe_due() => {}
            }
            continue;
        }
        // Whoever gets requests is never kept waiting by those that get none, nor who comes by those that were asked before.
        let _turn = if pulse.state().is_routable() { None } else { turns.turn(first).await };
        first = false;
        let started = Instant::now();
        let probed = way.ask().await;
        pulse.probed(started, &probed);
    }
}

impl Ask for Health {
    async fn ask(&self) -> Probed {
        let ProbeOptions { path, headers, within, .. } = self.options.clone();
        let question = Outgoing { method: Method::GET, path_and_query: path, headers, body: Bytes::new(), rank: None, pulse: None };
        let fetch = Fetch { question, connection: Connection::New, limit_bytes: HEALTH_BODY_BYTES, within };
        match self.client.fetch(&self.url, fetch).await {
            Ok((status, _)) if status.is_server_error() => Probed::Unhealthy(status.as_u16()),
            Ok(_) => Probed::Answered,
            Err(error) => match error.failure {
                Failure::Refused => Probed::Refused,
                failure => Probed::Silent(format!("its health gives no answer: {failure}")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::client;

    #[tokio::test]
    async fn workers_that_are_down_take_turns_and_who_is_new_does_not_wait_for_who_was_asked() {
        let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url: BaseUrl = format!("http://{}", mute.local_addr().expect("its address")).parse().expect("an address");
        let client = Client::new(client::Options::default()).expect("a client");
        let probes: Vec<_> = (0..2 * DOWN_AT_ONCE).map(|_| Probe::spawn(client.clone(), url.clone(), ProbeOptions::default())).collect();
        let mut open = Vec::new();
        while open.len() < DOWN_AT_ONCE {
            open.push(mute.accept().await.expect("a probe"));
        }
        let one_more = tokio::time::timeout(Duration::from_millis(200), mute.accept()).await;
        assert!(one_more.is_err(), "more than {DOWN_AT_ONCE} at once");
        drop(open.pop());
        open.push(mute.accept().await.expect("the next one"));
        // All turns of those that were asked before are taken: a new one comes all the same.
        let taken = client.probes().known.acquire_many(u32::try_from(DOWN_AT_ONCE).expect("a small number")).await;
        drop(open.pop());
        mute.accept().await.expect("a new one");
        drop((taken, probes));
    }
}
