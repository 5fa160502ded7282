//! Which of two papers the author of a third refers to (the benchmark's LaMP-1).

use super::{AnswerKind, ColumnNames, Cut, Task, optional_texts, require_text, text_field, texts_field};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `citation`.
#[derive(Debug)]
pub struct Citation;

/// The one instance.
pub static CITATION: Citation = Citation;

/// The answers of the benchmark.
const CHOICES: [&str; 2] = ["[1]", "[2]"];

impl Task for Citation {
    fn name(&self) -> &'static str {
        "citation"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"title\" (text), \"references\" (list of two titles) and \"citation\" (\"[1]\" or \"[2]\")".to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("references") && fields.contains_key("title")
    }

    /// A paper of the author without references, as the benchmark's profiles have it, is learned as a title: nothing else
    /// of it can be asked.
    fn read(&self, mut fields: Map<String, Value>, columns: &ColumnNames) -> Result<RecordBody, String> {
        if !fields.contains_key("references") && fields.contains_key("abstract") {
            return super::scholarly_title::SCHOLARLY_TITLE.read(fields, columns);
        }
        require_text(&fields, "title")?;
        let references = optional_texts(&fields, "references")?;
        if references.len() != 2 {
            return Err(format!("field \"references\" has {} titles, expected 2", references.len()));
        }
        let choice = match fields.get("citation") {
            Some(Value::Number(number)) => format!("[{number}]"),
            _ => require_text(&fields, "citation")?.trim().to_string(),
        };
        if !CHOICES.contains(&choice.as_str()) && choice != crate::question::NO_ANSWER {
            return Err("field \"citation\" is neither \"[1]\" nor \"[2]\"".to_string());
        }
        fields.insert("citation".into(), choice.into());
        Ok(RecordBody::Task { task: &CITATION, fields })
    }

    fn read_benchmark_question(&self, question: &str) -> Option<Map<String, Value>> {
        if !question.contains("which reference is related?") {
            return None;
        }
        let mut quoted = question.split('"').skip(1).step_by(2);
        let (title, first, second) = (quoted.next()?, quoted.next()?, quoted.next()?);
        let mut fields = Map::new();
        fields.insert("title".into(), title.into());
        fields.insert("references".into(), vec![first, second].into());
        Some(fields)
    }

    /// The question itself asks, in the benchmark's words.
    fn instruction(&self, _record: &Record) -> &'static str {
        ""
    }

    /// The author's papers are compared with the two that could be referred to.
    fn query_text(&self, record: &Record) -> String {
        texts_field(record, "references").join(" ")
    }

    fn document_text(&self, record: &Record) -> String {
        format!("{} {}", text_field(record, "title"), self.query_text(record))
    }

    fn input_text(&self, record: &Record) -> String {
        let references = texts_field(record, "references");
        let reference = |place: usize| references.get(place).copied().unwrap_or("");
        format!(
            "For an author who has written the paper with the title \"{}\", which reference is related? Just answer with \
             [1] or [2] without explanation. [1]: \"{}\" [2]: \"{}\"",
            text_field(record, "title"),
            reference(0),
            reference(1)
        )
    }

    fn short_input_text(&self, record: &Record) -> String {
        let references = texts_field(record, "references");
        format!("{} [1]: {} [2]: {}", text_field(record, "title"), references[0], references[1])
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "citation").to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("citation")
    }

    fn answer_kind(&self) -> AnswerKind {
        AnswerKind::Choice
    }

    fn choices(&self, _record: &Record, _history: &[Record]) -> Vec<String> {
        CHOICES.map(String::from).to_vec()
    }

    fn answer_label(&self) -> &'static str {
        "reference:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier papers of this author:"
    }

    fn cut(&self) -> Cut {
        Cut::Middle
    }
}
