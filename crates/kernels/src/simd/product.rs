//! Small float32 products, blocked for registers: the inner loops of attention and of the adapters.
//!
//! Each output element is one chain of fused multiply-adds over the common dimension, in order, so the blocking
//! never changes a bit.

use super::{Element, Kernel, LANES, Simd};

/// Rows of a register tile. Callers that cut rows into tiles themselves use it too.
pub(crate) const TILE_ROWS: usize = 6;

/// `C [m, n] = A B` or `C += A B`, with the columns of B and C along vectors.
pub(crate) struct Product<E = f32> {
    /// Element (i, l) of A [m, k] is at `i * a_row + l * a_step`: either dimension may be the contiguous one.
    pub a: *const f32,
    pub a_row: usize,
    pub a_step: usize,
    /// B [k, n], rows `b_row` apart.
    pub b: *const E,
    pub b_row: usize,
    /// C [m, n], rows `c_row` apart; overlaps neither A nor B.
    pub c: *mut f32,
    pub c_row: usize,
    pub m: usize,
    pub k: usize,
    /// A multiple of 16.
    pub n: usize,
    pub accumulate: bool,
}

impl<E: Element> Kernel for Product<E> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        debug_assert!(self.n.is_multiple_of(LANES));
        let mut i = 0;
        // SAFETY: rows `i..i + R` are inside `m` in each call.
        unsafe {
            if S::MANY_REGISTERS && self.m == 8 {
                // The most common rank: one pass over B.
                return self.row_tile::<S, 8, 3>(0);
            }
            while i + TILE_ROWS <= self.m {
                self.row_tile::<S, TILE_ROWS, 4>(i);
                i += TILE_ROWS;
            }
            if i + 4 <= self.m {
                self.row_tile::<S, 4, 4>(i);
                i += 4;
            }
            if i + 2 <= self.m {
                self.row_tile::<S, 2, 4>(i);
                i += 2;
            }
            if i < self.m {
                self.row_tile::<S, 1, 4>(i);
            }
        }
    }
}

impl<E: Element> Product<E> {
    /// Rows `i..i + R` of C, in tiles of V vectors where registers allow.
    #[inline(always)]
    unsafe fn row_tile<S: Simd, const R: usize, const V: usize>(&self, i: usize) {
        let mut j = 0;
        // SAFETY: columns `j..j + 16 V` are inside `n` in each call.
        unsafe {
            if S::MANY_REGISTERS {
                while j + V * LANES <= self.n {
                    self.tile::<S, R, V>(i, j);
                    j += V * LANES;
                }
                match (self.n - j) / LANES {
                    3 => self.tile::<S, R, 3>(i, j),
                    2 => self.tile::<S, R, 2>(i, j),
                    1 => self.tile::<S, R, 1>(i, j),
                    _ => {}
                }
            } else {
                while j < self.n {
                    self.tile::<S, R, 1>(i, j);
                    j += LANES;
                }
            }
        }
    }

    /// Rows `i..i + R` and columns `j..j + 16 V` of C, held in registers.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const V: usize>(&self, i: usize, j: usize) {
        // SAFETY: the tile lies inside the matrices, as the struct describes them.
        unsafe {
            let c = self.c.add(i * self.c_row + j);
            let mut sums = [[S::zero(); V]; R];
            if self.accumulate {
                for (r, row) in sums.iter_mut().enumerate() {
                    for (v, sum) in row.iter_mut().enumerate() {
                        *sum = S::load(c.add(r * self.c_row + v * LANES));
                    }
                }
            }
            let mut a = self.a.add(i * self.a_row);
            let mut b = self.b.add(j);
            for _ in 0..self.k {
                let row: [S; V] = std::array::from_fn(|v| E::load::<S>(b.add(v * LANES)));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let factor = S::splat(*a.add(r * self.a_row));
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = factor.mul_add(row[v], *sum);
                    }
                }
                a = a.wrapping_add(self.a_step);
                b = b.wrapping_add(self.b_row);
            }
            for (r, row) in sums.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    sum.store(c.add(r * self.c_row + v * LANES));
                }
            }
        }
    }
}

/// `C [m, n] = A B^T` or `C += A B^T`, with the common dimension along vectors: for matrices whose rows are long and
/// of which one has few rows.
pub(crate) struct DotProduct {
    /// A [m, k], rows `a_row` apart.
    pub a: *const f32,
    pub a_row: usize,
    /// B [n, k], rows `b_row` apart.
    pub b: *const f32,
    pub b_row: usize,
    /// C [m, n], rows `c_row` apart; overlaps neither A nor B.
    pub c: *mut f32,
    pub c_row: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub accumulate: bool,
}

impl Kernel for DotProduct {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: rows `i..i + R` are inside `m` in each call.
        unsafe {
            let mut i = 0;
            if S::MANY_REGISTERS {
                while i + 6 <= self.m {
                    self.row_tile::<S, 6>(i);
                    i += 6;
                }
            }
            while i + 3 <= self.m {
                self.row_tile::<S, 3>(i);
                i += 3;
            }
            while i < self.m {
                self.row_tile::<S, 1>(i);
                i += 1;
            }
        }
    }
}

impl DotProduct {
    /// Rows `i..i + R` of C.
    #[inline(always)]
    unsafe fn row_tile<S: Simd, const R: usize>(&self, i: usize) {
        // SAFETY: columns `j..j + W` are inside `n` in each call.
        unsafe {
            let mut j = 0;
            if S::MANY_REGISTERS {
                while j + 4 <= self.n {
                    self.tile::<S, R, 4>(i, j);
                    j += 4;
                }
            }
            while j + 2 <= self.n {
                self.tile::<S, R, 2>(i, j);
                j += 2;
            }
            if j < self.n {
                self.tile::<S, R, 1>(i, j);
            }
        }
    }

    /// Rows `i..i + R` and columns `j..j + W` of C.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const W: usize>(&self, i: usize, j: usize) {
        // SAFETY: the tile lies inside the matrices, as the struct describes them.
        unsafe {
            let a = self.a.add(i * self.a_row);
            let b = self.b.add(j * self.b_row);
            let mut sums = [[S::zero(); W]; R];
            let whole = self.k / LANES * LANES;
            let mut l = 0;
            while l < whole {
                let columns: [S; W] = std::array::from_fn(|w| S::load(b.add(w * self.b_row + l)));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let row = S::load(a.add(r * self.a_row + l));
                    for (w, sum) in sums.iter_mut().enumerate() {
                        *sum = row.mul_add(columns[w], *sum);
                    }
                }
                l += LANES;
            }
            let rest = self.k - whole;
            if rest > 0 {
                let columns: [S; W] = std::array::from_fn(|w| S::load_partial(b.add(w * self.b_row + whole), rest));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let row = S::load_partial(a.add(r * self.a_row + whole), rest);
                    for (w, sum) in sums.iter_mut().enumerate() {
                        *sum = row.mul_add(columns[w], *sum);
                    }
                }
            }
            for (r, row) in sums.iter().enumerate() {
                for (w, sum) in row.iter().enumerate() {
                    let c = self.c.add((i + r) * self.c_row + j + w);
                    *c = if self.accumulate { *c + sum.reduce_add() } else { sum.reduce_add() };
                }
            }
        }
    }
}
