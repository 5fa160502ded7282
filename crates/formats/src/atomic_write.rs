//! Files that are either the old ones or the new ones, never something between.

use crate::FormatError;
use std::io::Write;
use std::path::Path;

/// Writes `bytes` to a temporary file beside `path`, syncs it and renames it over `path`.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), FormatError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| FormatError::write(path, source);
    let mut file =
        tempfile::Builder::new().prefix(".selftune-").suffix(".partial").tempfile_in(folder).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    persist(file, path)
}

/// Syncs a temporary file, renames it to `path`, and syncs the folder so that the name survives a power cut too.
pub(crate) fn persist(file: tempfile::NamedTempFile, path: &Path) -> Result<(), FormatError> {
    let failed = |source| FormatError::write(path, source);
    file.as_file().sync_all().map_err(failed)?;
    make_readable(file.as_file()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    sync_folder(path);
    Ok(())
}

/// Temporary files are made for their owner alone; what stays gets the rights of an ordinary new file.
#[cfg(unix)]
fn make_readable(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_: &std::fs::File) -> std::io::Result<()> {
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
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn names_the_file_that_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/a.json");
        assert!(write(&path, b"one").unwrap_err().to_string().contains("missing/a.json"));
    }
}
