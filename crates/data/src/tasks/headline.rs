//! From an article to its headline, in the author's style.

use super::{ColumnNames, Task, first_words, require_text, text_field};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `headline`.
#[derive(Debug)]
pub struct Headline;

/// The one instance.
pub static HEADLINE: Headline = Headline;

impl Task for Headline {
    fn name(&self) -> &'static str {
        "headline"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"article\" or \"text\" (text) and \"title\" (text)".to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("article") && fields.contains_key("title")
    }

    fn read(&self, mut fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        if !fields.contains_key("article")
            && let Some(text) = fields.remove("text")
        {
            fields.insert("article".into(), text);
        }
        require_text(&fields, "article")?;
        require_text(&fields, "title")?;
        Ok(RecordBody::Task { task: &HEADLINE, fields })
    }

    fn read_benchmark_question(&self, question: &str) -> Option<Map<String, Value>> {
        let article = question.strip_prefix("Generate a headline for the following article")?.split_once(':')?.1;
        let mut fields = Map::new();
        fields.insert("article".into(), article.trim().into());
        Some(fields)
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        "Generate a headline for the following article."
    }

    fn query_text(&self, record: &Record) -> String {
        text_field(record, "article").to_string()
    }

    fn document_text(&self, record: &Record) -> String {
        format!("{} {}", text_field(record, "title"), text_field(record, "article"))
    }

    fn input_text(&self, record: &Record) -> String {
        text_field(record, "article").trim().to_string()
    }

    fn short_input_text(&self, record: &Record) -> String {
        first_words(text_field(record, "article"), 160)
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "title").trim().to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("title")
    }

    fn answer_label(&self) -> &'static str {
        "Headline:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier articles:"
    }
}
