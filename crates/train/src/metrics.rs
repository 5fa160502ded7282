//! `metrics.jsonl`: one JSON object a line, in the order of the run.
//!
//! An update writes `{"event": "step", ...}` with the fields of [`StepReport`], a validation
//! `{"event": "validation", ...}` with those of [`ValidationReport`], a save that has ended `{"event": "saved", ...}`
//! with those of [`SaveReport`]. Lines are written before the state that includes
//! them is saved; lines of updates that a resumed run makes again are cut off first, so that every update has one line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use device::Reading;
use serde::{Deserialize, Serialize};

use crate::files::{FileError, Files, open_ordinary};
use crate::saving::SaveReport;

/// One update of the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Updates done, this one included.
    pub step: u64,
    /// Updates of the whole run.
    pub steps: u64,
    /// Passes over the data begun, this one included.
    pub pass: u64,
    /// Nats per supervised token of the update's examples, before the update.
    pub loss: f64,
    pub learning_rate: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    pub clipped: bool,
    /// Tokens of the update's examples, and how many of them are targets.
    pub tokens: u64,
    pub supervised_tokens: u64,
    /// Time of this update: forward, backward, clip, update.
    pub seconds: f64,
    /// Tokens per second over the last updates.
    pub tokens_per_second: f64,
    /// Expected time to the end of the run at that rate, validations included.
    pub eta_seconds: f64,
    /// The most memory this process ever had resident, where the system tells.
    pub peak_resident_bytes: Option<u64>,
    /// Joules that the machine used during this update, idle power included, where it can be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Time that a token takes now over the time it took at its fastest in this session: throttling as it is felt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// What the sensors said after the update.
    #[serde(default)]
    pub device: Reading,
}

/// One look at the held-out examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationReport {
    /// Updates done; 0 is the base model.
    pub step: u64,
    /// Nats per supervised token.
    pub loss: f64,
    /// Whether this is the best adapter so far, now in `adapter/best`.
    pub is_best: bool,
    pub seconds: f64,
    /// Joules that the machine used meanwhile, where it can be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Line<'a> {
    Step(&'a StepReport),
    Validation(&'a ValidationReport),
    /// Says what a save took; not a part of what is equal between two equal runs.
    Saved(&'a SaveReport),
}

/// The open metrics file of a run.
pub(crate) struct Metrics {
    files: Files,
    file: File,
    path: PathBuf,
}

impl Metrics {
    /// Opens the file for a run whose saved state has done `step` updates, the last of its validations after `validated`
    /// of them; none without a state. Cuts off what came after it.
    pub fn open(files: &Files, path: &Path, step: Option<u64>, validated: Option<u64>) -> Result<Metrics, FileError> {
        let keep = match open_ordinary(path) {
            Ok(file) => {
                step.map_or(Ok(0), |step| bytes_up_to(file, step, validated)).map_err(FileError::new("read", path))?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(FileError::new("open", path)(error)),
        };
        let file = files.append_file(path)?;
        files.cut(&file, path, keep)?;
        // The state that is saved next speaks of these lines: their file must have its name by then.
        files.sync_folder(path.parent().expect("metrics lie in a run folder"))?;
        Ok(Metrics { files: files.clone(), file, path: path.to_owned() })
    }

    pub fn write(&mut self, line: Line) -> Result<(), FileError> {
        let mut text =
            serde_json::to_vec(&line).map_err(std::io::Error::from).map_err(FileError::new("write", &self.path))?;
        text.push(b'\n');
        self.files.write(&mut self.file, &self.path, &text)
    }

    /// The same open file for the thread that saves: what a state speaks of must be on the disk before it.
    pub fn to_sync(&self) -> Result<ToSync, FileError> {
        let file = self.file.try_clone().map_err(FileError::new("open", &self.path))?;
        Ok(ToSync { files: self.files.clone(), file, path: self.path.clone() })
    }
}

/// An open file of another thread.
pub(crate) struct ToSync {
    files: Files,
    file: File,
    path: PathBuf,
}

impl ToSync {
    /// Waits until what was written so far is on the disk.
    pub fn sync(&self) -> Result<(), FileError> {
        self.files.sync(&self.file, &self.path)
    }
}

/// Length of the whole lines that belong to the first `step` updates and to the validations up to `validated`.
fn bytes_up_to(file: File, step: u64, validated: Option<u64>) -> std::io::Result<u64> {
    #[derive(Deserialize)]
    struct Any {
        event: String,
        step: u64,
    }
    let is_saved = |line: Any| {
        line.step <= step && (line.event != "validation" || validated.is_some_and(|validated| line.step <= validated))
    };
    let mut reader = BufReader::new(file);
    let (mut keep, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let len = reader.read_until(b'\n', &mut line)?;
        let is_kept = line.ends_with(b"\n") && serde_json::from_slice::<Any>(&line).is_ok_and(is_saved);
        if !is_kept {
            return Ok(keep);
        }
        keep += len as u64;
    }
}

/// Reads the steps and validations of a run back, for its report. Lines of other kinds are passed over.
pub fn read_metrics(path: &Path) -> Result<(Vec<StepReport>, Vec<ValidationReport>), FileError> {
    #[derive(Deserialize)]
    #[serde(tag = "event", rename_all = "snake_case")]
    enum Read {
        Step(Box<StepReport>),
        Validation(ValidationReport),
        #[serde(other)]
        Other,
    }
    let file = open_ordinary(path).map_err(FileError::new("open", path))?;
    let (mut steps, mut validations) = (Vec::new(), Vec::new());
    for line in BufReader::new(file).split(b'\n') {
        match serde_json::from_slice(&line.map_err(FileError::new("read", path))?) {
            Ok(Read::Step(step)) => steps.push(*step),
            Ok(Read::Validation(validation)) => validations.push(validation),
            // The end of a line that is being written right now.
            Ok(Read::Other) | Err(_) => {}
        }
    }
    Ok((steps, validations))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64) -> StepReport {
        StepReport {
            step,
            steps: 9,
            pass: 1,
            loss: 0.1 + 0.2,
            learning_rate: 1e-3,
            gradient_norm: 1.0 / 3.0,
            clipped: false,
            tokens: 100,
            supervised_tokens: 10,
            seconds: 0.5,
            tokens_per_second: 200.0,
            eta_seconds: 3.0,
            peak_resident_bytes: None,
            energy_j: Some(0.1 + 0.7),
            slowdown: None,
            device: Reading { temperature_c: Some(61.5), ..Reading::default() },
        }
    }
    fn validation(step: u64) -> ValidationReport {
        ValidationReport { step, loss: 2.5, is_best: step > 0, seconds: 0.1, energy_j: None }
    }

    #[test]
    fn a_resumed_run_cuts_what_it_will_do_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut metrics = Metrics::open(&Files::default(), &path, None, None).unwrap();
        metrics.write(Line::Validation(&validation(0))).unwrap();
        for number in 1..=3 {
            metrics.write(Line::Step(&step(number))).unwrap();
            metrics.write(Line::Validation(&validation(number))).unwrap();
        }
        drop(metrics);
        let whole = std::fs::read(&path).unwrap();
        // Torn last lines, and zeros where a power cut lost the content.
        for tail in [&b""[..], b"{\"event\": \"step\", \"step\": 2", b"\0\0\0\0\n", b"\n"] {
            std::fs::write(&path, [&whole, tail].concat()).unwrap();
            drop(Metrics::open(&Files::default(), &path, Some(3), Some(3)).unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
        let mut metrics = Metrics::open(&Files::default(), &path, Some(2), Some(2)).unwrap();
        metrics.write(Line::Step(&step(3))).unwrap();
        let (steps, validations) = read_metrics(&path).unwrap();
        assert_eq!(steps, [step(1), step(2), step(3)]);
        assert_eq!(validations, [validation(0), validation(1), validation(2)]);
        drop(Metrics::open(&Files::default(), &path, Some(2), Some(1)).unwrap());
        assert_eq!(
            read_metrics(&path).unwrap().1,
            [validation(0), validation(1)],
            "the state has not validated update 2"
        );
        drop(Metrics::open(&Files::default(), &path, Some(0), Some(0)).unwrap());
        assert_eq!(read_metrics(&path).unwrap(), (vec![], vec![validation(0)]));
        drop(Metrics::open(&Files::default(), &path, None, None).unwrap());
        assert_eq!(read_metrics(&path).unwrap(), (vec![], vec![]));
    }
}
