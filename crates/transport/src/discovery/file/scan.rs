//! The consumer's side of the directory: which files are there, alive and records.
//!
//! A file is alive while its time changes. How long it has not is measured by this process's own clock from when it saw the last
//! change, and only at first sight by the wall clock: clocks of hosts that share a directory differ.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, Metadata},
    io::{self, Read},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use wire::discovery::{Bucket, Key, MAX_DOCUMENT_BYTES};

use super::{FileStore, failed, lock::lock, name};
use crate::discovery::view::Listed;

/// How often all files are looked at, whatever the directory's own time says.
const FULL_LOOK: Duration = Duration::from_secs(1);

/// Names in one directory that are looked at; what is beyond is not seen.
const MAX_FILES: usize = 100_000;

/// Files that are no records, and why.
type Junk = Vec<(String, &'static str)>;

/// What a look found.
pub(super) enum Found {
    /// Nothing that was not known.
    Same,
    /// Everything alive.
    All(Vec<Listed>),
}

/// What the looks remember.
pub(super) struct Scanner {
    store: FileStore,
    prefix: String,
    folders: Vec<Folder>,
    last_look: Option<Instant>,
    /// Each is told once.
    pub(super) junk: Junk,
}

struct Folder {
    bucket: Bucket,
    /// The directory's own time and when it was last read, `None` before the first.
    read: Option<(SystemTime, Instant)>,
    files: HashMap<String, Seen>,
    /// Whether it has [`MAX_FILES`], and what is beyond is not seen.
    is_full: bool,
}

struct Seen {
    time: SystemTime,
    bytes: u64,
    /// When it was last touched, by our clock; `None` for a file that was dead at first sight.
    touched: Option<Instant>,
    first_seen: Instant,
    record: Option<(Key, Bytes)>,
}

impl Scanner {
    pub(super) fn new(store: FileStore, prefix: &str) -> Self {
        let related = |bucket: &Bucket| bucket.prefix().starts_with(prefix) || prefix.starts_with(&bucket.prefix());
        let folders = Bucket::ALL.into_iter().filter(related);
        let folders = folders.map(|bucket| Folder { bucket, read: None, files: HashMap::new(), is_full: false }).collect();
        Self { store, prefix: prefix.to_owned(), folders, last_look: None, junk: Vec::new() }
    }

    /// One look. An error, a directory that vanished among them, leaves what was seen as it was.
    pub(super) fn look(&mut self, now: Instant) -> Result<Found, String> {
        self.skip_time(now);
        let looks = self.folders.iter_mut().map(|folder| folder.look(&self.store, now, &mut self.junk));
        // All of them look, also when one fails: a removed directory is made anew by it.
        let looks: Vec<Result<bool, String>> = looks.collect();
        let changed = looks.into_iter().try_fold(false, |changed, look| Ok::<_, String>(changed | look?))?;
        if !changed {
            return Ok(Found::Same);
        }
        let seen = self.folders.iter().flat_map(|folder| folder.files.values());
        let alive = seen.filter(|seen| seen.touched.is_some_and(|touched| now - touched < self.store.ttl));
        let records = alive.filter_map(|seen| seen.record.clone()).filter(|(key, _)| key.as_str().starts_with(&self.prefix));
        Ok(Found::All(records.map(|(key, value)| Listed { key, value, owner: 0 }).collect()))
    }
}

impl Scanner {
    /// Time in which this process did not look, frozen or kept waiting by the file system, counts against no file.
    fn skip_time(&mut self, now: Instant) {
        let away = self.last_look.replace(now).map_or(Duration::ZERO, |last| (now - last).saturating_sub(FULL_LOOK));
        let files = self.folders.iter_mut().flat_map(|folder| folder.files.values_mut());
        files.filter_map(|seen| seen.touched.as_mut()).for_each(|touched| *touched += away);
    }
}

impl Folder {
    /// Whether the directory was read.
    fn look(&mut self, store: &FileStore, now: Instant, junk: &mut Junk) -> Result<bool, String> {
        let path = store.folder(self.bucket);
        let time = match fs::metadata(&path).and_then(|folder| folder.modified()) {
            Ok(time) => time,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.vanished(&path),
            Err(error) => return Err(failed("reading", &path, &error)),
        };
        if self.read.is_some_and(|(before, at)| before == time && now - at < FULL_LOOK) {
            return Ok(false);
        }
        let mut there = HashSet::new();
        let entries = fs::read_dir(&path).map_err(|error| failed("reading", &path, &error))?;
        for entry in entries.take(MAX_FILES) {
            let entry = entry.map_err(|error| failed("reading", &path, &error))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // A file that goes while it is looked at is not there.
            if let Ok(metadata) = entry.metadata() {
                self.see((&entry.path(), &metadata), &name, (now, store.ttl), junk);
                there.insert(name);
            }
        }
        let was_full = std::mem::replace(&mut self.is_full, there.len() == MAX_FILES);
        if self.is_full && !was_full {
            junk.push((path.display().to_string(), "it has more files than are looked at"));
        }
        self.files.retain(|name, _| there.contains(name));
        self.bury(&path, store.ttl, now);
        self.read = Some((time, now));
        Ok(true)
    }

    /// A directory that is not there yet is made, as owners do. One that was there is a loss, told once; then it is made anew.
    fn vanished(&mut self, path: &Path) -> Result<bool, String> {
        let was_there = self.read.take().is_some();
        fs::create_dir_all(path).map_err(|error| failed("making", path, &error))?;
        if was_there { Err(format!("{} was removed", path.display())) } else { Ok(false) }
    }

    fn see(&mut self, (path, metadata): (&Path, &Metadata), name: &str, (now, ttl): (Instant, Duration), junk: &mut Junk) {
        let Ok(time) = metadata.modified() else { return };
        let bytes = metadata.len();
        let known = self.files.get(name);
        if known.is_some_and(|seen| seen.time == time && seen.bytes == bytes) {
            return;
        }
        let record = match (record(self.bucket, path, name, metadata), known) {
            (Ok(record), _) => Some(record),
            // It may be on its way out; until it is, it is what it was.
            (Err(_), Some(seen)) => seen.record.clone(),
            (Err(reason), None) => {
                junk.extend(reason.map(|reason| (path.display().to_string(), reason)));
                None
            }
        };
        let touched = if known.is_some() { Some(now) } else { at_first_sight(time, ttl, now) };
        let first_seen = known.map_or(now, |seen| seen.first_seen);
        self.files.insert(name.to_owned(), Seen { time, bytes, touched, first_seen, record });
    }

    /// Removes files nobody touches: dead by the wall clock and by ours, and watched for a whole time to live.
    fn bury(&mut self, path: &Path, ttl: Duration, now: Instant) {
        let dead = |seen: &Seen| {
            now - seen.touched.map_or(seen.first_seen, |touched| touched.max(seen.first_seen)) >= ttl
                && seen.time.elapsed().is_ok_and(|age| age >= ttl)
        };
        let dead: Vec<String> = self.files.iter().filter(|(_, seen)| dead(seen)).map(|(name, _)| name.clone()).collect();
        if dead.is_empty() {
            return;
        }
        let _lock = lock(path);
        for name in dead {
            let file = path.join(&name);
            let untouched = |seen: &Seen| {
                fs::metadata(&file).is_ok_and(|there| there.is_file() && there.modified().is_ok_and(|time| time == seen.time))
            };
            if self.files.get(&name).is_some_and(untouched) {
                // Another process may be faster, and one without the right to do it leaves it to others.
                let _ = fs::remove_file(&file);
            }
        }
    }
}

/// When a file that was never seen before was touched, by our clock; `None` if it is dead.
fn at_first_sight(time: SystemTime, ttl: Duration, now: Instant) -> Option<Instant> {
    // A time in the future is that of a host whose clock is ahead.
    let age = time.elapsed().unwrap_or_default();
    (age < ttl).then(|| now.checked_sub(age).unwrap_or(now))
}

/// The record in a file; else why it is none, `None` for what is nobody's business.
fn record(bucket: Bucket, path: &Path, name: &str, metadata: &Metadata) -> Result<(Key, Bytes), Option<&'static str>> {
    if name.starts_with(".tmp_") {
        return Err(None);
    }
    if !metadata.is_file() {
        return Err(Some("no file"));
    }
    let rest = name::decode(name).filter(|rest| !rest.is_empty()).ok_or(Some("no name of a key"))?;
    let value = read(path).map_err(|_| Some("not readable, or too large"))?;
    Ok((Key::new(bucket, &rest), value))
}

/// A file's content, at most [`MAX_DOCUMENT_BYTES`].
pub(super) fn read(path: &Path) -> io::Result<Bytes> {
    let mut content = Vec::new();
    // A pipe must not be opened: that would wait for its other end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no file"));
    }
    File::open(path)?.take(MAX_DOCUMENT_BYTES as u64 + 1).read_to_end(&mut content)?;
    if content.len() > MAX_DOCUMENT_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {MAX_DOCUMENT_BYTES} bytes")));
    }
    Ok(content.into())
}
