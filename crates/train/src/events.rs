//! What a run tells whoever watches it.

use serde::Serialize;

use crate::governor::Wait;
use crate::hold::Hold;
use crate::metrics::{StepReport, ValidationReport};
use crate::outcome::TrainOutcome;
use crate::plan::TrainPlan;
use crate::saving::SaveReport;

/// Something that happened. The watcher's answer is heeded after every event; between events nothing can stop a run.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TrainEvent {
    /// Before the first update of this session.
    Started {
        plan: TrainPlan,
        /// Updates that earlier sessions have done.
        resumed_at: Option<u64>,
    },
    /// Something that the user should know and that stops nothing.
    Notice {
        message: String,
    },
    Step(StepReport),
    Validation(ValidationReport),
    /// A state has reached the disk.
    Saved(SaveReport),
    /// Training is on hold; everything is saved. Comes again when the conditions that it waits for change.
    Held(Hold),
    /// Still on hold: comes several times a second, so that the watcher can stop the run at once. `waits` is as the
    /// sensors said last.
    Waiting {
        waits: Vec<Wait>,
    },
    /// The hold is over.
    WentOn {
        held_seconds: f64,
    },
    /// The run has come to its end or was stopped; see [`crate::RunEnd`].
    Finished(TrainOutcome),
}

/// A watcher's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Continue,
    /// Finish the update, save everything and return.
    Stop,
}
