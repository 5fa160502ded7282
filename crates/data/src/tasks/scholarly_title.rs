//! From an abstract to the title of the paper, in the author's style.

use super::{ColumnNames, Task, first_words, require_text, text_field};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `scholarly_title`.
#[derive(Debug)]
pub struct ScholarlyTitle;

/// The one instance.
pub static SCHOLARLY_TITLE: ScholarlyTitle = ScholarlyTitle;

impl Task for ScholarlyTitle {
    fn name(&self) -> &'static str {
        "scholarly_title"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"abstract\" (text) and \"title\" (text)".to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("abstract") && fields.contains_key("title")
    }

    fn read(&self, fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        require_text(&fields, "abstract")?;
        require_text(&fields, "title")?;
        Ok(RecordBody::Task { task: &SCHOLARLY_TITLE, fields })
    }

    fn read_benchmark_question(&self, question: &str) -> Option<Map<String, Value>> {
        let text = question.strip_prefix("Generate a title for the following abstract of a paper")?.split_once(':')?.1;
        let mut fields = Map::new();
        fields.insert("abstract".into(), text.trim().into());
        Some(fields)
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        "Generate a title for the following abstract of a paper."
    }

    fn query_text(&self, record: &Record) -> String {
        text_field(record, "abstract").to_string()
    }

    fn document_text(&self, record: &Record) -> String {
        format!("{} {}", text_field(record, "title"), text_field(record, "abstract"))
    }

    fn input_text(&self, record: &Record) -> String {
        text_field(record, "abstract").trim().to_string()
    }

    fn short_input_text(&self, record: &Record) -> String {
        first_words(text_field(record, "abstract"), 160)
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "title").trim().to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("title")
    }

    fn answer_label(&self) -> &'static str {
        "Title:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier papers:"
    }
}
