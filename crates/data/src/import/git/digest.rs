//! The digest of one commit, made from the lines of its patch.

use serde_json::{Map, Value, json};

/// Characters of the patch in which words are gathered; what comes after is only counted.
const DIGEST_CHARACTERS: usize = 1400;
const FILES_MAX: usize = 12;
const WHERE_MAX: usize = 8;
const WORDS_ADDED_MAX: usize = 30;
const WORDS_REMOVED_MAX: usize = 20;
/// Shorter words say little; longer ones are cut, and what remains is a word of its own.
const WORD_CHARACTERS: std::ops::RangeInclusive<usize> = 3..=32;

/// Words so common in programs and text that they say nothing of a change.
const COMMON_WORDS: &[&str] = &[
    "the", "and", "for", "with", "this", "that", "from", "are", "was", "not", "let", "mut", "pub", "use", "def",
    "return", "static", "const", "struct", "int", "void", "else", "elif", "import", "self", "None", "True", "False",
    "impl", "match", "true", "false", "null", "var", "auto", "char",
];

/// What is kept of a commit.
#[derive(Debug, Default)]
pub(super) struct CommitDigest {
    commit: String,
    time: i64,
    pub author: String,
    pub email: String,
    pub subject: String,
    /// The first files.
    pub files: Vec<String>,
    files_count: usize,
    lines_added: u64,
    lines_removed: u64,
    places: Vec<String>,
    words_added: Vec<String>,
    words_removed: Vec<String>,
    characters_left: usize,
    /// Lines that the current hunk still has on its old and its new side.
    old_lines_left: u64,
    new_lines_left: u64,
    /// Whether the current file's name is certain already.
    file_is_named: bool,
}

impl CommitDigest {
    /// From the line before the patch: hash, author's time, author's name and e-mail address, subject.
    pub fn new(header: &str, field_mark: char) -> CommitDigest {
        let mut fields = header.splitn(5, field_mark);
        let mut next = || fields.next().unwrap_or("").trim().to_string();
        CommitDigest {
            commit: next().chars().take(12).collect(),
            time: next().parse().unwrap_or(0),
            author: next(),
            email: next(),
            subject: without_number(&next()).to_string(),
            characters_left: DIGEST_CHARACTERS,
            ..CommitDigest::default()
        }
    }

    /// Takes a line of the patch.
    pub fn add_line(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        if self.old_lines_left > 0 || self.new_lines_left > 0 {
            self.add_hunk_line(&text);
        } else if let Some(hunk) = text.strip_prefix("@@ ") {
            self.open_hunk(hunk);
        } else if let Some(paths) = text.strip_prefix("diff --git ") {
            self.open_file(paths);
        } else if let Some(path) = text.strip_prefix("rename to ").or_else(|| text.strip_prefix("copy to ")) {
            self.name_file(path, "");
        } else if let Some(path) = text.strip_prefix("+++ ") {
            self.name_file(path, "b/");
        } else if let Some(path) = text.strip_prefix("--- ") {
            self.name_file(path, "a/");
            self.file_is_named = false;
        }
        self.characters_left = self.characters_left.saturating_sub(text.chars().count() + 1);
    }

    fn add_hunk_line(&mut self, text: &str) {
        let (old, new) = match text.as_bytes().first() {
            Some(b'+') => (0, 1),
            Some(b'-') => (1, 0),
            // "\ No newline at end of file" belongs to neither side.
            Some(b'\\') => (0, 0),
            _ => (1, 1),
        };
        self.old_lines_left = self.old_lines_left.saturating_sub(old);
        self.new_lines_left = self.new_lines_left.saturating_sub(new);
        let kept: String = text.chars().take(self.characters_left).skip(1).collect();
        match (old, new) {
            (0, 1) => {
                self.lines_added += 1;
                gather_words(&kept, WORDS_ADDED_MAX, &mut self.words_added);
            }
            (1, 0) => {
                self.lines_removed += 1;
                gather_words(&kept, WORDS_REMOVED_MAX, &mut self.words_removed);
            }
            _ => {}
        }
    }

    /// `-12,7 +12,9 @@ fn name(...)`
    fn open_hunk(&mut self, hunk: &str) {
        let Some((ranges, place)) = hunk.split_once(" @@") else { return };
        let mut sides = ranges.split(' ').map(|range| {
            let lines = range.get(1..).and_then(|range| range.split_once(',')).map_or("1", |(_, lines)| lines);
            lines.parse::<u64>().unwrap_or(0)
        });
        self.old_lines_left = sides.next().unwrap_or(0);
        self.new_lines_left = sides.next().unwrap_or(0);
        let kept: String = place.chars().take(self.characters_left).collect();
        gather_words(&kept, WHERE_MAX, &mut self.places);
    }

    /// `a/PATH b/PATH`: the two are equal unless the file was renamed, which a later line says.
    fn open_file(&mut self, paths: &str) {
        self.files_count += 1;
        self.file_is_named = false;
        let half = paths.len().saturating_sub(1) / 2;
        let (old, new) = (paths.get(..half).map(unquoted), paths.get(half + 1..).map(unquoted));
        let path = match (old, new) {
            (Some(old), Some(new)) if old.strip_prefix("a/") == new.strip_prefix("b/") => new,
            _ => paths.rsplit_once(" b/").map_or(paths.to_string(), |(_, new)| format!("b/{new}")),
        };
        if self.files_count <= FILES_MAX {
            self.files.push(path.strip_prefix("b/").unwrap_or(&path).to_string());
        }
    }

    /// A line that names the current file for certain.
    fn name_file(&mut self, path: &str, prefix: &str) {
        // git ends a name that holds a space with a tab.
        let path = unquoted(path.trim_end_matches('\t'));
        if path == "/dev/null" || self.file_is_named || self.files_count > FILES_MAX {
            return;
        }
        if let Some(name) = self.files.last_mut() {
            *name = path.strip_prefix(prefix).unwrap_or(&path).to_string();
            self.file_is_named = true;
        }
    }

    pub fn into_record(self, repository: &str) -> Map<String, Value> {
        let record = json!({
            "user": self.author,
            "id": self.commit,
            "time": self.time,
            "task": "commit_subject",
            "repo": repository,
            "commit": self.commit,
            "files": self.files,
            "n_files": self.files_count,
            "lines_added": self.lines_added,
            "lines_removed": self.lines_removed,
            "where": self.places,
            "words_added": self.words_added,
            "words_removed": self.words_removed,
            "subject": self.subject,
        });
        match record {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

/// Cuts a pull request's number, which the server appends: `fix it (#123)`.
fn without_number(subject: &str) -> &str {
    let cut = subject.strip_suffix(')').and_then(|rest| rest.rsplit_once(" (#"));
    match cut {
        Some((before, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            before.trim_end()
        }
        _ => subject,
    }
}

/// Adds words and identifiers that are not there yet.
fn gather_words(text: &str, words_max: usize, words: &mut Vec<String>) {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    for run in text.split(|c: char| !is_part(c)) {
        // What begins with a digit is a number: 0x10, 1e5, 20ms.
        let mut rest = if run.starts_with(char::is_numeric) { "" } else { run };
        while !rest.is_empty() && words.len() < words_max {
            let end = rest.char_indices().nth(*WORD_CHARACTERS.end()).map_or(rest.len(), |(place, _)| place);
            let (word, after) = rest.split_at(end);
            rest = after.trim_start_matches(|c: char| c.is_numeric());
            let is_new = || !words.iter().any(|known| known == word);
            if word.chars().count() >= *WORD_CHARACTERS.start() && !COMMON_WORDS.contains(&word) && is_new() {
                words.push(word.to_string());
            }
        }
    }
}

/// A path as git quotes it when it holds quotes, backslashes or control characters: `"a/na\tme"`.
fn unquoted(path: &str) -> String {
    let Some(inside) = path.strip_prefix('"').and_then(|path| path.strip_suffix('"')) else { return path.to_string() };
    let bytes = inside.as_bytes();
    let (mut out, mut place) = (Vec::with_capacity(bytes.len()), 0);
    while place < bytes.len() {
        let escaped = (bytes[place] == b'\\').then(|| bytes.get(place + 1)).flatten();
        let (byte, length) = match escaped {
            None => (bytes[place], 1),
            Some(b'n' | b't' | b'r' | b'a' | b'b' | b'f' | b'v') => (b' ', 2),
            Some(b'0'..=b'7') => {
                let digits = inside.get(place + 1..place + 4).unwrap_or("");
                (u8::from_str_radix(digits, 8).unwrap_or(b'?'), 1 + digits.len().max(1))
            }
            Some(other) => (*other, 2),
        };
        out.push(byte);
        place += length;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(header: &str, patch: &str) -> Map<String, Value> {
        let mut digest = CommitDigest::new(header, '|');
        patch.lines().for_each(|line| digest.add_line(line.as_bytes()));
        digest.into_record("project")
    }

    #[test]
    fn a_patch_is_digested() {
        let record = digest(
            "0123456789abcdef0123|1700000000|A. Author|a@x.org|Fix the reader (#77)",
            "diff --git a/src/old name.rs b/src/new name.rs\nsimilarity index 90%\nrename from src/old name.rs\n\
             rename to src/new name.rs\n--- a/src/old name.rs\t\n+++ b/src/new name.rs\t\n\
             @@ -10,3 +10,4 @@ fn read_header(input: &mut Input) {\n context\n--- removed_thing();\n+++ added_thing(0x10);\n\
             +let second_thing = added_thing(1e5);\n more\n\\ No newline at end of file\n\
             diff --git a/logo.png b/logo.png\nindex 1..2\nBinary files a/logo.png and b/logo.png differ\n\
             diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-last words\n",
        );
        assert_eq!(record["commit"], "0123456789ab");
        assert_eq!(record["time"], 1700000000);
        assert_eq!(record["subject"], "Fix the reader");
        assert_eq!(record["files"], json!(["src/new name.rs", "logo.png", "gone"]));
        assert_eq!(record["n_files"], 3);
        assert_eq!((&record["lines_added"], &record["lines_removed"]), (&json!(2), &json!(2)));
        assert_eq!(record["where"], json!(["read_header", "input", "Input"]));
        assert_eq!(record["words_added"], json!(["added_thing", "second_thing"]));
        assert_eq!(record["words_removed"], json!(["removed_thing", "last", "words"]));
    }

    #[test]
    fn a_long_patch_is_counted_and_not_gathered() {
        let mut patch = String::from("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,5000 @@\n");
        (0..5000).for_each(|line| patch += &format!("+word{line:04} \n"));
        let record = digest("a|1|b|b@x.org|c", &patch);
        assert_eq!(record["lines_added"], 5000);
        assert_eq!(record["words_added"].as_array().unwrap().len(), WORDS_ADDED_MAX);
    }

    #[test]
    fn only_a_pull_requests_number_is_cut() {
        for (subject, expected) in [
            ("fix (#12)", "fix"),
            ("fix (#12) now", "fix (#12) now"),
            ("fix (#)", "fix (#)"),
            ("fix (#a1)", "fix (#a1)"),
            ("", ""),
        ] {
            assert_eq!(without_number(subject), expected);
        }
    }

    #[test]
    fn hostile_lines_do_no_harm() {
        for line in [
            "@@ ",
            "@@ -x +y @@",
            "@@ -1,99999999999999999999 +1 @@",
            "diff --git ",
            "diff --git é",
            "+++ ",
            "rename to ",
        ] {
            let _ = digest("||||", line);
        }
        assert_eq!(unquoted(r#""a/\303\251\t\"q\\""#), "a/é \"q\\");
        assert_eq!(unquoted(r#""\"#), r#""\"#);
        assert_eq!(unquoted(r#""\9\1""#), "9?");
    }
}
