//! From a film's description to the tag that the person gives it (the benchmark's LaMP-2M).

use super::{
    AnswerKind, ColumnNames, Task, benchmark_list, first_words, optional_texts, require_text, text_field, texts_field,
};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `movie_tag`.
#[derive(Debug)]
pub struct MovieTag;

/// The one instance.
pub static MOVIE_TAG: MovieTag = MovieTag;

/// The instruction without a list of tags is the benchmark's, less the words about the list.
const AMONG: &str = "Which tag does this movie relate to among the following tags? Just answer with the tag name without \
                     further explanation.";
const OPEN: &str = "Which tag does this movie relate to? Just answer with the tag name without further explanation.";

impl Task for MovieTag {
    fn name(&self) -> &'static str {
        "movie_tag"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"tag\" (text) and \"description\" (text) or \"title\" (text) with \"genres\" (list of texts); \"tags\" (list of \
         texts) are the choices, where they are limited"
            .to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("tag") && (fields.contains_key("description") || fields.contains_key("title"))
    }

    fn read(&self, mut fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        require_text(&fields, "tag")?;
        optional_texts(&fields, "tags")?;
        if !fields.contains_key("description") {
            let title = require_text(&fields, "title")?;
            let genres = optional_texts(&fields, "genres")?;
            let description = match genres.is_empty() {
                true => title,
                false => format!("{title}. Genres: {}", genres.join(", ")),
            };
            fields.insert("description".into(), description.into());
        }
        require_text(&fields, "description")?;
        Ok(RecordBody::Task { task: &MOVIE_TAG, fields })
    }

    fn read_benchmark_question(&self, question: &str) -> Option<Map<String, Value>> {
        let rest = question.strip_prefix("Which tag does this movie relate to")?;
        let mut fields = Map::new();
        fields.insert("tags".into(), benchmark_list(rest, "tags: [").into());
        fields.insert("description".into(), rest.split_once("description:")?.1.trim().into());
        Some(fields)
    }

    fn choices_field(&self) -> Option<&'static str> {
        Some("tags")
    }

    fn instruction(&self, record: &Record) -> &'static str {
        if texts_field(record, "tags").is_empty() { OPEN } else { AMONG }
    }

    fn query_text(&self, record: &Record) -> String {
        text_field(record, "description").to_string()
    }

    fn input_text(&self, record: &Record) -> String {
        let description = text_field(record, "description").trim();
        match texts_field(record, "tags") {
            tags if tags.is_empty() => format!("description: {description}"),
            tags => format!("tags: [{}] description: {description}", tags.join(", ")),
        }
    }

    fn short_input_text(&self, record: &Record) -> String {
        first_words(text_field(record, "description"), 240)
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "tag").trim().to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("tag")
    }

    fn answer_kind(&self) -> AnswerKind {
        AnswerKind::Choice
    }

    /// A film has several tags of one person: they are one question with several answers.
    fn group(&self, record: &Record) -> Option<String> {
        match record.field("movie_id") {
            Some(Value::Number(number)) => Some(number.to_string()),
            Some(Value::String(text)) => Some(text.clone()),
            _ => Some(text_field(record, "description").to_string()),
        }
    }

    fn answer_label(&self) -> &'static str {
        "tag:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier tags:"
    }
}
