//! A run on hold, as its folder keeps it: whoever looks, and whichever process goes on, finds what it waits for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::files::FileError;
use crate::governor::Wait;
use crate::run_folder::{RunFolder, RunFolderError};

/// `hold.json`: there while a run is on hold, also when no process is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// Updates that were done, and saved, before the hold.
    pub step: u64,
    /// When it began, by the calendar.
    pub since_unix_seconds: f64,
    pub waits: Vec<Wait>,
}

impl Hold {
    /// Seconds since the hold began; 0 if the calendar was set back since.
    pub fn seconds(&self, now_unix_seconds: f64) -> f64 {
        (now_unix_seconds - self.since_unix_seconds).max(0.0)
    }
}

impl RunFolder {
    /// What the run waits for; none while it is not on hold.
    pub fn hold(&self) -> Result<Option<Hold>, RunFolderError> {
        crate::run_folder::read_json(&self.hold_path())
    }

    pub(crate) fn set_hold(&self, hold: &Hold) -> Result<(), FileError> {
        self.files().replace_json(&self.hold_path(), hold)
    }

    pub(crate) fn end_hold(&self) -> Result<(), FileError> {
        self.files().remove(&self.hold_path())
    }

    fn hold_path(&self) -> PathBuf {
        self.path().join("hold.json")
    }
}
