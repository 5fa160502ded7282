//! What vectors of floats can be read from.

use super::Simd;

/// A type of stored values.
pub(crate) trait Element: Copy {
    /// # Safety
    /// `from` points to 16 readable values.
    unsafe fn load<S: Simd>(from: *const Self) -> S;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32) -> S {
        // SAFETY: passed on.
        unsafe { S::load(from) }
    }
}

impl Element for half::f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const half::f16) -> S {
        // SAFETY: passed on; the type is its 16 bits.
        unsafe { S::load_f16(from.cast()) }
    }
}

impl Element for i8 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const i8) -> S {
        // SAFETY: passed on.
        unsafe { S::load_i8(from) }
    }
}
