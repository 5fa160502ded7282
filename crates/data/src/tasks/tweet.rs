//! From a plain wording to the person's own tweet (the benchmark's LaMP-7). A history holds only the tweets: the plain
//! wording of each is the tweet without what makes its style.

use super::{ColumnNames, Task, require_text, text_field};
use crate::record::{Record, RecordBody};
use serde_json::{Map, Value};

/// The task `tweet`.
#[derive(Debug)]
pub struct Tweet;

/// The one instance.
pub static TWEET: Tweet = Tweet;

impl Task for Tweet {
    fn name(&self) -> &'static str {
        "tweet"
    }

    fn expects(&self, _columns: &ColumnNames) -> String {
        "\"tweet\" or \"text\" (text); \"paraphrase\" (text) where there is one".to_string()
    }

    fn detect(&self, fields: &Map<String, Value>, _columns: &ColumnNames) -> bool {
        fields.contains_key("tweet")
    }

    fn read(&self, mut fields: Map<String, Value>, _columns: &ColumnNames) -> Result<RecordBody, String> {
        if !fields.contains_key("tweet")
            && let Some(text) = fields.remove("text")
        {
            fields.insert("tweet".into(), text);
        }
        let tweet = require_text(&fields, "tweet")?;
        if !fields.contains_key("paraphrase") {
            let plain = plain_wording(&tweet);
            if plain.is_empty() {
                return Err("field \"tweet\" has no word apart from links and names".to_string());
            }
            fields.insert("paraphrase".into(), plain.into());
        }
        require_text(&fields, "paraphrase")?;
        Ok(RecordBody::Task { task: &TWEET, fields })
    }

    fn read_benchmark_question(&self, question: &str) -> Option<Map<String, Value>> {
        let plain = question.strip_prefix("Paraphrase the following tweet")?.split_once(':')?.1;
        let mut fields = Map::new();
        fields.insert("paraphrase".into(), plain.trim().into());
        Some(fields)
    }

    fn instruction(&self, _record: &Record) -> &'static str {
        "Paraphrase the following tweet without any explanation before or after it."
    }

    fn query_text(&self, record: &Record) -> String {
        text_field(record, "paraphrase").to_string()
    }

    fn document_text(&self, record: &Record) -> String {
        text_field(record, "tweet").to_string()
    }

    fn input_text(&self, record: &Record) -> String {
        text_field(record, "paraphrase").trim().to_string()
    }

    /// The tweets speak for themselves.
    fn short_input_text(&self, _record: &Record) -> String {
        String::new()
    }

    fn answer(&self, record: &Record) -> String {
        text_field(record, "tweet").trim().to_string()
    }

    fn answer_field<'a>(&self, _columns: &'a ColumnNames) -> Option<&'a str> {
        Some("tweet")
    }

    fn answer_label(&self) -> &'static str {
        "tweet:"
    }

    fn earlier_label(&self) -> &'static str {
        "Earlier tweets of this person:"
    }
}

/// A tweet in lower case, without links, names of accounts and punctuation.
fn plain_wording(tweet: &str) -> String {
    let is_dropped = |word: &&str| {
        let bare = word.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '@' && c != '<');
        bare.starts_with('@') || bare.starts_with("<url>") || bare.starts_with("http:") || bare.starts_with("https:")
    };
    let kept = tweet.split_whitespace().filter(|word| !is_dropped(word)).collect::<Vec<_>>().join(" ");
    let words = kept.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_plain_wording_has_no_style_left() {
        let plain =
            super::plain_wording("RT @user: Happening NOW: \"we're #ReadyToGo\" (@them) — <url> https://t.co/x ...");
        assert_eq!(plain, "rt happening now we re readytogo");
        assert_eq!(super::plain_wording("@user <url>"), "");
    }
}
