//! What can be wrong with a file, always with the file and the tensor, key or byte, and what was expected there.

use std::path::{Path, PathBuf};

/// An error about a model or adapter file.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{}: {expected}", path.display())]
    NotAModel { path: PathBuf, expected: String },
    #[error("{}: not found; {expected}", path.display())]
    MissingFile { path: PathBuf, expected: String },
    #[error("{}:{line}:{column}: not valid JSON: {problem}", path.display())]
    Json { path: PathBuf, line: usize, column: usize, problem: String },
    #[error("{}: {problem} (at byte {offset})", path.display())]
    Malformed { path: PathBuf, offset: usize, problem: String },
    #[error("{}: unsupported {what} `{found}`; supported: {supported}", path.display())]
    Unsupported { path: PathBuf, what: &'static str, found: String, supported: String },
    #[error("{}: key `{key}`: {problem}", path.display())]
    Key { path: PathBuf, key: String, problem: String },
    #[error("{}: tensor `{tensor}`: {problem}", path.display())]
    Tensor { path: PathBuf, tensor: String, problem: String },
    #[error("{problem}")]
    Options { problem: String },
}

impl FormatError {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }
    pub(crate) fn write(path: &Path, source: std::io::Error) -> Self {
        Self::Write { path: path.to_owned(), source }
    }
    pub(crate) fn malformed(path: &Path, offset: usize, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), offset, problem: problem.into() }
    }
    pub(crate) fn key(path: &Path, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Key { path: path.to_owned(), key: key.into(), problem: problem.into() }
    }
    pub(crate) fn tensor(path: &Path, tensor: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor { path: path.to_owned(), tensor: tensor.into(), problem: problem.into() }
    }
}
