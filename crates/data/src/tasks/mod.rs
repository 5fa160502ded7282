//! Tasks: how a record becomes a question and an answer. One file each, one line in [`TASKS`].
//!
//! A task says which records are its own, what the model is shown, what it must write, what text the record is found
//! by, and how the record is shown in short as an example inside another record's prompt.

mod answers;
pub mod chat;
pub mod citation;
pub mod commit_subject;
pub mod completion;
pub mod headline;
pub mod movie_tag;
pub mod news_category;
pub mod rating;
pub mod reply;
pub mod scholarly_title;
pub mod text;
pub mod tweet;

use crate::record::{Record, RecordBody};
pub use answers::AnswerKind;
use serde_json::{Map, Value};

/// Every task, in the order in which a record without `"task"` is tried.
pub static TASKS: &[&dyn Task] = &[
    &commit_subject::COMMIT_SUBJECT,
    &citation::CITATION,
    &movie_tag::MOVIE_TAG,
    &scholarly_title::SCHOLARLY_TITLE,
    &news_category::NEWS_CATEGORY,
    &headline::HEADLINE,
    &rating::RATING,
    &tweet::TWEET,
    &reply::REPLY,
    &chat::CHAT,
    &completion::COMPLETION,
    &text::TEXT,
];

/// The task of that name.
pub fn task_by_name(name: &str) -> Option<&'static dyn Task> {
    TASKS.iter().copied().find(|task| task.name() == name)
}

/// All task names, for messages.
pub fn task_names() -> String {
    TASKS.iter().map(|task| task.name()).collect::<Vec<_>>().join(", ")
}

/// Names of the fields of the general record kinds, for files that use others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnNames {
    /// Text of a text record.
    pub text: String,
    /// Prompt of a completion record.
    pub prompt: String,
    /// Completion of a completion record.
    pub completion: String,
    /// Turns of a conversation.
    pub messages: String,
    /// Tools of a conversation.
    pub tools: String,
}

impl Default for ColumnNames {
    fn default() -> ColumnNames {
        ColumnNames {
            text: "text".into(),
            prompt: "prompt".into(),
            completion: "completion".into(),
            messages: "messages".into(),
            tools: "tools".into(),
        }
    }
}

/// Where a text that is too long is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The end goes: the beginning says most (articles, digests).
    End,
    /// The middle goes: a question may stand at either end (conversations, prompts).
    Middle,
}

/// A kind of record. `record` arguments are always of this task's kind.
pub trait Task: std::fmt::Debug + Sync {
    /// Its name in files and options.
    fn name(&self) -> &'static str;
    /// The fields it needs, in words, for messages about records that lack them.
    fn expects(&self, columns: &ColumnNames) -> String;
    /// Whether a record without `"task"` is of this kind.
    fn detect(&self, fields: &Map<String, Value>, columns: &ColumnNames) -> bool;
    /// Reads the fields, or says what is wrong with them and what was expected.
    fn read(&self, fields: Map<String, Value>, columns: &ColumnNames) -> Result<RecordBody, String>;
    /// The fields of a question in the benchmark's words, without the answer; `None` when they are not this task's.
    fn read_benchmark_question(&self, _question: &str) -> Option<Map<String, Value>> {
        None
    }
    /// What the model is asked to do, in a sentence or two; empty when the record itself asks.
    fn instruction(&self, record: &Record) -> &'static str;
    /// The text by which the record finds others: its question, because a new record has no answer yet.
    fn query_text(&self, record: &Record) -> String;
    /// The text by which the record is found.
    fn document_text(&self, record: &Record) -> String {
        self.query_text(record)
    }
    /// What the model is shown.
    fn input_text(&self, record: &Record) -> String;
    /// The input in short, for showing the record as an example.
    fn short_input_text(&self, record: &Record) -> String {
        self.input_text(record)
    }
    /// What the model must write.
    fn answer(&self, record: &Record) -> String;
    /// The field of the answer, for tasks that have one: a question is a record without it.
    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        None
    }
    /// The field that limits what a record may be answered with, for tasks that have one.
    fn choices_field(&self) -> Option<&'static str> {
        None
    }
    /// What a record shares with others that ask the same: they are held out together, and none is shown to another.
    fn group(&self, _record: &Record) -> Option<String> {
        None
    }
    /// What its answers can be.
    fn answer_kind(&self) -> AnswerKind {
        AnswerKind::Text
    }
    /// What a record may be answered with: none for free text, the numbers of a scale, the choices that the record
    /// names, else the answers that the same person's earlier records in `history` have (those of other people and later
    /// ones are passed over).
    fn choices(&self, record: &Record, history: &[Record]) -> Vec<String> {
        let listed = self.choices_field().map_or(Vec::new(), |name| texts_field(record, name));
        match listed.is_empty() {
            true => self.answer_kind().choices(record, history),
            false => listed.into_iter().map(String::from).collect(),
        }
    }
    /// The answer that a generated text is by the benchmark's rule; `None` when it cannot be read as one of the choices
    /// or as a number of the scale.
    fn parse_answer(&self, generated: &str, choices: &[String]) -> Option<String> {
        self.answer_kind().parse(generated, choices)
    }
    /// Names of the metrics that its answers are judged by, the telling ones first.
    fn metrics(&self) -> &'static [&'static str] {
        self.answer_kind().metrics()
    }
    /// What stands before the answer where there is no chat template, such as `Title:`; may be empty.
    fn answer_label(&self) -> &'static str;
    /// What the earlier records are called in a prompt, such as "Earlier commits of this author".
    fn earlier_label(&self) -> &'static str;
    /// Where a long input is cut.
    fn cut(&self) -> Cut {
        Cut::End
    }
}

/// A text field that must be there and hold more than white space.
pub(crate) fn require_text(fields: &Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.get(name) {
        None => Err(format!("field \"{name}\" is missing")),
        Some(Value::Null) => Err(format!("field \"{name}\" is null, expected text")),
        Some(Value::String(text)) if text.trim().is_empty() => Err(format!("field \"{name}\" is empty")),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("field \"{name}\" is {}, expected text", kind_of(other))),
    }
}

/// A list of texts; missing and null are empty.
pub(crate) fn optional_texts(fields: &Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(format!("field \"{name}\" holds {}, expected only texts", kind_of(other))),
            })
            .collect(),
        Some(other) => Err(format!("field \"{name}\" is {}, expected a list of texts", kind_of(other))),
    }
}

/// What a JSON value is, with its article.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A text field of a task record that was checked when it was read.
pub(crate) fn text_field<'a>(record: &'a Record, name: &str) -> &'a str {
    record.field(name).and_then(Value::as_str).unwrap_or("")
}

/// Texts of a list field of a task record that was checked when it was read.
pub(crate) fn texts_field<'a>(record: &'a Record, name: &str) -> Vec<&'a str> {
    record
        .field(name)
        .and_then(Value::as_array)
        .map_or(Vec::new(), |items| items.iter().filter_map(Value::as_str).collect())
}

/// A list in the benchmark's words, `... tags: [comedy, dark comedy] ...`, where `begin` is `tags: [`.
pub(crate) fn benchmark_list(text: &str, begin: &str) -> Vec<String> {
    let list = text.split_once(begin).and_then(|(_, rest)| rest.split_once(']')).map_or("", |(list, _)| list);
    list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(String::from).collect()
}

/// The first words of a text: at most `characters_max`, ending at a word.
pub(crate) fn first_words(text: &str, characters_max: usize) -> String {
    let mut kept = String::new();
    for word in text.split_whitespace() {
        if kept.chars().count() + word.chars().count() + 1 > characters_max && !kept.is_empty() {
            return kept + " ...";
        }
        if !kept.is_empty() {
            kept.push(' ');
        }
        kept.extend(word.chars().take(characters_max));
    }
    kept
}
