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
    let (factor, whole) = (S::splat(factor), columns / LANES * LANES);
    for row in 0..rows {
        // SAFETY: inside the rows that the caller promises.
        unsafe {
            let (from, to) = (from.add(row * from_row), to.add(row * to_row));
            for i in (0..whole).step_by(LANES) {
                (S::load(from.add(i)) * factor).store(to.add(i));
            }
            if whole < columns {
                (S::load_partial(from.add(whole), columns - whole) * factor).store(to.add(whole));
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
    let (factor, whole) = (S::splat(factor), columns / LANES * LANES);
    for row in 0..rows {
        // SAFETY: inside the rows that the caller promises.
        unsafe {
            let (from, to) = (from.add(row * from_row), to.add(row * to_row));
            for i in (0..whole).step_by(LANES) {
                S::load(from.add(i)).mul_add(factor, S::load(to.add(i))).store(to.add(i));
            }
            if whole < columns {
                let sum = S::load(from.add(whole)).mul_add(factor, S::load_partial(to.add(whole), columns - whole));
                sum.store_partial(to.add(whole), columns - whole);
            }
        }
    }
}
