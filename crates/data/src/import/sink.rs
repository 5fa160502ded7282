//! Where importers put what they take, and say what they leave.

use super::mask::Masker;
use super::{ImportError, ImportOptions};
use crate::read::{ReadOptions, choose_task};
use serde_json::{Map, Value};
use std::fmt::Display;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Takes records one by one and writes them to a temporary file beside the history.
pub struct Sink {
    output: PathBuf,
    replace: bool,
    file: BufWriter<tempfile::NamedTempFile>,
    user: String,
    masker: Option<Masker>,
    records: usize,
    tasks: Vec<(&'static str, usize)>,
    left: Vec<LeftOut>,
}

/// What was imported and what was not.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Imported {
    /// Records written.
    pub records: usize,
    /// Number of records of each task.
    pub tasks: Vec<(&'static str, usize)>,
    /// What was left out, by reason, in the order in which the reasons came up.
    pub left_out: Vec<LeftOut>,
    /// Personal details that were replaced, by kind; empty when none were to be.
    pub masked: Vec<Masked>,
}

/// What was left out for one reason.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Why.
    pub reason: String,
    /// How often.
    pub count: usize,
    /// Where, `file:line` or the like: the first few.
    pub places: Vec<String>,
}

/// Personal details of one kind that were replaced.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Masked {
    /// What they are: `email`, `phone` ...
    pub kind: &'static str,
    /// How often one was replaced.
    pub count: usize,
    /// How many different ones there were.
    pub different: usize,
}

/// Places named of each reason.
const PLACES_MAX: usize = 5;

/// Different reasons kept apart; further ones are counted together.
const REASONS_MAX: usize = 64;

/// The user of records when no name is given.
const USER: &str = crate::record::DEFAULT_USER;

/// Fields that are no text of the person and stay as they are when details are masked.
const FIELDS_NOT_MASKED: [&str; 5] = ["user", "task", "id", "time", "date"];

impl Sink {
    pub(super) fn create(output: &Path, options: &ImportOptions, replace: bool) -> Result<Sink, ImportError> {
        // Said before the work; whether it is still true is checked again at the end.
        if !replace && std::fs::symlink_metadata(output).is_ok() {
            return Err(ImportError::Exists(output.to_path_buf()));
        }
        if let Some(user) = &options.user
            && (user.trim().is_empty() || user.chars().any(char::is_control))
        {
            return Err(ImportError::Option(
                "--user is empty or holds control characters; expected a name".to_string(),
            ));
        }
        let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Only the owner may read it: that is how temporary files are made.
        let file = tempfile::NamedTempFile::new_in(folder)
            .map_err(|source| ImportError::Write { path: output.to_path_buf(), source })?;
        Ok(Sink {
            output: output.to_path_buf(),
            replace,
            file: BufWriter::new(file),
            user: options.user.clone().unwrap_or_else(|| USER.to_string()),
            masker: options.mask.then(Masker::default),
            records: 0,
            tasks: Vec::new(),
            left: Vec::new(),
        })
    }

    /// Takes a record from a place. One that could not be read back as a record is left out, with the reason.
    pub fn take(&mut self, place: impl Display, mut fields: Map<String, Value>) -> Result<(), ImportError> {
        fields.retain(|_, value| !value.is_null());
        if let Some(masker) = &mut self.masker {
            for (name, value) in &mut fields {
                if !FIELDS_NOT_MASKED.contains(&name.as_str()) {
                    masker.mask_value(value);
                }
            }
        }
        let options = ReadOptions::default();
        let read = choose_task(&fields, &options).and_then(|task| {
            crate::time::record_time(&fields)?;
            task.read(fields.clone(), &options.columns)
        });
        let body = match read {
            Ok(body) => body,
            Err(reason) => {
                self.leave(place, &reason);
                return Ok(());
            }
        };
        let name = crate::record::Record::ad_hoc(USER, body).task().name();
        match self.tasks.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => self.tasks.push((name, 1)),
        }
        if !fields.contains_key("user") {
            fields.insert("user".to_string(), self.user.clone().into());
        }
        self.records += 1;
        let written = serde_json::to_writer(&mut self.file, &fields).map_err(std::io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(|source| self.write_error(source))
    }

    /// Says that something is left out, and why.
    pub fn leave(&mut self, place: impl Display, reason: &str) {
        self.leave_many(place, reason, 1);
    }

    pub(super) fn leave_many(&mut self, place: impl Display, reason: &str, count: usize) {
        if count == 0 {
            return;
        }
        let reason = match self.left.iter().any(|left| left.reason == reason) || self.left.len() < REASONS_MAX {
            true => reason,
            false => "of other reasons",
        };
        let found = self.left.iter().position(|left| left.reason == reason);
        let index = found.unwrap_or_else(|| {
            self.left.push(LeftOut { reason: reason.to_string(), count: 0, places: Vec::new() });
            self.left.len() - 1
        });
        let left = &mut self.left[index];
        left.count += count;
        if left.places.len() < PLACES_MAX {
            left.places.push(place.to_string());
        }
    }

    pub(super) fn finish(mut self) -> Result<Imported, ImportError> {
        if self.records == 0 {
            let reasons = self.left.iter().map(|left| format!("{} {}", left.count, left.reason)).collect::<Vec<_>>();
            let reasons =
                if reasons.is_empty() { String::new() } else { format!("; left out: {}", reasons.join("; ")) };
            return Err(ImportError::Nothing(reasons));
        }
        let flushed = self.file.flush().and_then(|()| self.file.get_ref().as_file().sync_all());
        flushed.map_err(|source| self.write_error(source))?;
        let Sink { output, replace, file, masker, records, tasks, left, .. } = self;
        let file = file
            .into_inner()
            .map_err(|error| ImportError::Write { path: output.clone(), source: error.into_error() })?;
        let kept = if replace { file.persist(&output) } else { file.persist_noclobber(&output) };
        kept.map_err(|error| match error.error.kind() {
            std::io::ErrorKind::AlreadyExists => ImportError::Exists(output.clone()),
            _ => ImportError::Write { path: output.clone(), source: error.error },
        })?;
        Ok(Imported { records, tasks, left_out: left, masked: masker.map_or(Vec::new(), |masker| masker.masked()) })
    }

    fn write_error(&self, source: std::io::Error) -> ImportError {
        ImportError::Write { path: self.output.clone(), source }
    }
}
