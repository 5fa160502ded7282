//! The gradient of a linear map's weight. Frozen weights need none: comparisons compute it to show what that saves.

#[cfg(test)]
mod tests;

use crate::arena::Tensor;
use crate::ops::{Ops, Work};
use crate::place::assert_apart;
use crate::simd::product::{Product, TILE_ROWS};
use crate::simd::{self, LANES};

/// Rows of dw in a task.
const TASK_ROWS: usize = 4 * TILE_ROWS;

impl Ops {
    /// `dw = dy^T x` (overwritten) for x [T, K], dy [T, N], dw [N, K]; K a multiple of 16, as every packed matrix's.
    pub fn weight_grad(&mut self, x: Tensor, dy: Tensor, dw: Tensor) {
        let (tokens, n, k) = (x.rows(), dy.columns(), x.columns());
        assert_eq!(dy.rows(), tokens, "rows of x and dy");
        assert_eq!((dw.rows(), dw.columns()), (n, k), "shape of dw");
        assert!(k.is_multiple_of(LANES), "{k} columns are no multiple of {LANES}");
        assert_apart(("dw", dw), &[("x", x), ("dy", dy)]);
        if !self.begin(Work::Frozen, (tokens * n * k) as u64, 0) {
            return;
        }
        let isa = self.options.isa;
        let [x, dy, dw] = [x, dy, dw].map(|tensor| self.place(tensor));
        self.pool.run(n.div_ceil(TASK_ROWS), &|task, _| {
            let first = task * TASK_ROWS;
            // SAFETY: each task has its own rows of dw; x and dy are read whole, their shapes were checked.
            unsafe {
                let product = Product {
                    a: dy.at(first),
                    a_row: 1,
                    a_step: n,
                    b: x.at(0),
                    b_row: k,
                    c: dw.at(first * k),
                    c_row: k,
                    m: TASK_ROWS.min(n - first),
                    k: tokens,
                    n: k,
                    accumulate: false,
                };
                simd::dispatch(isa, product);
            }
        });
    }
}
