//! What a session takes and computes, known before it runs.

mod choice;
mod places;
mod planner;

use kernels::ops::Counters;

use crate::step::StepPhases;

pub use choice::{BoundaryType, KeptBlocks, KeptType, MemoryChoice, WeightsPlace};
pub(crate) use places::{Activations, FrozenPlaces, Itemized, StepPlaces, first_kept_block};

pub use planner::{PlanRequest, PlannedStep, ProgramBytes, WorkShare, WorkShares, plan_step, work_shares};

/// Bytes of this process in physical memory: what only it can give back, and pages of mapped files, which the system
/// may drop and read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentBytes {
    pub anonymous_bytes: u64,
    pub mapped_bytes: u64,
}

impl ResidentBytes {
    pub fn total(&self) -> u64 {
        self.anonymous_bytes + self.mapped_bytes
    }
}

/// What a session takes, known before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// Name and bytes of each part; they sum to [`Self::total_bytes`].
    pub items: Vec<(&'static str, usize)>,
    /// Everything that lives in the arena: adapter, optimizer and activations.
    pub arena_bytes: usize,
    /// The most that any op needs while it runs.
    pub scratch_bytes: usize,
    /// The frozen base model, mapped from its cache where there is one.
    pub weights_bytes: usize,
    /// The most of the weights that is in memory at a time.
    pub weights: ResidentBytes,
    /// Multiply-adds of the longest step with every token supervised (training), or of the fullest chunk (generation).
    pub macs: Counters,
    /// The same by phase; zero for generation.
    pub phases: StepPhases,
}

impl MemoryPlan {
    pub fn total_bytes(&self) -> usize {
        self.items.iter().map(|(_, bytes)| bytes).sum()
    }
    /// The most that is in physical memory, weights included.
    pub fn resident(&self) -> ResidentBytes {
        let mapped_bytes = self.weights.mapped_bytes;
        ResidentBytes { anonymous_bytes: self.total_bytes() as u64 - mapped_bytes, mapped_bytes }
    }
}
