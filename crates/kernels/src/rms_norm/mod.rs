//! Root mean square normalization (Zhang and Sennrich, "Root Mean Square Layer Normalization"):
//! `y = x / sqrt(mean(x^2) + eps) * weight` per row. The weight is frozen: only the input has a gradient.

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::arena::{FloatVector, Tensor};
use crate::ops::{Ops, Work};
use crate::place::{assert_apart, assert_apart_or_same, assert_same_shape, place_of};
use crate::simd::{self, Kernel, LANES, Simd};

/// Floats in a task, whatever the width of a row.
const TASK_FLOATS: usize = 8192;

/// Sum over a row of the products of `term`, in four interleaved sums of 16 lanes.
#[inline(always)]
fn sum_of<S: Simd>(columns: usize, mut term: impl FnMut(usize, usize, S) -> S) -> f32 {
    let mut sums = [S::zero(); 4];
    for i in (0..columns).step_by(4 * LANES) {
        for (part, sum) in sums.iter_mut().enumerate() {
            let at = i + part * LANES;
            if at < columns {
                *sum = term(at, columns - at, *sum);
            }
        }
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).reduce_add()
}

/// 1 / sqrt(mean(x^2) + eps) from the sum of squares.
#[inline(always)]
fn inverse_root(sum_of_squares: f32, columns: usize, eps: f32) -> f32 {
    (1.0 / (f64::from(sum_of_squares) / columns as f64 + f64::from(eps)).sqrt()) as f32
}

/// `rows` consecutive rows of the forward direction.
struct ForwardRows {
    x: *const f32,
    weight: *const f32,
    y: *mut f32,
    rows: usize,
    columns: usize,
    eps: f32,
}
impl Kernel for ForwardRows {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let columns = self.columns;
        for row in 0..self.rows {
            // SAFETY: x and y have `rows` rows, the weight `columns` floats. A row is summed before it is written
            // and each vector is read before it is written, so y may be x.
            unsafe {
                let (x, y) = (self.x.add(row * columns), self.y.add(row * columns));
                let sum = sum_of::<S>(columns, |at, rest, sum| {
                    let x = S::load_up_to(x.add(at), rest);
                    x.mul_add(x, sum)
                });
                let inverse = S::splat(inverse_root(sum, columns, self.eps));
                for i in (0..columns).step_by(LANES) {
                    let rest = columns - i;
                    let normed = S::load_up_to(x.add(i), rest) * inverse;
                    (normed * S::load_up_to(self.weight.add(i), rest)).store_up_to(y.add(i), rest);
                }
            }
        }
    }
}

/// `rows` consecutive rows of the backward direction.
struct BackwardRows {
    x: *const f32,
    weight: *const f32,
    dy: *const f32,
    dx: *mut f32,
    rows: usize,
    columns: usize,
    eps: f32,
    accumulate: bool,
}
impl Kernel for BackwardRows {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let columns = self.columns;
        for row in 0..self.rows {
            // SAFETY: x, dy and dx have `rows` rows, the weight `columns` floats. A row is summed before it is
            // written and each vector is read before it is written, so dx may be dy.
            unsafe {
                let (x, dy) = (self.x.add(row * columns), self.dy.add(row * columns));
                let dx = self.dx.add(row * columns);
                let sum = sum_of::<S>(columns, |at, rest, sum| {
                    let x = S::load_up_to(x.add(at), rest);
                    x.mul_add(x, sum)
                });
                let dot = sum_of::<S>(columns, |at, rest, sum| {
                    let dnormed = S::load_up_to(dy.add(at), rest) * S::load_up_to(self.weight.add(at), rest);
                    dnormed.mul_add(S::load_up_to(x.add(at), rest), sum)
                });
                let inverse = inverse_root(sum, columns, self.eps);
                // d inverse / dx = -inverse^3 x / columns
                let pull = -(f64::from(inverse).powi(2) * f64::from(dot) / columns as f64) as f32;
                let (inverse, pull) = (S::splat(inverse), S::splat(pull));
                for i in (0..columns).step_by(LANES) {
                    let rest = columns - i;
                    let dnormed = S::load_up_to(dy.add(i), rest) * S::load_up_to(self.weight.add(i), rest);
                    let gradient = S::load_up_to(x.add(i), rest).mul_add(pull, dnormed) * inverse;
                    if self.accumulate {
                        (S::load_up_to(dx.add(i), rest) + gradient).store_up_to(dx.add(i), rest);
                    } else {
                        gradient.store_up_to(dx.add(i), rest);
                    }
                }
            }
        }
    }
}

impl Ops {
    /// `y = x / sqrt(mean(x^2) + eps) * weight` (overwritten) per row of x [R, C]. `y` may be `x`.
    pub fn rms_norm_forward(&mut self, x: Tensor, weight: &FloatVector, eps: f32, y: Tensor) {
        assert_same_shape(("x", x), ("y", y));
        assert_eq!(x.columns(), weight.len(), "columns of x and length of the norm weight");
        assert_apart_or_same(("y", y), &[("x", x)]);
        if !self.begin(Work::Elementwise, 0, 0) || x.is_empty() {
            return;
        }
        let (rows, columns, isa) = (x.rows(), x.columns(), self.options.isa);
        let (x, y, weight) = (self.place(x), self.place(y), place_of(weight));
        let task_rows = (TASK_FLOATS / columns).max(1);
        self.pool.run(rows.div_ceil(task_rows), &|task, _| {
            let first = task * task_rows;
            // SAFETY: tasks cover disjoint rows.
            unsafe {
                let at = first * columns;
                let rows = task_rows.min(rows - first);
                simd::dispatch(isa, ForwardRows { x: x.at(at), weight: weight.at(0), y: y.at(at), rows, columns, eps });
            }
        });
    }

    /// Gradient of the input: `dx = ...` (overwritten; `dx` may be `dy` then) or `dx += ...` with `accumulate`.
    /// All tensors [R, C]; `x` is the input of the forward.
    pub fn rms_norm_backward(
        &mut self,
        x: Tensor,
        weight: &FloatVector,
        eps: f32,
        dy: Tensor,
        dx: Tensor,
        accumulate: bool,
    ) {
        assert_same_shape(("x", x), ("dy", dy));
        assert_same_shape(("x", x), ("dx", dx));
        assert_eq!(x.columns(), weight.len(), "columns of x and length of the norm weight");
        assert_apart(("dx", dx), &[("x", x)]);
        if accumulate {
            assert_apart(("dx", dx), &[("dy", dy)]);
        } else {
            assert_apart_or_same(("dx", dx), &[("dy", dy)]);
        }
        if !self.begin(Work::Elementwise, 0, 0) || x.is_empty() {
            return;
        }
        let (rows, columns, isa) = (x.rows(), x.columns(), self.options.isa);
        let (x, dy, dx, weight) = (self.place(x), self.place(dy), self.place(dx), place_of(weight));
        let task_rows = (TASK_FLOATS / columns).max(1);
        self.pool.run(rows.div_ceil(task_rows), &|task, _| {
            let first = task * task_rows;
            // SAFETY: tasks cover disjoint rows.
            unsafe {
                let at = first * columns;
                let rows = task_rows.min(rows - first);
                let (x, dy, dx) = (x.at(at), dy.at(at), dx.at(at));
                let weight = weight.at(0);
                simd::dispatch(isa, BackwardRows { x, weight, dy, dx, rows, columns, eps, accumulate });
            }
        });
    }
}
