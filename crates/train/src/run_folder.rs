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
//! | `summary.json` | how the run ended |
//! | `lock` | held by the process that trains |

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{ConfigError, TrainConfig};
use crate::files::{self, FileError};
use crate::outcome::TrainOutcome;
use crate::plan::TrainPlan;
use crate::state::file::{self as state_file, StateError};
use crate::state::{Progress, State};

const FORMAT: &str = "selftune run";
const VERSION: u32 = 1;
/// Our own small JSON files are kilobytes; anything larger is not ours.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// What is wrong with a run folder.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{} already holds a run; resume it, or choose another folder", path.display())]
    Exists { path: PathBuf },
    #[error("{} is not empty and not a run folder; nothing in it was touched, choose another folder", path.display())]
    Foreign { path: PathBuf },
    #[error("{} is not a run folder: it has no run.json", path.display())]
    NotARun { path: PathBuf },
    #[error("{}: {what}", path.display())]
    Broken { path: PathBuf, what: String },
    #[error("{} is in use by another training process{}", path.display(), holder(*process))]
    InUse { path: PathBuf, process: Option<u32> },
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
}

/// What `inspect` shows of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
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
    /// Makes the folder of a new run at `path`, which must not exist or be empty. `inputs` is kept for the caller:
    /// whatever it needs to find model and history again on resume.
    pub fn create(path: &Path, inputs: Value) -> Result<RunFolder, RunFolderError> {
        if path.join("run.json").exists() {
            return Err(RunFolderError::Exists { path: path.to_owned() });
        }
        match std::fs::read_dir(path) {
            // A name left by an interrupted creation is ours.
            Ok(mut entries) => {
                if entries.any(|entry| entry.map_or(true, |entry| entry.file_name() != "run.new")) {
                    return Err(RunFolderError::Foreign { path: path.to_owned() });
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => files::create_folder(path)?,
            Err(error) => return Err(FileError::new("read", path)(error).into()),
        }
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            selftune_version: env!("CARGO_PKG_VERSION").to_owned(),
            created_unix_seconds: device::unix_time_seconds(),
            machine: device::Machine::describe(),
            inputs,
        };
        files::replace_json(&path.join("run.json"), &manifest)?;
        Ok(RunFolder { path: path.to_owned(), manifest })
    }

    /// Opens the folder of an existing run.
    pub fn open(path: &Path) -> Result<RunFolder, RunFolderError> {
        let manifest_path = path.join("run.json");
        let manifest: Manifest =
            read_json(&manifest_path)?.ok_or_else(|| RunFolderError::NotARun { path: path.to_owned() })?;
        if manifest.format != FORMAT || manifest.version != VERSION {
            let what = format!("`{}` version {}, expected `{FORMAT}` {VERSION}", manifest.format, manifest.version);
            return Err(RunFolderError::Broken { path: manifest_path, what });
        }
        Ok(RunFolder { path: path.to_owned(), manifest })
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
    pub(crate) fn state_folder(&self) -> PathBuf {
        self.path.join("state")
    }

    /// The configuration of the run; none before its training started.
    pub fn config(&self) -> Result<Option<TrainConfig>, RunFolderError> {
        let path = self.path.join("config.json");
        match read_text(&path)? {
            Some(text) => Ok(Some(TrainConfig::from_json(&text, &path.display().to_string())?)),
            None => Ok(None),
        }
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
    /// The newest whole state, with a note if a newer one was damaged.
    pub fn state(&self) -> Result<Option<(State, Option<String>)>, RunFolderError> {
        Ok(state_file::load(&self.state_folder())?.map(|loaded| (loaded.state, loaded.fallback)))
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
            notice,
        })
    }

    /// Writes what is known before the first update.
    pub(crate) fn begin(
        &self,
        config: &TrainConfig,
        plan: &TrainPlan,
        examples: &ExampleList,
    ) -> Result<(), RunFolderError> {
        files::replace_json(&self.path.join("config.json"), config)?;
        files::replace_json(&self.path.join("plan.json"), plan)?;
        files::replace_json(&self.path.join("examples.json"), examples)?;
        files::create_folder(&self.state_folder())?;
        Ok(())
    }
    pub(crate) fn end(&self, outcome: &TrainOutcome) -> Result<(), RunFolderError> {
        Ok(files::replace_json(&self.path.join("summary.json"), outcome)?)
    }

    /// Takes the run for this process until the lock is dropped. The system releases it when the process ends,
    /// however it ends, so a dead process leaves no lock behind.
    pub(crate) fn lock(&self) -> Result<RunLock, RunFolderError> {
        let path = self.path.join("lock");
        let mut file = files::append_file(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let process = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
                return Err(RunFolderError::InUse { path: self.path.clone(), process });
            }
            // A file system without locks: the protection is lost, training is not.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(FileError::new("lock", &path)(error).into()),
        }
        // The number only serves the message; failing to write it is no reason to stop.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(RunLock { file })
    }

    fn is_locked(&self) -> bool {
        File::open(self.path.join("lock"))
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

/// Holds a run for one process.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started right now may share the open file for an instant.
        let _ = self.file.unlock();
    }
}

/// The text of a file of ours; none if it does not exist.
fn read_text(path: &Path) -> Result<Option<String>, RunFolderError> {
    let mut file = match File::open(path) {
        Ok(file) => file.take(JSON_BYTES_MAX),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::new("open", path)(error).into()),
    };
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(FileError::new("read", path))?;
    Ok(Some(text))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, RunFolderError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let broken = |error: serde_json::Error| RunFolderError::Broken { path: path.to_owned(), what: error.to_string() };
    serde_json::from_str(&text).map(Some).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_run_takes_a_new_or_empty_folder_only() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        RunFolder::create(&path, serde_json::json!({"model": "m.gguf"})).unwrap();
        assert_eq!(RunFolder::open(&path).unwrap().inputs()["model"], "m.gguf");
        assert!(matches!(RunFolder::create(&path, Value::Null), Err(RunFolderError::Exists { .. })));

        let foreign = parent.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        RunFolder::create(&foreign, Value::Null).unwrap();
        std::fs::remove_file(foreign.join("run.json")).unwrap();
        std::fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
        assert!(matches!(RunFolder::create(&foreign, Value::Null), Err(RunFolderError::Foreign { .. })));
        assert!(matches!(RunFolder::open(&foreign), Err(RunFolderError::NotARun { .. })));
        assert_eq!(std::fs::read_to_string(foreign.join("thesis.txt")).unwrap(), "years of work");
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(RunFolder::create(&file, Value::Null), Err(RunFolderError::File(_))));
    }

    #[cfg(unix)]
    #[test]
    fn folders_and_files_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let run = RunFolder::create(&path, Value::Null).unwrap();
        let _lock = run.lock().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("run.json")), 0o600);
        assert_eq!(mode(&path.join("lock")), 0o600);
    }

    #[test]
    fn one_process_at_a_time_and_a_dead_one_does_not_count() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunFolder::create(&parent.path().join("run"), Value::Null).unwrap();
        let lock = run.lock().unwrap();
        assert_eq!(run.summary().unwrap().status, RunStatus::Running);
        let error = RunFolder::open(run.path()).unwrap().lock().unwrap_err();
        assert!(matches!(error, RunFolderError::InUse { process, .. } if process == Some(std::process::id())));
        drop(lock);
        assert_eq!(run.summary().unwrap().status, RunStatus::NotStarted);
        // The file is still there, as after a kill.
        assert!(run.path().join("lock").exists());
        drop(run.lock().unwrap());
    }

    #[test]
    fn foreign_and_broken_manifests_are_named() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunFolder::create(&parent.path().join("run"), Value::Null).unwrap();
        let manifest = run.path().join("run.json");
        let text = std::fs::read_to_string(&manifest).unwrap();
        std::fs::write(&manifest, text.replace("\"version\": 1,", "\"version\": 2,")).unwrap();
        let error = RunFolder::open(run.path()).unwrap_err().to_string();
        assert!(error.contains("run.json") && error.contains("version 2"), "{error}");
        std::fs::write(&manifest, "{\"format\": ").unwrap();
        assert!(matches!(RunFolder::open(run.path()), Err(RunFolderError::Broken { .. })));
    }
}
