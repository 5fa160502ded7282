//! When a run is saved, and the thread that does it while the next update is computed.
//!
//! The loop only lays the state out in memory that is planned for it (one copy); checksums, writing, syncing and
//! renaming happen beside it. A kill in between finds the save before, from which the same updates are made again to
//! the same bits. A save that is due while the one before is still being written waits for a later update: the disk
//! never holds up the training.
//!
//! What is written is bounded by `save_bytes_per_hour`, since flash wears out: each byte is earned by time, and the
//! first hour's are there from the start, so that short runs may save as often as they like.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use device::Stopwatch;
use serde::{Deserialize, Serialize};

use crate::config::TrainConfig;
use crate::files::{FileError, Files};
use crate::metrics::ToSync;
use crate::state::{Identity, Progress, file as state_file};

/// A save by the clock must have held up the loop for less than this part of the time since the one before it.
const BLOCKED_MAX: f64 = 0.01;

/// A save that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveReport {
    /// Updates done in the saved state.
    pub step: u64,
    pub bytes: u64,
    /// Time that the loop stood still for it.
    pub blocked_seconds: f64,
    /// Time in the saving thread, waiting for the disk included; the loop went on meanwhile.
    pub seconds: f64,
}

/// All saves of a session, or of a run's last session in its summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveTotals {
    pub saves: u64,
    pub bytes: u64,
    pub blocked_seconds: f64,
}

/// How a run is saved.
pub(crate) struct Saving {
    every_steps: u64,
    every_seconds: f64,
    bytes_per_hour: u64,
    session: Stopwatch,
    /// The state that was handed over last, or that the run began with.
    last: Option<Last>,
    totals: SaveTotals,
    /// Bytes of one save, once known.
    bytes: u64,
    writer: Writer,
}

/// A state that is on the disk or on its way there.
struct Last {
    step: u64,
    /// Validations done: the one after an update may be saved later than the update.
    validations: usize,
    /// What handing it over held up.
    blocked_seconds: f64,
    since: Stopwatch,
}

impl Last {
    fn new(progress: &Progress, blocked_seconds: f64) -> Self {
        let (step, validations) = (progress.step, progress.validations.len());
        Self { step, validations, blocked_seconds, since: Stopwatch::start() }
    }
}

impl Saving {
    /// `saved`: the progress of the state on disk. `metrics` is synced before each state, which speaks of its lines.
    pub fn new(
        config: &TrainConfig,
        files: &Files,
        folder: PathBuf,
        metrics: ToSync,
        saved: Option<&Progress>,
    ) -> Result<Self, FileError> {
        Ok(Self {
            every_steps: config.save_every_steps,
            every_seconds: config.save_every_seconds,
            bytes_per_hour: config.save_bytes_per_hour,
            session: Stopwatch::start(),
            last: saved.map(|progress| Last::new(progress, 0.0)),
            totals: SaveTotals::default(),
            bytes: 0,
            writer: Writer::start(files.clone(), folder, metrics, config.save_sync)?,
        })
    }

    /// Whether the state at `progress` should be saved now.
    pub fn is_due(&self, progress: &Progress) -> bool {
        let Some(last) = &self.last else { return true };
        if self.has(progress) || self.writer.is_busy() || !self.is_within_bound() {
            return false;
        }
        match self.every_steps {
            0 => {
                let elapsed = last.since.seconds();
                elapsed >= self.every_seconds && last.blocked_seconds <= BLOCKED_MAX * elapsed
            }
            // Not only at multiples: one that was put off is made up for.
            every => progress.step / every > last.step / every,
        }
    }

    /// Whether one more save stays under the bytes that this session has earned.
    fn is_within_bound(&self) -> bool {
        let hours = 1.0 + self.session.seconds() / 3600.0;
        self.bytes_per_hour == 0 || (self.totals.bytes + self.bytes) as f64 <= self.bytes_per_hour as f64 * hours
    }

    /// Whether the state at `progress` is on the disk or on its way there.
    pub fn has(&self, progress: &Progress) -> bool {
        let at = (progress.step, progress.validations.len());
        self.last.as_ref().is_some_and(|last| (last.step, last.validations) == at)
    }

    /// Hands a state to the saving thread. The first one is waited for: what comes after needs a state to go back to.
    pub fn begin(&mut self, identity: &Identity, progress: &Progress, values: [&[f32]; 3]) -> Result<(), FileError> {
        let watch = Stopwatch::start();
        let is_first = self.last.is_none();
        let mut image = self.writer.idle_image()?;
        state_file::lay_out(&mut image, identity, progress, values);
        self.bytes = image.len() as u64;
        self.writer.write(Work { image, report: SaveReport { step: progress.step, ..SaveReport::NONE } })?;
        if is_first {
            self.writer.wait()?;
        }
        let blocked = watch.seconds();
        self.totals.blocked_seconds += blocked;
        self.last = Some(Last::new(progress, blocked));
        Ok(())
    }

    /// A save that ended since the last call, or why it failed. `wait`: also one that is still under way.
    pub fn finished(&mut self, wait: bool) -> Result<Option<SaveReport>, FileError> {
        if wait {
            self.writer.wait()?;
        } else {
            self.writer.poll()?;
        }
        let Some(mut report) = self.writer.report.take() else { return Ok(None) };
        report.blocked_seconds = self.last.as_ref().map_or(0.0, |last| last.blocked_seconds);
        self.totals.saves += 1;
        self.totals.bytes += report.bytes;
        Ok(Some(report))
    }

    pub fn totals(&self) -> SaveTotals {
        self.totals
    }
}

impl SaveReport {
    const NONE: SaveReport = SaveReport { step: 0, bytes: 0, blocked_seconds: 0.0, seconds: 0.0 };
}

/// A state on its way to the disk.
struct Work {
    image: Vec<u8>,
    report: SaveReport,
}

type Done = (Vec<u8>, Result<SaveReport, FileError>);

/// The saving thread, with at most one state in work.
struct Writer {
    folder: PathBuf,
    work: Option<Sender<Work>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// The memory of a state; none while the thread has it.
    image: Option<Vec<u8>>,
    report: Option<SaveReport>,
}

impl Writer {
    fn start(files: Files, folder: PathBuf, metrics: ToSync, sync: bool) -> Result<Self, FileError> {
        let (work, to_do) = channel::<Work>();
        let (finished, done) = channel();
        let path = folder.clone();
        let save = move |Work { mut image, mut report }: Work| -> Done {
            let watch = Stopwatch::start();
            let synced = if sync { metrics.sync() } else { Ok(()) };
            let bytes = synced.and_then(|()| state_file::save(&files, &path, &mut image, sync));
            report.seconds = watch.seconds();
            (image, bytes.map(|bytes| SaveReport { bytes, ..report }))
        };
        let thread = std::thread::Builder::new()
            .name("save".to_owned())
            .spawn(move || {
                for work in to_do {
                    if finished.send(save(work)).is_err() {
                        return;
                    }
                }
            })
            .map_err(FileError::new("start a thread to save", &folder))?;
        Ok(Self { folder, work: Some(work), done, thread: Some(thread), image: Some(Vec::new()), report: None })
    }

    fn is_busy(&self) -> bool {
        self.image.is_none()
    }

    /// Memory to lay a state out in; waits for a save under way.
    fn idle_image(&mut self) -> Result<Vec<u8>, FileError> {
        self.wait()?;
        Ok(self.image.take().unwrap_or_default())
    }

    fn write(&mut self, work: Work) -> Result<(), FileError> {
        let sender = self.work.as_ref().expect("open until the writer is dropped");
        sender.send(work).map_err(|_| self.gone())
    }

    fn poll(&mut self) -> Result<(), FileError> {
        if !self.is_busy() {
            return Ok(());
        }
        match self.done.try_recv() {
            Ok(done) => self.take(done),
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => Err(self.gone()),
        }
    }

    fn wait(&mut self) -> Result<(), FileError> {
        if !self.is_busy() {
            return Ok(());
        }
        let done = self.done.recv().map_err(|_| self.gone())?;
        self.take(done)
    }

    fn take(&mut self, (image, result): Done) -> Result<(), FileError> {
        self.image = Some(image);
        self.report = Some(result?);
        Ok(())
    }

    /// Only after a panic in the thread, which is a bug; the states on the disk are whole all the same.
    fn gone(&self) -> FileError {
        FileError::new("save to", &self.folder)(std::io::Error::other("the saving thread has ended"))
    }
}

impl Drop for Writer {
    /// A run lets go of its folder only when nothing writes there any more.
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
