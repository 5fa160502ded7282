//! Files that are either the old ones or the new ones, never something between.

use crate::FormatError;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Who may read a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// What was made from a person's texts, as an adapter is.
    OwnerOnly,
    /// What anyone can make from a public model.
    Everyone,
}

/// Writes `bytes` to a temporary file beside `path`, syncs it and renames it over `path`.
pub(crate) fn write(path: &Path, bytes: &[u8], readers: Readers) -> Result<(), FormatError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| FormatError::write(path, source);
    let mut file =
        tempfile::Builder::new().prefix(".selftune-").suffix(".partial").tempfile_in(folder).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    persist(file, path, readers)
}

/// Makes a folder, and those above it that are missing, which only its owner can look into. An existing folder keeps
/// its rights: it may hold other things.
pub(crate) fn create_private_folder(path: &Path) -> Result<(), FormatError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|source| FormatError::write(path, source))
}

/// A folder that nobody sees under its name before it is complete: made beside its place under another name, and taken
/// away again unless it is kept. Only its owner can look into it.
#[derive(Debug)]
pub struct NewFolder {
    folder: tempfile::TempDir,
    place: PathBuf,
}

impl NewFolder {
    /// Begins a folder that is to be at `place`, where nothing may be.
    pub fn begin(place: &Path) -> Result<Self, FormatError> {
        refuse_existing(place)?;
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        create_private_folder(parent)?;
        let folder = tempfile::Builder::new().prefix(".selftune-").suffix(".partial").tempdir_in(parent);
        let folder = folder.map_err(|source| FormatError::write(place, source))?;
        Ok(Self { folder, place: place.to_owned() })
    }

    /// Where it is until it is kept.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts the folder in its place, if nothing has come there meanwhile.
    pub fn keep(self) -> Result<(), FormatError> {
        refuse_existing(&self.place)?;
        sync_folder(&self.folder.path().join("."));
        std::fs::rename(self.folder.path(), &self.place).map_err(|source| FormatError::write(&self.place, source))?;
        // Nothing is left under the other name.
        let _ = self.folder.keep();
        sync_folder(&self.place);
        Ok(())
    }
}

fn refuse_existing(place: &Path) -> Result<(), FormatError> {
    match std::fs::symlink_metadata(place) {
        Ok(_) => {
            let source = std::io::Error::new(std::io::ErrorKind::AlreadyExists, "it exists and is not overwritten");
            Err(FormatError::write(place, source))
        }
        Err(_) => Ok(()),
    }
}

/// Syncs a temporary file, renames it to `path`, and syncs the folder so that the name survives a power cut too.
pub(crate) fn persist(file: tempfile::NamedTempFile, path: &Path, readers: Readers) -> Result<(), FormatError> {
    let failed = |source| FormatError::write(path, source);
    file.as_file().sync_all().map_err(failed)?;
    set_readers(file.as_file(), readers).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    sync_folder(path);
    Ok(())
}

/// Temporary files are made for their owner alone; what everyone may read gets the rights of an ordinary new file.
#[cfg(unix)]
fn set_readers(file: &std::fs::File, readers: Readers) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    match readers {
        Readers::OwnerOnly => Ok(()),
        Readers::Everyone => file.set_permissions(std::fs::Permissions::from_mode(0o644)),
    }
}

#[cfg(not(unix))]
fn set_readers(_: &std::fs::File, _: Readers) -> std::io::Result<()> {
    Ok(())
}

/// Not every system can sync a folder; the rename itself is done, so a failure here is no failure of the write.
fn sync_folder(path: &Path) {
    if let Some(folder) = path.parent()
        && let Ok(folder) = std::fs::File::open(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_a_file_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, b"one", Readers::OwnerOnly).unwrap();
        write(&path, b"two", Readers::OwnerOnly).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_new_folder_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("deep/model");
        let begun = NewFolder::begin(&place).unwrap();
        std::fs::write(begun.path().join("config.json"), "{}").unwrap();
        assert!(!place.exists());
        drop(begun);
        assert_eq!(std::fs::read_dir(folder.path().join("deep")).unwrap().count(), 0, "what is not kept is gone");
        let begun = NewFolder::begin(&place).unwrap();
        std::fs::write(begun.path().join("config.json"), "{}").unwrap();
        begun.keep().unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("deep")).unwrap().count(), 1);
        assert!(place.join("config.json").is_file());
        let error = NewFolder::begin(&place).unwrap_err().to_string();
        assert!(error.contains("deep/model") && error.contains("not overwritten"), "{error}");
    }

    #[test]
    fn names_the_file_that_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/a.json");
        assert!(write(&path, b"one", Readers::OwnerOnly).unwrap_err().to_string().contains("missing/a.json"));
    }
}
