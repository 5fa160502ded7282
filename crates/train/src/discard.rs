//! A new run that failed before it has learned anything leaves nothing behind.

use crate::files::FileError;
use crate::run_folder::{RunFolder, RunFolderError};

/// What a run that has learned nothing yet can hold besides.
const FOLDERS_OF_A_RUN: [&str; 3] = ["state", "adapter", "prefix"];
const FILES_OF_A_RUN: [&str; 12] = [
    "metrics.jsonl",
    "hold.json",
    "hold.new",
    "plan.json",
    "plan.new",
    "examples.json",
    "examples.new",
    "config.json",
    "config.new",
    "lock",
    "run.new",
    "run.json",
];

impl RunFolder {
    /// Takes a run away that this process created and whose training failed before anything was learned: what is known
    /// of it helps nobody, and its name is free again. A run that was opened, has a state or an adapter, or is in use
    /// stays. Whether the run is gone.
    pub fn discard_if_nothing_was_trained(&self) -> Result<bool, RunFolderError> {
        let Some(made) = self.made else { return Ok(false) };
        let Ok(_lock) = self.lock() else { return Ok(false) };
        if self.state()?.is_some() || self.check_never_trained().is_err() {
            return Ok(false);
        }
        for folder in FOLDERS_OF_A_RUN {
            let path = self.path().join(folder);
            if path.is_dir() {
                std::fs::remove_dir_all(&path).map_err(FileError::new("remove", &path))?;
            }
        }
        // Last what tells that it is a run, so that one that cannot be taken away whole is still known as one.
        for name in FILES_OF_A_RUN {
            self.files().remove(&self.path().join(name))?;
        }
        if made {
            // Only if nobody put anything else there.
            let _ = std::fs::remove_dir(self.path());
        }
        Ok(true)
    }
}
