//! The arithmetic of selftune: one folder per op, each with its contract, its scalar float64
//! reference, its variants and its test cases, forward and backward together.
//!
//! Callers see tensors only as [`Tensor`] handles into the arena of an [`Ops`] value and do all work
//! through its methods, so that block code can run on another set of ops (a GPU's) unchanged.
//! This is the only crate of the workspace with `unsafe` code. It knows neither files nor models.

pub mod arena;
pub mod isa;
pub mod map;
pub mod ops;
pub mod pool;
pub mod qlinear;
mod simd;

pub use arena::{AlignedBuffer, ArenaPlan, FloatVector, Tensor};
pub use isa::Isa;
pub use map::{MappedFile, map_file};
pub use ops::{Ops, OpsOptions, Precision};
pub use pool::Pool;
pub use qlinear::{AffineError, AffineMatrix, PackedError, PackedHeader, PackedMatrix, ScaleType, SharedBytes};
