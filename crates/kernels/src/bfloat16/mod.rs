//! Tensors stored in half the memory: bfloat16 is the upper half of a float32, rounded to nearest, ties to even.
//! Relative error at most 2^-8; magnitudes keep their range.

#[cfg(test)]
mod tests;

use crate::arena::{ArenaPlan, Tensor};
use crate::ops::{Ops, Work};
use crate::place::assert_apart;

/// Rows of a task at least hold so many values: long enough to hide the cost of handing it out.
const TASK_VALUES: usize = 8192;

/// A place for `rows` rows of `columns` bfloat16 values: two to a float of the arena.
pub fn stored_tensor(arena: &mut ArenaPlan, rows: usize, columns: usize) -> Tensor {
    arena.tensor(rows, columns.div_ceil(2))
}

/// The upper half of `value`, rounded. A NaN stays one: its payload could round to infinity.
#[inline(always)]
fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    let nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { nearest }) as u16
}

impl Ops {
    /// `stored = bfloat16(x)` (overwritten) for x [T, C] and stored [T, ceil(C/2)], see [`stored_tensor`].
    pub fn store_bfloat16(&mut self, x: Tensor, stored: Tensor) {
        check(x, stored);
        assert_apart(("stored", stored), &[("x", x)]);
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let (rows, columns, halves) = (x.rows(), x.columns(), 2 * stored.columns());
        let (x, stored) = (self.place(x), self.place(stored));
        let rows_at_once = TASK_VALUES.div_ceil(columns.max(1));
        self.pool.run(rows.div_ceil(rows_at_once), &|task, _| {
            for row in task * rows_at_once..rows.min((task + 1) * rows_at_once) {
                // SAFETY: each task has its own rows of both tensors, which are apart; a row of `stored` has room for
                // `halves >= columns` values of two bytes.
                let (from, to) = unsafe {
                    let to = stored.at(row * halves / 2).cast::<u16>();
                    (
                        std::slice::from_raw_parts(x.at(row * columns), columns),
                        std::slice::from_raw_parts_mut(to, columns),
                    )
                };
                from.iter().zip(to).for_each(|(from, to)| *to = rounded(*from));
            }
        });
    }

    /// `x = float32(stored)` (overwritten), exact, for stored [T, ceil(C/2)] and x [T, C].
    pub fn load_bfloat16(&mut self, stored: Tensor, x: Tensor) {
        check(x, stored);
        assert_apart(("x", x), &[("stored", stored)]);
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let (rows, columns, halves) = (x.rows(), x.columns(), 2 * stored.columns());
        let (x, stored) = (self.place(x), self.place(stored));
        let rows_at_once = TASK_VALUES.div_ceil(columns.max(1));
        self.pool.run(rows.div_ceil(rows_at_once), &|task, _| {
            for row in task * rows_at_once..rows.min((task + 1) * rows_at_once) {
                // SAFETY: as in `store_bfloat16`, and every bit pattern is a `u16`.
                let (from, to) = unsafe {
                    let from = stored.at(row * halves / 2).cast::<u16>().cast_const();
                    (
                        std::slice::from_raw_parts(from, columns),
                        std::slice::from_raw_parts_mut(x.at(row * columns), columns),
                    )
                };
                from.iter().zip(to).for_each(|(from, to)| *to = f32::from_bits(u32::from(*from) << 16));
            }
        });
    }
}

fn check(x: Tensor, stored: Tensor) {
    let expected = (x.rows(), x.columns().div_ceil(2));
    assert_eq!((stored.rows(), stored.columns()), expected, "shape of {} stored rows", x.rows());
}
