//! From a review, or from what was reviewed, to the person's rating of 1 to 5 (the benchmark's LaMP-3).

use super::{AnswerKind, ColumnNames, Task, first_words, kind_of, require_text, text_field};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `rating`.
#[derive(Debug)]
pub struct Rating;

/// The one instance.
pub static RATING: Rating = Rating;

/// The scale of the benchmark.
const LOWEST: i32 = 1;
const HIGHEST: i32 = 5;

/// The field of the rating; the benchmark calls it `score`.
const ANSWER: &str = "rating";
const OTHER_ANSWER: &str = "score";

/// Fields that describe what was rated where there is no text of a review, in the order in which they are shown, each
/// with what stands before it.
const DESCRIBING: [(&str, &str); 10] = [
    ("brand", ""),
    ("title", ""),
    ("variety", ""),
    ("author", "by "),
    ("genres", ""),
    ("style", ""),
    ("country", ""),
    ("year", ""),
    ("published", ""),
    ("summary", ""),
];

impl Task for Rating {
    fn name(&self) -> &'static str {
        "rating"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"rating\" or \"score\" (1 to 5) and \"text\" or \"review\" (text), or what was rated as \"title\", \"author\", \
         \"genres\", \"brand\", \"variety\""
            .to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key(ANSWER) || (fields.contains_key(OTHER_ANSWER) && fields.contains_key("text"))
    }

    /// Gives the answer as `rating`, a text, and what is rated as `text`.
    fn read(&self, mut fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        let name = if fields.contains_key(ANSWER) { ANSWER } else { OTHER_ANSWER };
        let rating = read_rating(fields.remove(name), name)?;
        let text = what_is_rated(&fields)?;
        fields.insert(ANSWER.into(), rating.into());
        fields.insert("text".into(), text.into());
        Ok(RecordBody::Task { task: &RATING, fields })
    }

    fn read_benchmark_question(&self, question: &str) -> Option<Map<String, Value>> {
        let rest = question.strip_prefix("What is the score of the following review")?;
        let mut fields = Map::new();
        fields.insert("text".into(), rest.split_once("review:")?.1.trim().into());
        Some(fields)
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        "What is the score of the following review on a scale of 1 to 5? just answer with 1, 2, 3, 4, or 5 without \
         further explanation."
    }

    fn query_text(&self, record: &Record) -> String {
        text_field(record, "text").to_string()
    }

    fn input_text(&self, record: &Record) -> String {
        format!("review: {}", text_field(record, "text").trim())
    }

    fn short_input_text(&self, record: &Record) -> String {
        first_words(text_field(record, "text"), 240)
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, ANSWER).to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some(ANSWER)
    }

    fn answer_kind(&self) -> AnswerKind {
        AnswerKind::Rating { lowest: LOWEST, highest: HIGHEST }
    }

    fn answer_label(&self) -> &'static str {
        "score:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier scores:"
    }
}

/// A whole number of the scale, given as number or text.
fn read_rating(value: Option<Value>, name: &str) -> Result<String, String> {
    let outside =
        |shown: &str| format!("field \"{name}\" is {shown}, expected a whole number from {LOWEST} to {HIGHEST}");
    let number = match value {
        None => return Err(format!("field \"{ANSWER}\" is missing")),
        Some(Value::Number(number)) => number.as_f64().ok_or_else(|| outside(&number.to_string()))?,
        // The stand-in of a question: it is taken away after reading.
        Some(Value::String(text)) if text == crate::question::NO_ANSWER => return Ok(text),
        Some(Value::String(text)) => {
            let shown: String = text.chars().filter(|c| !c.is_control()).take(24).collect();
            text.trim().parse().map_err(|_| outside(&format!("\"{shown}\"")))?
        }
        Some(other) => return Err(outside(kind_of(&other))),
    };
    let in_scale = number.fract() == 0.0 && (f64::from(LOWEST)..=f64::from(HIGHEST)).contains(&number);
    if in_scale { Ok(number.to_string()) } else { Err(outside(&number.to_string())) }
}

/// The review, or what the other fields say about the thing.
fn what_is_rated(fields: &Map<String, Value>) -> Result<String, String> {
    for name in ["text", "review"] {
        if fields.get(name).is_some_and(Value::is_string) {
            return require_text(fields, name);
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for (name, before) in DESCRIBING {
        let said = match fields.get(name) {
            Some(Value::String(text)) => text.trim().to_string(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            _ => continue,
        };
        if !said.is_empty() {
            parts.push(format!("{before}{said}"));
        }
    }
    match parts.is_empty() {
        true => Err("no field says what was rated".to_string()),
        false => Ok(parts.join("; ")),
    }
}
