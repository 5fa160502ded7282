//! What a history holds: records of one or several people, oldest first.

use crate::tasks::Task;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One thing a person wrote, with what it answered.
#[derive(Debug, Clone)]
pub struct Record {
    /// Unique in its history. Taken from the record, else made from file name and line.
    pub id: String,
    /// Whose record this is. [`DEFAULT_USER`] when the file does not say.
    pub user: String,
    /// Seconds since 1970-01-01 UTC. A date is its midnight, a year its first of January.
    pub time: Option<i64>,
    /// The content.
    pub body: RecordBody,
    /// Where the record was read.
    pub file: Arc<Path>,
    /// Line in `file`, counted from 1.
    pub line: usize,
    /// Position in the whole history, oldest first. Record A is *earlier* than B when its sequence is smaller.
    pub sequence: usize,
    /// Set when the history was a folder with `train.jsonl`, `valid.jsonl` and `test.jsonl`.
    pub split: Option<Split>,
}

/// The user of records that do not name one.
pub const DEFAULT_USER: &str = "me";

/// The id of a record that is in no file.
const AD_HOC_ID: &str = "now";

/// Part of a history that was given already divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// `train.jsonl`
    Train,
    /// `valid.jsonl`
    Valid,
    /// `test.jsonl`
    Test,
}

/// The kinds of record. Each has a [`Task`] that knows how to show it.
#[derive(Debug, Clone)]
pub enum RecordBody {
    /// `{"text"}`: every token is learned.
    Text(String),
    /// `{"prompt", "completion"}`.
    Completion {
        /// What the person saw.
        prompt: String,
        /// What the person wrote.
        completion: String,
    },
    /// `{"messages", "tools"}`.
    Chat {
        /// The turns in order; at least one is the assistant's. An empty one at the end is asked for now.
        messages: Vec<Message>,
        /// Tool descriptions handed to the chat template as they are.
        tools: Option<Value>,
    },
    /// Fields of a task of its own, such as a commit digest and its subject.
    Task {
        /// The task that reads the fields.
        task: &'static dyn Task,
        /// All fields of the record.
        fields: Map<String, Value>,
    },
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool` or whatever the template knows.
    pub role: String,
    /// The text; empty when the record has null (a turn that only calls tools).
    pub content: String,
    /// Further fields for the template (`tool_calls`, `name`, `reasoning_content` ...).
    pub extra: Map<String, Value>,
    /// `false` when the record says that this turn is not to be learned.
    pub train: bool,
}

impl Message {
    /// A turn with text only.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_string(), content: content.into(), extra: Map::new(), train: true }
    }

    /// Whether the assistant wrote this turn.
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// Whether it is a turn of the assistant with something in it: text, or calls of tools.
    pub fn is_answer(&self) -> bool {
        let calls_tools = || self.extra.get("tool_calls").is_some_and(|calls| !calls.is_null());
        self.is_assistant() && (!self.content.trim().is_empty() || calls_tools())
    }

    /// Whether it is a turn of the assistant with nothing in it: at the end of a conversation, one to be written.
    pub fn is_unwritten(&self) -> bool {
        self.is_assistant() && !self.is_answer()
    }
}

impl Record {
    /// The task that shows this record.
    pub fn task(&self) -> &'static dyn Task {
        match &self.body {
            RecordBody::Text(_) => &crate::tasks::text::TEXT,
            RecordBody::Completion { .. } => &crate::tasks::completion::COMPLETION,
            RecordBody::Chat { .. } => &crate::tasks::chat::CHAT,
            RecordBody::Task { task, .. } => *task,
        }
    }

    /// What the person wrote (the last answer of a conversation).
    pub fn answer(&self) -> String {
        self.task().answer(self)
    }

    /// A record that is in no file, later than every record of a history: a question asked now.
    pub fn ad_hoc(user: &str, body: RecordBody) -> Record {
        Record {
            id: AD_HOC_ID.to_string(),
            user: user.to_string(),
            time: None,
            body,
            file: Arc::from(Path::new("")),
            line: 0,
            sequence: usize::MAX,
            split: None,
        }
    }

    /// The id by which messages call it; empty for a question asked now.
    pub(crate) fn id_for_messages(&self) -> String {
        let is_ad_hoc = self.id == AD_HOC_ID && self.file.as_os_str().is_empty();
        if is_ad_hoc { String::new() } else { self.id.clone() }
    }

    /// A field of a task record.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match &self.body {
            RecordBody::Task { fields, .. } => fields.get(name),
            _ => None,
        }
    }
}

/// A line that was not read, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct SkippedLine {
    /// The file.
    pub file: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1; 0 when the fault is of the whole record.
    pub column: usize,
    /// What is wrong and what was expected, with a short snippet.
    pub reason: String,
}

impl std::fmt::Display for SkippedLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)?;
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// Everything read from a history file or folder.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Oldest first; records of the same time, or without one, stay in file order.
    pub records: Vec<Record>,
    /// Lines that were left out (only with [`crate::OnBadLine::Skip`]).
    pub skipped: Vec<SkippedLine>,
    /// Records of other users, left out by the user filter.
    pub other_users_count: usize,
    /// What the person should know of records that were read, each with how many it is true of.
    pub noticed: Vec<Noticed>,
    /// Empty lines.
    pub blank_lines_count: usize,
    /// SHA-256 in hexadecimal of the bytes of all files read, in reading order.
    pub source_hash: String,
    /// The files read.
    pub files: Vec<PathBuf>,
}

/// Something that is no fault of a line and yet bears on what can be learned or proved.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Noticed {
    /// What it is, in words that follow a number: "people with a single record to learn from".
    pub what: String,
    /// How often.
    pub count: usize,
}

/// How much of a history is held out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeldOut {
    /// This share of each user's records, 0 to 1, rounded to the nearest record.
    Fraction(f64),
    /// This many of each user's records.
    Count(usize),
}

impl History {
    /// Users in order of their first record, with their number of records.
    pub fn users(&self) -> Vec<(String, usize)> {
        let mut place: HashMap<&str, usize> = HashMap::new();
        let mut users: Vec<(String, usize)> = Vec::new();
        for record in &self.records {
            let index = *place.entry(&record.user).or_insert_with(|| {
                users.push((record.user.clone(), 0));
                users.len() - 1
            });
            users[index].1 += 1;
        }
        users
    }

    /// Number of records of each task, in order of first appearance.
    pub fn tasks(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for record in &self.records {
            let name = record.task().name();
            match counts.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => counts.push((name, 1)),
            }
        }
        counts
    }

    /// Divides into (older, newest): of each user's records the newest part is held out. A user with a single record
    /// keeps it in the older part; a user with more keeps at least one there. Records of one [`Task::group`] stay
    /// together, where the first of them lies, so that no answer of a question that is held out is learned.
    pub fn split_newest(&self, held_out: HeldOut) -> (Vec<Record>, Vec<Record>) {
        let mut groups: HashMap<&str, Vec<Group>> = HashMap::new();
        let mut places: HashMap<(&str, String), usize> = HashMap::new();
        // For each record the place of its group among those of its user.
        let mut place_of: Vec<usize> = Vec::with_capacity(self.records.len());
        for record in &self.records {
            let groups = groups.entry(&record.user).or_default();
            let next = groups.len();
            let place = match record.task().group(record) {
                Some(name) => *places.entry((&record.user, name)).or_insert(next),
                None => next,
            };
            if place == next {
                groups.push(Group::default());
            }
            groups[place].count += 1;
            place_of.push(place);
        }
        for groups in groups.values_mut() {
            hold_out_newest(groups, held_out);
        }
        let is_held = |record: &Record, place: usize| groups[record.user.as_str()][place].is_held_out;
        let (mut older, mut newest) = (Vec::new(), Vec::new());
        for (record, place) in self.records.iter().zip(place_of) {
            if is_held(record, place) { &mut newest } else { &mut older }.push(record.clone());
        }
        (older, newest)
    }

    /// Notes something true of `count` records or people; nothing where it is true of none.
    pub(crate) fn notice(&mut self, what: &str, count: usize) {
        if count > 0 {
            self.noticed.push(Noticed { what: what.to_string(), count });
        }
    }

    /// The records of one given part, or nothing when the history was not given divided.
    pub fn given_split(&self, split: Split) -> Vec<Record> {
        self.records.iter().filter(|record| record.split == Some(split)).cloned().collect()
    }

    /// Keeps only the newest `count` records of each user.
    pub fn keep_newest_of_each_user(&mut self, count: usize) {
        let mut excess: HashMap<String, usize> =
            self.users().into_iter().map(|(user, records)| (user, records.saturating_sub(count))).collect();
        self.records.retain(|record| match excess.get_mut(&record.user) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        });
    }

    /// Keeps only the newest `count` records (of all users together).
    pub fn keep_newest(&mut self, count: usize) {
        let excess = self.records.len().saturating_sub(count);
        self.records.drain(..excess);
    }
}

/// Records of one user that must stay together, in the order of their first.
#[derive(Default)]
struct Group {
    count: usize,
    is_held_out: bool,
}

/// Marks the newest groups, as long as they hold no more records than wanted; the newest is held out even if it alone
/// holds more, the oldest never.
fn hold_out_newest(groups: &mut [Group], held_out: HeldOut) {
    let count: usize = groups.iter().map(|group| group.count).sum();
    let mut left = match held_out {
        HeldOut::Fraction(fraction) => (count as f64 * fraction.clamp(0.0, 1.0)).round() as usize,
        HeldOut::Count(wanted) => wanted,
    };
    let newest = groups.len().saturating_sub(1);
    for (place, group) in groups.iter_mut().enumerate().skip(1).rev() {
        if left == 0 || (group.count > left && place < newest) {
            return;
        }
        group.is_held_out = true;
        left = left.saturating_sub(group.count);
    }
}
