//! Importers: from what a person's machine already holds to a history file. One file each, one line in [`IMPORTERS`].

pub mod git;

/// An importer as the command line lists it.
#[derive(Debug, Clone, Copy)]
pub struct Importer {
    /// Its name in `selftune import NAME`.
    pub name: &'static str,
    /// What it reads and writes, one line.
    pub about: &'static str,
}

/// Every importer.
pub static IMPORTERS: &[Importer] = &[git::IMPORTER];
