//! From a message to the person's reply to it, or from its subject to a message that answers none (e-mail).

use super::{ColumnNames, Task, first_words, kind_of, require_text, text_field};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `reply`.
#[derive(Debug)]
pub struct Reply;

/// The one instance.
pub static REPLY: Reply = Reply;

impl Task for Reply {
    fn name(&self) -> &'static str {
        "reply"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"reply\" (text), what the person wrote, and \"message\" (text), what it answers, or \"subject\" (text)"
            .to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("reply") && (fields.contains_key("message") || fields.contains_key("subject"))
    }

    fn read(&self, fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        require_text(&fields, "reply")?;
        let mut says_something = false;
        for name in ["message", "subject", "from"] {
            match fields.get(name) {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => says_something |= name != "from" && !text.trim().is_empty(),
                Some(other) => return Err(format!("field \"{name}\" is {}, expected text", kind_of(other))),
            }
        }
        match says_something {
            true => Ok(RecordBody::Task { task: &REPLY, fields }),
            false => Err("neither \"message\" nor \"subject\" says what the reply answers".to_string()),
        }
    }

    fn instruction(&self, record: &Record) -> &'static str {
        match has_message(record) {
            true => "Write my reply to this message.",
            false => "Write my message with this subject.",
        }
    }

    fn query_text(&self, record: &Record) -> String {
        format!("{} {}", text_field(record, "subject"), text_field(record, "message"))
    }

    fn input_text(&self, record: &Record) -> String {
        let mut lines = Vec::new();
        for (name, label) in [("from", "From: "), ("subject", "Subject: ")] {
            let said = text_field(record, name).trim();
            if !said.is_empty() {
                lines.push(format!("{label}{said}"));
            }
        }
        let message = text_field(record, "message").trim();
        if message.is_empty() {
            lines.join("\n")
        } else {
            format!("{}\n\n{message}", lines.join("\n")).trim().to_string()
        }
    }

    fn short_input_text(&self, record: &Record) -> String {
        let shown = if has_message(record) { "message" } else { "subject" };
        first_words(text_field(record, shown), 160)
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "reply").trim().to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("reply")
    }

    fn answer_label(&self) -> &'static str {
        "Reply:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier replies:"
    }
}

fn has_message(record: &Record) -> bool {
    !text_field(record, "message").trim().is_empty()
}
