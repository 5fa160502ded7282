//! How a run ended.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::saving::SaveTotals;
use crate::state::ValidationPoint;

/// Why training returned without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// All updates were made.
    Completed,
    /// Validation stopped getting better.
    StoppedEarly,
    /// The watcher asked to stop; the run can be resumed.
    Interrupted,
}

impl RunEnd {
    /// Whether nothing is left to do.
    pub fn is_final(self) -> bool {
        self != RunEnd::Interrupted
    }
}

/// The result of training, also kept as `summary.json`. Losses are nats per supervised token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainOutcome {
    pub end: RunEnd,
    /// Updates done, of how many.
    pub step: u64,
    pub steps: u64,
    /// Tokens that went through the model in training.
    pub tokens: u64,
    /// Seconds spent in training, all sessions together.
    pub seconds: f64,
    /// Seconds on hold, not counted in `seconds`.
    #[serde(default)]
    pub held_seconds: f64,
    /// Joules used in training and validation, all sessions together, idle power included; none where nothing measures.
    #[serde(default)]
    pub energy_j: Option<f64>,
    pub first_loss: Option<f64>,
    /// Mean training loss of each pass.
    pub pass_losses: Vec<f64>,
    /// Held-out loss of the base model, of the best adapter, of the last adapter.
    pub validation_before: Option<f64>,
    pub validation_best: Option<ValidationPoint>,
    pub validation_last: Option<ValidationPoint>,
    #[serde(serialize_with = "formats::serialize_lossily")]
    pub adapter_best: PathBuf,
    #[serde(serialize_with = "formats::serialize_lossily")]
    pub adapter_last: PathBuf,
    /// What the saves of the last session took.
    #[serde(default)]
    pub saving: SaveTotals,
}
