//! Where importers put what they take, and say what they leave.

use super::mask::Masker;
use super::{ImportError, ImportOptions};
use crate::read::{LINE_BYTES_MAX, ReadOptions, choose_task, id_of, id_of_line, user_of};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt::Display;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Takes records one by one and writes them to a temporary file beside the history.
pub struct Sink {
    output: PathBuf,
    replace: bool,
    file: BufWriter<tempfile::NamedTempFile>,
    _unfinished: Unfinished,
    user: String,
    masker: Option<Masker>,
    records: usize,
    /// Of the records written.
    ids: HashSet<String>,
    tasks: Vec<(&'static str, usize)>,
    left: Vec<LeftOut>,
}

/// The temporary files of imports that are not at their end.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Keeps a temporary file in the list while its import lasts.
struct Unfinished(PathBuf);

impl Unfinished {
    fn note(path: &Path) -> Unfinished {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_path_buf());
        Unfinished(path.to_path_buf())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.0);
    }
}

/// Removes what imports of this process have begun to write. For programs that are told to end in the middle of one, and
/// then do end: imports that go on fail.
pub fn discard_unfinished_imports() {
    for path in UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // Nobody is left to be told.
        let _ = std::fs::remove_file(path);
    }
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

impl Display for LeftOut {
    /// `3 messages of others (mail.mbox, byte 0, ...)`
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} {}", self.count, self.reason)?;
        let more = if self.count > self.places.len() { ", ..." } else { "" };
        if self.places.is_empty() { Ok(()) } else { write!(f, " ({}{more})", self.places.join(", ")) }
    }
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
        let file = tempfile::Builder::new()
            .prefix(".selftune-")
            .suffix(".partial")
            .tempfile_in(folder)
            .map_err(|source| ImportError::Write { path: output.to_path_buf(), source })?;
        Ok(Sink {
            output: output.to_path_buf(),
            replace,
            _unfinished: Unfinished::note(file.path()),
            file: BufWriter::new(file),
            user: options.user.clone().unwrap_or_else(|| USER.to_string()),
            masker: options.mask.then(Masker::default),
            records: 0,
            ids: HashSet::new(),
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
        if !fields.contains_key("user") {
            fields.insert("user".to_string(), self.user.clone().into());
        }
        // The reader names a record without an id by its line, and an earlier one may have that name by chance.
        let name = id_of_line(&self.output, self.records + 1);
        if !fields.contains_key("id") && self.ids.contains(&name) {
            fields.insert("id".to_string(), format!("{name}+").into());
        }
        let (task, id) = match self.read_back(&fields) {
            Ok(read) => read,
            Err(reason) => {
                self.leave(place, &reason);
                return Ok(());
            }
        };
        let mut line = serde_json::to_vec(&fields).map_err(|error| self.write_error(error.into()))?;
        if line.len() > LINE_BYTES_MAX {
            self.leave(place, &format!("records longer than a line of a history ({} MiB)", LINE_BYTES_MAX >> 20));
            return Ok(());
        }
        line.push(b'\n');
        match self.tasks.iter_mut().find(|(known, _)| *known == task) {
            Some((_, count)) => *count += 1,
            None => self.tasks.push((task, 1)),
        }
        self.ids.insert(id);
        self.records += 1;
        self.file.write_all(&line).map_err(|source| self.write_error(source))
    }

    /// The task and the id that a reader of the history will find in the next line, or why it would refuse it.
    fn read_back(&self, fields: &Map<String, Value>) -> Result<(&'static str, String), String> {
        user_of(fields)?;
        let id = id_of(fields, &self.output, self.records + 1)?;
        if self.ids.contains(&id) {
            return Err("records whose id was used before".to_string());
        }
        let options = ReadOptions::default();
        let task = choose_task(fields, &options)?;
        crate::time::record_time(fields)?;
        let body = task.read(fields.clone(), &options.columns)?;
        Ok((crate::record::Record::ad_hoc(USER, body).task().name(), id))
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
            let reasons = self.left.iter().map(LeftOut::to_string).collect::<Vec<_>>();
            let reasons =
                if reasons.is_empty() { String::new() } else { format!("; left out: {}", reasons.join("; ")) };
            return Err(ImportError::Nothing(reasons));
        }
        let flushed = self.file.flush().and_then(|()| self.file.get_ref().as_file().sync_all());
        flushed.map_err(|source| self.write_error(source))?;
        let Sink { output, replace, file, masker, records, tasks, left, _unfinished, .. } = self;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the reader would refuse is left out with its place; what is just short enough is read.
    #[test]
    fn every_line_written_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("history.jsonl");
        let mut sink = Sink::create(&output, &ImportOptions::default(), false).unwrap();
        let fields = |id: &str, text: String| {
            let fields = [("id", id.to_string()), ("text", text)];
            fields.into_iter().map(|(name, value)| (name.to_string(), Value::from(value))).collect::<Map<_, _>>()
        };
        let around = r#"{"id":"a","text":"","user":"me"}"#.len();
        // Each of the first characters takes six bytes in JSON.
        let controls = "\u{1}".repeat(1 << 20);
        let just_short = controls.clone() + &"x".repeat(LINE_BYTES_MAX - around - 6 * controls.len());
        sink.take("line 1", fields("a", just_short.clone())).unwrap();
        sink.take("line 2", fields("b", just_short + "x")).unwrap();
        sink.take("line 3", fields("a", "again".into())).unwrap();
        sink.take("line 4", fields("", "no name".into())).unwrap();
        // The reader names a record without an id by its line.
        sink.take("line 5", fields("history-3", "as if it were the third line".into())).unwrap();
        let mut without_id = fields("", "without an id".into());
        without_id.remove("id");
        sink.take("line 6", without_id).unwrap();
        let imported = sink.finish().unwrap();
        let history = crate::read_history(&output, &ReadOptions::default()).unwrap();
        assert_eq!((imported.records, history.records.len()), (3, 3));
        let left: Vec<_> = imported.left_out.iter().map(|left| (left.reason.as_str(), &left.places[..])).collect();
        assert_eq!(
            left,
            [
                ("records longer than a line of a history (16 MiB)", &["line 2".to_string()][..]),
                ("records whose id was used before", &["line 3".to_string()]),
                ("field \"id\" is empty; expected a name", &["line 4".to_string()]),
            ]
        );
    }
}
