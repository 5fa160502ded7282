//! Every change that a run makes to its folder goes through here, so that each can be atomic, private to the user, and
//! interrupted on purpose by tests.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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

/// Makes a folder (and its missing parents) that only its owner can look into. An existing folder is left as it is.
pub(crate) fn create_folder(path: &Path) -> Result<(), FileError> {
    crash::point().map_err(FileError::new("create", path))?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(FileError::new("create", path))
}

/// Takes from everyone but its owner the rights to an existing folder.
#[cfg(unix)]
pub(crate) fn make_folder_private(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::PermissionsExt;
    const OTHERS: u32 = 0o077;
    let failed = || FileError::new("make private", path);
    let mode = || fs::metadata(path).map(|folder| folder.permissions().mode() & 0o777).map_err(failed());
    if mode()? & OTHERS == 0 {
        return Ok(());
    }
    crash::point().and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700))).map_err(failed())?;
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
pub(crate) fn make_folder_private(_: &Path) -> Result<(), FileError> {
    Ok(())
}

/// Opens `path` for writing with an empty content, readable by its owner only.
pub(crate) fn create_file(path: &Path) -> Result<File, FileError> {
    crash::point().map_err(FileError::new("create", path))?;
    private(OpenOptions::new().write(true).create(true).truncate(true))
        .open(path)
        .map_err(FileError::new("create", path))
}

/// Opens `path` for appending, readable by its owner only.
pub(crate) fn append_file(path: &Path) -> Result<File, FileError> {
    private(OpenOptions::new().append(true).create(true)).open(path).map_err(FileError::new("open", path))
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Writes `bytes` at the end of `file`, which is open at `path`.
pub(crate) fn write(file: &mut File, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    crash::torn(bytes, |part| file.write_all(part)).map_err(FileError::new("write", path))
}

/// Waits until the content of `file` is on the disk.
pub(crate) fn sync(file: &File, path: &Path) -> Result<(), FileError> {
    crash::point().map_err(FileError::new("sync", path))?;
    // A killed process loses nothing that the system has; only a power cut does, and no test cuts the power.
    if cfg!(test) { Ok(()) } else { file.sync_data().map_err(FileError::new("sync", path)) }
}

/// Moves a file within a folder, replacing what was there. After a crash the old or the new is there, never a mixture.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    crash::point().map_err(FileError::new("replace", to))?;
    fs::rename(from, to).map_err(FileError::new("replace", to))
}

/// Waits until the names in `folder` are on the disk. Only Unix systems offer this; elsewhere renames are ordered by
/// the file system's journal.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), FileError> {
    crash::point().map_err(FileError::new("sync", folder))?;
    #[cfg(unix)]
    File::open(folder)
        .and_then(|folder| if cfg!(test) { Ok(()) } else { folder.sync_all() })
        .map_err(FileError::new("sync", folder))?;
    Ok(())
}

/// Replaces the content of `path` at once and durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let temporary = path.with_extension("new");
    let mut file = create_file(&temporary)?;
    write(&mut file, &temporary, bytes)?;
    sync(&file, &temporary)?;
    rename(&temporary, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Takes a file away durably. One that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    let removed = crash::point().and_then(|()| fs::remove_file(path));
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FileError::new("remove", path)(error)),
        Ok(()) => sync_folder(path.parent().unwrap_or(Path::new("."))),
    }
}

/// Replaces the content of `path` by `value` as indented JSON.
pub(crate) fn replace_json(path: &Path, value: &impl serde::Serialize) -> Result<(), FileError> {
    let mut text =
        serde_json::to_string_pretty(value).map_err(io::Error::from).map_err(FileError::new("write", path))?;
    text.push('\n');
    replace(path, text.as_bytes())
}

/// Interruptions on purpose. Outside of tests these functions do nothing but what they wrap.
pub(crate) mod crash {
    use std::io;

    /// A place where a test may end the run as a kill would: every call counts as one place.
    #[cfg(not(test))]
    pub fn point() -> io::Result<()> {
        Ok(())
    }
    /// Writes `bytes`; a test may end the run after half of them.
    #[cfg(not(test))]
    pub fn torn(bytes: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        write(bytes)
    }

    #[cfg(test)]
    thread_local! {
        /// Places still to pass before the interruption; none when not armed.
        static REMAINING: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
    }
    /// Interrupts the run of this thread after `places` more places.
    #[cfg(test)]
    pub fn arm(places: Option<u64>) {
        REMAINING.set(places);
    }
    #[cfg(test)]
    pub fn point() -> io::Result<()> {
        match REMAINING.get() {
            // Once interrupted, nothing more may reach the disk.
            Some(0) => Err(io::Error::other("interrupted on purpose")),
            Some(places) => {
                REMAINING.set(Some(places - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
    #[cfg(test)]
    pub fn torn(bytes: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        point()?;
        let (first, second) = bytes.split_at(bytes.len() / 2);
        write(first)?;
        point()?;
        write(second)
    }
}
