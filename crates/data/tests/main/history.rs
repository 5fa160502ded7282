//! Reading histories: every kind of record, every fault with its place.

use data::{HeldOut, History, OnBadLine, ReadOptions, RecordBody, Split, read_history};
use std::path::Path;

fn read_bytes(bytes: &[u8], options: &ReadOptions) -> Result<History, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    std::fs::write(&path, bytes).unwrap();
    read_history(&path, options).map_err(|error| error.to_string().replace(folder.path().to_str().unwrap(), ""))
}

fn read_text(text: &str) -> Result<History, String> {
    read_bytes(text.as_bytes(), &ReadOptions::default())
}

#[test]
fn every_kind_of_record_is_recognised() {
    let history = read_text(concat!(
        "\u{feff}{\"text\": \"a diary\"}\r\n\r\n",
        "{\"prompt\": \"p\", \"completion\": \"c\", \"user\": 7, \"id\": 5}\r\n",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"q\"}]}, {\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": null}\n",
        "{\"files\": [\"a.rs\"], \"subject\": \"fix\"}\n",
        "{\"abstract\": \"about\", \"title\": \"On\", \"year\": 2017}\n",
        "{\"article\": \"news\", \"title\": \"New\", \"date\": \"2016-02-03\"}\n",
        "{\"task\": \"headline\", \"article\": \"x\", \"title\": \"y\", \"abstract\": \"z\"}",
    ))
    .unwrap();
    let mut names: Vec<&str> = history.records.iter().map(|record| record.task().name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["chat", "commit_subject", "completion", "headline", "headline", "scholarly_title", "text"]);
    assert_eq!(history.blank_lines_count, 1);
    let completion = history.records.iter().find(|record| record.id == "5").unwrap();
    assert_eq!((completion.user.as_str(), completion.line), ("7", 3));
    assert!(history.records.iter().any(|record| record.id == "history-1"));
    let chat = history.records.iter().find(|record| matches!(record.body, RecordBody::Chat { .. })).unwrap();
    assert_eq!((chat.task().query_text(chat).as_str(), chat.answer().as_str()), ("q", "a"));
}

#[test]
fn dates_with_the_month_first_are_put_in_order() {
    let line =
        |user: &str, date: &str| format!("{{\"user\": \"{user}\", \"date\": \"{date}\", \"text\": \"{date}\"}}\n");
    // One person writes the month first, one the day; of the third nothing tells.
    let text = ["2-1-2015", "1-30-2015", "1-2-2015"].map(|date| line("a", date)).concat()
        + &["2.1.2015", "30.1.2015", "1.2.2015"].map(|date| line("b", date)).concat()
        + &["2-1-2015", "1-2-2015"].map(|date| line("c", date)).concat();
    let history = read_text(&text).unwrap();
    let of = |user: &str| -> Vec<String> {
        history.records.iter().filter(|record| record.user == user).map(|record| record.answer()).collect()
    };
    assert_eq!(of("a"), ["1-2-2015", "1-30-2015", "2-1-2015"]);
    assert_eq!(of("b"), ["2.1.2015", "30.1.2015", "1.2.2015"]);
    assert_eq!(of("c"), ["2-1-2015", "1-2-2015"]);
    let unclear = history.noticed.iter().find(|noticed| noticed.what.contains("day from month"));
    assert_eq!(unclear.map(|noticed| noticed.count), Some(2));
}

#[test]
fn a_fault_is_named_with_its_place_and_what_was_expected() {
    let deep = format!("{{\"text\": {}1{}}}", "[".repeat(500), "]".repeat(500));
    let cases: Vec<(&[u8], &[&str])> = vec![
        (b"{\"text\": \"a\"}\n{\"text\": \"b\",}\n", &["history.jsonl:2:14:", "not valid JSON near"]),
        ("{\"text\": \"äöü\" x}\n".as_bytes(), &["history.jsonl:1:16:", "not valid JSON"]),
        (b"{\"text\": \"caf\xe9\"}\n", &["history.jsonl:1:14:", "0xE9", "Windows-1252", "UTF-8"]),
        (b"\xff\xfe{\0", &["history.jsonl:1:1:", "UTF-16"]),
        (b"[{\"text\": \"a\"}]\n", &[":1:", "the file is one JSON array; expected one record a line (JSON Lines)"]),
        (b"\xef\xbb\xbf\n [\n{\"text\": \"a\"}\n]\n", &[":2:", "the file is one JSON array"]),
        (b"{\"text\": \"a\"}\n[1]\n", &[":2:", "JSON list", "one record"]),
        (b"{\"text\": \"a\", \"id\": \"\"}\n", &["\"id\" is empty; expected a name"]),
        (b"{\"text\": \"a\", \"user\": \" \"}\n", &["\"user\" is empty; expected a name"]),
        (b"{\n\"text\": \"a\"\n}\n", &[":1:", "one whole record must stand on one line"]),
        (b"17\n", &[":1:", "a number", "expected a record"]),
        (b"{\"txt\": \"a\"}\n", &[":1:", "(txt)", "\"text\"", "\"prompt\""]),
        (b"{}\n", &[":1:", "(none)"]),
        (b"{\"text\": null}\n", &[":1:", "\"text\" is null, expected text"]),
        (b"{\"text\": \"  \"}\n", &[":1:", "\"text\" is empty"]),
        (b"{\"prompt\": \"a\"}\n", &[":1:", "\"completion\" is missing", "a completion record has"]),
        (b"{\"prompt\": \"a\", \"completion\": 3}\n", &["\"completion\" is a number, expected text"]),
        (b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", &["has no answer"]),
        (b"{\"messages\": [{\"role\": \"user\"}]}\n", &["turn 1", "\"content\" is missing"]),
        (b"{\"messages\": \"hello\"}\n", &["\"messages\" is a text, expected a list"]),
        (b"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}\n", &["type \"image\""]),
        (
            b"{\"id\": \"a\", \"text\": \"x\"}\n{\"id\": \"a\", \"text\": \"y\"}\n",
            &[":2:", "id \"a\" was already used in line 1"],
        ),
        (b"{\"text\": \"a\", \"time\": \"soon\"}\n", &["\"time\" is no time", "2024-05-31"]),
        (b"{\"text\": \"a\", \"user\": {}}\n", &["\"user\" is not a name"]),
        (b"{\"text\": \"a\", \"task\": \"poem\"}\n", &["unknown task \"poem\"", "commit_subject"]),
        (b"{\"subject\": \"a\", \"files\": [1]}\n", &["\"files\" holds a number"]),
        (
            b"{\"subject\": \"a\", \"files\": [], \"lines_added\": -1}\n",
            &["\"lines_added\" is -1, expected a whole number"],
        ),
        (deep.as_bytes(), &["history.jsonl:1:", "recursion limit"]),
        (b"{\"text\": \"\\ud800\"}\n", &["not valid JSON", "invalid Unicode escape", "half of a character pair"]),
        (b"{\"text\": \"\\udc00 x\"}\n", &["half of a character pair"]),
        (b"", &["no record", "the file is empty"]),
        (b"\n\n", &["no record"]),
    ];
    for (bytes, words) in cases {
        let error = read_bytes(bytes, &ReadOptions::default()).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{error:?} should say {word:?}");
        }
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

#[test]
fn an_error_shows_only_a_few_characters_of_the_text() {
    let secret = "my secret diary entry that nobody should see in a log ".repeat(20);
    let error = read_text(&format!("{{\"text\": \"{secret}\" oops}}\n")).unwrap_err();
    assert!(error.len() < 200 && error.contains("oops"), "{error}");
}

#[test]
fn faults_can_be_left_out_and_are_counted() {
    let options = ReadOptions { on_bad_line: OnBadLine::Skip, ..ReadOptions::default() };
    let long = format!("{{\"text\": \"{}\"}}\n", "x".repeat(17 << 20));
    let text = format!("{{\"text\": \"a\"}}\nbroken\n{long}{{\"text\": \"b\"}}\n");
    let history = read_bytes(text.as_bytes(), &options).unwrap();
    assert_eq!(history.records.len(), 2);
    assert_eq!(history.records[1].line, 4);
    let places: Vec<(usize, usize)> = history.skipped.iter().map(|skipped| (skipped.line, skipped.column)).collect();
    assert_eq!(places, [(2, 1), (3, 0)]);
    assert!(history.skipped[1].reason.contains("longer than 16 MiB"));
    let nothing = read_bytes(b"broken\n", &options).unwrap_err();
    assert!(nothing.contains("every line was left out (1)") && nothing.contains(":1:1:"), "{nothing}");
}

#[test]
fn records_come_oldest_first_and_stay_in_order_where_times_are_equal_or_missing() {
    let history = read_text(concat!(
        "{\"id\": 1, \"text\": \"a\", \"time\": 300}\n",
        "{\"id\": 2, \"text\": \"b\"}\n",
        "{\"id\": 3, \"text\": \"c\", \"time\": 100}\n",
        "{\"id\": 4, \"text\": \"d\", \"time\": 100}\n",
        "{\"id\": 5, \"text\": \"e\", \"time\": \"1970-01-01T00:01:00Z\"}\n",
    ))
    .unwrap();
    let ids: Vec<&str> = history.records.iter().map(|record| record.id.as_str()).collect();
    assert_eq!(ids, ["5", "3", "4", "1", "2"]);
    assert!(history.records.iter().enumerate().all(|(place, record)| record.sequence == place));
}

#[test]
fn users_are_filtered_and_held_out_by_user() {
    let lines: String = (0..10)
        .map(|place| {
            format!("{{\"user\": \"{}\", \"text\": \"t{place}\", \"time\": {place}}}\n", ["a", "b"][place % 2])
        })
        .collect();
    let history = read_text(&lines).unwrap();
    assert_eq!(history.users(), [("a".to_string(), 5), ("b".to_string(), 5)]);
    let (older, newest) = history.split_newest(HeldOut::Fraction(0.2));
    assert_eq!(newest.iter().map(|record| record.answer()).collect::<Vec<_>>(), ["t8", "t9"]);
    assert_eq!(older.len(), 8);
    let (older, newest) = history.split_newest(HeldOut::Count(99));
    assert_eq!((older.len(), newest.len()), (2, 8));
    let only = ReadOptions { user: Some("b".into()), ..ReadOptions::default() };
    let filtered = read_bytes(lines.as_bytes(), &only).unwrap();
    assert_eq!((filtered.records.len(), filtered.other_users_count), (5, 5));
    let nobody = ReadOptions { user: Some("z".into()), ..ReadOptions::default() };
    let error = read_bytes(lines.as_bytes(), &nobody).unwrap_err();
    assert_eq!(error, "no record of user \"z\"; the users are: a (5), b (5)");
    let nameless = ReadOptions { user: Some(String::new()), ..ReadOptions::default() };
    let error = read_bytes(lines.as_bytes(), &nameless).unwrap_err();
    assert_eq!(error, "no record of user \"\"; the users are: a (5), b (5)");
    let many: String = (0..30).map(|user| format!("{{\"user\": \"u{user}\", \"text\": \"t\"}}\n")).collect();
    let error = read_bytes(many.as_bytes(), &nobody).unwrap_err();
    assert!(error.contains("u0 (1), u1 (1)") && error.ends_with("u19 (1) and 10 more"), "{error}");
}

#[test]
fn a_json_array_over_several_lines_is_refused_even_where_bad_lines_are_left_out() {
    let options = ReadOptions { on_bad_line: OnBadLine::Skip, ..ReadOptions::default() };
    let error = read_bytes(b"[\n{\"text\": \"a\"},\n{\"text\": \"b\"}\n]\n", &options).unwrap_err();
    assert!(error.contains("the file is one JSON array"), "{error}");
    let history = read_bytes(b"[1]\n{\"text\": \"b\"}\n", &options).unwrap();
    assert_eq!((history.records.len(), history.skipped.len()), (1, 1));
}

#[test]
fn a_question_is_read_with_and_without_its_answer() {
    let read = |text: &str| data::read_question(text, &data::ColumnNames::default());
    for text in [
        "{\"prompt\": \"a\"}",
        "\u{feff}{\"prompt\": \"a\", \"completion\": null}\n",
        "{\"prompt\": \"a\", \"completion\": \"\", \"task\": \"completion\"}",
    ] {
        let body = read(text);
        assert!(
            matches!(&body, Ok(RecordBody::Completion { prompt, completion }) if prompt == "a" && completion.is_empty()),
            "{text}: {body:?}"
        );
    }
    let body = read("{\"prompt\": \"a\", \"completion\": \"b\"}");
    assert!(matches!(&body, Ok(RecordBody::Completion { completion, .. }) if completion == "b"), "{body:?}");

    let (user, other) = ("{\"role\": \"user\", \"content\": \"q\"}", "{\"role\": \"assistant\", \"content\": \"x\"}");
    let empty = "{\"role\": \"assistant\", \"content\": \"\"}";
    for (turns, expected) in [
        (vec![user], vec!["q", ""]),
        (vec![user, other, user], vec!["q", "x", "q", ""]),
        (vec![user, other, user, empty], vec!["q", "x", "q", ""]),
        (vec![user, other], vec!["q", "x"]),
    ] {
        let text = format!("\u{feff}{{\"messages\": [{}]}}", turns.join(", "));
        let Ok(RecordBody::Chat { messages, .. }) = read(&text) else { panic!("{text}: {:?}", read(&text)) };
        let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(contents, expected);
        assert!(messages.last().unwrap().is_assistant());
    }
    let body = read("{\"abstract\": \"about\"}").unwrap();
    assert_eq!(data::Record::ad_hoc("me", body).answer(), "");
    for (text, word) in [
        ("{\"messages\": []}", "has no answer"),
        ("{\"completion\": \"b\"}", "\"prompt\" is missing"),
        ("[{\"prompt\": \"a\"}]", "a list"),
        ("{\"prompt\": \"\\ud800\"}", "half of a character pair"),
        ("{\"task\": \"poem\"}", "unknown task"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(word), "{error:?} should say {word:?}");
    }
}

#[test]
fn other_column_names_are_read() {
    let mut options = ReadOptions::default();
    options.columns.prompt = "question".into();
    options.columns.completion = "reply".into();
    let history = read_bytes(b"{\"question\": \"q\", \"reply\": \"r\"}\n", &options).unwrap();
    assert!(
        matches!(&history.records[0].body, RecordBody::Completion { prompt, completion } if prompt == "q" && completion == "r")
    );
    let error = read_bytes(b"{\"question\": \"q\"}\n", &options).unwrap_err();
    assert!(error.contains("\"reply\" is missing"), "{error}");
}

#[test]
fn a_folder_is_read_by_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let error = read_history(folder.path(), &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("no .jsonl file"), "{error}");
    write("b.jsonl", "{\"text\": \"b\"}\n");
    write("a.jsonl", "{\"text\": \"a\"}\n");
    write("notes.txt", "not a record");
    let history = read_history(folder.path(), &ReadOptions::default()).unwrap();
    assert_eq!(history.records.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["a-1", "b-1"]);
    assert_eq!(history.source_hash.len(), 64);
    write("train.jsonl", "{\"text\": \"t\"}\n");
    write("valid.jsonl", "{\"text\": \"v\"}\n");
    let history = read_history(folder.path(), &ReadOptions::default()).unwrap();
    assert_eq!(history.files.len(), 2);
    assert_eq!(history.given_split(Split::Valid).len(), 1);
    assert!(history.given_split(Split::Test).is_empty());
}

#[test]
fn a_missing_file_is_named() {
    let error = read_history(Path::new("/nowhere/history.jsonl"), &ReadOptions::default()).unwrap_err();
    assert!(matches!(&error, data::DataError::Read { path, .. } if path.ends_with("history.jsonl")), "{error:?}");
    // The caller names the path; the message does not repeat it.
    assert!(!error.to_string().contains("nowhere"), "{error}");
}
