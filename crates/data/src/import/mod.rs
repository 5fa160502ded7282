//! Importers: from what a person's machine already holds to a history file. One file each, one line in [`IMPORTERS`].

mod chatgpt;
mod conversation;
mod csv;
mod elements;
pub mod git;
mod goodreads;
mod letterboxd;
mod lines;
mod mail;
mod maildir;
mod mask;
mod mbox;
mod movielens;
mod notes;
mod sink;
mod table;
mod telegram;
mod whatsapp;

pub use sink::{Imported, LeftOut, Masked, Sink, discard_unfinished_imports};

use crate::tasks::Task;
use std::path::{Path, PathBuf};

/// An importer as the command line lists it.
#[derive(Debug, Clone, Copy)]
pub struct Importer {
    /// Its name in `selftune import NAME`.
    pub name: &'static str,
    /// What it reads and writes, one line.
    pub about: &'static str,
    /// How to get the file, step by step, and what of it is taken.
    pub how_to: &'static str,
    /// What it needs to be told.
    pub needs: Needs,
    /// Reads the sources and puts records into the sink; `None` for git, which has options of its own.
    pub read: Option<Read>,
}

/// What an importer needs to be told apart from its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Who the person is in the file ([`ImportOptions::me`]).
    pub me: bool,
    /// Which columns are meant ([`ImportOptions::columns`]).
    pub columns: bool,
}

/// Reads sources into a sink.
pub type Read = fn(&ImportOptions, &mut Sink) -> Result<(), ImportError>;

/// Every importer.
pub static IMPORTERS: &[Importer] = &[
    git::IMPORTER,
    mbox::IMPORTER,
    maildir::IMPORTER,
    csv::IMPORTER,
    notes::IMPORTER,
    whatsapp::IMPORTER,
    telegram::IMPORTER,
    chatgpt::IMPORTER,
    goodreads::IMPORTER,
    letterboxd::IMPORTER,
    movielens::IMPORTER,
];

/// What to import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Files or folders.
    pub sources: Vec<PathBuf>,
    /// Addresses or names that are the person's in the file, compared without regard to case.
    pub me: Vec<String>,
    /// (field, column) pairs.
    pub columns: Vec<(String, String)>,
    /// The task to name in the records, for sources that could be several.
    pub task: Option<&'static dyn Task>,
    /// The user to write into the records; of a source with many people the one to take.
    pub user: Option<String>,
    /// Whether personal details are replaced.
    pub mask: bool,
}

/// Imports and writes a history file, whole or not at all.
///
/// # Errors
/// When a source cannot be read or is of another kind, when nothing in it can be taken, and when the history cannot be
/// written or is there already and `replace` is not set.
pub fn import(
    importer: &Importer,
    options: &ImportOptions,
    output: &Path,
    replace: bool,
) -> Result<Imported, ImportError> {
    let read = importer.read.ok_or_else(|| ImportError::Option("git has options of its own".to_string()))?;
    if importer.needs.me && options.me.is_empty() {
        return Err(ImportError::Option(
            "say who you are in it: --me with an address or name; may be repeated".to_string(),
        ));
    }
    // Replacing it would lose what is being read, or a device.
    if let Ok(found) = std::fs::canonicalize(output) {
        if options.sources.iter().any(|source| std::fs::canonicalize(source).is_ok_and(|source| source == found)) {
            return Err(ImportError::Option(format!("{} is what is read; choose another --output", output.display())));
        }
        if !found.is_file() {
            return Err(ImportError::Option(format!("{} is no file; choose another --output", output.display())));
        }
    }
    let mut sink = Sink::create(output, options, replace)?;
    read(options, &mut sink)?;
    sink.finish()
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A source cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A source is not what the importer reads.
    #[error("{}: {reason}", path.display())]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// An option that is missing or makes no sense.
    #[error("{0}")]
    Option(String),
    /// Nothing in the sources could be taken.
    #[error("nothing to import{0}")]
    Nothing(String),
    /// The history is there already.
    #[error("{} exists already; choose another --output, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The history cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl ImportError {
    fn read(path: &Path) -> impl Fn(std::io::Error) -> ImportError {
        move |source| ImportError::Read { path: path.to_path_buf(), source }
    }

    fn source(path: &Path, reason: impl Into<String>) -> ImportError {
        ImportError::Source { path: path.to_path_buf(), reason: reason.into() }
    }
}

/// A source opened for reading.
fn open(path: &Path) -> Result<std::fs::File, ImportError> {
    let file = std::fs::File::open(path).map_err(ImportError::read(path))?;
    match file.metadata().map_err(ImportError::read(path))?.is_dir() {
        true => Err(ImportError::source(path, "it is a folder; expected a file")),
        false => Ok(file),
    }
}

/// A file of a folder that was given, or the file itself.
fn file_of(path: &Path, name: &str) -> PathBuf {
    if path.is_dir() { path.join(name) } else { path.to_path_buf() }
}

/// Whether a name or address is the person's.
fn is_me(options: &ImportOptions, name: &str) -> bool {
    let name = name.trim().to_lowercase();
    options.me.iter().any(|me| me.trim().to_lowercase() == name)
}

/// The error of a source in which nobody is named as the person says; it lists some of the names that there are.
fn nobody_is_me<'a>(path: &Path, names: impl IntoIterator<Item = &'a str>) -> ImportError {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.truncate(20);
    ImportError::source(path, format!("nobody in it is named as --me says; the names are: {}", names.join(", ")))
}
