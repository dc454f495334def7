//! A digest is worth as much as the event number beside it: whoever compares two routers, or a router and a publisher,
//! compares what belongs together, also while events flow.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{Place, publishing::Publishing};
use crate::support::{
    frontend::Frontend,
    simulated::{BLOCK, prompt},
};

/// How long events flow.
const FLOW: Duration = Duration::from_secs(3);
/// Events that are published in a row, faster than they are applied.
const BURST: u32 = 20;

/// What a frontend shows of the worker.
async fn shown(frontend: &Frontend, worker: &Publishing) -> Option<(u64, String)> {
    let rank = frontend.rank(&worker.id()).await;
    Some((rank["last_seq"].as_u64()?, rank["digest"].as_str()?.to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_belongs_to_the_event_it_is_shown_beside() {
    let place = Place::folder();
    let worker = Publishing::start(&place).await;
    let frontends = [place.frontend(&["--router-mode", "kv"]), place.frontend(&["--router-mode", "kv"])];
    for frontend in &frontends {
        frontend.serves(1, "exact").await;
    }
    // What the publisher itself had after each event.
    let publish = async {
        let (mut history, mut number, until) = (BTreeMap::new(), 0, Instant::now() + FLOW);
        while Instant::now() < until {
            for _ in 0..BURST {
                number += 1;
                worker.store(&prompt(number, 30 * BLOCK));
                if number > 100 {
                    worker.remove(&prompt(number - 100, 30 * BLOCK), 0);
                }
                worker.publisher.flush().await.unwrap();
                let standing = worker.publisher.standing();
                history.insert(standing.last_event_id, format!("{:016x}", standing.digest.unwrap()));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        history
    };
    let look = async {
        let (mut samples, until) = (Vec::new(), Instant::now() + FLOW);
        while Instant::now() < until {
            for frontend in &frontends {
                samples.extend(shown(frontend, &worker).await);
            }
        }
        samples
    };
    let (history, samples) = tokio::join!(publish, look);
    let known: Vec<_> = samples.iter().filter(|(event, _)| history.contains_key(event)).collect();
    assert!(known.len() > 20, "{} samples, {} events", samples.len(), history.len());
    for (event, digest) in known {
        assert_eq!(history[event], *digest, "at event {event}");
    }
    for frontend in &frontends {
        worker.equals(frontend).await;
    }
}
