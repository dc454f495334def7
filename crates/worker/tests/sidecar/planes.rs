//! The same over etcd and NATS, as a fleet of several hosts has it.

use std::time::{Duration, Instant};

use mocker::Config;
use tempfile::TempDir;
use testkit::servers::Server;
use transport::{
    discovery::{Backend, EtcdConfig},
    plane::PlaneEvent,
};
use wire::{discovery::ChannelTransport, router::decode_events};

use crate::world::{Frontend, Sidecar, complete, config, engine, fold, message, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd_and_nats_it_is_there_and_is_there_again_after_all_data_was_wiped() {
    let (nats, mut etcd) = (Server::nats(), Server::etcd());
    let backend = Backend::Etcd(EtcdConfig { endpoints: vec![etcd.url()], ..EtcdConfig::default() });
    let mut frontend = Frontend::over(TempDir::new().unwrap(), backend.clone(), nats.url()).await;
    let engine = engine(config()).await;
    let (etcd_url, nats_url) = (etcd.url(), nats.url());
    let _sidecar = Sidecar::over(&["--etcd-endpoints", &etcd_url, "--nats-server", &nats_url], &engine.url(), &[]);
    let worker = frontend.until("the worker's record", Frontend::worker).await;
    let source = frontend.until("the source", |frontend| frontend.source(0)).await;
    let channel = frontend.channel("kv-events", Some(source.publisher_id)).unwrap();
    assert!(matches!(&channel.transport, ChannelTransport::Nats { subject_prefix } if *subject_prefix == worker.id.subject_prefix()));

    let mut live = frontend.subscriptions.subscribe(&channel);
    while !matches!(soon("a subscription", live.next()).await, PlaneEvent::Connected) {}
    complete(&engine, 1, 100).await;
    frontend.holds_the_truth(&source, &engine, 0).await;
    let mut held = frontend.held(&source).await;
    complete(&engine, 2, 300).await;
    let truth = engine.cached_blocks(0).unwrap().into_keys().collect();
    while held != truth {
        let events: Vec<_> = decode_events(&message(&mut live).await).unwrap().into_iter().map(Result::unwrap).collect();
        fold(&events, &mut held);
    }

    etcd.kill();
    etcd.wipe();
    etcd.restart();
    // Who comes later finds what the sidecar put there again.
    let mut later = Frontend::over(TempDir::new().unwrap(), backend, nats.url()).await;
    later.until("everything again", |later| (later.worker()? == worker && later.source(0)? == source).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asked_to_end_while_etcd_is_away_it_waits_once_and_not_for_each_record() {
    let mut etcd = Server::etcd();
    let backend = Backend::Etcd(EtcdConfig { endpoints: vec![etcd.url()], ..EtcdConfig::default() });
    let mut frontend = Frontend::over(TempDir::new().unwrap(), backend, "nats://127.0.0.1:1".to_owned()).await;
    let engine = engine(Config { ranks: 4, ..config() }).await;
    let etcd_url = etcd.url();
    let mut sidecar = Sidecar::over(&["--etcd-endpoints", &etcd_url, "--event-plane", "zmq"], &engine.url(), &[]);
    frontend.until("the last rank and the worker", |frontend| frontend.worker().and(frontend.source(3))).await;
    etcd.kill();
    let asked = Instant::now();
    sidecar.terminate();
    assert!(sidecar.ended().await.success());
    // 2 s for what is published and its records, 2 s for all that is left, 2 s for calls.
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
}
