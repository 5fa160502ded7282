//! From an article to the category that its author puts it in (the benchmark's LaMP-2N).

use super::{
    AnswerKind, ColumnNames, Task, benchmark_list, first_words, optional_texts, require_text, text_field, texts_field,
};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `news_category`.
#[derive(Debug)]
pub struct NewsCategory;

/// The one instance.
pub static NEWS_CATEGORY: NewsCategory = NewsCategory;

const AMONG: &str = "Which category does this article relate to among the following categories? Just answer with the \
                     category name without further explanation.";
const OPEN: &str =
    "Which category does this article relate to? Just answer with the category name without further explanation.";

impl Task for NewsCategory {
    fn name(&self) -> &'static str {
        "news_category"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"article\" or \"text\" (text) and \"category\" (text) or \"topics\" (list of texts, the first is taken); \
         \"categories\" (list of texts) are the choices, where they are limited"
            .to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("category") && (fields.contains_key("article") || fields.contains_key("text"))
    }

    fn read(&self, mut fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        if !fields.contains_key("article")
            && let Some(text) = fields.remove("text")
        {
            fields.insert("article".into(), text);
        }
        require_text(&fields, "article")?;
        optional_texts(&fields, "categories")?;
        if !fields.contains_key("category") {
            let topics = optional_texts(&fields, "topics")?;
            let first = topics.first().ok_or("field \"category\" is missing, and \"topics\" is empty")?;
            // Topics are often written as parts of addresses.
            fields.insert("category".into(), first.replace('-', " ").into());
        }
        require_text(&fields, "category")?;
        Ok(RecordBody::Task { task: &NEWS_CATEGORY, fields })
    }

    fn read_benchmark_question(&self, question: &str) -> Option<Map<String, Value>> {
        let rest = question.strip_prefix("Which category does this article relate to")?;
        let mut fields = Map::new();
        fields.insert("categories".into(), benchmark_list(rest, "categories: [").into());
        fields.insert("article".into(), rest.split_once("article:")?.1.trim().into());
        Some(fields)
    }

    fn choices_field(&self) -> Option<&'static str> {
        Some("categories")
    }

    fn instruction(&self, record: &Record) -> &'static str {
        if texts_field(record, "categories").is_empty() { OPEN } else { AMONG }
    }

    fn query_text(&self, record: &Record) -> String {
        text_field(record, "article").to_string()
    }

    fn document_text(&self, record: &Record) -> String {
        format!("{} {}", text_field(record, "title"), text_field(record, "article"))
    }

    fn input_text(&self, record: &Record) -> String {
        let article = text_field(record, "article").trim();
        match texts_field(record, "categories") {
            categories if categories.is_empty() => format!("article: {article}"),
            categories => format!("categories: [{}] article: {article}", categories.join(", ")),
        }
    }

    fn short_input_text(&self, record: &Record) -> String {
        first_words(text_field(record, "article"), 160)
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "category").trim().to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("category")
    }

    fn answer_kind(&self) -> AnswerKind {
        AnswerKind::Choice
    }

    fn answer_label(&self) -> &'static str {
        "category:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier categories:"
    }
}
