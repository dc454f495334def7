//! What the code under test allocates, on this thread: an allocator that counts and passes on.

// An allocator is unsafe by nature.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

thread_local! {
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static MOST_HELD_BYTES: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size());
        HELD_BYTES.set(HELD_BYTES.get() + layout.size().cast_signed());
        MOST_HELD_BYTES.set(MOST_HELD_BYTES.get().max(HELD_BYTES.get()));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.set(HELD_BYTES.get() - layout.size().cast_signed());
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Everything `work` allocates, freed or not, in bytes.
pub(crate) fn allocated<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATED_BYTES.get();
    let result = work();
    (result, ALLOCATED_BYTES.get() - before)
}

/// The most that `work` holds at once, in bytes.
pub(crate) fn most_held<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD_BYTES.get();
    MOST_HELD_BYTES.set(before);
    let result = work();
    (result, MOST_HELD_BYTES.get().saturating_sub(before).try_into().unwrap_or(0))
}
