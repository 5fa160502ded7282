//! From the digest of a change to the subject line of its commit, in the author's style.

use super::{ColumnNames, Task, kind_of, optional_texts, require_text, text_field, texts_field};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `commit_subject`.
#[derive(Debug)]
pub struct CommitSubject;

/// The one instance.
pub static COMMIT_SUBJECT: CommitSubject = CommitSubject;

/// Characters given to each part of the digest. Together they make about 60 to 130 tokens: the files say most about
/// the subject's area, then the names brought in, then those taken out.
const FILES_CHARACTERS_MAX: usize = 120;
const WHERE_CHARACTERS_MAX: usize = 48;
const ADDED_CHARACTERS_MAX: usize = 110;
const REMOVED_CHARACTERS_MAX: usize = 60;

impl Task for CommitSubject {
    fn name(&self) -> &'static str {
        "commit_subject"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"subject\" (text) and \"files\" (list of texts), with \"where\", \"words_added\", \"words_removed\" as lists"
            .to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("subject") && (fields.contains_key("files") || fields.contains_key("words_added"))
    }

    fn read(&self, fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        require_text(&fields, "subject")?;
        for name in ["files", "where", "words_added", "words_removed"] {
            optional_texts(&fields, name)?;
        }
        for name in ["n_files", "lines_added", "lines_removed"] {
            match fields.get(name) {
                None | Some(Value::Null) => {}
                Some(Value::Number(number)) if number.is_u64() => {}
                Some(Value::Number(number)) => {
                    return Err(format!("field \"{name}\" is {number}, expected a whole number, 0 or more"));
                }
                Some(other) => return Err(format!("field \"{name}\" is {}, expected a number", kind_of(other))),
            }
        }
        Ok(RecordBody::Task { task: &COMMIT_SUBJECT, fields })
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        "Write the subject line of this commit."
    }

    fn query_text(&self, record: &Record) -> String {
        ["files", "where", "words_added", "words_removed"]
            .iter()
            .flat_map(|name| texts_field(record, name))
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn input_text(&self, record: &Record) -> String {
        let mut lines = vec![format!(
            "{} (+{} -{})",
            files_text(record, FILES_CHARACTERS_MAX),
            number(record, "lines_added"),
            number(record, "lines_removed")
        )];
        for (name, label, characters_max) in [
            ("where", "@ ", WHERE_CHARACTERS_MAX),
            ("words_added", "+ ", ADDED_CHARACTERS_MAX),
            ("words_removed", "- ", REMOVED_CHARACTERS_MAX),
        ] {
            let names = joined(&texts_field(record, name), " ", characters_max);
            if !names.is_empty() {
                lines.push(format!("{label}{names}"));
            }
        }
        lines.join("\n")
    }

    fn short_input_text(&self, record: &Record) -> String {
        let added = joined(&texts_field(record, "words_added"), " ", 40);
        let files = files_text(record, 60);
        if added.is_empty() { files } else { format!("{files} + {added}") }
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "subject").trim().to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("subject")
    }

    fn answer_label(&self) -> &'static str {
        "Subject:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier commits:"
    }
}

fn number(record: &Record, name: &str) -> u64 {
    record.field(name).and_then(Value::as_u64).unwrap_or(0)
}

/// File names, as many as fit, then how many more there are.
fn files_text(record: &Record, characters_max: usize) -> String {
    let files = texts_field(record, "files");
    let shown = joined(&files, ", ", characters_max);
    let shown_count = if shown.is_empty() { 0 } else { shown.split(", ").count().min(files.len()) };
    let all_count = (number(record, "n_files") as usize).max(files.len());
    match all_count.saturating_sub(shown_count) {
        0 if all_count == 0 => "no files".to_string(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The first names that fit into the characters; always one, cut if need be.
fn joined(names: &[&str], separator: &str, characters_max: usize) -> String {
    let mut text = String::new();
    for name in names {
        if text.is_empty() {
            text.extend(name.chars().take(characters_max));
        } else if text.chars().count() + separator.len() + name.chars().count() <= characters_max {
            text.push_str(separator);
            text.push_str(name);
        } else {
            break;
        }
    }
    text
}
