//! Parts of mapped files.

use crate::FormatError;
use kernels::MappedFile;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mapped file and its path.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    pub(crate) path: Arc<PathBuf>,
    pub(crate) mapped: Arc<MappedFile>,
}

impl OpenFile {
    pub(crate) fn open(path: &Path) -> Result<OpenFile, FormatError> {
        let failed = |source| FormatError::read(path, source);
        let file = crate::open_ordinary(path).map_err(failed)?;
        OpenFile::map(&file, path).map_err(failed)
    }

    /// A file that is open already; `path` is for messages.
    pub(crate) fn map(file: &std::fs::File, path: &Path) -> std::io::Result<OpenFile> {
        let mapped = kernels::map_file(file)?;
        Ok(OpenFile { path: Arc::new(path.to_owned()), mapped: Arc::new(mapped) })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        (*self.mapped).as_ref()
    }

    /// Bytes `range`, which the caller has checked against the file's length.
    pub(crate) fn part(&self, range: Range<usize>) -> FilePart {
        assert!(range.start <= range.end && range.end <= self.bytes().len());
        FilePart { file: self.clone(), range }
    }
}

/// Some bytes of a mapped file.
#[derive(Clone, Debug)]
pub(crate) struct FilePart {
    file: OpenFile,
    range: Range<usize>,
}

impl FilePart {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }
    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }
}
