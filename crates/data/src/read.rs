//! Reads a history: JSON Lines, one record a line, a folder of such files, or the benchmark's own files.
//!
//! Every record is recognised by itself, so kinds may be mixed. Whatever is not a record is named by file, line and
//! column, with what was expected; a snippet shows at most a few characters of the person's text.

use crate::dates::{ShortDates, put_oldest_first};
use crate::error::DataError;
use crate::record::{DEFAULT_USER, History, Record, RecordBody, SkippedLine, Split};
use crate::tasks::{ColumnNames, TASKS, Task};
use crate::time::{RecordTime, record_time};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to do with a line that is not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadLine {
    /// Stop with an error.
    #[default]
    Stop,
    /// Leave it out and say so in [`History::skipped`].
    Skip,
}

/// How a history is read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Only this user's records.
    pub user: Option<String>,
    /// What to do with a line that is not a record.
    pub on_bad_line: OnBadLine,
    /// Read every record as this task instead of recognising it.
    pub task: Option<&'static dyn Task>,
    /// Names of the fields of text, completion and chat records.
    pub columns: ColumnNames,
}

/// A form that a history file can have.
pub(crate) struct Format {
    /// Whether a file that begins like this has the form.
    pub begins: fn(&[u8]) -> bool,
    /// Reads the file.
    pub read: fn(&mut Reader, &Path, Option<Split>) -> Result<(), DataError>,
}

/// Every form, the one without a sign of its own last.
static FORMATS: [Format; 2] =
    [crate::benchmark::FORMAT, Format { begins: |_| true, read: |reader, path, split| reader.read_lines(path, split) }];

/// How much of a file is looked at to know its form.
const START_BYTES: u64 = 1 << 17;

/// A line longer than this is no record: 16 MiB of JSON is longer than any model's context.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;

/// Some editors begin a UTF-8 file with it.
const BYTE_ORDER_MARK: &[u8] = &[0xef, 0xbb, 0xbf];

/// Characters shown on each side of a fault.
const SNIPPET_CHARACTERS: usize = 16;

/// Reads a file, or a folder with `train.jsonl` (and `valid.jsonl`, `test.jsonl`), or a folder of `.jsonl` files.
pub fn read_history(path: &Path, options: &ReadOptions) -> Result<History, DataError> {
    let mut reader = Reader {
        options,
        history: History::default(),
        ids: HashMap::new(),
        hash: Sha256::new(),
        other_users: OtherUsers::default(),
        file_has_begun: false,
        is_folder: path.is_dir(),
        short_dates: ShortDates::default(),
    };
    for (file, split) in history_files(path)? {
        reader.read_file(&file, split)?;
    }
    let Reader { mut history, hash, other_users, short_dates, .. } = reader;
    history.source_hash = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if history.records.is_empty() {
        return Err(nothing_read(path, &history, options, &other_users));
    }
    short_dates.settle(&mut history);
    put_oldest_first(&mut history.records);
    notice_people(&mut history);
    Ok(history)
}

/// Notices people whose records can teach or prove little.
fn notice_people(history: &mut History) {
    /// What is known of one person's answers.
    struct Answers {
        count: usize,
        first: String,
        all_equal: bool,
    }
    let mut people: HashMap<&str, Answers> = HashMap::new();
    for record in history.records.iter().filter(|record| record.split != Some(Split::Test)) {
        let answer = record.answer();
        match people.get_mut(record.user.as_str()) {
            Some(known) => {
                known.count += 1;
                known.all_equal &= known.first == answer;
            }
            None => {
                people.insert(&record.user, Answers { count: 1, first: answer, all_equal: true });
            }
        }
    }
    let single = people.values().filter(|answers| answers.count == 1).count();
    let equal = people.values().filter(|answers| answers.count > 1 && answers.all_equal).count();
    history.notice("people with a single record to learn from", single);
    history.notice("people whose answers are all the same", equal);
}

/// The files of a history and the part that each one is.
fn history_files(path: &Path) -> Result<Vec<(PathBuf, Option<Split>)>, DataError> {
    let metadata = std::fs::metadata(path).map_err(|source| DataError::Read { path: path.to_path_buf(), source })?;
    if !metadata.is_dir() {
        return Ok(vec![(path.to_path_buf(), None)]);
    }
    let parts = [("train", Split::Train), ("valid", Split::Valid), ("test", Split::Test)];
    let given: Vec<_> = parts
        .iter()
        .map(|(name, split)| (path.join(format!("{name}.jsonl")), Some(*split)))
        .filter(|(file, _)| file.is_file())
        .collect();
    if path.join("train.jsonl").is_file() {
        return Ok(given);
    }
    let entries = std::fs::read_dir(path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(|source| DataError::Read { path: path.to_path_buf(), source })?;
    let mut files: Vec<(PathBuf, Option<Split>)> = entries
        .iter()
        .map(std::fs::DirEntry::path)
        .filter(|file| file.extension().is_some_and(|ending| ending == "jsonl") && file.is_file())
        .map(|file| (file, None))
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    if files.is_empty() {
        let reason = "the folder holds no .jsonl file; expected train.jsonl, or files of one record a line".to_string();
        return Err(DataError::NotAHistory { path: path.to_path_buf(), reason });
    }
    Ok(files)
}

fn nothing_read(path: &Path, history: &History, options: &ReadOptions, other_users: &OtherUsers) -> DataError {
    let path = path.to_path_buf();
    if history.other_users_count > 0
        && let Some(user) = &options.user
    {
        return DataError::UnknownUser { path, user: shown(user), known: other_users.listed() };
    }
    let reason = match history.skipped.first() {
        Some(first) => format!("every line was left out ({}), the first because of {first}", history.skipped.len()),
        None => "the file is empty; expected one JSON record a line".to_string(),
    };
    DataError::Empty { path, reason }
}

pub(crate) struct Reader<'a> {
    pub options: &'a ReadOptions,
    pub history: History,
    /// Where each id was seen first.
    ids: HashMap<String, (Arc<Path>, usize)>,
    pub hash: Sha256,
    other_users: OtherUsers,
    /// Whether a line of the current file that is not blank was seen.
    file_has_begun: bool,
    /// Whether the history is a folder, so that messages must name the file in it.
    is_folder: bool,
    short_dates: ShortDates,
}

/// Users that the filter left out, in order of their first record.
#[derive(Default)]
struct OtherUsers {
    places: HashMap<String, usize>,
    counts: Vec<usize>,
}

/// Users named in a message.
const USERS_SHOWN: usize = 20;

impl OtherUsers {
    fn count(&mut self, user: String) {
        let next = self.counts.len();
        let place = *self.places.entry(user).or_insert(next);
        if place == next {
            self.counts.push(0);
        }
        self.counts[place] += 1;
    }

    /// `a (12), b (18)`, as many as fit into a message.
    fn listed(&self) -> String {
        let mut users: Vec<_> = self.places.iter().map(|(user, place)| (*place, user)).collect();
        users.sort_unstable();
        let first = users.iter().take(USERS_SHOWN);
        let mut listed = first
            .map(|(place, user)| format!("{} ({})", shown(user), self.counts[*place]))
            .collect::<Vec<_>>()
            .join(", ");
        if users.len() > USERS_SHOWN {
            listed += &format!(" and {} more", users.len() - USERS_SHOWN);
        }
        listed
    }
}

/// A fault in a line: column in characters (0 for the whole record) and the reason.
struct Fault {
    column: usize,
    reason: String,
    /// The whole file is of another kind: nothing in it may be taken for a record.
    of_file: bool,
}

impl Fault {
    fn at(column: usize, reason: impl Into<String>) -> Fault {
        Fault { column, reason: reason.into(), of_file: false }
    }

    fn whole(reason: impl Into<String>) -> Fault {
        Fault::at(0, reason)
    }
}

fn one_array() -> Fault {
    let reason = "the file is one JSON array; expected one record a line (JSON Lines)".to_string();
    Fault { column: 0, reason, of_file: true }
}

/// The error of a file that cannot be read: the caller names the path it gave, but not the parts of a folder.
fn unreadable(is_part: bool, path: &Path) -> impl Fn(std::io::Error) -> DataError + use<> {
    let path = path.to_path_buf();
    move |source| match is_part {
        true => DataError::ReadPart { path: path.clone(), source },
        false => DataError::Read { path: path.clone(), source },
    }
}

fn line_too_long() -> Fault {
    Fault::whole(format!("the line is longer than {} MiB; expected one record a line", LINE_BYTES_MAX >> 20))
}

impl Reader<'_> {
    fn read_file(&mut self, path: &Path, split: Option<Split>) -> Result<(), DataError> {
        let mut start = Vec::new();
        let file = std::fs::File::open(path).map_err(|source| self.read_error(path, source))?;
        file.take(START_BYTES).read_to_end(&mut start).map_err(|source| self.read_error(path, source))?;
        let format = FORMATS.iter().find(|format| (format.begins)(&start)).expect("the last takes every file");
        (format.read)(self, path, split)
    }

    /// A file that cannot be read, named where it is part of a folder.
    pub fn read_error(&self, path: &Path, source: std::io::Error) -> DataError {
        unreadable(self.is_folder, path)(source)
    }

    /// JSON Lines: one record a line.
    fn read_lines(&mut self, path: &Path, split: Option<Split>) -> Result<(), DataError> {
        let read_error = unreadable(self.is_folder, path);
        let mut input = BufReader::with_capacity(1 << 16, std::fs::File::open(path).map_err(&read_error)?);
        let file: Arc<Path> = Arc::from(path);
        self.history.files.push(path.to_path_buf());
        self.file_has_begun = false;
        let mut bytes = Vec::new();
        let mut line = 0;
        loop {
            bytes.clear();
            line += 1;
            let mut limited = (&mut input).take(LINE_BYTES_MAX as u64 + 1);
            let count = limited.read_until(b'\n', &mut bytes).map_err(&read_error)?;
            if count == 0 {
                return Ok(());
            }
            self.hash.update(&bytes);
            let outcome = if count > LINE_BYTES_MAX && bytes.last() != Some(&b'\n') {
                self.pass_rest_of_line(&mut input).map_err(&read_error)?;
                let begins = self.file_begins_with(&bytes);
                Err(if begins == Some(b'[') { one_array() } else { line_too_long() })
            } else {
                self.read_line(&bytes, &file, line, split)
            };
            if let Err(fault) = outcome {
                let of_file = fault.of_file;
                let skipped =
                    SkippedLine { file: path.to_path_buf(), line, column: fault.column, reason: fault.reason };
                match self.options.on_bad_line {
                    OnBadLine::Skip if of_file => return Err(DataError::BadLine(skipped)),
                    OnBadLine::Stop => return Err(DataError::BadLine(skipped)),
                    OnBadLine::Skip => self.history.skipped.push(skipped),
                }
            }
        }
    }

    /// The first byte that is no space, in the first line of a file that is not blank.
    fn file_begins_with(&mut self, line: &[u8]) -> Option<u8> {
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        let first = line.iter().copied().find(|byte| !byte.is_ascii_whitespace())?;
        (!std::mem::replace(&mut self.file_has_begun, true)).then_some(first)
    }

    /// Reads to the end of a line that is too long, without keeping it.
    fn pass_rest_of_line(&mut self, input: &mut impl BufRead) -> std::io::Result<()> {
        loop {
            let buffer = input.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(buffer.len(), |place| place + 1);
            self.hash.update(&buffer[..used]);
            input.consume(used);
            if end.is_some() {
                return Ok(());
            }
        }
    }

    fn read_line(&mut self, bytes: &[u8], file: &Arc<Path>, line: usize, split: Option<Split>) -> Result<(), Fault> {
        let bytes = if line == 1 { without_byte_order_mark(bytes)? } else { bytes };
        let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
        let text = text.trim_end_matches(['\n', '\r']);
        if text.trim().is_empty() {
            self.history.blank_lines_count += 1;
            return Ok(());
        }
        let begins = self.file_begins_with(bytes);
        let value: Value = serde_json::from_str(text).map_err(|error| match begins {
            Some(b'[') => one_array(),
            _ => not_json(text, &error),
        })?;
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Array(_) if begins == Some(b'[') => return Err(Fault { of_file: false, ..one_array() }),
            Value::Array(_) => {
                return Err(Fault::whole("the line is a JSON list; expected one record, an object, on each line"));
            }
            other => {
                let kind = crate::tasks::kind_of(&other);
                return Err(Fault::whole(format!("the line is {kind}; expected a record, an object")));
            }
        };
        self.take_record(fields, file, line, split).map_err(Fault::whole)
    }

    fn take_record(
        &mut self,
        fields: Map<String, Value>,
        file: &Arc<Path>,
        line: usize,
        split: Option<Split>,
    ) -> Result<(), String> {
        let user = user_of(&fields)?;
        if !self.wants(&user) {
            return Ok(());
        }
        let id = id_of(&fields, file, line)?;
        let time = record_time(&fields)?;
        let task = choose_task(&fields, self.options)?;
        let body = task.read(fields, &self.options.columns).map_err(|reason| {
            format!("{reason}; a {} record has {}", task.name(), task.expects(&self.options.columns))
        })?;
        let record = self.push(id, user, time.seconds(), body, file, line, split)?;
        if let RecordTime::Short(date) = time {
            let (user, place) = (record.user.clone(), record.sequence);
            self.short_dates.add(user, place, date);
        }
        Ok(())
    }

    /// Whether this user's records are read; one of another user is counted.
    pub fn wants(&mut self, user: &str) -> bool {
        let wanted = self.options.user.as_ref().is_none_or(|wanted| wanted == user);
        if !wanted {
            self.history.other_users_count += 1;
            self.other_users.count(user.to_string());
        }
        wanted
    }

    /// Adds a record; an id that was used before is its fault.
    #[allow(clippy::too_many_arguments)]
    pub fn push(
        &mut self,
        id: String,
        user: String,
        time: Option<i64>,
        body: RecordBody,
        file: &Arc<Path>,
        line: usize,
        split: Option<Split>,
    ) -> Result<&Record, String> {
        if let Some((first_file, first_line)) = self.ids.get(&id) {
            let place = match first_file == file {
                true => format!("line {first_line}"),
                false => format!("{}:{first_line}", first_file.display()),
            };
            return Err(format!("id \"{}\" was already used in {place}", shown(&id)));
        }
        self.ids.insert(id.clone(), (file.clone(), line));
        let sequence = self.history.records.len();
        self.history.records.push(Record { id, user, time, body, file: file.clone(), line, sequence, split });
        Ok(&self.history.records[sequence])
    }
}

pub(crate) fn choose_task(fields: &Map<String, Value>, options: &ReadOptions) -> Result<&'static dyn Task, String> {
    if let Some(task) = options.task {
        return Ok(task);
    }
    match fields.get("task") {
        Some(Value::String(name)) => crate::tasks::task_by_name(name)
            .ok_or_else(|| format!("unknown task \"{}\"; known are: {}", shown(name), crate::tasks::task_names())),
        None | Some(Value::Null) => TASKS
            .iter()
            .copied()
            .find(|task| task.detect(fields, &options.columns))
            .ok_or_else(|| unknown_kind(fields, &options.columns)),
        Some(other) => Err(format!("field \"task\" is {}, expected a name", crate::tasks::kind_of(other))),
    }
}

pub(crate) fn unknown_kind(fields: &Map<String, Value>, columns: &ColumnNames) -> String {
    // Importers put the user in: it is nothing that the file lacks or has.
    let names: Vec<String> = fields.keys().filter(|name| *name != "user").take(8).map(|name| shown(name)).collect();
    format!(
        "no kind of record has these fields ({}); expected \"{}\", or \"{}\" and \"{}\", or \"{}\", or a task's own",
        if names.is_empty() { "none".to_string() } else { names.join(", ") },
        columns.text,
        columns.prompt,
        columns.completion,
        columns.messages
    )
}

/// Whose record it is.
pub(crate) fn user_of(fields: &Map<String, Value>) -> Result<String, String> {
    match fields.get("user") {
        None | Some(Value::Null) => Ok(DEFAULT_USER.to_string()),
        Some(value) => name_text("user", value),
    }
}

/// The record's id, else one made of its place.
pub(crate) fn id_of(fields: &Map<String, Value>, file: &Path, line: usize) -> Result<String, String> {
    match fields.get("id") {
        None | Some(Value::Null) => Ok(id_of_line(file, line)),
        Some(value) => name_text("id", value),
    }
}

pub(crate) fn id_of_line(file: &Path, line: usize) -> String {
    let stem = file.file_stem().map_or("record".into(), |stem| stem.to_string_lossy());
    format!("{stem}-{line}")
}

/// A name given as text or number.
pub(crate) fn name_text(field: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if text.trim().is_empty() => Err(format!("field \"{field}\" is empty; expected a name")),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(format!("field \"{field}\" is not a name; expected a text or a number")),
    }
}

fn without_byte_order_mark(bytes: &[u8]) -> Result<&[u8], Fault> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Fault::at(1, "the file is UTF-16; save it as UTF-8"));
    }
    Ok(bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes))
}

fn not_utf8(bytes: &[u8], valid_up_to: usize) -> Fault {
    let before = String::from_utf8_lossy(&bytes[..valid_up_to]);
    let column = before.chars().count() + 1;
    let tail: String = before.chars().rev().take(SNIPPET_CHARACTERS).collect::<Vec<_>>().into_iter().rev().collect();
    let byte = bytes[valid_up_to];
    let reason = format!(
        "byte 0x{byte:02X} after \"{}\" is not UTF-8; the file may be in an old encoding such as Windows-1252: save it as UTF-8",
        shown(&tail)
    );
    Fault::at(column, reason)
}

fn not_json(text: &str, error: &serde_json::Error) -> Fault {
    // serde_json counts bytes; people count characters.
    let byte = error.column().saturating_sub(1).min(text.len());
    let byte = (0..=byte).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0);
    let column = text[..byte].chars().count() + 1;
    let start = text[..byte].char_indices().rev().take(SNIPPET_CHARACTERS).last().map_or(byte, |(place, _)| place);
    let snippet: String = text[start..].chars().take(2 * SNIPPET_CHARACTERS).collect();
    let what = explained(error);
    let hint = match text.trim() {
        "{" | "[" => "; one whole record must stand on one line",
        _ => "",
    };
    Fault::at(column, format!("not valid JSON near \"{}\": {what}{hint}", shown(&snippet)))
}

/// What serde_json says, without the place.
pub(crate) fn explained(error: &serde_json::Error) -> String {
    let full = error.to_string();
    match full.split(" at line ").next().unwrap_or(&full) {
        "lone leading surrogate in hex escape" | "unexpected end of hex escape" => {
            "invalid Unicode escape: it is half of a character pair (\\ud800 to \\udfff), without its other half"
                .to_string()
        }
        what => what.to_string(),
    }
}

/// Text of the file made fit for a message: no control characters, not long.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(40).collect()
}
