//! Small ops over whole tensors: copies, sums, gathers. Each states what it overwrites and what it adds to.

pub(crate) mod pointwise;
mod reduce;
#[cfg(test)]
mod tests;

use crate::arena::{FloatVector, Tensor};
use crate::ops::{Ops, Work};
use crate::place::{assert_apart, assert_apart_or_same, assert_same_shape, place_of};
use crate::simd::{self, Kernel, LANES, Simd};
use pointwise::Pointwise;

struct Copy;
impl Pointwise<1, 1> for Copy {
    #[inline(always)]
    fn apply<S: Simd>(&self, [x]: [S; 1]) -> [S; 1] {
        [x]
    }
}

struct Fill(f32);
impl Pointwise<0, 1> for Fill {
    #[inline(always)]
    fn apply<S: Simd>(&self, []: [S; 0]) -> [S; 1] {
        [S::splat(self.0)]
    }
}

struct Sum;
impl Pointwise<2, 1> for Sum {
    #[inline(always)]
    fn apply<S: Simd>(&self, [x, y]: [S; 2]) -> [S; 1] {
        [x + y]
    }
}

struct Scale(f32);
impl Pointwise<1, 1> for Scale {
    #[inline(always)]
    fn apply<S: Simd>(&self, [x]: [S; 1]) -> [S; 1] {
        [x * S::splat(self.0)]
    }
}

/// One row: `y += bias`.
struct AddRow {
    bias: *const f32,
    y: *mut f32,
    columns: usize,
}
impl Kernel for AddRow {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: both arrays have `columns` floats.
        unsafe {
            for i in (0..self.columns).step_by(LANES) {
                let rest = self.columns - i;
                let sum = S::load_up_to(self.y.add(i), rest) + S::load_up_to(self.bias.add(i), rest);
                sum.store_up_to(self.y.add(i), rest);
            }
        }
    }
}

impl Ops {
    /// `to = from`, same shape, apart.
    pub fn copy(&mut self, from: Tensor, to: Tensor) {
        assert_same_shape(("from", from), ("to", to));
        assert_apart(("to", to), &[("from", from)]);
        self.pointwise(&Copy, [from], [to]);
    }

    /// Every element of `tensor` becomes `value`.
    pub fn fill(&mut self, tensor: Tensor, value: f32) {
        self.pointwise(&Fill(value), [], [tensor]);
    }

    /// `y += x`, same shape.
    pub fn add(&mut self, x: Tensor, y: Tensor) {
        assert_same_shape(("x", x), ("y", y));
        assert_apart_or_same(("y", y), &[("x", x)]);
        self.pointwise(&Sum, [x, y], [y]);
    }

    /// `tensor *= factor`.
    pub fn scale(&mut self, tensor: Tensor, factor: f32) {
        self.pointwise(&Scale(factor), [tensor], [tensor]);
    }

    /// `y[t, n] += bias[n]` for y [T, N]. The bias is frozen: there is no backward.
    pub fn add_bias(&mut self, y: Tensor, bias: &FloatVector) {
        assert_eq!(y.columns(), bias.len(), "columns of y and length of the bias");
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let (rows, columns, isa) = (y.rows(), y.columns(), self.options.isa);
        let (y, bias) = (self.place(y), place_of(bias));
        self.pool.run(rows, &|row, _| {
            // SAFETY: each task has its own row of `columns` floats; the bias has as many.
            unsafe { simd::dispatch(isa, AddRow { bias: bias.at(0), y: y.at(row * columns), columns }) }
        });
    }

    /// `out[i] = x[rows[i]]` (overwritten) for x [T, C], out [M, C].
    pub fn gather_rows(&mut self, x: Tensor, rows: &[u32], out: Tensor) {
        assert_eq!((out.rows(), out.columns()), (rows.len(), x.columns()), "shape of gathered rows");
        assert!(rows.iter().all(|row| (*row as usize) < x.rows()), "a gathered row is not below {}", x.rows());
        assert_apart(("out", out), &[("x", x)]);
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let columns = x.columns();
        let (x, out) = (self.place(x), self.place(out));
        for (i, row) in rows.iter().enumerate() {
            // SAFETY: both rows were checked above; the tensors are apart.
            unsafe { std::ptr::copy_nonoverlapping(x.at(*row as usize * columns), out.at(i * columns), columns) }
        }
    }

    /// `out[rows[i]] = x[i]`, every other row of `out` zero (overwritten), for x [M, C], out [T, C]. The rows are
    /// strictly increasing. It is the backward of [`Ops::gather_rows`].
    pub fn scatter_rows(&mut self, x: Tensor, rows: &[u32], out: Tensor) {
        assert_eq!((x.rows(), x.columns()), (rows.len(), out.columns()), "shape of scattered rows");
        assert!(rows.iter().all(|row| (*row as usize) < out.rows()), "a scattered row is not below {}", out.rows());
        assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "scattered rows are not strictly increasing");
        assert_apart(("out", out), &[("x", x)]);
        self.fill(out, 0.0);
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let columns = x.columns();
        let (x, out) = (self.place(x), self.place(out));
        for (i, row) in rows.iter().enumerate() {
            // SAFETY: both rows were checked above; the tensors are apart.
            unsafe { std::ptr::copy_nonoverlapping(x.at(i * columns), out.at(*row as usize * columns), columns) }
        }
    }
}
