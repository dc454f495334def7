//! The consumer's side of the directory: which files are there, alive and records.
//!
//! A file is alive while its time changes. How long it has not is measured by this process's own clock from when it saw the last
//! change, and only at first sight by the wall clock: clocks of hosts that share a directory differ.
//!
//! Nobody can touch a file in a directory that became read-only, or whose disk fails. So only time counts in which the directory is
//! known to take writes: another file changed, or else a file of our own can be made there.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use wire::discovery::{Bucket, Key, MAX_DOCUMENT_BYTES};

use super::{FileStore, failed, lock::lock, name};
use crate::discovery::view::{Listed, MAX_BYTES};

/// How often all files are looked at, whatever the directory's own time says.
const FULL_LOOK: Duration = Duration::from_secs(1);

/// Names in one directory that are looked at; what is beyond is not seen.
const MAX_FILES: usize = 100_000;

/// Why a file is left out although it is a record.
const NO_ROOM: &str = "its directory has more bytes than are kept";

/// Files that are not valid records, or not kept, and why.
pub(super) type Junk = Vec<(String, &'static str)>;

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
    last_full_look: Option<Instant>,
    proof: Option<Proof>,
    /// Makes a file in a directory and removes it.
    pub(super) probe: fn(&Path) -> io::Result<()>,
    /// Each is told once.
    pub(super) junk: Junk,
}

/// What is known of the directory's taking writes.
#[derive(Clone, Copy)]
struct Proof {
    /// When that was looked at last.
    at: Instant,
    holds: bool,
}

struct Folder {
    bucket: Bucket,
    /// The directory's own time when it was last read, `None` before the first.
    read: Option<SystemTime>,
    files: HashMap<String, Seen>,
    /// What the records in it hold, and may hold at most.
    bytes: usize,
    max_bytes: usize,
    /// Whether it has [`MAX_FILES`], and what is beyond is not seen.
    is_full: bool,
    /// Somebody wrote to it since this was taken last.
    written: bool,
}

struct Seen {
    time: SystemTime,
    content: Content,
    /// When it was last touched, by our clock; `None` for a file that was dead at first sight.
    touched: Option<Instant>,
    first_seen: Instant,
    /// `None` for what is not a record, or not kept.
    record: Option<(Key, Bytes)>,
}

/// Tells a file that was only touched from one that was written. Owners replace a file by another one; and a write leaves one time
/// as that of the change and of the content, where a touch says a time of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Content {
    node: (u64, u64),
    made: Option<SystemTime>,
    bytes: u64,
}

impl Content {
    fn of(metadata: &Metadata) -> Self {
        Self { node: (metadata.dev(), metadata.ino()), made: metadata.created().ok(), bytes: metadata.len() }
    }

    fn is_only_touched(self, metadata: &Metadata) -> bool {
        let written_last = (metadata.mtime(), metadata.mtime_nsec()) == (metadata.ctime(), metadata.ctime_nsec());
        self == Self::of(metadata) && !written_last
    }
}

impl Scanner {
    /// Of all records below a prefix, and in each directory at most as many bytes as a watch holds.
    pub(super) fn new(store: FileStore, prefix: &str) -> Self {
        Self::bounded(store, prefix, MAX_BYTES)
    }

    pub(super) fn bounded(store: FileStore, prefix: &str, max_bytes: usize) -> Self {
        let related = |bucket: &Bucket| bucket.prefix().starts_with(prefix) || prefix.starts_with(&bucket.prefix());
        let folders = Bucket::ALL.into_iter().filter(related);
        let folder = |bucket| Folder { bucket, read: None, files: HashMap::new(), bytes: 0, max_bytes, is_full: false, written: false };
        let folders = folders.map(folder).collect();
        Self { store, prefix: prefix.to_owned(), folders, last_look: None, last_full_look: None, proof: None, probe, junk: Vec::new() }
    }

    /// One look. An error, a directory that vanished among them, leaves what was seen as it was.
    pub(super) fn look(&mut self, now: Instant) -> Result<Found, String> {
        self.skip_time(now);
        let full = self.last_full_look.is_none_or(|last| now - last >= FULL_LOOK);
        if full {
            self.last_full_look = Some(now);
        }
        let looks = self.folders.iter_mut().map(|folder| folder.look(&self.store, (now, full), &mut self.junk));
        // All of them look, also when one fails: a removed directory is made anew by it.
        let looks: Vec<Result<bool, String>> = looks.collect();
        let changed = looks.into_iter().try_fold(false, |changed, look| Ok::<_, String>(changed | look?))?;
        self.prove(now)?;
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
        self.forgive(away, now);
        if let Some(proof) = &mut self.proof {
            proof.at += away;
        }
    }

    /// Whether files could be touched lately. If not, what they were not touched is no sign of death.
    fn prove(&mut self, now: Instant) -> Result<(), String> {
        let written = self.folders.iter_mut().fold(false, |written, folder| written | std::mem::take(&mut folder.written));
        let ttl = self.store.ttl;
        let proof = *self.proof.get_or_insert(Proof { at: now, holds: true });
        let is_alive = |seen: &Seen| seen.touched.is_some_and(|touched| now - touched < ttl);
        let asked = self.folders.iter().find(|folder| folder.files.values().any(is_alive));
        let asked = asked.map(|folder| self.store.folder(folder.bucket)).filter(|_| !written);
        let Some(path) = asked else {
            self.proof = Some(Proof { at: now, holds: true });
            return Ok(());
        };
        if proof.holds && now - proof.at < ttl / 3 {
            return Ok(());
        }
        let probed = (self.probe)(&path);
        if probed.is_err() || !proof.holds {
            self.forgive(now - proof.at, now);
        }
        self.proof = Some(Proof { at: now, holds: probed.is_ok() });
        probed.map_err(|error| failed("no file is touched any more, and writing to", &path, &error))
    }

    /// Takes time off all files' ages.
    fn forgive(&mut self, time: Duration, now: Instant) {
        let files = self.folders.iter_mut().flat_map(|folder| folder.files.values_mut());
        files.filter_map(|seen| seen.touched.as_mut()).for_each(|touched| *touched = (*touched + time).min(now));
    }
}

impl Folder {
    /// Whether the directory was read: always by a full look, else where its own time tells of a change.
    fn look(&mut self, store: &FileStore, (now, full): (Instant, bool), junk: &mut Junk) -> Result<bool, String> {
        let path = store.folder(self.bucket);
        let time = match fs::metadata(&path).and_then(|folder| folder.modified()) {
            Ok(time) => time,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.vanished(&path),
            Err(error) => return Err(failed("reading", &path, &error)),
        };
        if !full && self.read == Some(time) {
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
        self.files.retain(|name, seen| {
            let stays = there.contains(name);
            self.bytes -= if stays { 0 } else { seen.held() };
            stays
        });
        self.bury(&path, store.ttl, now);
        self.read = Some(time);
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
        let content = Content::of(metadata);
        if self.files.get(name).is_some_and(|seen| seen.time == time && seen.content == content) {
            return;
        }
        self.written = true;
        if let Some(seen) = self.files.get_mut(name)
            && seen.record.is_some()
            && seen.content.is_only_touched(metadata)
        {
            (seen.time, seen.touched) = (time, Some(now));
            return;
        }
        let known = self.files.get(name);
        let before = known.map_or(0, Seen::held);
        let room = self.max_bytes - (self.bytes - before);
        let record = match (record((self.bucket, room), path, name, metadata), known) {
            (Ok(record), _) => Some(record),
            (Err(Some(NO_ROOM)), Some(seen)) => {
                junk.extend(seen.record.as_ref().map(|_| (path.display().to_string(), NO_ROOM)));
                None
            }
            // It may be on its way out; until it is, it is what it was.
            (Err(_), Some(seen)) => seen.record.clone(),
            (Err(reason), None) => {
                junk.extend(reason.map(|reason| (path.display().to_string(), reason)));
                None
            }
        };
        let touched = if known.is_some() { Some(now) } else { at_first_sight(time, ttl, now) };
        let first_seen = known.map_or(now, |seen| seen.first_seen);
        let seen = Seen { time, content, touched, first_seen, record };
        self.bytes = self.bytes - before + seen.held();
        self.files.insert(name.to_owned(), seen);
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

impl Seen {
    /// Bytes of its content that are kept.
    fn held(&self) -> usize {
        self.record.as_ref().map_or(0, |(_, value)| value.len())
    }
}

/// When a file that was never seen before was touched, by our clock; `None` if it is dead.
fn at_first_sight(time: SystemTime, ttl: Duration, now: Instant) -> Option<Instant> {
    // A time in the future is that of a host whose clock is ahead.
    let age = time.elapsed().unwrap_or_default();
    (age < ttl).then(|| now.checked_sub(age).unwrap_or(now))
}

/// The record in a file; else why it is left out, `None` for what is nobody's business.
fn record((bucket, room): (Bucket, usize), path: &Path, name: &str, metadata: &Metadata) -> Result<(Key, Bytes), Option<&'static str>> {
    if name.starts_with(".tmp_") {
        return Err(None);
    }
    if !metadata.is_file() {
        return Err(Some("no file"));
    }
    let rest = name::decode(name).filter(|rest| !rest.is_empty()).ok_or(Some("no name of a key"))?;
    // Not opened if its size tells already that there is no room for it.
    if metadata.len() > room as u64 {
        return Err(Some(NO_ROOM));
    }
    let value = read(path).map_err(|_| Some("not readable, or too large"))?;
    if value.len() > room {
        return Err(Some(NO_ROOM));
    }
    Ok((Key::new(bucket, &rest), value))
}

/// Whether a directory takes writes. What is left of the file, should this process end meanwhile, dies as every draft does.
fn probe(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".tmp_{:016x}", rand::random::<u64>()));
    let made = File::create_new(&path).and_then(|file| file.set_modified(SystemTime::now()));
    let removed = fs::remove_file(&path);
    made.and(removed)
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
