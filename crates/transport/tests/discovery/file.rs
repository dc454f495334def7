//! The directory: 1.6.1's layout and times, and what can happen to files.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use transport::discovery::{Backend, Discovery, Standing};
use wire::discovery::{Bucket, Key};

use crate::{
    owner::Owner,
    support::{Records, Seen, eventually, key, open, value},
};

fn at(root: &Path) -> Discovery {
    open(Backend::File { root: root.to_owned() })
}

/// A file as 1.6.1 names it.
fn foreign(root: &Path) -> (PathBuf, &'static str) {
    let folder = root.join("v1/event_channels");
    fs::create_dir_all(&folder).unwrap();
    let name = "namespace%2Fdynamo%2Fcomponent%2Fbackend%2Fendpoint%2Fgenerate%2Ftopic%2Fkv%5Fmetrics%2F1d0d9a61f8f82a";
    let key = "v1/event_channels/namespace/dynamo/component/backend/endpoint/generate/topic/kv_metrics/1d0d9a61f8f82a";
    (folder.join(name), key)
}

fn touch(path: &Path) {
    File::options().write(true).open(path).unwrap().set_modified(SystemTime::now()).unwrap();
}

#[tokio::test]
async fn files_are_named_and_written_as_1_6_1_does() {
    let root = tempfile::tempdir().unwrap();
    let discovery = at(root.path());
    let rest = "namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/1d0d9a61f8f82a";
    let registration = discovery.register(Key::new(Bucket::EventSources, rest), value("{}"));
    registration.held().await.unwrap();
    let files = fs::read_dir(root.path().join("v1/event_sources")).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let name = "namespace%2Fdynamo%2Fcomponent%2Fbackend%2Fendpoint%2Fgenerate%2Ftopic%2Fkv%2Devents%2F1d0d9a61f8f82a";
    assert_eq!(files.collect::<Vec<_>>(), [name]);
    assert_eq!(fs::read(root.path().join("v1/event_sources").join(name)).unwrap(), b"{}");
}

async fn files_of_1_6_1_are_read_while_they_are_touched_and_removed_when_not() {
    let root = tempfile::tempdir().unwrap();
    let (path, name) = foreign(root.path());
    fs::write(&path, "{}").unwrap();
    let mut seen = Seen::of(&at(root.path()));
    seen.until("the file", |records| records.contains_key(name)).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        touch(&path);
        seen.during(Duration::from_millis(500)).await;
    }
    assert!(seen.records.contains_key(name), "touched for longer than its time to live");
    seen.until("its end", Records::is_empty).await;
    eventually("the dead file is removed", || !path.exists()).await;
}

async fn a_file_that_was_dead_when_first_seen_is_never_told() {
    let root = tempfile::tempdir().unwrap();
    let (path, _) = foreign(root.path());
    fs::write(&path, "{}").unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    let mut seen = Seen::of(&at(root.path()));
    eventually("the dead file is removed", || !path.exists()).await;
    seen.during(Duration::from_millis(600)).await;
    assert_eq!(seen.told.len(), 1, "{:?}", seen.told);
}

#[tokio::test]
async fn junk_in_the_directory_is_counted_and_breaks_nothing() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("v1/instances");
    fs::create_dir_all(folder.join("a folder")).unwrap();
    fs::write(folder.join("not-encoded"), "{}").unwrap();
    fs::write(folder.join("broken%2"), "{}").unwrap();
    fs::write(folder.join("no%FFtext"), "{}").unwrap();
    fs::write(folder.join(".tmp_0123456789abcdef"), "half").unwrap();
    File::create(folder.join("huge")).unwrap().set_len(5 << 20).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    let discovery = at(root.path());
    let mut seen = Seen::of(&discovery);
    let registration = discovery.register(key("a1"), value("one"));
    seen.until("the key", |records| records.len() == 1).await;
    registration.withdraw().await;
    seen.until("no key", Records::is_empty).await;
    assert_eq!(discovery.counts().junk, 7, "all but the draft");
    assert!(discovery.health().is_fresh());
}

async fn a_removed_directory_is_a_loss_and_its_records_come_back_before_anyone_misses_them() {
    let root = tempfile::tempdir().unwrap();
    let (owner, consumer) = (at(root.path()), at(root.path()));
    let mut seen = Seen::of(&consumer);
    let registration = owner.register(key("a1"), value("one"));
    seen.until("the key", |records| records.len() == 1).await;
    for _ in 0..3 {
        fs::remove_dir_all(root.path().join("v1")).unwrap();
        let before = seen.resets();
        seen.until_resets(before + 1).await;
    }
    seen.during(Duration::from_secs(4)).await;
    assert!(!seen.lost_any(), "{:?}", seen.told);
    assert_eq!(seen.records.len(), 1);
    assert_eq!(registration.standing(), Standing::Held);
    assert!(consumer.health().is_fresh());
}

async fn what_does_not_come_back_after_a_loss_is_removed_at_the_end_of_the_grace() {
    let root = tempfile::tempdir().unwrap();
    let owner = Owner::in_directory(root.path(), "dead");
    let staying = at(root.path());
    let _registration = staying.register(key("alive"), value("alive"));
    let mut seen = Seen::of(&staying);
    seen.until("both keys", |records| records.len() == 2).await;
    drop(owner);
    fs::remove_dir_all(root.path().join("v1")).unwrap();
    let resets = seen.resets();
    seen.until_resets(resets + 1).await;
    assert_eq!(seen.records.len(), 2, "kept");
    let kept = seen.until("the dead one's end", |records| records.len() == 1).await;
    assert!(kept > Duration::from_millis(2500), "{kept:?}");
    assert!(seen.records.contains_key(key("alive").as_str()));
}

async fn a_root_that_is_no_directory_is_stale_until_it_is_one() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    let discovery = at(&root);
    let registration = discovery.register(key("a1"), value("one"));
    let mut seen = Seen::of(&discovery);
    seen.until("the key", |records| records.len() == 1).await;
    fs::rename(&root, place.path().join("away")).unwrap();
    fs::write(&root, "a file").unwrap();
    eventually("stale", || discovery.health().stale_since.is_some()).await;
    assert!(discovery.health().reason.contains("root"), "{:?}", discovery.health());
    seen.during(Duration::from_secs(4)).await;
    assert_eq!(seen.records.len(), 1, "longer than time to live and grace: nothing is removed while it is stale");
    fs::remove_file(&root).unwrap();
    eventually("fresh", || discovery.health().is_fresh()).await;
    seen.during(Duration::from_secs(4)).await;
    assert!(!seen.lost_any(), "{:?}", seen.told);
    assert_eq!(registration.standing(), Standing::Held);
}

async fn a_killed_owner_is_gone_after_its_time_and_a_thawed_one_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let mut seen = Seen::of(&at(root.path()));
    let killed = Owner::in_directory(root.path(), "killed");
    let frozen = Owner::in_directory(root.path(), "frozen");
    seen.until("both", |records| records.len() == 2).await;
    drop(killed);
    frozen.freeze();
    seen.until("neither", Records::is_empty).await;
    frozen.thaw();
    let back = seen.until("the thawed one", |records| records.contains_key(key("frozen").as_str())).await;
    assert!(back < Duration::from_secs(5), "{back:?}");
}

async fn a_key_of_another_owner_is_contested_until_its_file_dies() {
    let root = tempfile::tempdir().unwrap();
    let discovery = at(root.path());
    let (path, name) = foreign(root.path());
    fs::write(&path, "theirs").unwrap();
    let registration = discovery.register(Key::parse(name).unwrap(), value("ours"));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        touch(&path);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_ne!(registration.standing(), Standing::Held);
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
    }
    assert_eq!(registration.standing(), Standing::Contested);
    registration.held().await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ours");
}

async fn a_lock_that_a_frozen_process_holds_delays_and_does_not_prevent() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("v1/instances");
    fs::create_dir_all(&folder).unwrap();
    let lock = File::open(&folder).unwrap();
    lock.lock().unwrap();
    let discovery = at(root.path());
    let mut seen = Seen::of(&discovery);
    let registration = discovery.register(key("a1"), value("one"));
    seen.until("the key", |records| records.len() == 1).await;
    registration.withdraw().await;
    seen.until("no key", Records::is_empty).await;
}

#[tokio::test]
async fn a_name_that_is_too_long_is_refused_alone() {
    let root = tempfile::tempdir().unwrap();
    let discovery = at(root.path());
    let long = discovery.register(key(&"long".repeat(100)), value("one"));
    let short = discovery.register(key("short"), value("one"));
    short.held().await.unwrap();
    eventually("refused", || matches!(long.standing(), Standing::Refused(_))).await;
    assert!(discovery.health().is_fresh());
}

/// They wait for files to die most of the time, so they wait together; each has a directory of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_directory_in_trouble() {
    let all = [
        tokio::spawn(files_of_1_6_1_are_read_while_they_are_touched_and_removed_when_not()),
        tokio::spawn(a_file_that_was_dead_when_first_seen_is_never_told()),
        tokio::spawn(a_lock_that_a_frozen_process_holds_delays_and_does_not_prevent()),
        tokio::spawn(a_removed_directory_is_a_loss_and_its_records_come_back_before_anyone_misses_them()),
        tokio::spawn(what_does_not_come_back_after_a_loss_is_removed_at_the_end_of_the_grace()),
        tokio::spawn(a_root_that_is_no_directory_is_stale_until_it_is_one()),
        tokio::spawn(a_killed_owner_is_gone_after_its_time_and_a_thawed_one_comes_back()),
        tokio::spawn(a_key_of_another_owner_is_contested_until_its_file_dies()),
    ];
    for one in all {
        one.await.unwrap();
    }
}
