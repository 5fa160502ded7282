//! A prompt and what the person wrote to it.

use super::{ColumnNames, Cut, Task, require_text};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `completion`.
#[derive(Debug)]
pub struct Completion;

/// The one instance.
pub static COMPLETION: Completion = Completion;

impl Task for Completion {
    fn name(&self) -> &'static str {
        "completion"
    }

    fn expects(&self, columns: &ColumnNames) -> String {
        format!("\"{}\" (text) and \"{}\" (text)", columns.prompt, columns.completion)
    }

    fn detect(&self, fields: &Map<String, Value>, columns: &ColumnNames) -> bool {
        fields.contains_key(&columns.prompt) || fields.contains_key(&columns.completion)
    }

    fn read(&self, fields: Map<String, Value>, columns: &ColumnNames) -> Result<RecordBody, String> {
        let prompt = require_text(&fields, &columns.prompt)?;
        let completion = require_text(&fields, &columns.completion)?;
        Ok(RecordBody::Completion { prompt, completion })
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        ""
    }

    fn query_text(&self, record: &Record) -> String {
        self.input_text(record)
    }

    fn input_text(&self, record: &Record) -> String {
        match &record.body {
            RecordBody::Completion { prompt, .. } => prompt.clone(),
            _ => String::new(),
        }
    }

    fn answer(&self, record: &Record) -> String {
        match &record.body {
            RecordBody::Completion { completion, .. } => completion.clone(),
            _ => String::new(),
        }
    }

    fn answer_field<'a>(&self, columns: &'a ColumnNames) -> Option<&'a str> {
        Some(&columns.completion)
    }

    fn answer_label(&self) -> &'static str {
        ""
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier examples:"
    }

    fn cut(&self) -> Cut {
        Cut::Middle
    }
}
