//! A question that is asked now: a record that may lack its answer.

use crate::read::{ReadOptions, choose_task, explained, unknown_kind};
use crate::record::RecordBody;
use crate::tasks::{ColumnNames, TASKS, Task};
use serde_json::{Map, Value};

/// Stands in for the answer of a question while its fields are checked; then it is taken away.
pub(crate) const NO_ANSWER: &str = "(to be written)";

/// Reads one JSON record that may lack its answer, which is then empty: something to be asked now.
pub fn read_question(text: &str, columns: &ColumnNames) -> Result<RecordBody, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let value: Value = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {}", explained(&error)))?;
    let Value::Object(mut fields) = value else {
        return Err(format!("it is {}; expected a record, an object", crate::tasks::kind_of(&value)));
    };
    let options = ReadOptions { columns: columns.clone(), ..ReadOptions::default() };
    let task = match choose_task(&fields, &options) {
        Err(_) if fields.get("task").is_none_or(Value::is_null) => TASKS
            .iter()
            .copied()
            .find(|task| {
                let mut fields = fields.clone();
                ask_for_answer(&mut fields, *task, columns);
                task.detect(&fields, columns)
            })
            .ok_or_else(|| unknown_kind(&fields, columns))?,
        chosen => chosen?,
    };
    let asked = ask_for_answer(&mut fields, task, columns);
    let mut body = task
        .read(fields, columns)
        .map_err(|reason| format!("{reason}; a {} record has {}", task.name(), task.expects(columns)))?;
    if asked {
        take_answer_away(&mut body, columns);
    }
    Ok(body)
}

/// Puts [`NO_ANSWER`] where the answer is missing or empty; whether it was.
fn ask_for_answer(fields: &mut Map<String, Value>, task: &dyn Task, columns: &ColumnNames) -> bool {
    if let Some(name) = task.answer_field(columns) {
        let is_missing = match fields.get(name) {
            None | Some(Value::Null) => true,
            Some(answer) => answer.as_str().is_some_and(|answer| answer.trim().is_empty()),
        };
        if is_missing {
            fields.insert(name.to_string(), NO_ANSWER.into());
        }
        return is_missing;
    }
    let Some(Value::Array(turns)) = fields.get_mut(&columns.messages) else { return false };
    let is_assistant = |turn: &Value| turn.get("role").and_then(Value::as_str) == Some("assistant");
    let says_nothing = |turn: &Value| match turn.get("content") {
        None | Some(Value::Null) => true,
        Some(content) => content.as_str().is_some_and(|text| text.trim().is_empty()),
    };
    let calls_tools = |turn: &Value| turn.get("tool_calls").is_some_and(|calls| !calls.is_null());
    while turns.last().is_some_and(|turn| is_assistant(turn) && says_nothing(turn) && !calls_tools(turn)) {
        turns.pop();
    }
    let is_missing = turns.last().is_some_and(|turn| turn.is_object() && !is_assistant(turn));
    if is_missing {
        turns.push(serde_json::json!({"role": "assistant", "content": NO_ANSWER}));
    }
    is_missing
}

fn take_answer_away(body: &mut RecordBody, columns: &ColumnNames) {
    match body {
        RecordBody::Text(_) => {}
        RecordBody::Completion { completion, .. } => completion.clear(),
        RecordBody::Chat { messages, .. } => {
            if let Some(last) = messages.last_mut() {
                last.content.clear();
            }
        }
        RecordBody::Task { task, fields } => {
            if let Some(name) = task.answer_field(columns) {
                fields.insert(name.to_string(), "".into());
            }
        }
    }
}
