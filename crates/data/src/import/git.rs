//! Imports one author's commits.

use std::path::PathBuf;

/// This importer in the list.
pub const IMPORTER: super::Importer =
    super::Importer { name: "git", about: "one author's commits: a digest of each change and its subject line" };

/// Why a repository cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program `git` cannot be run.
    #[error("cannot run git: {0}; install git and put it in PATH")]
    NoGit(std::io::Error),
    /// The folder is not inside a repository.
    #[error("{}: not a git repository: {reason}", path.display())]
    NotARepository {
        /// The folder.
        path: PathBuf,
        /// What git said.
        reason: String,
    },
    /// The repository has no commit yet.
    #[error("{}: the repository has no commit", path.display())]
    NoCommit {
        /// The folder.
        path: PathBuf,
    },
    /// Nobody of that name or e-mail.
    #[error("{}: no commit by \"{author}\"; the commonest authors are: {commonest}", path.display())]
    UnknownAuthor {
        /// The folder.
        path: PathBuf,
        /// The name asked for.
        author: String,
        /// Names with their number of commits.
        commonest: String,
    },
    /// git stopped with an error.
    #[error("git {command} failed: {reason}")]
    Failed {
        /// The git command.
        command: &'static str,
        /// The end of what it wrote to standard error.
        reason: String,
    },
    /// The history file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}
