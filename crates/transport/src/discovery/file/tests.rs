//! Names, and the looks of a consumer at times of the test's choosing.

use std::{fs, fs::File, time::SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

proptest! {
    #[test]
    fn every_key_has_one_name_of_a_file_and_no_other(rest in "\\PC*", other in "[a-z%0-9A-F/._-]{0,12}") {
        let encoded = name::encode(&rest);
        prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'%'));
        prop_assert_eq!(name::decode(&encoded), Some(rest));
        if let Some(rest) = name::decode(&other) {
            prop_assert_eq!(name::encode(&rest), other);
        }
    }
}

#[test]
fn a_name_of_1_6_1() {
    let name = "dynamo%2Fbackend%2Fworker%5Fkv%5Fquery%5Fsource%5F1d0d9a%2Fb6";
    assert_eq!(name::decode(name).unwrap(), "dynamo/backend/worker_kv_query_source_1d0d9a/b6");
    for wrong in ["dynamo%2fbackend", "dynamo/backend", "dynamo%", "dynamo%2", "%C3", "dynamo%41"] {
        assert_eq!(name::decode(wrong), None, "{wrong}");
    }
}

const TTL: Duration = Duration::from_secs(10);

struct Place {
    root: TempDir,
    scanner: Scanner,
    now: Instant,
    told: Vec<String>,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = FileStore { root: root.path().to_owned(), ttl: TTL };
        fs::create_dir_all(store.folder(Bucket::Instances)).unwrap();
        Self { root, scanner: Scanner::new(store, "v1/instances/"), now: Instant::now(), told: Vec::new() }
    }

    /// Writes or touches a file, with a time this far in the past (or, if negative, in the future) of the wall clock.
    fn touch(&self, name: &str, age_seconds: i64) {
        let path = self.root.path().join("v1/instances").join(name);
        let file = File::options().create(true).append(true).open(path).unwrap();
        let age = Duration::from_secs(age_seconds.unsigned_abs());
        file.set_modified(if age_seconds < 0 { SystemTime::now() + age } else { SystemTime::now() - age }).unwrap();
    }

    /// The keys after so many seconds of our clock, in which it looked each second.
    fn after(&mut self, seconds: u64) -> &[String] {
        for _ in 0..seconds {
            self.jump(1);
        }
        &self.told
    }

    /// The keys after so many seconds of our clock without a look.
    fn jump(&mut self, seconds: u64) -> &[String] {
        self.now += Duration::from_secs(seconds);
        if let Found::All(list) = self.scanner.look(self.now).unwrap() {
            self.told = list.into_iter().map(|one| one.key.rest().to_owned()).collect();
        }
        &self.told
    }
}

#[test]
fn a_file_lives_while_it_is_touched_whatever_its_host_thinks_the_time_is() {
    for clock in [-3600, 0, 3600] {
        let mut place = Place::new();
        place.jump(0);
        place.touch("a", clock);
        // A clock that is behind looks like death until the first touch.
        assert_eq!(place.after(1).len(), usize::from(clock <= 0), "{clock}");
        for touch in 1..5 {
            place.touch("a", clock - touch);
            assert_eq!(place.after(9), ["a"], "{clock}");
        }
        assert!(place.after(2).is_empty(), "{clock}");
    }
}

#[test]
fn time_without_a_look_counts_against_no_file() {
    let mut place = Place::new();
    place.touch("a", 0);
    assert_eq!(place.after(5), ["a"]);
    assert_eq!(place.jump(3600), ["a"]);
    assert_eq!(place.after(2), ["a"]);
    assert!(place.after(5).is_empty());
}

#[test]
fn a_dead_file_is_removed_only_after_it_was_watched_for_its_time() {
    let mut place = Place::new();
    place.touch("dead", 60);
    place.touch("%2Etmp", 0);
    let file = place.root.path().join("v1/instances/dead");
    assert!(place.after(9).iter().all(|key| key == ".tmp"));
    assert!(file.exists());
    place.after(2);
    assert!(!file.exists());
}

#[test]
fn another_value_of_a_file_is_told() {
    let mut place = Place::new();
    let path = place.root.path().join("v1/instances/a");
    fs::write(&path, "one").unwrap();
    place.after(1);
    fs::write(&path, "other").unwrap();
    place.now += Duration::from_secs(1);
    let Ok(Found::All(list)) = place.scanner.look(place.now) else { panic!("nothing found") };
    assert_eq!(list[0].value, "other");
}

#[test]
fn a_file_that_is_touched_is_not_read_again_and_one_that_is_replaced_is() {
    let mut place = Place::new();
    let folder = place.root.path().join("v1/instances");
    let (path, draft) = (folder.join("a"), folder.join(".tmp_a"));
    let value = |place: &mut Place| {
        place.now += Duration::from_secs(1);
        let Ok(Found::All(list)) = place.scanner.look(place.now) else { panic!("nothing found") };
        list[0].value.clone()
    };
    fs::write(&path, "one").unwrap();
    assert_eq!(value(&mut place), "one");
    place.touch("a", 1);
    let before = value(&mut place);
    place.touch("a", 2);
    assert_eq!(before.as_ptr(), value(&mut place).as_ptr(), "the same bytes, not read anew");
    for (round, other) in ["two", "six", "ten"].into_iter().enumerate() {
        fs::write(&draft, other).unwrap();
        fs::rename(&draft, &path).unwrap();
        place.touch("a", i64::try_from(round).unwrap());
        assert_eq!(value(&mut place), other);
    }
    fs::write(&path, "one").unwrap();
    assert_eq!(value(&mut place), "one", "written in its place");
}

#[test]
fn files_beyond_the_bytes_of_a_directory_are_left_out_until_there_is_room() {
    let mut place = Place::new();
    let store = FileStore { root: place.root.path().to_owned(), ttl: TTL };
    place.scanner = Scanner::bounded(store, "v1/instances/", 10);
    let path = |name: &str| place.root.path().join("v1/instances").join(name);
    let (large, small) = (path("large"), path("small"));
    fs::write(&large, [b'x'; 8]).unwrap();
    place.after(1);
    fs::write(&small, [b'x'; 3]).unwrap();
    assert_eq!(place.after(1), ["large"]);
    assert_eq!(place.scanner.junk.len(), 1, "it is told");
    fs::write(&large, [b'x'; 11]).unwrap();
    assert!(place.after(1).is_empty(), "what it was has no room either");
    fs::remove_file(&large).unwrap();
    place.after(1);
    // An owner touches its file every few seconds.
    place.touch("small", -1);
    assert_eq!(place.after(1), ["small"]);
    fs::write(&small, [b'x'; 10]).unwrap();
    assert_eq!(place.after(1), ["small"], "its own bytes do not count against it");
}

#[test]
fn a_look_at_what_did_not_change_reads_nothing() {
    let mut place = Place::new();
    place.touch("a", 0);
    place.after(1);
    assert!(matches!(place.scanner.look(place.now), Ok(Found::Same)));
}

#[test]
fn files_that_nobody_can_touch_stay_and_the_directory_is_away_until_they_can() {
    let mut place = Place::new();
    ["a", "b"].into_iter().for_each(|name| place.touch(name, 0));
    assert_eq!(place.after(1).len(), 2);
    place.scanner.probe = |_| Err(std::io::ErrorKind::ReadOnlyFilesystem.into());
    let mut away = 0;
    for _ in 0..60 {
        place.now += Duration::from_secs(1);
        match place.scanner.look(place.now) {
            Ok(Found::All(list)) => assert_eq!(list.len(), 2),
            Ok(Found::Same) => {}
            Err(reason) => {
                assert!(reason.contains("v1/instances") && reason.contains("read-only"), "{reason}");
                away += 1;
            }
        }
    }
    assert!(away > 50, "{away}");
    // One of them ended meanwhile: what is touched again stays, and it goes after its time.
    place.scanner.probe = |_| Ok(());
    assert_eq!(place.after(5).len(), 2);
    place.touch("b", -1);
    assert_eq!(place.after(8), ["b"]);
    assert!(place.after(10).is_empty());
}

#[test]
fn an_owner_that_ends_while_others_write_is_removed_in_time_by_readers_that_may_not_write() {
    let mut place = Place::new();
    place.scanner.probe = |_| Err(std::io::ErrorKind::ReadOnlyFilesystem.into());
    place.touch("dead", 0);
    for second in 0..12 {
        place.touch("alive", -second);
        place.after(1);
    }
    assert_eq!(place.told, ["alive"]);
}
