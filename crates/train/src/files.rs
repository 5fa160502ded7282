//! Every change that a run makes to its folder goes through [`Files`], so that each can be atomic, private to the user,
//! and hit by a fault on purpose: `cargo xtask crash` and the tests cut the power, fill the disk or stop the run at any
//! operation.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use formats::not_ordinary;
pub(crate) use formats::open_ordinary;

/// A file operation that failed: what was being done, to which path, and why.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {}: {source}{}", path.display(), advice(source, *nothing_saved))]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
    /// The run is new: there is nothing yet that could be intact.
    nothing_saved: bool,
}

impl FileError {
    pub(crate) fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| FileError { action, path: path.to_owned(), source, nothing_saved: false }
    }
    /// The same failure of a run that has saved nothing yet.
    pub(crate) fn of_new_run(self) -> FileError {
        FileError { nothing_saved: true, ..self }
    }
}

fn advice(error: &io::Error, nothing_saved: bool) -> &'static str {
    match (error.kind(), nothing_saved) {
        (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, false) => {
            "; free some space and resume, what was saved before is intact"
        }
        (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, true) => {
            "; free some space, or choose a folder on another disk"
        }
        (io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied, false) => {
            "; the folder must be writable, what was saved before is intact"
        }
        (io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied, true) => {
            "; choose a folder that is yours and can be written"
        }
        _ => "",
    }
}

/// One change of the disk, before it is made.
#[derive(Clone, Copy, Debug)]
pub enum FileOperation<'a> {
    /// Makes one folder.
    CreateFolder(&'a Path),
    /// Takes other people's rights to a folder away.
    MakePrivate(&'a Path),
    /// Opens a file with an empty content.
    CreateFile(&'a Path),
    /// Opens a file, empty if it is new, to write at its end.
    AppendFile(&'a Path),
    /// Writes at the end of an open file.
    Write(&'a Path, &'a [u8]),
    /// Shortens a file to so many bytes.
    Cut(&'a Path, u64),
    /// Waits until a file's content is on the disk.
    Sync(&'a Path),
    /// Moves a file within its folder, replacing what was there.
    Rename(&'a Path, &'a Path),
    /// Takes a file away.
    Remove(&'a Path),
    /// Waits until the names in a folder are on the disk.
    SyncFolder(&'a Path),
}

/// Why an operation is not carried out.
#[derive(Debug)]
pub struct Fault {
    /// Of a write: the bytes that reach the file all the same.
    pub bytes_written: usize,
    pub error: io::Error,
}

/// Faults on purpose. Asked before every operation, in the thread that makes it; may also never return.
pub trait FileFaults: Send + Sync {
    fn before(&self, operation: FileOperation) -> Result<(), Fault>;
}

/// The disk as a run sees it. The default is the disk as it is.
#[derive(Clone, Default)]
pub struct Files {
    faults: Option<Arc<dyn FileFaults>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(if self.faults.is_some() { "Files(with faults)" } else { "Files" })
    }
}

impl Files {
    /// A disk with faults. Syncs only ask for theirs and do not wait for the real disk: no test cuts the real power.
    pub fn with_faults(faults: Arc<dyn FileFaults>) -> Self {
        Self { faults: Some(faults) }
    }

    fn ask(&self, operation: FileOperation) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.before(operation).map_err(|fault| fault.error))
    }

    /// Whether syncs reach the real disk.
    fn syncs(&self) -> bool {
        self.faults.is_none() && !cfg!(test)
    }

    /// Makes a folder and its missing parents, which only their owner can look into, durably. An existing folder is
    /// left as it is.
    pub(crate) fn create_folder(&self, path: &Path) -> Result<(), FileError> {
        if path.is_dir() {
            return Ok(());
        }
        let parent = parent(path);
        if !parent.exists() {
            self.create_folder(parent)?;
        }
        let mut builder = fs::DirBuilder::new();
        // Another process may make it at the same time.
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let make = || {
            self.ask(FileOperation::CreateFolder(path))?;
            builder.create(path)
        };
        make().map_err(FileError::new("create", path))?;
        self.sync_folder(parent)
    }

    /// Takes from everyone but its owner the rights to an existing folder.
    #[cfg(unix)]
    pub(crate) fn make_folder_private(&self, path: &Path) -> Result<(), FileError> {
        use std::os::unix::fs::PermissionsExt;
        const OTHERS: u32 = 0o077;
        let failed = || FileError::new("make private", path);
        let mode = || fs::metadata(path).map(|folder| folder.permissions().mode() & 0o777).map_err(failed());
        if mode()? & OTHERS == 0 {
            return Ok(());
        }
        self.ask(FileOperation::MakePrivate(path))
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
            .map_err(failed())?;
        // Some file systems say yes and do nothing.
        match mode()? {
            mode if mode & OTHERS == 0 => Ok(()),
            mode => {
                let problem = format!("its file system keeps it open to others (mode {mode:o}); choose another folder");
                Err(failed()(io::Error::other(problem)))
            }
        }
    }

    /// Elsewhere folders inherit the rights of the user's own.
    #[cfg(not(unix))]
    pub(crate) fn make_folder_private(&self, _: &Path) -> Result<(), FileError> {
        Ok(())
    }

    /// Opens `path` for writing with an empty content, readable by its owner only.
    pub(crate) fn create_file(&self, path: &Path) -> Result<File, FileError> {
        self.ask(FileOperation::CreateFile(path))
            .and_then(|()| private(OpenOptions::new().write(true).create(true).truncate(true)).open(path))
            .map_err(FileError::new("create", path))
    }

    /// Opens `path` for appending, readable by its owner only.
    pub(crate) fn append_file(&self, path: &Path) -> Result<File, FileError> {
        let is_other = fs::metadata(path).is_ok_and(|file| !file.is_file());
        self.ask(FileOperation::AppendFile(path))
            .and_then(|()| if is_other { Err(not_ordinary()) } else { Ok(()) })
            .and_then(|()| private(OpenOptions::new().append(true).create(true)).open(path))
            .map_err(FileError::new("open", path))
    }

    /// Writes `bytes` at the end of `file`, which is open at `path`.
    pub(crate) fn write(&self, file: &mut File, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        let failed = FileError::new("write", path);
        let faults = self.faults.as_ref();
        match faults.map_or(Ok(()), |faults| faults.before(FileOperation::Write(path, bytes))) {
            Ok(()) => file.write_all(bytes).map_err(failed),
            Err(fault) => {
                file.write_all(&bytes[..fault.bytes_written.min(bytes.len())])
                    .map_err(FileError::new("write", path))?;
                Err(failed(fault.error))
            }
        }
    }

    /// Shortens `file`, which is open at `path`.
    pub(crate) fn cut(&self, file: &File, path: &Path, len: u64) -> Result<(), FileError> {
        self.ask(FileOperation::Cut(path, len)).and_then(|()| file.set_len(len)).map_err(FileError::new("cut", path))
    }

    /// Waits until the content of `file` is on the disk.
    pub(crate) fn sync(&self, file: &File, path: &Path) -> Result<(), FileError> {
        self.ask(FileOperation::Sync(path))
            .and_then(|()| if self.syncs() { file.sync_data() } else { Ok(()) })
            .map_err(FileError::new("sync", path))
    }

    /// Moves a file within a folder, replacing what was there. After a crash the old or the new is there, never a
    /// mixture.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError> {
        self.ask(FileOperation::Rename(from, to))
            .and_then(|()| fs::rename(from, to))
            .map_err(FileError::new("replace", to))
    }

    /// Waits until the names in `folder` are on the disk. Only Unix systems offer this; elsewhere renames are ordered
    /// by the file system's journal.
    pub(crate) fn sync_folder(&self, folder: &Path) -> Result<(), FileError> {
        let failed = FileError::new("sync", folder);
        if let Err(error) = self.ask(FileOperation::SyncFolder(folder)) {
            return Err(failed(error));
        }
        #[cfg(unix)]
        File::open(folder).and_then(|folder| if self.syncs() { folder.sync_all() } else { Ok(()) }).map_err(failed)?;
        Ok(())
    }

    /// Replaces the content of `path` at once and durably.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        let temporary = path.with_extension("new");
        let mut file = self.create_file(&temporary)?;
        self.write(&mut file, &temporary, bytes)?;
        self.sync(&file, &temporary)?;
        self.rename(&temporary, path)?;
        self.sync_folder(parent(path))
    }

    /// Takes a file away durably. One that is not there is no error.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), FileError> {
        match self.ask(FileOperation::Remove(path)).and_then(|()| fs::remove_file(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(FileError::new("remove", path)(error)),
            Ok(()) => self.sync_folder(parent(path)),
        }
    }

    /// Replaces the content of `path` by `value` as indented JSON.
    pub(crate) fn replace_json(&self, path: &Path, value: &impl serde::Serialize) -> Result<(), FileError> {
        let mut text =
            serde_json::to_string_pretty(value).map_err(io::Error::from).map_err(FileError::new("write", path))?;
        text.push('\n');
        self.replace(path, text.as_bytes())
    }
}

/// Our own small files are kilobytes; anything larger is not ours.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// The text of a small file of selftune's own; none if it does not exist.
pub fn read_own_text(path: &Path) -> Result<Option<String>, FileError> {
    let file = match open_ordinary(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::new("open", path)(error)),
    };
    let mut text = String::new();
    file.take(TEXT_BYTES_MAX).read_to_string(&mut text).map_err(FileError::new("read", path))?;
    Ok(Some(text))
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// The folder of a path; that of a plain name is the current one.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Interruptions on purpose, for the tests of this crate.
#[cfg(test)]
pub(crate) mod crash {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Ends a run as a kill would, after a number of operations; of a write in which it ends, half is done.
    pub struct StopAfter {
        remaining: AtomicU64,
    }

    impl StopAfter {
        /// The disk and the counter: [`StopAfter::is_over`] tells whether the interruption happened.
        pub fn operations(count: u64) -> (Files, Arc<StopAfter>) {
            let stop = Arc::new(StopAfter { remaining: AtomicU64::new(count + 1) });
            (Files::with_faults(stop.clone()), stop)
        }
        pub fn is_over(&self) -> bool {
            self.remaining.load(Ordering::SeqCst) == 0
        }
    }

    impl FileFaults for StopAfter {
        fn before(&self, operation: FileOperation) -> Result<(), Fault> {
            // Once interrupted, nothing more may reach the disk.
            let count_down = |count: u64| Some(count.saturating_sub(1));
            let before =
                self.remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down).expect("always some");
            let bytes_written = match (before, operation) {
                (2.., _) => return Ok(()),
                (1, FileOperation::Write(_, bytes)) => bytes.len() / 2,
                _ => 0,
            };
            Err(Fault { bytes_written, error: io::Error::other("interrupted on purpose") })
        }
    }
}
