//! The lock of a directory: 1.6.1 takes it around every change, so that its look for dead files and a write do not meet.

use std::{
    fs::{File, TryLockError},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long it is waited for. A process that is frozen while it holds the lock must not keep others from registering: each
/// single step here is atomic without it.
const WAIT: Duration = Duration::from_secs(1);

const PAUSE: Duration = Duration::from_millis(10);

/// Held until dropped; `None` where it cannot be had, as on file systems without locks.
pub(super) fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    let end = Instant::now() + WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
        }
    }
}
