//! What a record leaves outside the runs that saw it: accepted versions of adapters that saw it, and reports of runs that
//! held it out and quote it.

use crate::accepted::{self, Version};
use crate::failure::{Failure, InputError};
use anyhow::Context;
use serde::Serialize;
use std::path::{Path, PathBuf};
use train::Receipt;

/// An accepted version that saw the record.
pub struct SeenVersion {
    pub name: String,
    pub version: Version,
    /// What the adapter computes; equal to that of the run's adapter that it is a copy of.
    pub hash: String,
}

/// Accepted versions that saw the record: by their receipt, because they came out of one of `runs`, or because they
/// stand on one that did.
pub fn versions_that_saw(id: &str, runs: &[PathBuf]) -> Result<Vec<SeenVersion>, Failure> {
    let (mut seen, mut others) = (Vec::new(), Vec::new());
    for name in accepted::names()? {
        for version in accepted::versions(&name)? {
            let file = formats::adapter::read_adapter(&version.folder)
                .bad_input(format!("cannot use the accepted adapter {}", version.folder.display()))?;
            let hash = file.content_hash();
            let receipt = file.metadata.and_then(|notes| serde_json::from_value::<Receipt>(notes.receipt).ok());
            let saw = runs.contains(&version.note.run) || receipt.and_then(|receipt| receipt.saw(id)) == Some(true);
            let found = SeenVersion { name: name.clone(), version, hash };
            if saw { seen.push(found) } else { others.push(found) }
        }
    }
    while let Some(index) = others
        .iter()
        .position(|other| seen.iter().any(|below: &SeenVersion| other.version.note.below.contains(&below.hash)))
    {
        seen.push(others.remove(index));
    }
    Ok(seen)
}

/// A report that quotes the record.
#[derive(Debug, Serialize)]
pub struct Quote {
    /// The folder with the report's files.
    #[serde(serialize_with = "formats::serialize_lossily")]
    pub report: PathBuf,
    /// Whether the folder holds nothing but the report.
    #[serde(skip)]
    is_evaluation: bool,
}

const REPORT_FILES: [&str; 3] = ["report.html", "report.md", "report.json"];

/// Reports in a run folder, its evaluations included, that quote the record.
pub fn quotes(run: &Path, id: &str) -> Result<Vec<Quote>, Failure> {
    let mut quotes = Vec::new();
    let mut look = |report: PathBuf, is_evaluation| -> Result<(), Failure> {
        let path = report.join("report.json");
        match std::fs::read_to_string(&path) {
            Ok(text) if is_quoted(&text, id) => quotes.push(Quote { report, is_evaluation }),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display()))?,
        }
        Ok(())
    };
    look(run.to_owned(), false)?;
    if let Ok(entries) = std::fs::read_dir(run.join("evaluations")) {
        let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        folders.into_iter().try_for_each(|folder| look(folder, true))?;
    }
    Ok(quotes)
}

/// The samples of a report name their records; one that cannot be read as a report is searched for the id.
fn is_quoted(report: &str, id: &str) -> bool {
    let samples =
        serde_json::from_str::<serde_json::Value>(report).ok().and_then(|report| report.get("samples").cloned());
    match samples.as_ref().and_then(|samples| samples.as_array()) {
        Some(samples) => samples.iter().any(|sample| sample["id"] == id),
        None => report.contains(&serde_json::Value::from(id).to_string()),
    }
}

impl Quote {
    /// Removes the report, its data last: what was interrupted is found again.
    pub fn remove(&self) -> Result<(), Failure> {
        for name in REPORT_FILES {
            let path = self.report.join(name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()))?;
                }
                _ => {}
            }
        }
        if self.is_evaluation {
            // Only if nothing else is in it.
            let _ = std::fs::remove_dir(&self.report);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_quotes_the_records_of_its_samples_only() {
        let report = r#"{"samples": [{"id": "a", "gold": "b", "predictions": {}}], "title": "c"}"#;
        assert!(is_quoted(report, "a"));
        assert!(!is_quoted(report, "b") && !is_quoted(report, "c"));
        assert!(!is_quoted(r#"{"samples": []}"#, "a"));
        let broken = r#"{"samples": [{"id": "a\"1", "#;
        assert!(is_quoted(broken, "a\"1") && !is_quoted(broken, "a"));
    }
}
