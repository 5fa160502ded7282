//! Raw places in the arena and in scratch that the tasks of a parallel loop share, and the checks made before.

use crate::arena::{FloatVector, Tensor};
use crate::ops::Ops;

/// A pointer that parallel tasks may copy. It carries no proof: each use states why it is in bounds and why no
/// other task writes there.
#[derive(Clone, Copy)]
pub(crate) struct Place<T = f32>(*mut T);

// SAFETY: only the pointer is shared; every dereference is the duty of the op that makes it.
unsafe impl<T> Send for Place<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    pub(crate) fn new(start: *mut T) -> Self {
        Self(start)
    }
    pub(crate) fn start(self) -> *mut T {
        self.0
    }
    /// The place `offset` values further on, as a pointer.
    ///
    /// # Safety
    /// The result stays inside (or one past) the memory this place belongs to.
    #[inline(always)]
    pub(crate) unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: passed on.
        unsafe { self.0.add(offset) }
    }
}

impl Ops {
    /// The start of `tensor` in the arena; its elements are the next `tensor.len()` floats.
    pub(crate) fn place(&mut self, tensor: Tensor) -> Place {
        let range = tensor.range();
        self.check("tensor", tensor);
        // SAFETY: `check` asserted that the tensor lies inside the arena.
        Place(unsafe { self.arena_start().add(range.start) })
    }
}

/// Start of a float vector, to read.
pub(crate) fn place_of(vector: &FloatVector) -> Place {
    Place(vector.as_slice().as_ptr().cast_mut())
}

/// Asserts that an op's output overlaps none of its inputs.
pub(crate) fn assert_apart(output: (&str, Tensor), inputs: &[(&str, Tensor)]) {
    for input in inputs {
        assert!(!output.1.overlaps(&input.1), "{} overlaps {}", output.0, input.0);
    }
}

/// Asserts that an op's output overlaps none of its inputs, or else is that very tensor (computed in place).
pub(crate) fn assert_apart_or_same(output: (&str, Tensor), inputs: &[(&str, Tensor)]) {
    for input in inputs {
        let apart = !output.1.overlaps(&input.1) || output.1.range() == input.1.range();
        assert!(apart, "{} overlaps {} without being it", output.0, input.0);
    }
}

/// Asserts that two tensors have one shape.
pub(crate) fn assert_same_shape(first: (&str, Tensor), second: (&str, Tensor)) {
    assert_eq!(
        (first.1.rows(), first.1.columns()),
        (second.1.rows(), second.1.columns()),
        "shapes of {} and {}",
        first.0,
        second.0
    );
}
