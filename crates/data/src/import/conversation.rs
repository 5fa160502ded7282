//! From a chat between people to conversation records: what the others wrote is asked, what the person wrote is learned.

use super::{ImportError, Sink};
use serde_json::{Map, Value, json};

/// One message of a chat.
pub(super) struct Said {
    /// Seconds since 1970.
    pub time: i64,
    /// Who wrote it.
    pub by: String,
    /// Whether the person did.
    pub is_me: bool,
    pub text: String,
    /// Where it stands in the source.
    pub place: String,
}

/// After so long a silence a new conversation begins.
const SILENCE_S: i64 = 6 * 3600;

/// A conversation longer than this is continued in another record, so that it fits into an example.
const RECORD_CHARACTERS: usize = 3000;

/// Puts messages into records as they come.
#[derive(Default)]
pub(super) struct Conversation {
    turns: Vec<Turn>,
    characters: usize,
    last_time: i64,
    place: String,
    /// Whether more than one other person writes: then their names are shown.
    is_group: bool,
}

struct Turn {
    is_me: bool,
    text: String,
}

impl Conversation {
    pub fn new(is_group: bool) -> Conversation {
        Conversation { is_group, ..Conversation::default() }
    }

    pub fn add(&mut self, said: Said, sink: &mut Sink) -> Result<(), ImportError> {
        let is_long =
            self.characters > RECORD_CHARACTERS && self.turns.last().is_some_and(|turn| turn.is_me) && !said.is_me;
        if is_long || said.time.saturating_sub(self.last_time) > SILENCE_S {
            self.finish(sink)?;
        }
        if said.is_me && self.turns.is_empty() {
            // It answers nothing that is in the record.
            sink.leave(said.place, "messages with which you began");
            self.last_time = said.time;
            return Ok(());
        }
        if self.turns.is_empty() {
            self.place = said.place;
        }
        self.last_time = said.time;
        self.characters += said.text.chars().count();
        let text = if self.is_group && !said.is_me { format!("{}: {}", said.by, said.text) } else { said.text };
        match self.turns.last_mut() {
            Some(last) if last.is_me == said.is_me => {
                last.text.push('\n');
                last.text.push_str(&text);
            }
            _ => self.turns.push(Turn { is_me: said.is_me, text }),
        }
        Ok(())
    }

    /// Ends the conversation: what the others wrote last was not answered.
    pub fn finish(&mut self, sink: &mut Sink) -> Result<(), ImportError> {
        let mut turns = std::mem::take(&mut self.turns);
        self.characters = 0;
        if turns.last().is_some_and(|turn| !turn.is_me) {
            turns.pop();
            sink.leave(&self.place, "messages of others that you did not answer");
        }
        if turns.is_empty() {
            return Ok(());
        }
        let role = |turn: &Turn| if turn.is_me { "assistant" } else { "user" };
        let messages: Vec<Value> = turns.iter().map(|turn| json!({"role": role(turn), "content": turn.text})).collect();
        let mut fields = Map::new();
        fields.insert("time".into(), self.last_time.into());
        fields.insert("messages".into(), messages.into());
        sink.take(&self.place, fields)
    }
}
