//! A file tree that stands for `/` in tests.

use std::path::{Path, PathBuf};

use super::files::Root;

pub(crate) struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }
    pub fn root(&self) -> Root {
        Root::new(self.folder.path())
    }
    pub fn root_path(&self) -> &Path {
        self.folder.path()
    }
    pub fn path(&self, path: &str) -> PathBuf {
        self.root().path(path)
    }
    pub fn folder(&self, path: &str) {
        std::fs::create_dir_all(self.path(path)).unwrap();
    }
    /// As the kernel writes: with a line's end.
    pub fn write(&self, path: &str, text: &str) {
        self.folder(path.rsplit_once('/').unwrap().0);
        std::fs::write(self.path(path), format!("{text}\n")).unwrap();
    }
    pub fn write_all(&self, folder: &str, files: &[(&str, &str)]) {
        for (name, text) in files {
            self.write(&format!("{folder}/{name}"), text);
        }
    }
}
