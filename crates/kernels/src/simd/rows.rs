//! Rows copied into, and added back from, tiles whose rows are padded to whole vectors.

use super::{LANES, Simd};

/// Copies `rows` rows of `columns` floats, times `factor`, to rows `to_row` apart; zeros up to a multiple of 16.
///
/// # Safety
/// `from` holds the rows at stride `from_row`; `to` holds rows of `columns` rounded up to 16.
#[inline(always)]
pub(crate) unsafe fn pack_rows<S: Simd>(
    from: *const f32,
    from_row: usize,
    rows: usize,
    columns: usize,
    factor: f32,
    to: *mut f32,
    to_row: usize,
) {
    let factor = S::splat(factor);
    for row in 0..rows {
        for i in (0..columns).step_by(LANES) {
            // SAFETY: inside the rows that the caller promises.
            unsafe {
                (S::load_up_to(from.add(row * from_row + i), columns - i) * factor).store(to.add(row * to_row + i))
            }
        }
    }
}

/// `to += from * factor` for `rows` rows of `columns` floats.
///
/// # Safety
/// `to` holds the rows at stride `to_row`, `from` rows of `columns` rounded up to 16 at stride `from_row`.
#[inline(always)]
pub(crate) unsafe fn add_rows<S: Simd>(
    from: *const f32,
    from_row: usize,
    rows: usize,
    columns: usize,
    factor: f32,
    to: *mut f32,
    to_row: usize,
) {
    let factor = S::splat(factor);
    for row in 0..rows {
        for i in (0..columns).step_by(LANES) {
            // SAFETY: inside the rows that the caller promises.
            unsafe {
                let (to, rest) = (to.add(row * to_row + i), columns - i);
                S::load(from.add(row * from_row + i)).mul_add(factor, S::load_up_to(to, rest)).store_up_to(to, rest);
            }
        }
    }
}
