//! Training of an adapter on one person's examples, in a run folder that survives anything.
//!
//! Read `trainer.rs` first: the loop is next examples, forward and backward, clip, update, report. The order of the
//! data ([`order`]), the learning rate ([`schedule`]) and every random choice are pure functions of the configuration
//! and the number of the update, so that [`state`] needs little and a resumed run ends with the same bytes as one that
//! was never interrupted, whatever the number of threads.
//!
//! ```text
//! TrainConfig + Example[] --train--> run folder: adapter/best, adapter/last, state/, metrics.jsonl, summary.json
//! ```
//!
//! This crate knows nothing of evaluation.

mod adapter_file;
pub mod config;
pub mod cost;
mod discard;
mod error;
mod events;
#[cfg(test)]
mod fake;
mod files;
pub mod governor;
#[cfg(test)]
mod governor_tests;
mod hash;
mod hold;
mod kept_prefix;
mod learner;
mod memory;
pub mod metrics;
mod monitor;
pub mod order;
mod outcome;
pub mod plan;
pub mod run_folder;
mod saving;
pub mod schedule;
pub mod state;
#[cfg(test)]
mod tests;
mod train;
mod trainer;
mod watch;

pub use adapter_file::{Receipt, StartedFrom};
pub use config::{ConfigError, MemoryLimit, PRESETS, Preset, SETTINGS, Stage, TrainConfig};
pub use error::TrainError;
pub use events::{Control, TrainEvent};
pub use files::{Fault, FileError, FileFaults, FileOperation, Files, read_own_text};
pub use governor::{Governor, Limits, QuietHours, Wait};
pub use hash::{example_hash, record_hash};
pub use hold::Hold;
pub use metrics::{StepReport, ValidationReport, read_metrics};
pub use outcome::{RunEnd, TrainOutcome};
pub use plan::{PlannedMemory, PlannedPeak, PlannedSaving, PlannedWork, TrainPlan};
pub use run_folder::{RunFolder, RunFolderError, RunStatus, RunSummary};
pub use saving::{SaveReport, SaveTotals};
pub use schedule::{Schedule, ScheduleKind};
pub use state::{Difference, DifferenceKind, Progress, State, StateError, ValidationPoint};
pub use train::{AtLength, Planned, StartingAdapter, TrainInputs, candidates, plan, train};
pub use watch::RunWatch;
