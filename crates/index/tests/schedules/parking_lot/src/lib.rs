//! As much of `parking_lot` as the index uses, over locks of which shuttle decides who gets them.
//!
//! `bump` lets go and takes again, always: the real one does so when somebody waits, so all it can do happens here too.

use std::ops::{Deref, DerefMut};

use shuttle::sync;

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// As `parking_lot::MutexGuard`.
pub type MutexGuard<'a, T> = sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("a panic ends the schedule")
    }
}

/// As `parking_lot::RwLock`.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// As `parking_lot::RwLockReadGuard`. `None` within `bump` only.
pub struct RwLockReadGuard<'a, T> {
    lock: &'a RwLock<T>,
    guard: Option<sync::RwLockReadGuard<'a, T>>,
}

/// As `parking_lot::RwLockWriteGuard`. `None` within `bump` only.
pub struct RwLockWriteGuard<'a, T> {
    lock: &'a RwLock<T>,
    guard: Option<sync::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits for the lock, beside other readers.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { lock: self, guard: Some(self.0.read().expect("a panic ends the schedule")) }
    }

    /// As [`RwLock::read`]: that somebody asks in vain first changes no order of holds.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        Some(self.read())
    }

    /// Nobody looks before waiting here, for the same reason.
    pub fn is_locked_exclusive(&self) -> bool {
        false
    }

    /// Waits for the lock, alone.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { lock: self, guard: Some(self.0.write().expect("a panic ends the schedule")) }
    }
}

impl<T> RwLockReadGuard<'_, T> {
    /// Lets others in between.
    pub fn bump(this: &mut Self) {
        this.guard = None;
        this.guard = Some(this.lock.0.read().expect("a panic ends the schedule"));
    }
}

impl<T> RwLockWriteGuard<'_, T> {
    /// Lets others in between.
    pub fn bump(this: &mut Self) {
        this.guard = None;
        this.guard = Some(this.lock.0.write().expect("a panic ends the schedule"));
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held but within bump")
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held but within bump")
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held but within bump")
    }
}
