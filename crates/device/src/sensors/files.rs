//! Small files of the kernel, below a root that tests choose.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A value, or why there is none.
pub(super) type Found<T> = Result<T, String>;

/// The folder that stands for `/`.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

/// Files of `/sys` and `/proc` that we read are pages at most.
const BYTES_MAX: u64 = 64 << 10;

impl Root {
    pub fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// `path` is absolute as the running system has it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Text without the line's end. Bytes that are no UTF-8 are replaced.
    pub fn text(&self, path: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(self.path(path))?.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub fn number(&self, path: &str) -> Option<f64> {
        self.text(path).ok()?.parse::<f64>().ok().filter(|number| number.is_finite())
    }

    /// Names in a folder, sorted; none if it cannot be read.
    pub fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(self.path(folder))?;
        let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    }
}

/// Why `path` cannot be read, for people.
pub(super) fn unreadable(path: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{path} may only be read by the administrator"),
        io::ErrorKind::NotFound => format!("there is no {path}"),
        _ => format!("{path} cannot be read: {error}"),
    }
}
