//! The task that pings one token-level worker and drives its [`Pulse`].

use std::time::Duration;

use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use transport::request::{CallError, Cause};
use wire::discovery::Endpoint;

use super::TokenClient;
use crate::{
    health::{Limits, Probed},
    probe::{Ask, paced},
    pulse::Pulse,
};

/// A ping that takes longer is no answer.
const WITHIN: Duration = Duration::from_secs(2);

/// The limits of a token-level worker's health. One failed request takes it out of the choice: whether the failure was the
/// worker's is known there, and the next ping tells whether it is back. Pings are answered by the worker's own runtime,
/// not by its engine, so that silence means that the process stands still. They are rare while all is well: each is a line in
/// the log of a worker of 1.6.1.
pub fn limits() -> Limits {
    Limits {
        probe_every: Duration::from_secs(10),
        breaker_failures: 1,
        out_after: Duration::from_secs(4),
        dead_after: Duration::from_secs(10),
        ..Limits::default()
    }
}

/// One worker's probe. Dropping it stops the task.
#[derive(Debug)]
pub struct TokenProbe {
    pulse: Pulse,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl TokenProbe {
    /// Starts probing, at once. Must be called within a tokio runtime.
    pub fn spawn(client: TokenClient, endpoint: Endpoint, limits: Limits) -> Self {
        let pulse = Pulse::new(limits);
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (pulse, stop) = (pulse.clone(), stop.clone());
            async move {
                // Dropping the loop between its awaits loses at most a ping under way.
                stop.run_until_cancelled(paced(&client.probes, &pulse, &Ping { client: &client, endpoint: &endpoint })).await;
            }
        });
        Self { pulse, stop, task }
    }

    /// The worker's pulse, for its requests and for readers of its state.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Stops probing and waits for the task. The pulse stays as it was.
    pub async fn stop(mut self) {
        self.stop.cancel();
        // The task does not panic, and being cancelled is what is wanted: either way it is over.
        let _ = (&mut self.task).await;
    }
}

impl Drop for TokenProbe {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A call that starts no work.
struct Ping<'a> {
    client: &'a TokenClient,
    endpoint: &'a Endpoint,
}

impl Ask for Ping<'_> {
    async fn ask(&self) -> Probed {
        match timeout(WITHIN, self.client.calls.ping(self.endpoint)).await {
            Ok(Ok(())) => Probed::Answered,
            Ok(Err(error)) if is_refused(&error) => Probed::Refused,
            Ok(Err(error)) => Probed::Silent(format!("no answer to a ping: {}", error.cause())),
            Err(_) => Probed::Silent(format!("no answer to a ping within {WITHIN:?}")),
        }
    }
}

/// The host is there and nothing listens on the port.
fn is_refused(error: &CallError) -> bool {
    matches!(error.cause(), Cause::Unreachable(reason) if reason.to_lowercase().contains("refused"))
}
