//! The arithmetic of selftune: one folder per op, each with its contract, its scalar float64
//! reference, its variants and its test cases, forward and backward together.
//!
//! Callers see tensors only as [`Tensor`] handles into the arena of an [`Ops`] value and do all work
//! through its methods, so that block code can run on another set of ops (a GPU's) unchanged.
//! This is the only crate of the workspace with `unsafe` code. It knows neither files nor models.

pub mod adamw;
pub mod arena;
pub mod attention;
pub mod bench;
pub mod bfloat16;
pub mod ceiling;
mod cores;
mod counting;
pub mod elementwise;
pub mod embedding;
pub mod gate;
pub mod head;
pub mod isa;
pub mod lora;
pub mod map;
mod op_clock;
pub mod ops;
mod place;
pub mod pool;
pub mod qlinear;
pub mod rms_norm;
pub mod rope;
mod simd;
#[cfg(test)]
mod testing;
pub mod weight_grad;

pub use adamw::AdamWParameters;
pub use arena::{AlignedBuffer, ArenaPlan, FloatVector, Tensor, return_freed_memory};
pub use attention::{
    AttentionShape, CacheFormat, CachedRows, KeyValueCache, PAGE_POSITIONS, PageTables, WholeAttention,
};
pub use cores::physical_cores;
pub use counting::CountingAllocator;
pub use gate::{Activation, GateValues, KeptGates};
pub use isa::Isa;
pub use lora::{Dropout, LoraBackward, LoraForward};
pub use map::{MappedFile, map_file};
pub use op_clock::OpSeconds;
pub use ops::{Ops, OpsOptions, Precision};
pub use pool::Pool;
pub use qlinear::{AffineError, AffineMatrix, PackedError, PackedHeader, PackedMatrix, ScaleType, SharedBytes};
pub use rope::RopeTable;
