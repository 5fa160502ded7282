//! What is remembered between starts: which content a set of files had, and which cache files were checked.
//!
//! A file is taken for unchanged when its size, times of modification and status change, inode and device are: the status
//! time cannot be set by programs, so an edit that keeps size and modification time is seen too.

use crate::{FormatError, atomic_write, json};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Entries kept of each kind, the newest.
const ENTRIES_MAX: usize = 16;

/// A file's identity without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    name: String,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
    device: u64,
}

impl Fingerprint {
    pub(super) fn of(path: &Path) -> Result<Fingerprint, FormatError> {
        let metadata = std::fs::metadata(path).map_err(|source| FormatError::read(path, source))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            Ok(Fingerprint {
                name,
                bytes: metadata.len(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
                inode: metadata.ino(),
                device: metadata.dev(),
            })
        }
        #[cfg(not(unix))]
        {
            let since = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            let modified = since.map_or((0, 0), |time| (time.as_secs() as i64, i64::from(time.subsec_nanos())));
            Ok(Fingerprint { name, bytes: metadata.len(), modified, changed: (0, 0), inode: 0, device: 0 })
        }
    }
}

/// The index file of one place. An unreadable one counts as empty: it is only a memory.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Index {
    contents: Vec<Content>,
    verified: Vec<Fingerprint>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Content {
    files: Vec<Fingerprint>,
    content_hash: String,
}

impl Index {
    pub(super) fn read(path: &Path) -> Index {
        json::read_bytes(path).ok().and_then(|bytes| json::parse(path, &bytes).ok()).unwrap_or_default()
    }

    /// Changes the index file, if it can be changed.
    pub(super) fn update(path: &Path, change: impl FnOnce(&mut Index)) {
        let mut index = Index::read(path);
        let before = serde_json::to_vec(&index).ok();
        change(&mut index);
        let after = serde_json::to_vec(&index).ok();
        if let Some(after) = after.filter(|after| before.as_ref() != Some(after)) {
            // Without it the next start hashes the model again: slower, never wrong.
            let _ = atomic_write::write(path, &after, atomic_write::Readers::Everyone);
        }
    }

    pub(super) fn content_hash(&self, files: &[Fingerprint]) -> Option<String> {
        let content = self.contents.iter().find(|content| content.files == files)?;
        let is_hash =
            content.content_hash.len() == 64 && content.content_hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| content.content_hash.clone())
    }

    pub(super) fn add_content(&mut self, files: Vec<Fingerprint>, content_hash: &str) {
        let content = Content { files, content_hash: content_hash.to_owned() };
        add_newest(&mut self.contents, content);
    }

    pub(super) fn is_verified(&self, file: &Fingerprint) -> bool {
        self.verified.contains(file)
    }

    pub(super) fn add_verified(&mut self, file: Option<Fingerprint>) {
        if let Some(file) = file {
            add_newest(&mut self.verified, file);
        }
    }
}

fn add_newest<T: PartialEq>(entries: &mut Vec<T>, entry: T) {
    if !entries.contains(&entry) {
        entries.push(entry);
        entries.drain(..entries.len().saturating_sub(ENTRIES_MAX));
    }
}
