//! Text as it is, every token learned.

use super::{ColumnNames, Task, require_text};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `text`.
#[derive(Debug)]
pub struct Text;

/// The one instance.
pub static TEXT: Text = Text;

impl Task for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn expects(&self, columns: &ColumnNames) -> String {
        format!("\"{}\" (text)", columns.text)
    }

    fn detect(&self, fields: &Map<String, Value>, columns: &ColumnNames) -> bool {
        fields.contains_key(&columns.text)
    }

    fn read(&self, fields: Map<String, Value>, columns: &ColumnNames) -> Result<RecordBody, String> {
        require_text(&fields, &columns.text).map(RecordBody::Text)
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        ""
    }

    fn query_text(&self, record: &Record) -> String {
        self.answer(record)
    }

    fn input_text(&self, _record: &Record) -> String {
        String::new()
    }

    fn answer(&self, record: &Record) -> String {
        match &record.body {
            RecordBody::Text(text) => text.clone(),
            _ => String::new(),
        }
    }

    /// Nothing is asked, so nothing is generated: only the loss can be measured.
    fn metrics(&self) -> &'static [&'static str] {
        &["loss_per_answer_token"]
    }

    fn answer_label(&self) -> &'static str {
        ""
    }

    fn earlier_label(&self) -> &'static str {
        ""
    }
}
