//! The JSON export of Telegram Desktop: one chat, or all of them.

use super::conversation::{Conversation, Said};
use super::{ImportError, ImportOptions, Importer, Needs, Sink, file_of, is_me, nobody_is_me, open};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::error::Category;
use std::collections::HashSet;
use std::io::BufReader;

/// This importer in the list.
pub const IMPORTER: Importer = Importer {
    name: "telegram",
    about: "chats: what others wrote, and how you answered",
    how_to: "In Telegram Desktop open the chat, then its menu: Export chat history; or Settings, Advanced, Export Telegram\n\
             data for all chats. Choose the format \"Machine-readable JSON\". The file is result.json. Say with --me how you\n\
             are named in it (from or from_id). Channels, forwarded messages and attachments are left out.",
    needs: Needs { me: true, columns: false },
    read: Some(read),
};

/// One chat, or a list of all of them.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Export {
    chats: Option<Chats>,
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    messages: Vec<Part<Message>>,
}

#[derive(Deserialize)]
struct Chats {
    list: Vec<Part<Chat>>,
}

/// A part that may be broken without taking the others with it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Part<T> {
    Whole(T),
    Broken(IgnoredAny),
}

impl<T> Part<T> {
    fn whole(&self) -> Option<&T> {
        match self {
            Part::Whole(part) => Some(part),
            Part::Broken(_) => None,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Chat {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    messages: Vec<Part<Message>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message {
    id: i64,
    #[serde(rename = "type")]
    kind: Option<String>,
    date_unixtime: Option<Value>,
    date: Option<String>,
    from: Option<String>,
    from_id: Option<Value>,
    forwarded_from: Option<Value>,
    text: Value,
}

fn read(options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    for path in &options.sources {
        let path = &file_of(path, "result.json");
        let export: Export = serde_json::from_reader(BufReader::new(open(path)?)).map_err(|error| {
            let (line, column, what) = (error.line(), error.column(), crate::read::explained(&error));
            let help = match error.classify() {
                Category::Eof => "the file was cut off; copy it again, or export again",
                Category::Syntax => "mend the file there, or export again",
                Category::Data | Category::Io => "export again in the format \"Machine-readable JSON\"",
            };
            ImportError::source(
                path,
                format!("not an export of Telegram: line {line}, column {column}: {what}; {help}"),
            )
        })?;
        let Export { chats, name, kind, messages } = export;
        let chats = chats.map_or_else(|| vec![Part::Whole(Chat { name, kind, messages })], |chats| chats.list);
        let mut names: HashSet<&str> = HashSet::new();
        let mut is_there = false;
        for message in chats.iter().filter_map(Part::whole).flat_map(Chat::messages) {
            is_there |= message.is_mine(options);
            names.extend(message.from.as_deref());
        }
        if !is_there {
            return Err(nobody_is_me(path, names));
        }
        let file = path.display().to_string();
        for (place, chat) in chats.iter().enumerate() {
            match chat.whole() {
                Some(chat) => read_chat(chat, &file, options, sink)?,
                None => sink.leave(format!("{file}, chat {}", place + 1), "chats that are not as Telegram writes them"),
            }
        }
    }
    Ok(())
}

fn read_chat(chat: &Chat, file: &str, options: &ImportOptions, sink: &mut Sink) -> Result<(), ImportError> {
    let name = chat.name.as_deref().unwrap_or("chat");
    if chat.kind.as_deref().is_some_and(|kind| kind.contains("channel")) {
        sink.leave_many(format!("{file}, {name}"), "messages of channels", chat.messages.len());
        return Ok(());
    }
    let people: HashSet<&str> = chat.messages().filter_map(|message| message.from.as_deref()).collect();
    let mut conversation = Conversation::new(people.len() > 2);
    for (number, message) in chat.messages.iter().enumerate() {
        let Part::Whole(message) = message else {
            let place = format!("{file}, {name}, message {}", number + 1);
            sink.leave(place, "messages that are not as Telegram writes them");
            continue;
        };
        let place = format!("{file}, {name}, message {}", message.id);
        if message.kind.as_deref() != Some("message") {
            sink.leave(place, "notices of the program");
        } else if message.forwarded_from.as_ref().is_some_and(|from| !from.is_null()) {
            sink.leave(place, "forwarded messages");
        } else if let Some(time) = message.time() {
            let text = message.text();
            if text.trim().is_empty() {
                sink.leave(place, "pictures and other attachments");
                continue;
            }
            let (by, is_me) = (message.from.clone().unwrap_or_default(), message.is_mine(options));
            conversation.add(Said { time, by, is_me, text, place }, sink)?;
        } else {
            sink.leave(place, "messages without a time");
        }
    }
    conversation.finish(sink)
}

impl Chat {
    fn messages(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter_map(Part::whole)
    }
}

impl Message {
    fn is_mine(&self, options: &ImportOptions) -> bool {
        let id = self.from_id.as_ref().map(|id| id.as_str().map_or_else(|| id.to_string(), String::from));
        self.from.iter().chain(&id).any(|name| is_me(options, name))
    }

    fn time(&self) -> Option<i64> {
        match &self.date_unixtime {
            Some(Value::String(text)) => text.parse().ok(),
            Some(Value::Number(number)) => number.as_i64(),
            _ => crate::time::text_time(self.date.as_deref()?),
        }
    }

    /// A text, or pieces of which some are objects with a text.
    fn text(&self) -> String {
        match &self.text {
            Value::String(text) => text.clone(),
            Value::Array(pieces) => {
                let text = |piece: &Value| piece.as_str().or_else(|| piece.get("text")?.as_str()).map(String::from);
                pieces.iter().filter_map(text).collect()
            }
            _ => String::new(),
        }
    }
}
