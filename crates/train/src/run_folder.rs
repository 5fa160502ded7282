//! The folder of one run. Everything in it is private to its owner: adapters remember what they were trained on.
//!
//! | name | content |
//! | --- | --- |
//! | `run.json` | format version, what the caller needs to start the run again (`inputs`), the machine |
//! | `config.json` | the resolved configuration, every key |
//! | `plan.json` | what the run was expected to take |
//! | `examples.json` | id and hash of every example, training and validation |
//! | `metrics.jsonl` | one line an update, one a validation (see [`crate::metrics`]) |
//! | `state/` | what `--resume` goes on from |
//! | `adapter/best`, `adapter/last` | adapters in PEFT layout |
//! | `hold.json` | while the run is on hold: what it waits for and since when |
//! | `summary.json` | how the run ended |
//! | `prefix/` | outputs of the frozen blocks below the adapter, by example, while the run lasts |
//! | `lock` | held by the process that trains |

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{ConfigError, TrainConfig};
use crate::files::{FileError, Files, open_ordinary, read_own_text};
use crate::metrics::read_metrics;
use crate::outcome::TrainOutcome;
use crate::plan::TrainPlan;
use crate::state::file::{self as state_file, StateError};
use crate::state::{Progress, State};

const FORMAT: &str = "selftune run";
const VERSION: u32 = 1;
/// What a folder can hold before training begins. A run that was interrupted there has nothing to lose.
const NAMES_BEFORE_TRAINING: [&str; 4] = ["run.json", "run.new", "config.new", "lock"];

/// What is wrong with a run folder.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("{} already holds a run; resume it, or choose another folder", path.display())]
    Exists { path: PathBuf },
    #[error("{} is not empty and not a run folder; nothing in it was touched, choose another folder", path.display())]
    Foreign { path: PathBuf },
    #[error("{} is not a run folder: it has no run.json", path.display())]
    NotARun { path: PathBuf },
    #[error("{}: {what}{}", path.display(), way_forward(path))]
    Broken { path: PathBuf, what: String },
    #[error(
        "{} cannot go on: an earlier version of selftune began it with bfloat16 boundaries, and only its plan.json told how \
         many blocks keep their values, which its numbers depend on. Put plan.json back from a copy, or begin a new run from \
         what this one has learned: `selftune train --from {} --model MODEL --data FILE`",
        path.display(), path.display()
    )]
    PlanGone { path: PathBuf },
    #[error("{} is in use by another training process{}", path.display(), holder(*process))]
    InUse { path: PathBuf, process: Option<u32> },
    #[error(
        "{} cannot go on: its state is gone, but it has {}. Nothing was changed and the adapters are kept; \
         start a new run in another folder",
        path.display(), left.join(" and ")
    )]
    StateGone { path: PathBuf, left: Vec<String> },
}

/// What can be done about a damaged file of a run.
fn way_forward(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("hold.json") => {
            "; it only tells what the run waits for: remove it, and a run that has to wait writes it anew"
        }
        Some("summary.json" | "plan.json") => "; remove it: a run that goes on writes it anew",
        Some("config.json") => {
            "; put it back from a copy, or begin a new run from what this one has learned: `selftune train --from RUN`"
        }
        Some("run.json" | "examples.json") => {
            "; put it back from a copy, or begin a new run in another folder: adapters in this one stay usable with --adapter"
        }
        _ => "",
    }
}

fn holder(process: Option<u32>) -> String {
    process.map_or_else(String::new, |id| format!(" (number {id})"))
}

/// `run.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Manifest {
    format: String,
    version: u32,
    selftune_version: String,
    created_unix_seconds: f64,
    machine: device::Machine,
    inputs: Value,
}

/// An example as `examples.json` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedExample {
    pub record_id: String,
    /// Earlier records that its prompt shows.
    pub retrieved_ids: Vec<String>,
    pub tokens: usize,
    pub supervised_tokens: usize,
    pub sha256: String,
}

/// All examples of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleList {
    pub training: Vec<ListedExample>,
    pub validation: Vec<ListedExample>,
}

/// The folder of a run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    manifest: Manifest,
    files: Files,
    /// A new run belongs to its creator from the first file on; training takes the lock over.
    lock: Mutex<Option<RunLock>>,
    /// Whether the folder itself was made for this run, by this process; none for one that was opened.
    pub(crate) made: Option<bool>,
}

/// What `inspect` shows of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
    #[serde(serialize_with = "formats::serialize_lossily")]
    pub path: PathBuf,
    pub status: RunStatus,
    pub selftune_version: String,
    pub created_unix_seconds: f64,
    pub machine: device::Machine,
    pub inputs: Value,
    pub config: Option<TrainConfig>,
    pub plan: Option<TrainPlan>,
    pub progress: Option<Progress>,
    pub outcome: Option<TrainOutcome>,
    /// What the run waits for, if it is on hold.
    pub hold: Option<crate::hold::Hold>,
    /// Said when the newest state was damaged.
    pub notice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    NotStarted,
    /// A process is training it now.
    Running,
    /// It stopped before its end and can be resumed.
    Stopped,
    Finished,
}

impl RunFolder {
    /// Makes the folder of a new run at `path`, which must not exist, or be empty, or hold a run that ended before its
    /// training began. `inputs` is kept for the caller: whatever it needs to find model and history again on resume.
    ///
    /// The run belongs to this process until its training ends or the `RunFolder` is dropped.
    pub fn create(path: &Path, inputs: Value) -> Result<RunFolder, RunFolderError> {
        Self::create_on(Files::default(), path, inputs)
    }

    /// The same on a disk with faults.
    pub fn create_on(files: Files, path: &Path, inputs: Value) -> Result<RunFolder, RunFolderError> {
        Self::create_locked(files, path, inputs).map_err(|error| match error {
            RunFolderError::File(error) => RunFolderError::File(error.of_new_run()),
            other => other,
        })
    }

    fn create_locked(files: Files, path: &Path, inputs: Value) -> Result<RunFolder, RunFolderError> {
        let mut made = false;
        match std::fs::read_dir(path) {
            Ok(_) => check_not_begun(path)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                files.create_folder(path)?;
                made = true;
            }
            Err(error) => return Err(FileError::new("read", path)(error).into()),
        }
        files.make_folder_private(path)?;
        let lock = RunLock::take(&files, path)?;
        // Another process may have begun, and even ended, while this one came to its turn.
        check_not_begun(path)?;
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            selftune_version: env!("CARGO_PKG_VERSION").to_owned(),
            created_unix_seconds: device::unix_time_seconds(),
            machine: device::Machine::describe(),
            inputs,
        };
        files.replace_json(&path.join("run.json"), &manifest)?;
        Ok(RunFolder { path: path.to_owned(), manifest, files, lock: Mutex::new(Some(lock)), made: Some(made) })
    }

    /// Opens the folder of an existing run.
    pub fn open(path: &Path) -> Result<RunFolder, RunFolderError> {
        Self::open_on(Files::default(), path)
    }

    /// The same on a disk with faults.
    pub fn open_on(files: Files, path: &Path) -> Result<RunFolder, RunFolderError> {
        let manifest_path = path.join("run.json");
        let manifest: Manifest =
            read_json(&manifest_path)?.ok_or_else(|| RunFolderError::NotARun { path: path.to_owned() })?;
        if manifest.format != FORMAT || manifest.version != VERSION {
            let what = format!("`{}` version {}, expected `{FORMAT}` {VERSION}", manifest.format, manifest.version);
            return Err(RunFolderError::Broken { path: manifest_path, what });
        }
        Ok(RunFolder { path: path.to_owned(), manifest, files, lock: Mutex::new(None), made: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
    /// What the creator of the run stored to find model and history again.
    pub fn inputs(&self) -> &Value {
        &self.manifest.inputs
    }
    /// The adapter with the smallest validation loss, or the last one where nothing was held out.
    pub fn best_adapter(&self) -> PathBuf {
        self.path.join("adapter/best")
    }
    /// The adapter after the last update.
    pub fn last_adapter(&self) -> PathBuf {
        self.path.join("adapter/last")
    }
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }
    /// What the frozen blocks below the adapter made of each example, while the run lasts.
    pub(crate) fn prefix_folder(&self) -> PathBuf {
        self.path.join("prefix")
    }
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }
    pub(crate) fn state_folder(&self) -> PathBuf {
        self.path.join("state")
    }

    /// The configuration of the run; none before its training started.
    pub fn config(&self) -> Result<Option<TrainConfig>, RunFolderError> {
        let path = self.path.join("config.json");
        match read_own_text(&path)? {
            Some(text) => {
                let config = TrainConfig::from_json(&text, "");
                let what = |error| match error {
                    ConfigError::Syntax { message, .. } => message,
                    error => error.to_string(),
                };
                self.completed(config.map_err(|error| RunFolderError::Broken { path, what: what(error) })?).map(Some)
            }
            None => Ok(None),
        }
    }
    /// A configuration of this run with what an earlier version did not write into it.
    fn completed(&self, config: TrainConfig) -> Result<TrainConfig, RunFolderError> {
        if !config.lacks_kept_blocks() {
            return Ok(config);
        }
        let plan = self.plan()?;
        Ok(plan.map_or(config.clone(), |plan| config.with_blocks_of_plan(&plan.memory_choice)))
    }
    pub fn plan(&self) -> Result<Option<TrainPlan>, RunFolderError> {
        read_json(&self.path.join("plan.json"))
    }
    pub fn examples(&self) -> Result<Option<ExampleList>, RunFolderError> {
        read_json(&self.path.join("examples.json"))
    }
    /// How the run ended; none before it did.
    pub fn outcome(&self) -> Result<Option<TrainOutcome>, RunFolderError> {
        read_json(&self.path.join("summary.json"))
    }
    /// The newest whole state, with a note if a newer one was damaged. One of an earlier version has the settings that it
    /// did not know, with what it did.
    pub fn state(&self) -> Result<Option<(State, Option<String>)>, RunFolderError> {
        let Some(state_file::Loaded { mut state, fallback }) = state_file::load(&self.state_folder())? else {
            return Ok(None);
        };
        // What cannot be read is compared as it stands.
        if let Ok(config) = serde_json::from_value::<TrainConfig>(Value::Object(state.identity.config.clone())) {
            self.completed(config)?.complete(&mut state.identity.config);
        }
        Ok(Some((state, fallback)))
    }

    /// Everything at once, for `inspect`.
    pub fn summary(&self) -> Result<RunSummary, RunFolderError> {
        let state = self.state()?;
        let outcome = self.outcome()?;
        let status = match (&state, &outcome) {
            _ if self.is_locked() => RunStatus::Running,
            (_, Some(outcome)) if outcome.end.is_final() => RunStatus::Finished,
            (Some(_), _) => RunStatus::Stopped,
            (None, _) => RunStatus::NotStarted,
        };
        let (progress, notice) = match state {
            Some((state, notice)) => (Some(state.progress), notice),
            None => (None, None),
        };
        Ok(RunSummary {
            path: self.path.clone(),
            status,
            selftune_version: self.manifest.selftune_version.clone(),
            created_unix_seconds: self.manifest.created_unix_seconds,
            machine: self.manifest.machine.clone(),
            inputs: self.manifest.inputs.clone(),
            config: self.config()?,
            plan: self.plan()?,
            progress,
            outcome,
            hold: self.hold()?,
            notice,
        })
    }

    /// Refuses a run that was trained but has no state any more: to begin again would replace its adapters.
    pub(crate) fn check_never_trained(&self) -> Result<(), RunFolderError> {
        let mut left = Vec::new();
        for (name, content) in [("adapter", "adapters"), ("summary.json", "a summary of its end")] {
            if holds_anything(&self.path.join(name))? {
                left.push(format!("{content} ({name})"));
            }
        }
        let metrics = self.metrics_path();
        if metrics.exists() {
            let (steps, _) = read_metrics(&metrics)?;
            if let Some(last) = steps.last() {
                left.push(format!("metrics of {} updates (metrics.jsonl)", last.step));
            }
        }
        if left.is_empty() { Ok(()) } else { Err(RunFolderError::StateGone { path: self.path.clone(), left }) }
    }

    /// Writes what is known before the first update.
    pub(crate) fn begin(
        &self,
        config: &TrainConfig,
        plan: &TrainPlan,
        examples: &ExampleList,
    ) -> Result<(), RunFolderError> {
        let write = || {
            self.files.replace_json(&self.path.join("config.json"), config)?;
            self.files.replace_json(&self.path.join("plan.json"), plan)?;
            self.files.replace_json(&self.path.join("examples.json"), examples)?;
            self.files.create_folder(&self.state_folder())
        };
        Ok(write().map_err(FileError::of_new_run)?)
    }
    /// Writes the plan of a run that goes on where somebody has removed it.
    pub(crate) fn keep_plan(&self, plan: &TrainPlan) -> Result<(), RunFolderError> {
        match self.plan()? {
            Some(_) => Ok(()),
            None => Ok(self.files.replace_json(&self.path.join("plan.json"), plan)?),
        }
    }
    pub(crate) fn end(&self, outcome: &TrainOutcome) -> Result<(), RunFolderError> {
        Ok(self.files.replace_json(&self.path.join("summary.json"), outcome)?)
    }

    /// Takes the run for this process until the lock is dropped.
    pub(crate) fn lock(&self) -> Result<RunLock, RunFolderError> {
        let kept = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.map_or_else(|| RunLock::take(&self.files, &self.path), Ok)
    }

    pub(crate) fn is_locked(&self) -> bool {
        is_locked(&self.path)
    }
    pub(crate) fn lock_holder(&self) -> Option<u32> {
        lock_holder(&self.path)
    }
}

fn is_locked(run: &Path) -> bool {
    open_ordinary(&run.join("lock")).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The process that holds a run says so in the lock's file.
fn lock_holder(run: &Path) -> Option<u32> {
    read_own_text(&run.join("lock")).ok()??.trim().parse().ok()
}

/// Refuses a folder that holds anything but the traces of a run whose training never began.
fn check_not_begun(path: &Path) -> Result<(), RunFolderError> {
    let read = |error| RunFolderError::File(FileError::new("read", path)(error));
    let manifest = path.join("run.json");
    if manifest.exists() {
        // One that is not ours is refused, and so are damaged ones, which no interruption makes.
        RunFolder::open(path)?;
    }
    for entry in std::fs::read_dir(path).map_err(read)? {
        let entry = entry.map_err(read)?;
        let is_ours = entry.file_type().map_err(read)?.is_file()
            && NAMES_BEFORE_TRAINING.iter().any(|name| entry.file_name() == *name)
            && (entry.file_name() != "lock" || is_our_lock(&entry.path()));
        if is_ours {
            continue;
        }
        let path = path.to_owned();
        return Err(match manifest.exists() {
            true if is_locked(&path) => RunFolderError::InUse { process: lock_holder(&path), path },
            true => RunFolderError::Exists { path },
            false => RunFolderError::Foreign { path },
        });
    }
    Ok(())
}

/// Whether a file holds nothing but the number of a process, if that.
fn is_our_lock(path: &Path) -> bool {
    const BYTES_MAX: u64 = 16;
    std::fs::metadata(path).is_ok_and(|file| file.len() <= BYTES_MAX)
        && std::fs::read(path).is_ok_and(|text| text.trim_ascii().iter().all(u8::is_ascii_digit))
}

/// Whether there is a file at `path`, or a folder with something in it.
fn holds_anything(path: &Path) -> Result<bool, RunFolderError> {
    match std::fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => Ok(true),
        Err(error) => Err(FileError::new("read", path)(error).into()),
    }
}

/// Holds a run for one process.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

impl RunLock {
    /// The system releases it when the process ends, however it ends, so a dead process leaves no lock behind.
    fn take(files: &Files, run: &Path) -> Result<RunLock, RunFolderError> {
        let path = run.join("lock");
        let mut file = files.append_file(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(RunFolderError::InUse { path: run.to_owned(), process: lock_holder(run) });
            }
            // A file system without locks: the protection is lost, training is not.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(FileError::new("lock", &path)(error).into()),
        }
        // The number only serves the message; failing to write it is no reason to stop.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(RunLock { file })
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started right now may share the open file for an instant.
        let _ = self.file.unlock();
    }
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, RunFolderError> {
    let Some(text) = read_own_text(path)? else { return Ok(None) };
    let broken = |error: serde_json::Error| RunFolderError::Broken { path: path.to_owned(), what: error.to_string() };
    serde_json::from_str(&text).map(Some).map_err(broken)
}

#[cfg(test)]
mod tests;
