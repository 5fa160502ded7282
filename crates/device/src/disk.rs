//! Room on the disk under a path.

use std::path::Path;

/// Bytes that an ordinary user may still write on the file system that holds `path`, or its nearest ancestor
/// that exists.
pub fn free_disk_bytes(path: &Path) -> Option<u64> {
    // "run" has the ancestors "run" and "": the second means the current folder.
    let existing = path.ancestors().find_map(|ancestor| {
        let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        ancestor.exists().then_some(ancestor)
    })?;
    free_bytes(existing)
}

#[cfg(unix)]
fn free_bytes(path: &Path) -> Option<u64> {
    let statistics = rustix::fs::statvfs(path).ok()?;
    statistics.f_bavail.checked_mul(statistics.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_path: &Path) -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_exist_yet_counts_as_its_ancestor() {
        let folder = std::env::temp_dir();
        assert!(free_disk_bytes(&folder).is_some_and(|bytes| bytes > 0));
        assert!(free_disk_bytes(&folder.join("no/such/folder")).is_some());
        assert!(free_disk_bytes(Path::new("no-such-file")).is_some());
    }
}
