//! Copies with rows and columns exchanged, a 16 x 16 block in registers at a time.

use super::{LANES, Simd};

/// `to[c][r] = from[r][c]` for `rows` x `columns` floats; rows of `from` are `from_stride` floats apart, those of
/// `to` are `to_stride`. Columns `rows..rows_padded` of `to` are set to zero.
///
/// # Safety
/// `from` holds `rows` rows of `columns` floats and `to` holds `columns` rows of `rows_padded` floats at these
/// strides; they do not overlap; `rows <= rows_padded`.
#[inline(always)]
pub(crate) unsafe fn transpose_into<S: Simd>(
    from: *const f32,
    from_stride: usize,
    rows: usize,
    columns: usize,
    to: *mut f32,
    to_stride: usize,
    rows_padded: usize,
) {
    // SAFETY: all indices stay below the bounds that the caller promises.
    unsafe {
        let mut r = 0;
        while r < rows_padded {
            let row_count = LANES.min(rows.saturating_sub(r));
            let to_count = LANES.min(rows_padded - r);
            let mut c = 0;
            while c < columns {
                let column_count = LANES.min(columns - c);
                if row_count == LANES && column_count == LANES {
                    // Most blocks: fixed counts keep them in registers.
                    let mut block: [S; LANES] = std::array::from_fn(|i| S::load(from.add((r + i) * from_stride + c)));
                    S::transpose(&mut block);
                    for (i, column) in block.iter().enumerate() {
                        column.store(to.add((c + i) * to_stride + r));
                    }
                    c += LANES;
                    continue;
                }
                let mut block = [S::zero(); LANES];
                if column_count == LANES {
                    for (i, row) in block.iter_mut().enumerate().take(row_count) {
                        *row = S::load(from.add((r + i) * from_stride + c));
                    }
                } else {
                    for (i, row) in block.iter_mut().enumerate().take(row_count) {
                        *row = S::load_partial(from.add((r + i) * from_stride + c), column_count);
                    }
                }
                S::transpose(&mut block);
                if to_count == LANES {
                    for (i, column) in block.iter().enumerate().take(column_count) {
                        column.store(to.add((c + i) * to_stride + r));
                    }
                } else {
                    for (i, column) in block.iter().enumerate().take(column_count) {
                        column.store_partial(to.add((c + i) * to_stride + r), to_count);
                    }
                }
                c += LANES;
            }
            r += LANES;
        }
    }
}
