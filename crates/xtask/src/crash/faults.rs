//! The ways in which a run is interrupted. To add one, add a line to [`MODELS`] and what it does to [`Interruption`].

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use model::Random;
use train::{Fault, FileFaults, FileOperation};

use super::disk::{Disk, below};

/// What happens to a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// SIGKILL at a random instant or inside a chosen file operation, in a process of its own.
    ProcessKill,
    /// The power goes: what was not synced may be lost or torn.
    PowerCut,
    /// A write finds no space, after a part of it.
    DiskFull,
    /// From some operation on nothing can be changed.
    ReadOnly,
    /// The run ends, and when it goes on every time stamp lies years ahead or behind.
    ClockMoved,
}

pub const MODELS: [(&str, Model); 5] = [
    ("process_kill", Model::ProcessKill),
    ("power_cut", Model::PowerCut),
    ("disk_full", Model::DiskFull),
    ("read_only", Model::ReadOnly),
    ("clock_moved", Model::ClockMoved),
];

/// Counts operations and lets all of them pass.
#[derive(Default)]
pub struct Counter(pub AtomicU64);

impl FileFaults for Counter {
    fn before(&self, _: FileOperation) -> Result<(), Fault> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// One interruption of a run in this process: after so many operations, in the manner of a model.
pub struct Interruption {
    model: Model,
    after: u64,
    operations: AtomicU64,
    /// Part of an interrupted write that is done, of 2^64.
    torn: u64,
    disk: Option<Arc<Mutex<Disk>>>,
}

impl Interruption {
    pub fn new(model: Model, after: u64, random: &mut Random, disk: Option<Arc<Mutex<Disk>>>) -> Arc<Self> {
        Arc::new(Self { model, after, operations: AtomicU64::new(0), torn: random.next_u64(), disk })
    }

    pub fn has_happened(&self) -> bool {
        self.operations.load(Ordering::SeqCst) > self.after
    }

    fn note(&self, operation: FileOperation) {
        if let Some(disk) = &self.disk {
            disk.lock().unwrap_or_else(PoisonError::into_inner).note(operation);
        }
    }
}

impl FileFaults for Interruption {
    fn before(&self, operation: FileOperation) -> Result<(), Fault> {
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        if number < self.after {
            self.note(operation);
            return Ok(());
        }
        let kind = match self.model {
            // Room is needed by what makes files longer only.
            Model::DiskFull => match operation {
                FileOperation::Write(..) | FileOperation::CreateFile(_) | FileOperation::CreateFolder(_) => {
                    io::ErrorKind::StorageFull
                }
                _ => {
                    self.note(operation);
                    return Ok(());
                }
            },
            Model::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            Model::ProcessKill | Model::PowerCut | Model::ClockMoved => io::ErrorKind::Interrupted,
        };
        let mut bytes_written = 0;
        if let FileOperation::Write(path, bytes) = operation
            && (number == self.after || self.model == Model::DiskFull)
            && self.model != Model::ReadOnly
        {
            bytes_written = ((u128::from(self.torn) * (bytes.len() as u128 + 1)) >> 64) as usize;
            self.note(FileOperation::Write(path, &bytes[..bytes_written]));
        }
        Err(Fault { bytes_written, error: io::Error::new(kind, "on purpose") })
    }
}

/// Gives every file of a run another time of its last change, and the run another time of its beginning.
pub fn move_clock(folder: &Path, random: &mut Random) -> anyhow::Result<()> {
    const YEAR_S: f64 = 365.0 * 86_400.0;
    let shift_s = (below(random, 21) as f64 - 10.0) * YEAR_S;
    let now = std::time::SystemTime::now();
    let moved = match std::time::Duration::try_from_secs_f64(shift_s) {
        Ok(ahead) => now + ahead,
        Err(_) => now - std::time::Duration::from_secs_f64(-shift_s),
    };
    let mut to_visit = vec![folder.to_owned()];
    while let Some(path) = to_visit.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                to_visit.push(entry?.path());
            }
        } else if path.is_file() {
            std::fs::File::options().append(true).open(&path)?.set_modified(moved)?;
        }
    }
    let manifest = folder.join("run.json");
    if let Ok(text) = std::fs::read_to_string(&manifest) {
        let mut value: serde_json::Value = serde_json::from_str(&text)?;
        value["created_unix_seconds"] = (device::unix_time_seconds() + shift_s).into();
        std::fs::write(&manifest, serde_json::to_string_pretty(&value)?)?;
    }
    Ok(())
}
