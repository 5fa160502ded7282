//! Language models of several families over packed frozen weights: the training step with a low-rank adapter, its
//! memory plan, evaluation and generation.
//!
//! A [`Model`] is loaded once and shared. A [`TrainingSession`] trains an adapter on it, a [`Generator`] continues and
//! measures texts; both run the same block code (`block.rs`) over memory that is planned before the first call.
//! This crate knows tokens, not text, and files only through `formats`.

mod adapter;
mod adapter_file;
mod block;
mod config;
mod config_file;
mod error;
pub mod families;
mod generate;
mod lora;
mod plan;
mod projection;
mod random;
mod rope;
mod sampling;
mod shapes;
mod step;
mod synthetic;
mod weights;

pub use adapter::{AdapterMatrix, AdapterSpec, AdapterWeights};
pub use adapter_file::AdapterStack;
pub use config::{BlockConfig, ModelConfig};
pub use error::ModelError;
pub use generate::{Generator, GeneratorOptions};
pub use plan::{
    BoundaryType, KeptBlocks, KeptType, MemoryChoice, MemoryPlan, PlanRequest, PlannedStep, ProgramBytes,
    ResidentBytes, WeightsPlace, WorkShare, WorkShares, plan_step, work_shares,
};
pub use projection::Projection;
pub use random::Random;
pub use rope::RopeConfig;
pub use sampling::SamplingOptions;
pub use shapes::{BlockProducts, KNOWN_SHAPES, KnownShape};
pub use step::{
    NamedGradient, NecessaryWork, Phase, PhaseCost, Prefix, SAVINGS, Saving, SelectRows, StepLoss, StepOptions,
    StepPhases, TokenLosses, TrainingSession, WorkCounter,
};
pub use synthetic::{SyntheticPlace, SyntheticWeights, synthetic_model};
pub use weights::Model;
