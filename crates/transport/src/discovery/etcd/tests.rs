//! What etcd rarely says.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use testkit::servers::Server;
use wire::discovery::{Bucket, Key};

use super::{
    EtcdConfig, REFUSED_LONGEST,
    api::{self, TimeToLive, Txn, end_of_prefix},
    backoff,
    client::Client,
    follow::apply,
    keep::Keeper,
};
use crate::{
    discovery::{
        Counters, OpenError, Options,
        registration::{Standing, Wanted},
        view::{Listed, View},
        watch::{Mailbox, Sink},
    },
    health::HealthBoard,
};

/// A consumer's end that was told nothing yet.
fn sink() -> (Sink, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let view = View::new(Duration::from_secs(10));
    let mut sink = Sink::new(view, Arc::new(Mailbox::default()), HealthBoard::new("etcd").part(), counters.clone());
    sink.listed(Vec::<Listed>::new());
    (sink, counters)
}

/// Lines of etcd 3.4.
#[test]
fn what_ends_a_watch_is_told_apart_from_what_goes_on() {
    let (mut sink, counters) = sink();
    let mut apply = |line: &'static str| apply(&Bytes::from_static(line.as_bytes()), &mut sink).map_err(|error| error.to_string());
    let header = r#"{"result":{"header":{"revision":"2"},"created":true}}"#;
    assert_eq!(apply(header), Ok(true));
    assert_eq!(apply(r#"{"result":{"events":[{"kv":{"key":"djEv/w==","mod_revision":"2","value":"YQ=="}}]}}"#), Ok(false));
    assert_eq!(apply(r#"{"result":{"events":[{"type":"DELETE","kv":{"key":"djEv/w==","mod_revision":"3"}}]}}"#), Ok(false));
    assert_eq!(counters.junk.load(Ordering::Relaxed), 1);
    for (line, part) in [
        (r#"{"result":{"header":{},"canceled":true,"compact_revision":"4"}}"#, "compacted"),
        (r#"{"result":{"canceled":true,"cancel_reason":"permission denied"}}"#, "permission denied"),
        (r#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader"}}"#, "no leader"),
        (r#"{"result":{"events":[{"kv":{"key":"%"}}]}}"#, "no line of a watch"),
        ("not found", "no line of a watch"),
    ] {
        let reason = apply(line).unwrap_err();
        assert!(reason.contains(part), "{line}: {reason}");
    }
}

/// Random bytes, and a good line with some bytes changed.
#[test]
fn no_line_of_a_watch_panics() {
    let good = br#"{"result":{"header":{"revision":"3"},"events":[{"kv":{"key":"djEv","lease":"7","mod_revision":"3","value":"e30="}}]}}"#;
    bolero::check!().with_type::<(Vec<u8>, Vec<(u8, u8)>)>().for_each(|(bytes, edits)| {
        let mut line = good.to_vec();
        for (at, byte) in edits {
            let at = usize::from(*at) % line.len();
            line[at] = *byte;
        }
        let (mut sink, _) = sink();
        for line in [bytes, &line] {
            let _ = apply(&Bytes::copy_from_slice(line), &mut sink);
        }
    });
}

#[test]
fn the_end_of_a_prefix_is_the_first_key_behind_it() {
    assert_eq!(end_of_prefix(b"v1/"), b"v10");
    assert_eq!(end_of_prefix(b"v\xff\xff"), b"w");
    assert_eq!(end_of_prefix(b"\xff"), b"\0", "all keys from there on");
    assert_eq!(end_of_prefix(b""), b"\0");
}

#[test]
fn numbers_are_read_as_strings_and_bare() {
    let read = |text: &str| serde_json::from_str::<TimeToLive>(text).map(|look| (look.left, look.granted, look.keys.len()));
    assert_eq!(read(r#"{"TTL":"29","grantedTTL":30,"keys":["djEv"],"more":{}}"#).unwrap(), (29, 30, 1));
    assert_eq!(read(r#"{"TTL":"-1"}"#).unwrap(), (-1, 0, 0));
    assert!(read(r#"{"TTL":"soon"}"#).is_err());
    assert!(read(r#"{"keys":["%"]}"#).is_err());
}

#[test]
fn pauses_double_for_what_is_refused_and_for_nothing_else() {
    for _ in 0..100 {
        let millis = |refusals| backoff(refusals).as_millis();
        assert!((300..=1000).contains(&millis(0)));
        assert!((1200..=4000).contains(&millis(2)));
        assert_eq!((backoff(7), backoff(u32::MAX)), (REFUSED_LONGEST, REFUSED_LONGEST));
    }
}

fn client(etcd: &Server) -> Client {
    let options = Options { ttl: Some(Duration::from_secs(3)), ..Options::default() };
    Client::new(&EtcdConfig { endpoints: vec![etcd.url()], ..EtcdConfig::default() }, &options).unwrap()
}

#[tokio::test]
async fn records_that_are_too_large_for_a_page_come_in_smaller_ones() {
    let etcd = Server::etcd();
    let mut client = client(&etcd);
    for n in 10..50 {
        let key = format!("v1/{n}");
        let _: Txn = client.call(0, "kv/txn", &api::create(key.as_bytes(), &[n; 1000], 0)).await.unwrap();
    }
    // Room for about ten of them.
    client.max_answer_bytes = 16 << 10;
    let (_, all) = client.list(0, b"v1/", b"v10").await.unwrap();
    let values: Vec<u8> = all.iter().map(|one| one.value[0]).collect();
    assert_eq!(values, (10..50).collect::<Vec<u8>>());
    client.max_answer_bytes = 1000;
    let error = client.list(0, b"v1/", b"v10").await.unwrap_err();
    assert!(error.to_string().contains("more than 1000 bytes"), "{error}");
}

#[tokio::test]
async fn a_registration_is_pending_from_the_loss_of_its_lease_until_it_is_put_again() {
    let mut etcd = Server::etcd();
    let mut keeper = Keeper::new(Arc::new(client(&etcd)), 77, Arc::new(Counters::default()));
    let wanted = Wanted::default();
    let (_, mut standing) = wanted.want(Key::new(Bucket::Instances, "a"), Bytes::from_static(b"{}"));
    keeper.keep(&wanted).await.map_err(|trouble| trouble.reason).unwrap();
    assert_eq!(*standing.borrow(), Standing::Held);
    etcd.kill();
    etcd.wipe();
    etcd.restart();
    // What is waited for is a guard of the standing, and must not be kept.
    let pending = async { standing.wait_for(|standing| *standing == Standing::Pending).await.is_ok() };
    let passes = async {
        while keeper.keep(&wanted).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (pending, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(20), pending), passes);
    assert_eq!(pending, Ok(true), "it was said to be held all the time");
    assert_eq!(*standing.borrow(), Standing::Held);
}

fn config(endpoints: &str) -> EtcdConfig {
    EtcdConfig::from_variables(|name| (name == "ETCD_ENDPOINTS").then(|| endpoints.to_owned()))
}

#[test]
fn addresses_are_completed_and_wrong_ones_are_named() {
    assert_eq!(config("").bases().unwrap(), ["http://localhost:2379"]);
    assert_eq!(config("a:1, https://b:2/,http://[::1]:3").bases().unwrap(), ["http://a:1", "https://b:2", "http://[::1]:3"]);
    for wrong in ["ftp://a:1", "http://user:secret@a:1", "http://", "a b", ","] {
        assert!(matches!(config(wrong).bases(), Err(OpenError::Address(_))), "{wrong}");
    }
}

#[test]
fn credentials_need_both_parts() {
    let all = EtcdConfig::from_variables(|name| Some(name.to_owned()));
    assert_eq!(all.credentials.unwrap(), ("ETCD_AUTH_USERNAME".to_owned(), "ETCD_AUTH_PASSWORD".to_owned()));
    assert_eq!(all.identity.unwrap(), ("ETCD_AUTH_CLIENT_CERT".into(), "ETCD_AUTH_CLIENT_KEY".into()));
    let user = EtcdConfig::from_variables(|name| (name == "ETCD_AUTH_USERNAME").then(|| "me".to_owned()));
    assert_eq!(user.credentials, None);
}

#[test]
fn a_missing_file_of_authorities_is_an_error_that_names_it() {
    let config = EtcdConfig { authorities: Some("/nowhere/ca.pem".into()), ..EtcdConfig::default() };
    assert!(config.tls().unwrap_err().to_string().contains("/nowhere/ca.pem"));
}
