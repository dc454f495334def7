//! What goes wrong: no recovery, silent and lying publishers, lost servers, nonsense.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feed::{Demand, Observation, Trust};
use testkit::servers::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use transport::follow::{FollowOptions, PlaneClient, SourceSpec};
use transport::nats::{Nats, NatsOptions};
use transport::plane::PlaneSocket;
use transport::reins::Link;
use transport::stream::Turns;
use wire::discovery::Endpoint;
use wire::router::{RouterEvent, encode_events};

use crate::support::*;

#[tokio::test]
async fn a_publisher_without_recovery_is_exact_from_its_first_event_and_degraded_after_a_gap() {
    let publisher = Publisher::start(1).await;
    let frontend = Frontend::new().await;
    frontend.follower.set_sources(vec![publisher.live_only()]);
    frontend.until("a link", |_, frontend| frontend.follower.reins().link() == Link::Up).await;
    publisher.publish(100);
    frontend.holds(100, Trust::Exact).await;
    publisher.make(10);
    publisher.publish(5);
    frontend.until("a degraded target", |_, frontend| frontend.trust() == Trust::Degraded).await;
    assert_eq!(frontend.depth(200), 100, "what continues the missing ones is out of reach");
    assert!(publisher.asked().is_empty());
}

/// A worker that acknowledges whatever it is sent, and then says nothing.
async fn silent_endpoint(like: &Endpoint) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                let mut request = vec![0; 64 << 10];
                while stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                    let _ = stream.write_all(&0u32.to_be_bytes()).await;
                }
            });
        }
    });
    Endpoint::tcp(like.id.clone(), like.instance_id, &address)
}

#[tokio::test]
async fn a_silent_recovery_endpoint_delays_nothing_and_is_asked_again() {
    let publisher = Publisher::start(1).await;
    publisher.make(40);
    let honest = publisher.source();
    let silent = silent_endpoint(honest.recovery.as_ref().unwrap()).await;
    let frontend = Frontend::new().await;
    frontend.follower.set_sources(vec![SourceSpec { recovery: Some(silent), ..honest.clone() }]);
    frontend.until("a failed query", |stream, _| stream.replay_failures > 0).await;
    publisher.publish(10);
    // Live events are not held up for ever by a publisher that does not answer.
    frontend.until("live events", |_, frontend| frontend.trust() == Trust::Degraded).await;
    frontend.follower.set_sources(vec![honest]);
    frontend.holds(50, Trust::Exact).await;
}

#[tokio::test]
async fn a_silent_recovery_endpoint_takes_nobodys_turn() {
    let plane = PlaneClient { turns: Turns::new(1), ..plane_client(32 << 20, None).await };
    let (silent, honest) = (Publisher::start(1).await, Publisher::start(2).await);
    let endpoint = silent_endpoint(silent.source().recovery.as_ref().unwrap()).await;
    honest.make(20);
    let (first, second) = (Frontend::with(plane.clone(), FollowOptions::default()), Frontend::with(plane, FollowOptions::default()));
    first.follower.set_sources(vec![SourceSpec { recovery: Some(endpoint), ..silent.source() }]);
    first.until("a query", |stream, _| stream.replay_requests > 0).await;
    second.follow(&[&honest]);
    second.holds(20, Trust::Exact).await;
    assert_eq!(second.stream().replay_waits, 0);
}

#[tokio::test]
async fn a_handler_that_never_begins_is_a_silence_too() {
    let publisher = Publisher::start(1).await;
    publisher.make(40);
    publisher.answers(Answers::Never);
    let frontend = Frontend::new().await;
    frontend.follow(&[&publisher]);
    frontend.until("failed queries", |stream, _| stream.replay_failures > 1).await;
    publisher.answers(Answers::Whole { page: 7 });
    frontend.holds(40, Trust::Exact).await;
}

#[tokio::test]
async fn another_workers_events_and_refusals_change_nothing() {
    let publisher = Publisher::start(1).await;
    publisher.answers(Answers::Error("worker_id mismatch"));
    let frontend = Frontend::new().await;
    frontend.follow(&[&publisher]);
    frontend.until("a refusal", |stream, _| stream.replay_failures > 0).await;
    let foreign = |event: RouterEvent| RouterEvent { worker_id: 7, ..event };
    publisher.publish_raw(encode_events(&publisher.make(20).into_iter().map(foreign).collect::<Vec<_>>()));
    frontend.until("mismatches", |_, frontend| frontend.follower.reins().status().ranks()[0].rank_mismatches >= 20).await;
    assert_eq!(frontend.blocks(), 0);
}

#[tokio::test]
async fn an_answer_beyond_the_bound_is_given_up() {
    let publisher = Publisher::start(1).await;
    publisher.make(5000);
    let options = FollowOptions { max_answer_bytes: 100_000, ..FollowOptions::default() };
    let frontend = Frontend::with(plane_client(32 << 20, None).await, options);
    frontend.follow(&[&publisher]);
    frontend.until("failures", |stream, _| stream.replay_failures > 1).await;
    assert_eq!(frontend.blocks(), 0);
}

#[tokio::test]
async fn nonsense_on_the_channel_is_counted_and_the_channel_goes_on() {
    let publisher = Publisher::start(1).await;
    let frontend = Frontend::new().await;
    frontend.follow(&[&publisher]);
    frontend.until("a link", |_, frontend| frontend.follower.reins().link() == Link::Up).await;
    publisher.publish(10);
    for junk in [&b""[..], b"nonsense", &[0x93, 1, 2, 3], &[0xdd, 0xff, 0xff, 0xff, 0xff]] {
        publisher.publish_raw(Bytes::from_static(junk));
    }
    publisher.publish(10);
    frontend.holds(20, Trust::Exact).await;
    assert!(frontend.stream().undecodable > 0);
}

#[tokio::test]
async fn resets_observations_and_demands_reach_the_feed() {
    let publisher = Publisher::start(1).await;
    publisher.make(10);
    let frontend = Frontend::new().await;
    frontend.follow(&[&publisher]);
    frontend.holds(10, Trust::Exact).await;
    let observation = Observation {
        rank: RANK,
        chain: (0..10).map(|n| index::LocalHash(tokens_hash(n))).collect(),
        seed: index::Seed::BASE,
        dispatched: std::time::Instant::now(),
        predicted_blocks: 10,
        reported_blocks: 10,
    };
    frontend.follower.reins().observe(observation);
    frontend.until("an observation", |_, frontend| frontend.follower.reins().status().ranks()[0].accuracy.observations == 1).await;
    frontend.follower.reins().reset().await;
    assert_eq!(frontend.blocks(), 0);
    frontend.follower.reins().demand(RANK, Demand::FullReports);
    frontend.until("a demand", |_, frontend| frontend.trust() == Trust::Degraded).await;
}

#[tokio::test]
async fn sources_that_are_not_known_well_enough_are_named() {
    let publisher = Publisher::start(0xabc).await;
    publisher.make(10);
    let frontend = Frontend::new().await;
    frontend.follower.set_sources(vec![SourceSpec { channel: None, ..publisher.source() }]);
    let reason = |frontend: &Frontend| match frontend.follower.reins().link() {
        Link::Down { reason } => reason,
        Link::Starting | Link::Up => String::new(),
    };
    frontend.until("a reason", |_, frontend| reason(frontend).contains("publisher abc")).await;
    frontend.follow(&[&publisher]);
    frontend.holds(10, Trust::Exact).await;
    frontend.until("a link", |_, frontend| frontend.follower.reins().link() == Link::Up).await;
    frontend.follower.set_sources(vec![]);
    frontend.until("no publisher", |_, frontend| reason(frontend).contains("no publisher")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_while_nats_was_away_is_asked_for() {
    let mut server = Server::nats();
    let options = NatsOptions { reconnect_max: Duration::from_millis(50), ..NatsOptions::default() };
    let nats = || Nats::connect(&server.url(), options.clone()).unwrap();
    let publisher = Publisher::on(PlaneSocket::Nats(nats()), 1).await;
    publisher.make(100);
    let frontend = Arc::new(Frontend::with(plane_client(32 << 20, Some(nats())).await, FollowOptions::default()));
    frontend.follow(&[&publisher]);
    frontend.holds(100, Trust::Exact).await;
    frontend.until("a link", |_, frontend| frontend.follower.reins().link() == Link::Up).await;
    publisher.publish(100);
    frontend.holds(200, Trust::Exact).await;
    server.kill();
    frontend.until("an outage", |_, frontend| matches!(frontend.follower.reins().link(), Link::Down { .. })).await;
    assert_eq!(frontend.blocks(), 200, "what is known stays");
    publisher.make(50);
    server.restart();
    frontend.holds(250, Trust::Exact).await;
    publisher.publish(10);
    frontend.holds(260, Trust::Exact).await;
    assert_eq!(frontend.stream().degraded_gaps, 0);
}
