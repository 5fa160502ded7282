//! A run as it stands, read from outside while it trains: from its lock, its metrics and its summary. The state, which
//! is large, is not read.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::files::{FileError, open_ordinary};
use crate::hold::Hold;
use crate::metrics::{StepReport, ValidationReport};
use crate::outcome::TrainOutcome;
use crate::run_folder::{RunFolder, RunFolderError, RunStatus};
use crate::saving::SaveReport;

/// What a run has come to.
#[derive(Clone, Debug, Serialize)]
pub struct RunWatch {
    #[serde(serialize_with = "formats::serialize_lossily")]
    pub path: PathBuf,
    pub status: RunStatus,
    /// The process that trains it now.
    pub process: Option<u32>,
    /// Updates done, of how many.
    pub step: u64,
    pub steps: u64,
    /// Mean training loss of the first and of the last updates (at most ten), nats per supervised token.
    pub loss_first: Option<f64>,
    pub loss_recent: Option<f64>,
    /// The last update.
    pub last: Option<StepReport>,
    pub validation_before: Option<f64>,
    pub validation_best: Option<ValidationReport>,
    /// The last save that has reached the disk.
    pub saved: Option<SaveReport>,
    /// Since metrics were last written, by the calendar clock; none if that clock was moved.
    pub seconds_since_report: Option<f64>,
    /// What it waits for, while it is on hold.
    pub hold: Option<Hold>,
    /// How it ended, or was last interrupted.
    pub outcome: Option<TrainOutcome>,
}

impl RunFolder {
    /// Looks at the run without disturbing it.
    pub fn watch(&self) -> Result<RunWatch, RunFolderError> {
        let lines = self.lines()?;
        let outcome = self.outcome()?;
        let status = if self.is_locked() {
            RunStatus::Running
        } else if outcome.as_ref().is_some_and(|outcome| outcome.end.is_final()) {
            RunStatus::Finished
        } else if self.state_folder().join("current").exists() || self.state_folder().join("previous").exists() {
            RunStatus::Stopped
        } else {
            RunStatus::NotStarted
        };
        let planned = self.plan()?.map_or(0, |plan| plan.updates);
        let Lines { steps, validations, saved } = lines;
        let best = validations.iter().filter(|point| point.step > 0).min_by(|a, b| a.loss.total_cmp(&b.loss));
        let modified = std::fs::metadata(self.metrics_path()).and_then(|file| file.modified()).ok();
        Ok(RunWatch {
            path: self.path().to_owned(),
            status,
            process: if status == RunStatus::Running { self.lock_holder() } else { None },
            step: steps.last().map_or(0, |step| step.step),
            steps: steps.last().map_or(planned, |step| step.steps),
            loss_first: mean_loss(&steps[..steps.len().min(RECENT)]),
            loss_recent: mean_loss(&steps[steps.len().saturating_sub(RECENT)..]),
            validation_before: validations.first().filter(|point| point.step == 0).map(|point| point.loss),
            validation_best: best.cloned(),
            saved,
            seconds_since_report: modified.and_then(|at| at.elapsed().ok()).map(|since| since.as_secs_f64()),
            hold: self.hold()?,
            last: steps.into_iter().last(),
            outcome,
        })
    }

    fn lines(&self) -> Result<Lines, RunFolderError> {
        #[derive(Deserialize)]
        #[serde(tag = "event", rename_all = "snake_case")]
        enum Read {
            Step(Box<StepReport>),
            Validation(ValidationReport),
            Saved(SaveReport),
            #[serde(other)]
            Other,
        }
        let path = self.metrics_path();
        let mut lines = Lines::default();
        let file = match open_ordinary(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(lines),
            Err(error) => return Err(FileError::new("open", &path)(error).into()),
        };
        for line in BufReader::new(file).split(b'\n') {
            match serde_json::from_slice(&line.map_err(FileError::new("read", &path))?) {
                Ok(Read::Step(step)) => lines.steps.push(*step),
                Ok(Read::Validation(validation)) => lines.validations.push(validation),
                Ok(Read::Saved(saved)) => lines.saved = Some(saved),
                // The end of a line that is being written right now.
                Ok(Read::Other) | Err(_) => {}
            }
        }
        Ok(lines)
    }
}

/// Updates that a mean loss is taken over: single ones jump from record to record.
const RECENT: usize = 10;

#[derive(Default)]
struct Lines {
    steps: Vec<StepReport>,
    validations: Vec<ValidationReport>,
    saved: Option<SaveReport>,
}

fn mean_loss(steps: &[StepReport]) -> Option<f64> {
    let tokens: u64 = steps.iter().map(|step| step.supervised_tokens).sum();
    (tokens > 0)
        .then(|| steps.iter().map(|step| step.loss * step.supervised_tokens as f64).sum::<f64>() / tokens as f64)
}
