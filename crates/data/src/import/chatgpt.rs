//! The JSON export of ChatGPT: the conversations as they stand, each along the branch that was shown last.

use super::elements::{Elements, Next};
use super::{ImportError, ImportOptions, Importer, Needs, Sink, file_of, open};
use crate::read::{explained, shown};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::io::BufReader;

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "chatgpt",
    about: "conversations with an assistant: what you asked, and the answers you got",
    how_to: "On chatgpt.com: Settings, then Data controls, then Export data; the link comes by e-mail. Unpack the archive;\n\
             the file is conversations.json. Answers are what is learned. Of regenerated answers only the branch shown last\n\
             is taken; tools, pictures and system turns are left out. A conversation that cannot be read is named and left out.",
    needs: Needs { me: false, columns: false },
    read: Some(read),
};

#[derive(Deserialize, Default)]
#[serde(default)]
struct Exported {
    title: Option<String>,
    create_time: Option<f64>,
    current_node: Option<String>,
    mapping: HashMap<String, Node>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Node {
    message: Option<Message>,
    parent: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message {
    author: Author,
    content: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Author {
    role: Option<String>,
}

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for path in &options.sources {
        let path = &file_of(path, "conversations.json");
        let input = BufReader::with_capacity(1 << 16, open(path)?);
        let mut conversations = Elements::of(input)
            .map_err(ImportError::read(path))?
            .ok_or_else(|| ImportError::source(path, "not an export of ChatGPT: expected a list of conversations"))?;
        let mut number = 0;
        loop {
            number += 1;
            let place = format!("{}, conversation {number}", path.display());
            match conversations.next().map_err(ImportError::read(path))? {
                Next::Element(text) => match serde_json::from_slice::<Exported>(&text) {
                    Ok(exported) => take(exported, place, sink)?,
                    Err(error) => {
                        let place = format!("{place} ({})", shown(&explained(&error)));
                        sink.leave(place, "conversations that are not as ChatGPT writes them");
                    }
                },
                Next::CutOff => {
                    sink.leave(place, "ends of files that were cut off");
                    break;
                }
                Next::End { is_last } => {
                    sink.leave_many(path.display(), "text after the list of conversations", usize::from(!is_last));
                    break;
                }
            }
        }
    }
    Ok(())
}

fn take(exported: Exported, place: String, sink: &mut Sink) -> Result<(), ImportError> {
    // From the node shown last back to the root; a damaged file may go in circles.
    let mut branch: Vec<&Node> = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut next = exported.current_node.as_deref();
    while let Some(name) = next.filter(|name| seen.insert(name)) {
        let Some(node) = exported.mapping.get(name) else { break };
        branch.push(node);
        next = node.parent.as_deref();
    }
    let others = exported.mapping.len().saturating_sub(branch.len());
    sink.leave_many(&place, "turns of branches that were not shown last", others);
    let mut turns: Vec<(&str, String)> = Vec::new();
    for message in branch.iter().rev().filter_map(|node| node.message.as_ref()) {
        let role = message.author.role.as_deref().unwrap_or("");
        let text = text(&message.content);
        if !matches!(role, "user" | "assistant") || text.trim().is_empty() {
            sink.leave(&place, "turns of tools or the system, and turns without text");
            continue;
        }
        match turns.last_mut() {
            Some((last, before)) if *last == role => *before = format!("{before}\n\n{text}"),
            _ => turns.push((role, text)),
        }
    }
    if turns.last().is_some_and(|(role, _)| *role == "user") {
        turns.pop();
        sink.leave(&place, "questions without an answer");
    }
    if turns.is_empty() {
        sink.leave(&place, "conversations without an answer");
        return Ok(());
    }
    let messages: Vec<Value> = turns.into_iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
    let mut fields = Map::new();
    if let Some(time) = exported.create_time.filter(|time| time.is_finite()) {
        fields.insert("time".into(), json!(time));
    }
    if let Some(title) = exported.title.filter(|title| !title.is_empty()) {
        fields.insert("title".into(), title.into());
    }
    fields.insert("messages".into(), messages.into());
    sink.take(place, fields)
}

/// The texts among the parts of a turn.
fn text(content: &Value) -> String {
    let kind = content.get("content_type").and_then(Value::as_str).unwrap_or("text");
    let parts = content.get("parts").and_then(Value::as_array);
    match parts {
        Some(parts) if matches!(kind, "text" | "multimodal_text") => {
            parts.iter().filter_map(Value::as_str).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
