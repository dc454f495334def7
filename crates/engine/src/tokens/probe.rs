//! How a worker of the request plane is asked whether it is there.

use std::time::Duration;

use tokio::time::timeout;
use transport::request::{CallError, Cause};
use wire::discovery::Endpoint;

use super::TokenClient;
use crate::{
    health::{Limits, Probed},
    probe::{Ask, Probe},
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
        dead_after: Duration::from_secs(6),
        backoff_max: Duration::from_secs(5),
        ..Limits::default()
    }
}

impl TokenClient {
    /// Starts pinging a worker, at once. Must be called within a tokio runtime.
    pub fn probe(&self, endpoint: Endpoint, limits: Limits) -> Probe {
        Probe::start(limits, self.probes.clone(), Ping { client: self.clone(), endpoint })
    }
}

/// A call that starts no work.
struct Ping {
    client: TokenClient,
    endpoint: Endpoint,
}

impl Ask for Ping {
    async fn ask(&self) -> Probed {
        match timeout(WITHIN, self.client.calls.ping(&self.endpoint)).await {
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use transport::request::{Client, ClientOptions};
    use wire::discovery::EndpointId;

    use super::*;
    use crate::{
        health::{Down, Fault, Health, State},
        tokens::TokenOptions,
    };

    const OUT: State = State::Down(Down::BreakerOpen);

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn one_broken_stream_takes_a_worker_out_and_its_probe_brings_it_back() {
        let start = Instant::now();
        let mut health = Health::new(start, limits());
        health.probed(start, start, &Probed::Answered, None);
        health.request_failed(after(start, 100), Fault::Connection, "closed");
        assert_eq!(health.status().state, OUT);
        assert_eq!(health.next_probe(), after(start, 600));
        health.probed(after(start, 600), after(start, 600), &Probed::Answered, None);
        assert!(health.status().state.is_routable());
        // It breaks again: it is out for longer, but never for more than the bound.
        for _ in 0..8 {
            let now = health.next_probe();
            health.request_failed(now, Fault::Connection, "closed");
            assert_eq!(health.status().state, OUT);
            assert!(health.next_probe() - now <= Duration::from_secs(5));
            let now = health.next_probe();
            health.probed(now, now, &Probed::Answered, None);
        }
        let now = health.next_probe();
        health.request_succeeded(now);
        assert_eq!(health.status().state, State::Up);
    }

    #[test]
    fn a_worker_that_stands_still_is_out_before_it_is_dead_and_tokens_keep_it() {
        let start = Instant::now();
        let silent = |health: &mut Health, ms: u64, byte_ms: u64| {
            let probed = Probed::Silent("no pong".to_owned());
            health.probed(after(start, ms), after(start, ms - 1000), &probed, Some(after(start, byte_ms)));
            health.status().state
        };
        let mut health = Health::new(start, limits());
        health.probed(start, start, &Probed::Answered, None);
        assert_eq!(silent(&mut health, 9000, 8500), State::Up, "tokens come");
        assert_eq!(silent(&mut health, 10_000, 8500), State::Suspect);
        assert_eq!(silent(&mut health, 12_500, 8500), State::Down(Down::Failing));
        assert_eq!(silent(&mut health, 18_500, 8500), State::Down(Down::Dead));
        health.probed(after(start, 20_000), after(start, 20_000), &Probed::Answered, None);
        assert_eq!(health.status().state, State::Up, "thawed");
    }

    #[test]
    fn a_request_that_waits_brings_the_next_ping_forward_but_no_flood_of_them() {
        let start = Instant::now();
        let mut health = Health::new(start, limits());
        health.probed(start, start, &Probed::Answered, None);
        health.nudge(after(start, 1000));
        assert_eq!(health.next_probe(), after(start, 10_000), "it has just answered");
        health.nudge(after(start, 2500));
        assert_eq!(health.next_probe(), after(start, 2500));
        health.probed(after(start, 2501), after(start, 2500), &Probed::Answered, None);
        health.nudge(after(start, 2502));
        assert_eq!(health.next_probe(), after(start, 12_501));
    }

    #[tokio::test]
    async fn a_worker_that_comes_back_is_found_by_its_probe_without_any_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        drop(listener);
        let calls = Client::new(ClientOptions::default()).await.expect("a client");
        let endpoint = Endpoint::tcp(EndpointId::new("n", "c", "generate"), 7, &address.to_string());
        let limits = Limits { backoff_min: Duration::from_millis(20), backoff_max: Duration::from_millis(50), ..limits() };
        let probe = TokenClient::new(calls, TokenOptions::default()).probe(endpoint, limits);
        let mut health = probe.pulse().watch();
        health.wait_for(|status| status.state == State::Down(Down::Failing)).await.expect("it refuses");
        let listener = TcpListener::bind(address).await.expect("the same port");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut frame = [0; 256];
                // Whatever it is asked, it says no: it is there.
                if stream.read(&mut frame).await.is_ok() {
                    let _ = stream.write_all(b"\0\0\0\x02no").await;
                }
            }
        });
        health.wait_for(|status| status.state == State::Up).await.expect("it is back");
        // Whatever took it out, it is asked soon, long before the ping that was due.
        for fault in [Fault::Answer, Fault::Connection] {
            probe.pulse().failed(fault, "a request failed");
            let back = health.wait_for(|status| status.state.is_routable());
            tokio::time::timeout(Duration::from_secs(2), back).await.expect("it is asked soon").expect("it is back");
        }
    }
}
