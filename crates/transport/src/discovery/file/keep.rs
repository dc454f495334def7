//! The owner's side of the directory: one pass over what a process wants registered.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    path::Path,
    time::{Instant, SystemTime},
};

use wire::discovery::{Key, MAX_DOCUMENT_BYTES};

use super::{FileStore, failed, lock::lock, scan::read};
use crate::discovery::registration::Task;

/// How a task ended. One that met an error of the file system has no outcome: it is tried again.
pub(in crate::discovery) enum Outcome {
    Held,
    Removed,
    Contested,
    Refused(String),
}

/// What the passes remember.
#[derive(Debug)]
pub(in crate::discovery) struct Keeper {
    store: FileStore,
    touched: HashMap<Key, Instant>,
    /// Files of others in our place: their time, and since when it has not changed.
    rivals: HashMap<Key, (SystemTime, Instant)>,
}

impl Keeper {
    pub(in crate::discovery) fn new(store: FileStore) -> Self {
        Self { store, touched: HashMap::new(), rivals: HashMap::new() }
    }

    /// Tries all tasks; the first error is the pass's.
    pub(super) fn keep(&mut self, tasks: Vec<Task>, now: Instant) -> (Vec<(Task, Outcome)>, Result<(), String>) {
        let mut outcomes = Vec::new();
        let mut result = Ok(());
        for task in tasks {
            match self.one(&task, now) {
                Ok(outcome) => outcomes.push((task, outcome)),
                Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                    let reason = "its file name would be too long for this file system".to_owned();
                    outcomes.push((task, Outcome::Refused(reason)));
                }
                Err(error) => result = result.and(Err(failed("writing", &self.store.path(&task.key), &error))),
            }
        }
        (outcomes, result)
    }

    fn one(&mut self, task: &Task, now: Instant) -> io::Result<Outcome> {
        let path = self.store.path(&task.key);
        let there = match read(&path) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let ours = there.as_ref().is_some_and(|there| *there == task.value || task.written.as_ref() == Some(there));
        if task.withdrawn {
            self.touched.remove(&task.key);
            self.rivals.remove(&task.key);
            if ours {
                remove(&path)?;
            }
            return Ok(Outcome::Removed);
        }
        if task.value.len() > MAX_DOCUMENT_BYTES {
            return Ok(Outcome::Refused(format!("its document has {} bytes, at most {MAX_DOCUMENT_BYTES} are read", task.value.len())));
        }
        match there {
            Some(there) if there == task.value => self.touch(task, &path, now)?,
            Some(_) if ours => self.publish(task, &path, now, Publish::Replace)?,
            Some(_) => return self.rival(task, &path, now),
            None => self.publish(task, &path, now, Publish::Create)?,
        }
        self.rivals.remove(&task.key);
        Ok(Outcome::Held)
    }

    fn touch(&mut self, task: &Task, path: &Path, now: Instant) -> io::Result<()> {
        let due = self.touched.get(&task.key).is_none_or(|touched| now - *touched >= self.store.ttl / 3);
        if due {
            File::options().write(true).open(path)?.set_modified(SystemTime::now())?;
            self.touched.insert(task.key.clone(), now);
        }
        Ok(())
    }

    /// The file appears at once and whole.
    fn publish(&mut self, task: &Task, path: &Path, now: Instant, how: Publish) -> io::Result<()> {
        let folder = self.store.folder(task.key.bucket());
        fs::create_dir_all(&folder)?;
        let _lock = lock(&folder);
        let draft = folder.join(format!(".tmp_{:016x}", rand::random::<u64>()));
        let written = File::create_new(&draft).and_then(|mut file| file.write_all(&task.value)).and_then(|()| how.publish(&draft, path));
        if written.is_err() {
            // What is left of it, if anything is, dies like every file nobody touches.
            let _ = fs::remove_file(&draft);
        }
        written?;
        self.touched.insert(task.key.clone(), now);
        Ok(())
    }

    /// Another owner's file stays while it is touched.
    fn rival(&mut self, task: &Task, path: &Path, now: Instant) -> io::Result<Outcome> {
        let time = fs::metadata(path)?.modified()?;
        let (seen, since) = self.rivals.entry(task.key.clone()).or_insert((time, now));
        if *seen != time {
            (*seen, *since) = (time, now);
        }
        if now - *since < self.store.ttl {
            return Ok(Outcome::Contested);
        }
        self.publish(task, path, now, Publish::Replace)?;
        Ok(Outcome::Held)
    }
}

#[derive(Clone, Copy)]
enum Publish {
    /// Fails when the file is there.
    Create,
    Replace,
}

impl Publish {
    fn publish(self, draft: &Path, path: &Path) -> io::Result<()> {
        match self {
            Publish::Replace => fs::rename(draft, path),
            Publish::Create => match fs::hard_link(draft, path) {
                Ok(()) => fs::remove_file(draft),
                // Some file systems have no links.
                Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => {
                    fs::rename(draft, path)
                }
                Err(error) => Err(error),
            },
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let _lock = path.parent().and_then(lock);
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
