//! Memory: aligned buffers, tensor handles, and the plan that places every tensor before the first step.

use std::ops::Range;
use std::ptr::NonNull;

/// Alignment of every buffer and tensor in bytes: one cache line, one AVX-512 vector.
pub const ALIGNMENT_BYTES: usize = 64;
/// Tensors start at multiples of this many floats.
const ALIGNMENT_FLOATS: usize = ALIGNMENT_BYTES / size_of::<f32>();
/// Buffers of this size and more are aligned to, and ask for, huge pages (fewer TLB misses in the products).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Types whose every bit pattern is a value, so that a zeroed buffer is a valid array of them.
pub trait Plain: Copy + Send + Sync + 'static {}
impl Plain for f32 {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i16 {}
impl Plain for u32 {}
impl Plain for i32 {}

/// A zero-initialized array aligned to [`ALIGNMENT_BYTES`]. All its pages are in memory from the start.
pub struct AlignedBuffer<T: Plain> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its memory and `T` is plain data, so moving or sharing it is as safe as for `Vec<T>`.
unsafe impl<T: Plain> Send for AlignedBuffer<T> {}
// SAFETY: as above; shared access is read-only.
unsafe impl<T: Plain> Sync for AlignedBuffer<T> {}

impl<T: Plain> AlignedBuffer<T> {
    fn layout(len: usize) -> std::alloc::Layout {
        let bytes = len.checked_mul(size_of::<T>()).expect("buffer size overflows");
        let alignment = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { ALIGNMENT_BYTES };
        let size = bytes.max(1).next_multiple_of(alignment);
        std::alloc::Layout::from_size_align(size, alignment).expect("buffer size overflows")
    }

    /// A buffer of `len` zeros. Aborts the process when the system has no memory, as `Vec` does.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { std::alloc::alloc(layout) };
        let Some(start) = NonNull::new(start.cast::<T>()) else { std::alloc::handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        if layout.size() >= HUGE_PAGE_BYTES {
            // Before the first byte is written: a page that is there already stays small.
            // SAFETY: the range is the allocation just made; the advice changes no content.
            unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        // SAFETY: the allocation has this many bytes, and zeros are values of every plain type.
        unsafe { start.as_ptr().cast::<u8>().write_bytes(0, layout.size()) };
        Self { start, len }
    }

    /// A buffer holding a copy of `values`.
    pub fn from_slice(values: &[T]) -> Self {
        let mut buffer = Self::zeroed(values.len());
        buffer.copy_from_slice(values);
        buffer
    }
}

/// From here on, memory of a megabyte and more goes back to the system as soon as it is freed, so that a plan of the
/// memory that is left counts nothing that only the allocator holds. The allocator of GNU/Linux, which this is about,
/// else keeps up to 64 MB once a buffer of 32 MB was freed. For programs, at their start.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the setting changes where later allocations come from, and nothing about those that are there.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

impl<T: Plain> Drop for AlignedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc` with this very layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr().cast(), Self::layout(self.len)) }
    }
}

impl<T: Plain> std::ops::Deref for AlignedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `start` points to `len` initialized values owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> std::ops::DerefMut for AlignedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A small frozen float vector of the model (norm weights, biases), opaque to block code.
pub struct FloatVector(AlignedBuffer<f32>);

impl FloatVector {
    pub fn from_slice(values: &[f32]) -> Self {
        Self(AlignedBuffer::from_slice(values))
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn as_slice(&self) -> &[f32] {
        &self.0
    }
}

/// Handle of a float32 matrix [rows, columns], row-major and dense, in the arena of an [`crate::Ops`].
///
/// A handle is only a place: it stays valid as long as the arena, and two handles may overlap when the
/// plan put them so. Every op asserts that its outputs overlap none of its inputs unless its contract allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    offset: usize,
    rows: usize,
    columns: usize,
}

impl Tensor {
    pub fn rows(&self) -> usize {
        self.rows
    }
    pub fn columns(&self) -> usize {
        self.columns
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows * self.columns
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The same elements seen as [rows, columns].
    pub fn reshaped(&self, rows: usize, columns: usize) -> Tensor {
        assert_eq!(self.len(), rows * columns, "reshape of [{}, {}] to [{rows}, {columns}]", self.rows, self.columns);
        Tensor { offset: self.offset, rows, columns }
    }
    /// The first `rows` rows: buffers are planned for the longest example and used by shorter ones.
    pub fn first_rows(&self, rows: usize) -> Tensor {
        self.row_range(0..rows)
    }
    /// Rows `range` of this tensor.
    pub fn row_range(&self, range: Range<usize>) -> Tensor {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        Tensor { offset: self.offset + range.start * self.columns, rows: range.len(), columns: self.columns }
    }
    /// Elements `range` of the flat tensor as one row.
    pub fn flat_range(&self, range: Range<usize>) -> Tensor {
        assert!(range.start <= range.end && range.end <= self.len(), "elements {range:?} of {}", self.len());
        Tensor { offset: self.offset + range.start, rows: 1, columns: range.len() }
    }
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
    pub fn overlaps(&self, other: &Tensor) -> bool {
        let (a, b) = (self.range(), other.range());
        a.start < b.end && b.start < a.end
    }
}

/// Places tensors one after the other; `mark` and `release` give space back in stack order, so that
/// tensors which never live at the same time share it. Only counts: no memory is touched.
#[derive(Clone, Debug, Default)]
pub struct ArenaPlan {
    next: usize,
    peak: usize,
}

/// A point to which [`ArenaPlan::release`] returns.
#[derive(Clone, Copy, Debug)]
pub struct ArenaMark(usize);

impl ArenaPlan {
    pub fn new() -> Self {
        Self::default()
    }
    /// Places a tensor of [rows, columns], aligned to [`ALIGNMENT_BYTES`].
    pub fn tensor(&mut self, rows: usize, columns: usize) -> Tensor {
        let tensor = Tensor { offset: self.next, rows, columns };
        self.next += tensor.len().next_multiple_of(ALIGNMENT_FLOATS);
        self.peak = self.peak.max(self.next);
        tensor
    }
    pub fn mark(&self) -> ArenaMark {
        ArenaMark(self.next)
    }
    /// Frees the space of every tensor placed after `mark`.
    pub fn release(&mut self, mark: ArenaMark) {
        assert!(mark.0 <= self.next, "released out of stack order");
        self.next = mark.0;
    }
    /// Floats that the arena must hold.
    pub fn peak_floats(&self) -> usize {
        self.peak
    }
    pub fn peak_bytes(&self) -> usize {
        self.peak * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_shares_released_space_and_keeps_alignment() {
        let mut plan = ArenaPlan::new();
        let a = plan.tensor(3, 5);
        let mark = plan.mark();
        let b = plan.tensor(7, 11);
        plan.release(mark);
        let c = plan.tensor(2, 2);
        assert!(b.overlaps(&c) && !a.overlaps(&b) && !a.overlaps(&c));
        assert_eq!(b.range().start % ALIGNMENT_FLOATS, 0);
        assert_eq!(plan.peak_floats(), 16 + 80);
    }

    #[test]
    fn buffers_are_aligned_and_zero() {
        for len in [0, 1, 63, 1 << 20] {
            let buffer = AlignedBuffer::<f32>::zeroed(len);
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT_BYTES, 0);
            assert!(buffer.iter().all(|x| *x == 0.0));
        }
    }
}
