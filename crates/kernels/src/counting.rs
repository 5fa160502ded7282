//! An allocator that counts, for tests which prove that a step allocates nothing. It lives here because it cannot be
//! written without `unsafe`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a count of the allocations of each thread. A test binary installs it with
/// `#[global_allocator]`.
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

impl CountingAllocator {
    /// Allocations that `work` makes on this thread; zero unless this is the program's allocator.
    pub fn count(work: impl FnOnce()) -> usize {
        let before = ALLOCATIONS.get();
        work();
        ALLOCATIONS.get() - before
    }

    fn note() {
        // A thread that is ending has no count any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: every call is passed on unchanged; counting touches a thread-local number only.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note();
        // SAFETY: as above.
        unsafe { System.realloc(start, layout, size) }
    }
}
