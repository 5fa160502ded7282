//! Products with frozen packed weights, in both directions.
//!
//! - [`Ops::qlinear_forward`]: `Y = X·Wᵀ`, every `Y` overwritten.
//! - [`Ops::qlinear_input_grad`]: `dX = Σ dY·W`, overwritten or added to.
//!
//! `a16` and `a8` turn activations into integers with a scale per row and group and multiply codes exactly;
//! `exact` dequantizes a tile at a time and works in float32. A row with a NaN or an infinity (for the integers: with
//! a magnitude of 1e35 and more) makes exactly its own outputs NaN; groups of magnitudes below 1e-30 count as zero.
//! Results have the same bits on every instruction set, for any number of threads, and for any number of rows
//! computed at once.

mod activations;
mod affine;
pub(crate) mod cases;
mod digits;
mod forward;
mod input_grad;
mod layout;
mod offsets;
mod packed;
mod product;
#[cfg(test)]
mod reference;
mod straight;
mod tasks;
#[cfg(test)]
mod tests;
mod unpack;

pub use affine::{AffineError, AffineMatrix, GROUP_SIZES, ScaleType};
pub use layout::TILE;
pub use packed::{PackedError, PackedHeader, PackedMatrix, SharedBytes};
pub(crate) use product::{ForwardOutput, ForwardProduct, forward_scratch_bytes, input_grad, input_grad_scratch_bytes};

use crate::arena::Tensor;
use crate::isa::Isa;
use crate::ops::{Ops, Precision, Work};
use crate::simd::Simd;
use crate::simd::integer::{IntegerKernel, IntegerSimd, dispatch};

/// The two directions of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Forward,
    InputGrad,
}

impl Direction {
    pub const ALL: [Direction; 2] = [Direction::Forward, Direction::InputGrad];

    /// `forward` or `input_grad`.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::InputGrad => "input_grad",
        }
    }
}

/// A kernel that would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    pub op: &'static str,
    pub direction: &'static str,
    pub precision: &'static str,
    /// Instruction set, multiplying instruction and register tile, as `avx512vnni/vpdpwssd/6x64`.
    pub kernel: String,
}

/// Name of the kernel that runs for this direction and precision on `isa` with codes of 4 bits.
pub fn kernel_name(direction: Direction, precision: Precision, isa: Isa) -> KernelName {
    struct Name(Precision);
    impl IntegerKernel for Name {
        type Output = String;
        #[inline(always)]
        unsafe fn run<S: IntegerSimd>(self) -> String {
            let instruction = match self.0 {
                Precision::A16 => S::DOT_I16,
                Precision::A8 => S::DOT_U8,
                Precision::Exact => "fma",
            };
            let tile = if S::Float::MANY_REGISTERS { "6x64" } else { "3x16" };
            format!("{}/{instruction}/{tile}", S::NAME)
        }
    }
    // SAFETY: the kernel has no conditions.
    let kernel = unsafe { dispatch(isa, Name(precision)) };
    KernelName { op: "qlinear", direction: direction.name(), precision: precision.name(), kernel }
}

impl Ops {
    /// The kernels that run at the current precision.
    pub fn kernel_names(&self) -> Vec<KernelName> {
        Direction::ALL.map(|direction| kernel_name(direction, self.options.precision, self.options.isa)).into()
    }

    /// `Y = X·Wᵀ` for each `(W [n, k], Y [t, n])` of `outputs` (over) from one `x` [t, k], which is quantized
    /// once as long as the matrices have equal groups and bits.
    pub fn qlinear_forward(&mut self, x: Tensor, outputs: &[(&PackedMatrix, Tensor)]) {
        self.check("x", x);
        let rows = x.rows();
        let (mut macs, mut scratch) = (0, 0);
        for (index, (matrix, y)) in outputs.iter().enumerate() {
            self.check("output", *y);
            let (n, k) = (matrix.n_out(), matrix.k_in());
            assert_eq!(x.columns(), k, "columns of x for a matrix [{n}, {k}]");
            assert_eq!((y.rows(), y.columns()), (rows, n), "output of a matrix [{n}, {k}]");
            assert!(!y.overlaps(&x), "output {index} overlaps x");
            assert!(outputs[..index].iter().all(|(_, other)| !other.overlaps(y)), "output {index} overlaps another");
            macs += (rows * n * k) as u64;
            scratch = scratch.max(forward_scratch_bytes(&self.options, rows, &matrix.header()));
        }
        if !self.begin(Work::Frozen, macs, scratch) || rows == 0 {
            return;
        }
        let (arena, scratch) = (self.arena_start(), self.scratch_start());
        for same in outputs.chunk_by(|a, b| quantizes_alike(a.0, b.0)) {
            for some in same.chunks(product::OUTPUTS_AT_ONCE) {
                // SAFETY: tensors were checked to lie in the arena and apart; `begin` checked the scratch.
                unsafe {
                    let x = arena.add(x.range().start);
                    let outputs: [ForwardOutput<'_>; product::OUTPUTS_AT_ONCE] = std::array::from_fn(|index| {
                        let (matrix, y) = some[index.min(some.len() - 1)];
                        ForwardOutput { matrix, y: arena.add(y.range().start), y_stride: y.columns() }
                    });
                    product::forward(&self.options, &self.pool, rows, x, &outputs[..some.len()], scratch);
                }
            }
        }
    }

    /// `dX = Σ dY·W` over the `(W [n, k], dY [t, n])` of `inputs`; `dx` [t, k] is overwritten, or added to
    /// when `accumulate`.
    pub fn qlinear_input_grad(&mut self, inputs: &[(&PackedMatrix, Tensor)], dx: Tensor, accumulate: bool) {
        self.check("dx", dx);
        let rows = dx.rows();
        let mut macs = 0;
        for (index, (matrix, dy)) in inputs.iter().enumerate() {
            self.check("dy", *dy);
            let (n, k) = (matrix.n_out(), matrix.k_in());
            assert_eq!(dx.columns(), k, "columns of dx for a matrix [{n}, {k}]");
            assert_eq!((dy.rows(), dy.columns()), (rows, n), "gradient for a matrix [{n}, {k}]");
            assert!(!dy.overlaps(&dx), "gradient {index} overlaps dx");
            macs += (rows * n * k) as u64;
        }
        let scratch = input_grad_scratch_bytes(&self.options, rows, inputs.iter().map(|(matrix, _)| *matrix));
        if !self.begin(Work::Frozen, macs, scratch) || rows == 0 {
            return;
        }
        let (arena, scratch) = (self.arena_start(), self.scratch_start());
        assert!((1..=product::SUMMANDS_MAX).contains(&inputs.len()), "{} summands", inputs.len());
        // SAFETY: tensors were checked to lie in the arena and apart; `begin` checked the scratch.
        unsafe {
            let pointers: [_; product::SUMMANDS_MAX] = std::array::from_fn(|index| {
                let (matrix, dy) = inputs[index.min(inputs.len() - 1)];
                (matrix, arena.add(dy.range().start).cast_const())
            });
            let dx = arena.add(dx.range().start);
            input_grad(&self.options, &self.pool, rows, &pointers[..inputs.len()], dx, accumulate, scratch);
        }
    }
}

/// Whether two matrices multiply the same integers of an input.
fn quantizes_alike(a: &PackedMatrix, b: &PackedMatrix) -> bool {
    let (a, b) = (a.header(), b.header());
    (a.groups_per_tile(), a.code_bits()) == (b.groups_per_tile(), b.code_bits())
}
