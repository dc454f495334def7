//! Asks the processor for memory that will be read soon, and does not wait for it.
//!
//! One of two places with `unsafe`; the other is the call of an AVX2 function in `hash::windows`. What it buys: names lie at
//! random in tables larger than the caches, so an insertion or a removal waits for the memory; asked for some names ahead, that
//! time is spent on the names before. Reading the memory instead (which needs no `unsafe`) holds up everything behind the read.
//! There are two distances: into the first cache for what is read next, into the second for what is far ahead.
#![allow(unsafe_code, reason = "prefetching takes a pointer; see the proof")]

/// Words of a line of the memory.
pub(crate) const LINE: usize = 64 / size_of::<u64>();
/// Words of a page, whose address is translated as one.
pub(crate) const PAGE: usize = 4096 / size_of::<u64>();

/// Has the line of the memory in which `item` begins come near.
#[inline]
pub(crate) fn approach<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint, reads nothing the program can see, and faults on no address; this one is valid besides,
    // being that of a reference. SSE, which has the instruction, is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(item).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// As [`approach`], but only as near as the second-level cache: a line that is far ahead and alone. Nearer, it would make the
/// processor guess where a reader goes on that is somewhere else.
#[inline]
pub(crate) fn approach_half<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `approach`.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(std::ptr::from_ref(item).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
