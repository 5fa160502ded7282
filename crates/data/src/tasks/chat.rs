//! Conversations; the assistant's turns are what the person's model should write.

use super::{ColumnNames, Cut, Task, kind_of};
use crate::record::{Message, Record, RecordBody};
use serde_json::{Map, Value};

/// The task `chat`.
#[derive(Debug)]
pub struct Chat;

/// The one instance.
pub static CHAT: Chat = Chat;

impl Task for Chat {
    fn name(&self) -> &'static str {
        "chat"
    }

    fn expects(&self, columns: &ColumnNames) -> String {
        format!("\"{}\" (list of {{\"role\", \"content\"}} with a turn of the assistant)", columns.messages)
    }

    fn detect(&self, fields: &Map<String, Value>, columns: &ColumnNames) -> bool {
        fields.contains_key(&columns.messages)
    }

    fn read(&self, mut fields: Map<String, Value>, columns: &ColumnNames) -> Result<RecordBody, String> {
        let name = &columns.messages;
        let turns = match fields.remove(name) {
            Some(Value::Array(turns)) => turns,
            Some(other) => return Err(format!("field \"{name}\" is {}, expected a list of turns", kind_of(&other))),
            None => return Err(format!("field \"{name}\" is missing")),
        };
        let mut messages = Vec::with_capacity(turns.len());
        for (index, turn) in turns.into_iter().enumerate() {
            messages.push(read_turn(turn).map_err(|reason| format!("turn {} of \"{name}\": {reason}", index + 1))?);
        }
        if !messages.iter().any(Message::is_answer) {
            return Err(format!("\"{name}\" has no answer: no turn of role \"assistant\" with text"));
        }
        // An empty turn at the end would ask for an answer; a history holds only what was written.
        while messages.last().is_some_and(Message::is_unwritten) {
            messages.pop();
        }
        let tools = match fields.remove(&columns.tools) {
            None | Some(Value::Null) => None,
            Some(tools @ Value::Array(_)) => Some(tools),
            Some(other) => {
                return Err(format!("field \"{}\" is {}, expected a list", columns.tools, kind_of(&other)));
            }
        };
        Ok(RecordBody::Chat { messages, tools })
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        ""
    }

    fn query_text(&self, record: &Record) -> String {
        self.input_text(record)
    }

    /// The turns before the last answer, one after the other.
    fn input_text(&self, record: &Record) -> String {
        let (before, _) = around_last_answer(record);
        before
            .iter()
            .filter(|message| message.role == "user")
            .map(|message| message.content.as_str())
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn answer(&self, record: &Record) -> String {
        around_last_answer(record).1.map_or(String::new(), |message| message.content.clone())
    }

    fn answer_label(&self) -> &'static str {
        ""
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier conversations:"
    }

    fn cut(&self) -> Cut {
        Cut::Middle
    }
}

/// Place of the turn that is asked for: an empty one of the assistant at the end, else the last answer.
pub(crate) fn asked_turn(messages: &[Message]) -> Option<usize> {
    match messages.last() {
        Some(last) if last.is_unwritten() => Some(messages.len() - 1),
        _ => messages.iter().rposition(Message::is_answer),
    }
}

/// The turns before the turn that is asked for, and that turn.
pub(crate) fn around_last_answer(record: &Record) -> (&[Message], Option<&Message>) {
    match &record.body {
        RecordBody::Chat { messages, .. } => match asked_turn(messages) {
            Some(place) => (&messages[..place], Some(&messages[place])),
            None => (messages, None),
        },
        _ => (&[], None),
    }
}

fn read_turn(turn: Value) -> Result<Message, String> {
    let Value::Object(mut fields) = turn else {
        return Err(format!("it is {}, expected an object with \"role\" and \"content\"", kind_of(&turn)));
    };
    let role = match fields.remove("role") {
        Some(Value::String(role)) if !role.is_empty() => role,
        Some(other) => return Err(format!("\"role\" is {}, expected a text", kind_of(&other))),
        None => return Err("\"role\" is missing".to_string()),
    };
    let content = read_content(fields.remove("content"), &fields)?;
    // Both spellings of "do not learn this turn" that other tools use.
    let train = match (fields.remove("train"), fields.remove("weight")) {
        (Some(Value::Bool(train)), _) => train,
        (None, Some(Value::Number(weight))) => weight.as_f64() != Some(0.0),
        (None | Some(Value::Null), None | Some(Value::Null)) => true,
        _ => return Err("\"train\" must be true or false, \"weight\" a number".to_string()),
    };
    Ok(Message { role, content, extra: fields, train })
}

/// A text, or a list of text parts, which are put together.
fn read_content(content: Option<Value>, others: &Map<String, Value>) -> Result<String, String> {
    match content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for part in &parts {
                let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
                match part.get("text").and_then(Value::as_str) {
                    Some(piece) if kind == "text" => text.push_str(piece),
                    _ => return Err(format!("\"content\" has a part of type \"{}\", only text is known", clean(kind))),
                }
            }
            Ok(text)
        }
        None | Some(Value::Null) if others.get("tool_calls").is_some_and(Value::is_array) => Ok(String::new()),
        None => Err("\"content\" is missing".to_string()),
        Some(other) => Err(format!("\"content\" is {}, expected text", kind_of(&other))),
    }
}

/// A word of the file made fit for a message.
fn clean(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(24).collect()
}
