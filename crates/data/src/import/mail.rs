//! From e-mails to records: what the person wrote, and the message that it answers.
//!
//! Stores are read twice: first only the headers, to know whose each message is and where its answers' originals lie;
//! then the person's messages one by one. Memory holds addresses of messages, not messages.

use super::{ImportError, ImportOptions, Sink};
use mail_parser::{Address, HeaderValue, Message, MessageParser, MimeHeaders, PartType};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Of a larger message, whose attachments nobody reads here, only the beginning is looked at.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// The message that is answered is cut to its beginning.
const ANSWERED_CHARACTERS: usize = 4000;

/// Where a message lies.
#[derive(Clone, Copy)]
struct Stored {
    file: usize,
    offset: u64,
    length: usize,
}

/// Messages of any number of files.
#[derive(Default)]
pub(super) struct Store {
    files: Vec<PathBuf>,
    messages: Vec<Stored>,
    /// By message id.
    by_id: HashMap<String, usize>,
    mine: Vec<usize>,
    /// Whether lines that begin with `From ` were marked in the files, as in an mbox.
    is_marked: bool,
}

impl Store {
    /// Messages of files in which lines that begin with `From ` have a mark before.
    pub fn marked() -> Store {
        Store { is_marked: true, ..Store::default() }
    }

    pub fn add_file(&mut self, path: &Path) {
        self.files.push(path.to_path_buf());
    }

    /// Looks at the headers of a message of the file added last.
    pub fn add(&mut self, bytes: &[u8], offset: u64, length: usize, options: &ImportOptions, sink: &mut Sink) {
        let stored = Stored { file: self.files.len() - 1, offset, length };
        let place = self.place(stored);
        let Some(message) = MessageParser::default().parse_headers(bytes) else {
            sink.leave(place, "messages that cannot be read");
            return;
        };
        let index = self.messages.len();
        if let Some(id) = message.message_id() {
            if self.by_id.contains_key(id) {
                sink.leave(place, "messages that are there twice");
                return;
            }
            self.by_id.insert(id.to_string(), index);
        }
        self.messages.push(stored);
        if message.from().is_some_and(|from| options.me.iter().any(|me| from.contains(me.trim()))) {
            self.mine.push(index);
        } else {
            sink.leave(place, "messages of others");
        }
    }

    fn place(&self, stored: Stored) -> String {
        format!("{}, byte {}", self.files[stored.file].display(), stored.offset)
    }

    fn bytes(&self, stored: Stored) -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(&self.files[stored.file])?;
        file.seek(SeekFrom::Start(stored.offset))?;
        let mut bytes = Vec::new();
        file.take(stored.length.min(MESSAGE_BYTES_MAX) as u64).read_to_end(&mut bytes)?;
        Ok(if self.is_marked { unmarked(&bytes) } else { bytes })
    }

    /// Puts the person's messages into the sink.
    pub fn take_mine(&self, sink: &mut Sink) -> Result<(), ImportError> {
        for index in &self.mine {
            let stored = self.messages[*index];
            let path = &self.files[stored.file];
            let bytes = self.bytes(stored).map_err(ImportError::read(path))?;
            let place = self.place(stored);
            let parser = MessageParser::default();
            let Some(message) = parser.parse(&bytes) else {
                sink.leave(place, "messages that cannot be read");
                continue;
            };
            if stored.length > MESSAGE_BYTES_MAX {
                sink.leave(&place, "ends of messages larger than 32 MiB");
            }
            match self.record(&message) {
                Ok(fields) => sink.take(place, fields)?,
                Err(reason) => sink.leave(place, reason),
            }
        }
        Ok(())
    }

    fn record(&self, message: &Message) -> Result<Map<String, Value>, &'static str> {
        if message.header("Auto-Submitted").and_then(HeaderValue::as_text).is_some_and(|value| value.trim() != "no") {
            return Err("messages that a program wrote");
        }
        let (text, quoted) = own_words(&plain_text(message));
        if text.is_empty() {
            return Err("messages without a word of your own");
        }
        let subject = message.subject().unwrap_or("").trim();
        let answered = self.answered(message);
        let (from, asked) = match answered {
            Some((from, asked)) if !asked.is_empty() => (from, asked),
            _ => (String::new(), quoted),
        };
        if asked.is_empty() && subject.is_empty() {
            return Err("messages that answer nothing and have no subject");
        }
        let mut fields = Map::new();
        let time = message.date().filter(|date| date.is_valid()).map(mail_parser::DateTime::to_timestamp);
        for (name, value) in [("from", from), ("subject", subject.to_string()), ("message", asked), ("reply", text)] {
            if !value.is_empty() {
                fields.insert(name.to_string(), value.into());
            }
        }
        fields.insert("time".into(), time.map_or(Value::Null, Value::from));
        fields.insert("task".into(), "reply".into());
        Ok(fields)
    }

    /// Writer and words of the message that is answered, where it lies in the store.
    fn answered(&self, message: &Message) -> Option<(String, String)> {
        // Some programs name a message as what it answers.
        let other = |value| ids(value).filter(|id| message.message_id() != Some(id));
        let id = other(message.in_reply_to()).or_else(|| other(message.references()))?;
        let stored = self.messages[*self.by_id.get(&id)?];
        let bytes = self.bytes(stored).ok()?;
        let original = MessageParser::default().parse(&bytes)?;
        let from = original.from().and_then(Address::first);
        let from = from.and_then(|from| from.name().or(from.address())).unwrap_or("").to_string();
        let (words, _) = own_words(&plain_text(&original));
        Some((from, cut(&words)))
    }
}

/// A message without the mark before lines that begin with `From `, however many marks they had (mboxrd).
fn unmarked(bytes: &[u8]) -> Vec<u8> {
    let mut unmarked = Vec::with_capacity(bytes.len());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let marks = line.iter().take_while(|byte| **byte == b'>').count();
        let is_marked = marks > 0 && line[marks..].starts_with(b"From ");
        unmarked.extend_from_slice(&line[usize::from(is_marked)..]);
    }
    unmarked
}

/// The last id of a header that holds one or several.
fn ids(value: &HeaderValue) -> Option<String> {
    match value {
        HeaderValue::Text(id) => Some(id.to_string()),
        HeaderValue::TextList(ids) => ids.last().map(ToString::to_string),
        _ => None,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(ANSWERED_CHARACTERS).collect()
}

/// The text of a message: the plain parts, or what can be read of the others, without the parts that quote.
fn plain_text(message: &Message) -> String {
    let mut text = String::new();
    for part in message.text_bodies() {
        let piece = match &part.body {
            PartType::Text(piece) => {
                let kind = part.content_type();
                let is_flowed = kind.and_then(|kind| kind.attribute("format")).is_some_and(|format| format == "flowed");
                if is_flowed { unflowed(piece) } else { piece.to_string() }
            }
            PartType::Html(piece) => mail_parser::decoders::html::html_to_text(&without_quotes(piece)),
            _ => continue,
        };
        text.push_str(&piece);
        text.push('\n');
    }
    text
}

/// Joins the lines of a paragraph that was broken to be sent (RFC 3676): a line that ends with a space goes on.
fn unflowed(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.lines() {
        let line = line.strip_prefix(' ').unwrap_or(line);
        joined.push_str(line);
        if !line.ends_with(' ') || line == "-- " || line.starts_with('>') {
            joined.push('\n');
        }
    }
    joined
}

/// A page without the elements in which mail programs put what is answered.
fn without_quotes(html: &str) -> String {
    let lower = html.to_ascii_lowercase();
    let begins = [
        "<blockquote",
        "<div class=\"gmail_quote",
        "<div id=\"divrplyfwdmsg",
        "<div id=\"appendonsend",
        "<div class=\"moz-cite-prefix",
    ];
    let end = begins.iter().filter_map(|begin| lower.find(begin)).min();
    html[..end.unwrap_or(html.len())].to_string()
}

/// Begins of lines under which another message is forwarded or quoted whole.
const DIVIDERS: [&str; 14] = [
    "-----original message-----",
    "---------- forwarded message",
    "-------- original message",
    "-------- forwarded message",
    "begin forwarded message",
    "-----ursprüngliche nachricht-----",
    "-------- weitergeleitete nachricht",
    "-------- ursprüngliche nachricht",
    "anfang der weitergeleiteten",
    "-----message d'origine-----",
    "-------- message transféré",
    "-----mensaje original-----",
    "---------- mensaje reenviado",
    "-----messaggio originale-----",
];

/// Begins of lines that programs put under a message.
const PROGRAM_SIGNATURES: [&str; 9] = [
    "sent from my ",
    "sent from mail for",
    "get outlook for",
    "von meinem ",
    "gesendet von ",
    "envoyé de mon ",
    "enviado desde mi ",
    "inviato da ",
    "sent from proton",
];

/// How the line ends that names the writer of what is quoted.
const ATTRIBUTIONS: [&str; 9] =
    ["wrote:", "schrieb:", "a écrit :", "a écrit:", "escribió:", "ha scritto:", "schreef:", "skrev:", "escreveu:"];

/// Names of the first field of a quoted header, as Outlook writes it.
const HEADER_NAMES: [&str; 5] = ["from: ", "von: ", "de : ", "de: ", "da: "];
const HEADER_NEXT: [&str; 10] =
    ["sent: ", "date: ", "to: ", "gesendet: ", "datum: ", "an: ", "envoyé : ", "enviado", "inviato: ", "data: "];

/// The person's own words of a text, and the words that it quotes.
fn own_words(text: &str) -> (String, String) {
    let text = text.replace("\r\n", "\n");
    let lines: Vec<&str> = text.lines().collect();
    let mut own: Vec<&str> = Vec::new();
    let mut quoted: Vec<&str> = Vec::new();
    let mut place = 0;
    while place < lines.len() {
        let line = lines[place].trim_end();
        let bare = line.trim().to_lowercase();
        if let Some(quote) = line.trim_start().strip_prefix('>') {
            // What the quoted message itself quotes is older.
            if !quote.trim_start().starts_with('>') {
                quoted.push(quote.strip_prefix(' ').unwrap_or(quote));
            }
        } else if line == "--" || lines[place] == "-- " || is_divider(&lines, place, &bare) {
            break;
        } else if let Some(length) = attribution(&lines, place) {
            // Without marks of quotation all that follows is quoted.
            let is_marked = lines[place + length..].iter().any(|line| line.trim_start().starts_with('>'));
            if !is_marked {
                let rest = &lines[place + length..];
                quoted.extend(rest);
                break;
            }
            place += length - 1;
        } else if !PROGRAM_SIGNATURES.iter().any(|begin| bare.starts_with(begin)) || bare.chars().count() > 60 {
            own.push(line);
        }
        place += 1;
    }
    (paragraphs(&own), cut(&paragraphs(&quoted)))
}

fn is_divider(lines: &[&str], place: usize, bare: &str) -> bool {
    let next = lines.get(place + 1).map_or(String::new(), |next| next.trim().to_lowercase());
    let begins = |text: &str, list: &[&str]| list.iter().any(|begin| text.starts_with(begin));
    let is_header = |first: &str, second: &str| begins(first, &HEADER_NAMES) && begins(second, &HEADER_NEXT);
    begins(bare, &DIVIDERS) || is_header(&bare.replace('*', ""), &next.replace('*', ""))
}

/// How many lines name the writer of what is quoted below: `On 1 May Ada wrote:`, perhaps broken once.
fn attribution(lines: &[&str], place: usize) -> Option<usize> {
    let begins = ["on ", "am ", "le ", "el ", "il ", "op ", "den ", "em ", "pada "];
    let first = lines[place].trim().to_lowercase();
    if !begins.iter().any(|begin| first.starts_with(begin)) || first.len() > 300 {
        return None;
    }
    let ends = |line: &str| {
        ATTRIBUTIONS.iter().any(|end| line.ends_with(end))
            || (line.starts_with("am ") && line.ends_with(':') && line.contains(" schrieb "))
    };
    if ends(&first) {
        return Some(1);
    }
    let next = lines.get(place + 1).map_or(String::new(), |next| next.trim().to_lowercase());
    let both = format!("{first} {next}");
    (both.len() < 400 && !next.is_empty() && ends(&both)).then_some(2)
}

/// Lines as text, with at most one empty line between two.
fn paragraphs(lines: &[&str]) -> String {
    let mut text = String::new();
    let mut is_gap = false;
    for line in lines {
        if line.trim().is_empty() {
            is_gap = !text.is_empty();
            continue;
        }
        if !text.is_empty() {
            text.push_str(if is_gap { "\n\n" } else { "\n" });
        }
        is_gap = false;
        text.push_str(line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_words_are_told_from_what_is_quoted_and_signed() {
        for (text, own, quoted) in [
            (
                "Yes.\n\nOn 1 May 2024, Ada wrote:\n> Shall we?\n>> old\n\nSee you\n-- \nBob",
                "Yes.\n\nSee you",
                "Shall we?",
            ),
            ("Yes.\n\nOn Wed, 1 May 2024 at 10:00, Ada <ada@example.org>\nwrote:\n\n> Shall we?", "Yes.", "Shall we?"),
            ("Ja.\n\nAm 01.05.24 um 10:00 schrieb Ada Beispiel:\n> Sollen wir?", "Ja.", "Sollen wir?"),
            ("Oui\n\nLe 1 mai 2024, Ada a écrit :\nOn y va ?", "Oui", "On y va ?"),
            ("Fine\n\n-----Original Message-----\nFrom: Ada\nText", "Fine", ""),
            ("Fine\n\n*From:* Ada\n*Sent:* Monday\nText", "Fine", ""),
            ("See below\n\n---------- Forwarded message ---------\nFrom: Ada\n\nsecret", "See below", ""),
            ("Short\n\nSent from my iPhone", "Short", ""),
            ("From: here on it is mine\nreally", "From: here on it is mine\nreally", ""),
            ("On the whole I agree.\nShe wrote: no.", "On the whole I agree.\nShe wrote: no.", ""),
            ("> only\n> quoted", "", "only\nquoted"),
        ] {
            assert_eq!(own_words(text), (own.to_string(), quoted.to_string()), "{text}");
        }
    }

    #[test]
    fn flowed_paragraphs_are_joined() {
        assert_eq!(unflowed("a long \nline\n> quoted \n> two\n-- \nBob"), "a long line\n> quoted \n> two\n-- \nBob\n");
    }
}
