//! Products with frozen packed weights, in both directions.
//!
//! - [`Ops::qlinear_forward`]: `Y = X·Wᵀ`, every `Y` overwritten.
//! - [`Ops::qlinear_input_grad`]: `dX = Σ dY·W`, overwritten or added to.

mod affine;
#[cfg(test)]
mod cases;
mod layout;
mod packed;

pub use affine::{AffineError, AffineMatrix, GROUP_SIZES, ScaleType};
pub use layout::TILE;
pub use packed::{PackedError, PackedHeader, PackedMatrix, SharedBytes};

use crate::arena::Tensor;
use crate::ops::Ops;

impl Ops {
    /// `Y = X·Wᵀ` for each `(W [n, k], Y [t, n])` of `outputs` (over) from one `x` [t, k], which is quantized once.
    pub fn qlinear_forward(&mut self, x: Tensor, outputs: &[(&PackedMatrix, Tensor)]) {
        let _ = (x, outputs);
        unimplemented!("arrives with the kernels")
    }

    /// `dX = Σ dY·W` over the `(W [n, k], dY [t, n])` of `inputs`; `dx` [t, k] is overwritten, or added to
    /// when `accumulate`.
    pub fn qlinear_input_grad(&mut self, inputs: &[(&PackedMatrix, Tensor)], dx: Tensor, accumulate: bool) {
        let _ = (inputs, dx, accumulate);
        unimplemented!("arrives with the kernels")
    }
}
