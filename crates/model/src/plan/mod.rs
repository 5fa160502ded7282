//! What a session takes and computes, known before it runs.

mod choice;
mod places;

use kernels::ops::Counters;

pub use choice::{BoundaryType, MemoryChoice, WeightsPlace};
pub(crate) use places::{Activations, FrozenPlaces, Itemized, StepPlaces, first_kept_block};

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
    /// Multiply-adds of the longest step with every token supervised (training), or of the fullest chunk (generation).
    pub macs: Counters,
}

impl MemoryPlan {
    pub fn total_bytes(&self) -> usize {
        self.items.iter().map(|(_, bytes)| bytes).sum()
    }
}
