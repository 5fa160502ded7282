//! Importers: what is taken of each source, what is left and why, and that nothing is overwritten.

use data::import::{IMPORTERS, ImportError, ImportOptions, Imported, import};
use data::{ReadOptions, read_history, task_by_name};
use serde_json::Value;
use std::path::{Path, PathBuf};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    fn import(&self, kind: &str, options: ImportOptions) -> Result<Imported, ImportError> {
        let importer = IMPORTERS.iter().find(|importer| importer.name == kind).unwrap();
        import(importer, &options, &self.path("history.jsonl"), false)
    }

    /// The records written, which a history reader must take.
    fn records(&self) -> Vec<Value> {
        read_history(&self.path("history.jsonl"), &ReadOptions::default()).unwrap();
        let text = std::fs::read_to_string(self.path("history.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn from(sources: &[&Path]) -> ImportOptions {
    ImportOptions { sources: sources.iter().map(|path| path.to_path_buf()).collect(), ..ImportOptions::default() }
}

fn by(me: &str, sources: &[&Path]) -> ImportOptions {
    ImportOptions { me: vec![me.to_string()], ..from(sources) }
}

fn left(imported: &Imported) -> Vec<(&str, usize)> {
    imported.left_out.iter().map(|left| (left.reason.as_str(), left.count)).collect()
}

const MAILS: &str = "From ada@example.org Wed May 01 10:00:00 2024\n\
From: Ada <ada@example.org>\nTo: bob@example.org\nSubject: =?utf-8?q?Caf=C3=A9?=\nMessage-ID: <1@x>\nDate: Wed, 1 May 2024 10:00:00 +0000\n\
Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: quoted-printable\n\n\
Shall we meet at the caf=E9?\n>From here it is close.\n\n\
From bob@example.org Wed May 01 11:00:00 2024\n\
From: Bob <BOB@example.org>\nSubject: Re: =?utf-8?q?Caf=C3=A9?=\nMessage-ID: <2@x>\nIn-Reply-To: <1@x>\nDate: Wed, 1 May 2024 11:00:00 +0000\n\
MIME-Version: 1.0\nContent-Type: multipart/alternative; boundary=b\n\n\
--b\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\n\
WWVzLCBnbGFkbHkuCgpPbiBXZWQsIDEgTWF5IDIwMjQsIEFkYSB3cm90ZToKPiBTaGFsbCB3ZSBtZWV0PwotLSAKQm9iLCBib2JAZXhhbXBsZS5vcmcK\n\
--b\nContent-Type: text/html; charset=utf-8\n\n<p>Yes, <b>gladly</b>.</p><blockquote>Shall we meet?</blockquote>\n--b--\n\n\
From bob@example.org Wed May 01 12:00:00 2024\n\
From: bob@example.org\nSubject: Numbers\nMessage-ID: <3@x>\nIn-Reply-To: <3@x>\nDate: Wed, 1 May 2024 12:00:00 +0000\nContent-Type: text/html; charset=utf-8\n\n\
<p>Call +49 30 1234567, not ada@example.org.</p><blockquote>old words</blockquote>\n\n\
From bob@example.org Wed May 01 13:00:00 2024\n\
From: bob@example.org\nSubject: Fwd\nMessage-ID: <4@x>\n\n---------- Forwarded message ---------\nFrom: Ada\n\nnot mine\n\n\
From bob@example.org Wed May 01 13:00:00 2024\n\
From: bob@example.org\nSubject: Fwd\nMessage-ID: <2@x>\n\nagain\n";

#[test]
fn mails_are_what_the_person_wrote_with_what_it_answers() {
    let place = Place::new();
    let mbox = place.write("mail.mbox", MAILS);
    let options = ImportOptions { mask: true, ..by("bob@example.org", &[&mbox]) };
    let imported = place.import("mbox", options).unwrap();
    assert_eq!(
        left(&imported),
        [("messages of others", 1), ("messages that are there twice", 1), ("messages without a word of your own", 1)]
    );
    let records = place.records();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0]["reply"], "Yes, gladly.");
    assert_eq!(records[0]["message"], "Shall we meet at the café?\nFrom here it is close.");
    assert_eq!((&records[0]["from"], &records[0]["subject"]), (&"Ada".into(), &"Re: Café".into()));
    assert_eq!(records[0]["time"], 1_714_561_200);
    assert_eq!(records[1]["reply"], "Call <phone_1>, not <email_1>.");
    assert_eq!((records[1]["subject"].as_str(), records[1].get("message")), (Some("Numbers"), None));
    assert_eq!(imported.masked.iter().map(|masked| masked.count).sum::<usize>(), 2);

    // The same messages as a Maildir.
    let maildir = Place::new();
    for (number, message) in MAILS.split("From bob@example.org Wed").enumerate() {
        let message = message.split_once('\n').unwrap().1.replace("\n>From", "\nFrom");
        maildir.write(&format!("mail/.Sent/cur/{number}:2,S"), message);
    }
    maildir.write("mail/notes.db", "x");
    #[cfg(unix)]
    std::os::unix::fs::symlink(maildir.path("mail"), maildir.path("mail/loop")).unwrap();
    maildir.write("unused", "");
    let options = ImportOptions { mask: true, ..by("bob@example.org", &[&maildir.path("mail")]) };
    let imported = maildir.import("maildir", options);
    // Hidden folders hold Maildir's subfolders.
    let imported = imported.unwrap();
    assert_eq!(imported.records, 2);
    assert_eq!(maildir.records()[0]["reply"], records[0]["reply"]);
}

#[test]
fn tables_are_read_by_column() {
    let place = Place::new();
    let csv = place.write(
        "reviews.csv",
        b"\xef\xbb\xbfday;body;stars\n2024-05-01;\"good; \"\"very\"\"\ngood\";5\n2024-05-02;bad;9\n2024-05-03;short\n2024-05-04;caf\xe9;3\n2024-05-05;fine;3\n",
    );
    let pairs = [("text", "body"), ("time", "day"), ("rating", "stars")];
    let columns: Vec<(String, String)> = pairs.map(|(field, column)| (field.into(), column.into())).to_vec();
    let options = ImportOptions { columns: columns.clone(), task: task_by_name("rating"), ..from(&[&csv]) };
    let imported = place.import("csv", options).unwrap();
    assert_eq!((imported.records, imported.tasks.clone()), (2, vec![("rating", 2)]));
    assert_eq!(
        left(&imported),
        [
            ("field \"rating\" is 9, expected a whole number from 1 to 5", 1),
            ("rows with more or fewer cells than there are columns", 1),
            ("rows that are not UTF-8", 1)
        ]
    );
    assert!(imported.left_out[1].places[0].ends_with("reviews.csv:5"), "{:?}", imported.left_out);
    assert_eq!(place.records()[0]["text"], "good; \"very\"\ngood");

    let columns = vec![("text".to_string(), "content".to_string())];
    let failure = Place::new().import("csv", ImportOptions { columns, ..from(&[&csv]) }).unwrap_err().to_string();
    assert!(failure.contains("no column \"content\"; the columns are: day, body, stars"), "{failure}");
    // A quotation mark without its end, and nothing but it for 20 MiB.
    let open = place.write("open.csv", ["a,b\n\"".as_bytes(), &vec![b'x'; 20 << 20]].concat());
    let failure = Place::new().import("csv", from(&[&open])).unwrap_err().to_string();
    assert!(failure.contains("a quotation mark may be missing its end"), "{failure}");
}

#[test]
fn ratings_of_books_and_films_are_taken() {
    let place = Place::new();
    let books = place.write(
        "goodreads_library_export.csv",
        "Book Id,Title,Author,My Rating,Average Rating,Original Publication Year,Date Read,Date Added,My Review\n\
         1,\"Dune, again\",Frank Herbert,5,4.2,1965,2020/01/02,2019/01/01,\"Great<br/>book &amp; more\"\n2,Other,A B,0,3.1,,,2021/01/01,\n",
    );
    let imported = place.import("goodreads", from(&[&books])).unwrap();
    assert_eq!(left(&imported), [("books without a rating", 1)]);
    let records = place.records();
    assert_eq!((records[0]["rating"].as_i64(), records[0]["date"].as_str()), (Some(5), Some("2020/01/02")));
    assert!(records[0]["review"].as_str().unwrap().contains("book & more"), "{records:?}");

    let films = Place::new();
    films.write(
        "export/ratings.csv",
        "Date,Name,Year,Letterboxd URI,Rating\n2024-01-01,Alien,1979,https://boxd.it/x,4.5\n2024-01-02,Bad,2000,u,\n",
    );
    let imported = films.import("letterboxd", from(&[&films.path("export")])).unwrap();
    assert_eq!(left(&imported), [("films without a rating", 1)]);
    assert_eq!(
        (films.records()[0]["title"].as_str(), films.records()[0]["rating"].as_i64()),
        (Some("Alien (1979)"), Some(5))
    );

    let lens = Place::new();
    lens.write(
        "ml/movies.csv",
        "movieId,title,genres\n1,\"City, The (1999)\",Drama|Crime\n2,Nothing (2000),(no genres listed)\n",
    );
    lens.write("ml/ratings.csv", "userId,movieId,rating,timestamp\n7,1,3.5,1000\n7,9,4,1001\n8,2,1,1002\n");
    lens.write("ml/tags.csv", "userId,movieId,tag,timestamp\n7,1,dark,1000\n7,1,city,1001\n");
    let options = ImportOptions { user: Some("7".into()), ..from(&[&lens.path("ml")]) };
    let imported = lens.import("movielens", options.clone()).unwrap();
    assert_eq!(left(&imported), [("films that movies.csv does not name", 1), ("records of other people", 1)]);
    assert_eq!((lens.records()[0]["rating"].as_i64(), lens.records()[0]["user"].as_str()), (Some(4), Some("7")));
    std::fs::remove_file(lens.path("history.jsonl")).unwrap();
    let options = ImportOptions { task: task_by_name("movie_tag"), ..options };
    assert_eq!(lens.import("movielens", options).unwrap().tasks, [("movie_tag", 2)]);
}

#[test]
fn chats_become_conversations() {
    let place = Place::new();
    let chat = place.write(
        "_chat.txt",
        "\u{200e}[13.05.24, 10:00:00] Ada: \u{200e}Messages are end-to-end encrypted\n[13.05.24, 10:00:05] Ada: are you there?\nsecond line\n\
         [13.05.24, 10:01:00] Bob: yes\n[13.05.24, 10:01:10] Bob: of course\n\u{200e}[13.05.24, 10:02:00] Ada: \u{200e}image omitted\n\
         [13.05.24, 10:03:00] Ada: good\n[14.05.24, 10:03:00] Bob: I begin\n[14.05.24, 10:04:00] Ada: ok\n[14.05.24, 10:05:00] Bob: fine\n",
    );
    let imported = place.import("whatsapp", by("bob", &[&chat])).unwrap();
    assert_eq!(
        left(&imported),
        [
            ("pictures and other attachments", 1),
            ("messages of others that you did not answer", 1),
            ("messages with which you began", 1)
        ]
    );
    let records = place.records();
    assert_eq!(records.len(), 2);
    assert!(records[0]["messages"][0]["content"].as_str().unwrap().ends_with("are you there?\nsecond line"));
    assert_eq!(records[0]["messages"][1]["content"], "yes\nof course");
    let failure = Place::new().import("whatsapp", by("eve", &[&chat])).unwrap_err().to_string();
    assert!(failure.contains("the names are: Ada, Bob"), "{failure}");

    let telegram = Place::new();
    let message = |id: u32, from: &str, text: &str, more: &str| {
        format!(
            r#"{{"id":{id},"type":"message","date_unixtime":"{}","from":"{from}","from_id":"user{from}","text":{text}{more}}}"#,
            1000 + id
        )
    };
    let messages = [
        message(1, "Ada", r#"["see ",{"type":"link","text":"this"}]"#, ""),
        message(2, "Bob", r#""nice""#, ""),
        message(3, "Ada", r#""old""#, r#","forwarded_from":"Eve""#),
        message(4, "Ada", r#""""#, r#","photo":"x.jpg""#),
        r#"{"id":5,"type":"service","action":"pin"}"#.to_string(),
    ];
    let file = telegram.write(
        "result.json",
        format!(r#"{{"name":"Ada","type":"personal_chat","messages":[{}]}}"#, messages.join(",")),
    );
    let imported = telegram.import("telegram", by("userBob", &[&file])).unwrap();
    assert_eq!(
        left(&imported),
        [("forwarded messages", 1), ("pictures and other attachments", 1), ("notices of the program", 1)]
    );
    assert_eq!(telegram.records()[0]["messages"][0]["content"], "see this");

    let gpt = Place::new();
    let node = |name: &str, parent: &str, role: &str, text: &str| {
        format!(
            r#""{name}":{{"parent":"{parent}","message":{{"author":{{"role":"{role}"}},"content":{{"content_type":"text","parts":["{text}"]}}}}}}"#
        )
    };
    let nodes = [
        node("a", "z", "system", ""),
        node("b", "a", "user", "hi"),
        node("c", "b", "assistant", "old"),
        node("d", "b", "assistant", "hello"),
    ];
    // A node that is its own parent, far from the branch; and a conversation that goes in circles.
    let circle =
        r#"{"current_node":"x","mapping":{"x":{"parent":"y","message":null},"y":{"parent":"x","message":null}}}"#;
    gpt.write(
        "e/conversations.json",
        format!(r#"[{{"title":"T","create_time":5.5,"current_node":"d","mapping":{{{}}}}},{circle}]"#, nodes.join(",")),
    );
    let imported = gpt.import("chatgpt", from(&[&gpt.path("e")])).unwrap();
    assert_eq!(
        left(&imported),
        [
            ("turns of branches that were not shown last", 1),
            ("turns of tools or the system, and turns without text", 1),
            ("conversations without an answer", 1)
        ]
    );
    assert_eq!(gpt.records()[0]["messages"][1]["content"], "hello");
}

/// Rows under a quotation mark without an end would be one cell: that is said with the line, and so is a name that stands
/// for two columns or two fields.
#[test]
fn a_table_is_read_as_it_is_meant_or_not_at_all() {
    let refused = |text: &str, columns: &[(&str, &str)]| {
        let place = Place::new();
        let csv = place.write("t.csv", text);
        let columns = columns.iter().map(|(field, column)| (field.to_string(), column.to_string())).collect();
        place.import("csv", ImportOptions { columns, ..from(&[&csv]) }).unwrap_err().to_string()
    };
    for (text, line) in [
        ("text,time\none,2024\n\"two,2024\nthree,2024\n", 3),
        ("text,time\none,2024\n\n\n\"two,2024", 5),
        ("text,time\r\n\"a\r\nb\",2024\r\n\"two\r\n2\",\"2024\r\nthree,2024\r\n", 5),
        ("text\n\"", 2),
        ("text,\"time\none,2024\n", 1),
        ("text\none\ntwo,\"\"\"\n", 3),
    ] {
        let failure = refused(text, &[]);
        assert!(
            failure.ends_with(&format!(
                "t.csv: line {line}: a quotation mark has no end; all rows below would be one cell"
            )),
            "{failure}"
        );
    }
    let whole = "text,time\n5\" pipes,2024\n\"a \"\"quoted\"\" word\",2024\n\n\n";
    for text in [whole, whole.trim_end(), &whole.replace('\n', "\r\n")] {
        let place = Place::new();
        let csv = place.write("t.csv", text);
        assert_eq!(place.import("csv", from(&[&csv])).unwrap().left_out, []);
        assert_eq!(place.records()[0]["text"], "5\" pipes");
        assert_eq!(place.records().len(), 2);
    }
    let failure = refused(whole, &[("text", "text"), ("time", "time"), ("text", "time")]);
    assert_eq!(failure, "--map names the field \"text\" twice: columns \"text\" and \"time\"");
    assert!(refused("", &[]).ends_with("it is empty; expected a line with the names of the columns"));
    let failure = refused("text,a,a\nx,1,2\n", &[]);
    assert!(failure.ends_with("two columns are called \"a\"; expected a name for each"), "{failure}");
}

/// What of a mail is longer than a line that readers take is named, with its place, and the rest is taken.
#[test]
fn a_mail_too_long_for_a_history_is_named() {
    let place = Place::new();
    let long = format!("{}\n", "words of forty bytes that go on and on\n".repeat((17 << 20) / 39));
    let mail = |id: u32, text: &str| format!("From: bob@example.org\nSubject: s\nMessage-ID: <{id}@x>\n\n{text}");
    let is_too_long = ("records longer than a line of a history (16 MiB)", 1);
    let mbox = [mail(1, &long.repeat(2)), mail(2, "short\n")].map(|mail| format!("From x\n{mail}\n"));
    let mbox = place.write("mail.mbox", mbox.concat());
    let imported = place.import("mbox", by("bob@example.org", &[&mbox])).unwrap();
    assert_eq!(left(&imported), [("ends of messages larger than 32 MiB", 1), is_too_long]);
    assert!(imported.left_out[1].places[0].ends_with("mail.mbox, byte 7"), "{:?}", imported.left_out);
    assert_eq!(place.records().iter().map(|record| &record["reply"]).collect::<Vec<_>>(), ["short"]);
    let folder = Place::new();
    folder.write("mail/cur/1", mail(1, &long));
    folder.write("mail/cur/2", mail(2, "short\n"));
    let imported = folder.import("maildir", by("bob@example.org", &[&folder.path("mail")])).unwrap();
    assert_eq!(left(&imported), [is_too_long]);
    assert!(imported.left_out[0].places[0].ends_with("cur/1, byte 0"), "{:?}", imported.left_out);
    assert_eq!(folder.records(), place.records());
}

/// One conversation that cannot be read takes no other with it.
#[test]
fn what_is_broken_in_an_export_is_named_and_the_rest_taken() {
    let conversation = |text: &str| {
        format!(
            r#"{{"current_node":"b","mapping":{{"a":{{"message":{{"author":{{"role":"user"}},"content":{{"parts":["hi ]}}"]}}}}}},"b":{{"parent":"a","message":{{"author":{{"role":"assistant"}},"content":{{"parts":["{text}"]}}}}}}}}}}"#
        )
    };
    let place = Place::new();
    let (first, last) = (conversation("one \\\" ["), conversation("two"));
    let parts: [&[u8]; 7] = [
        first.as_bytes(),
        br#"{"title":"t","mapping":5}"#,
        br#"{"title":"half \ud83d","mapping":{}}"#,
        b"{\"title\":\"\xff\",\"mapping\":{}}",
        b"{nonsense {[]}}",
        b"null",
        last.as_bytes(),
    ];
    let whole = [b" [ ".as_slice(), &parts.join(&b" ,\n"[..]), b"\n]\n"].concat();
    let file = place.write("conversations.json", &whole);
    let imported = place.import("chatgpt", from(&[&file])).unwrap();
    let broken = "conversations that are not as ChatGPT writes them";
    assert_eq!(left(&imported), [(broken, 5)]);
    let places = &imported.left_out[0].places;
    assert!(places[0].contains("conversations.json, conversation 2 (invalid type: integer `5`"), "{places:?}");
    assert!(places[4].contains("conversation 6"), "{places:?}");
    let answers = |place: &Place| {
        place
            .records()
            .iter()
            .map(|record| record["messages"][1]["content"].as_str().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(answers(&place), ["one \" [", "two"]);

    // A file that was cut off: what was whole is taken, and where it ends is said.
    let cut = Place::new();
    let file = cut.write("conversations.json", &whole[..whole.len() - 20]);
    let imported = cut.import("chatgpt", from(&[&file])).unwrap();
    assert_eq!(left(&imported), [(broken, 5), ("ends of files that were cut off", 1)]);
    assert!(imported.left_out[1].places[0].contains("conversation 7"), "{:?}", imported.left_out);
    assert_eq!(answers(&cut), ["one \" ["]);
    for (text, words) in [
        ("", "not an export of ChatGPT: expected a list of conversations"),
        ("{}", "not an export of ChatGPT: expected a list of conversations"),
        ("[]", "nothing to import"),
        ("[5, true]", "nothing to import; left out: 2 conversations that are not as ChatGPT writes them ("),
    ] {
        let other = Place::new();
        let file = other.write("conversations.json", text);
        let failure = other.import("chatgpt", from(&[&file])).unwrap_err().to_string();
        assert!(failure.contains(words), "{text}: {failure}");
    }

    let message = |id: u32, from: &str| {
        format!(r#"{{"id":{id},"type":"message","date_unixtime":"{id}","from":"{from}","text":"text {id}"}}"#)
    };
    let telegram = Place::new();
    let chats = [
        format!(
            r#"{{"name":"a","messages":[{},{{"id":"x","type":5}},null,{}]}}"#,
            message(1, "Ada"),
            message(2, "Bob")
        ),
        r#"{"name":"b","messages":5}"#.to_string(),
        "7".to_string(),
        format!(r#"{{"name":"c","type":"personal_chat","messages":[{},{}]}}"#, message(3, "Eve"), message(4, "Bob")),
    ];
    let file = telegram.write("result.json", format!(r#"{{"about":"x","chats":{{"list":[{}]}}}}"#, chats.join(",")));
    for (text, words) in [
        ("{\"chats\":\n {\"list\": [7", ["line 2", "was cut off"]),
        ("{\"name\": \"a\"\n \"messages\": []}", ["line 2, column 2: expected `,` or `}`", "mend the file there"]),
        ("[1]", ["line 1, column 3", "Machine-readable JSON"]),
    ] {
        let broken = telegram.write("broken.json", text);
        let error = telegram.import("telegram", by("Bob", &[&broken])).unwrap_err().to_string();
        assert!(error.contains("broken.json") && words.iter().all(|word| error.contains(word)), "{error}");
    }
    let imported = telegram.import("telegram", by("Bob", &[&file])).unwrap();
    assert_eq!(
        left(&imported),
        [("messages that are not as Telegram writes them", 2), ("chats that are not as Telegram writes them", 2)]
    );
    let ends: Vec<&str> =
        imported.left_out.iter().flat_map(|left| &left.places).map(|place| place.split(", ").last().unwrap()).collect();
    assert_eq!(ends, ["message 2", "message 3", "chat 2", "chat 3"]);
    assert_eq!(answers(&telegram), ["text 2", "text 4"]);
}

/// The order of day and month is that of most dates; a date that does not exist in it is named, and turns no other round.
#[test]
fn one_impossible_date_does_not_turn_the_others_round() {
    let chat = |lines: &[&str]| {
        let place = Place::new();
        let file = place.write("_chat.txt", lines.join("\n"));
        let imported = place.import("whatsapp", by("Bob", &[&file])).unwrap();
        let times: Vec<i64> = place.records().iter().map(|record| record["time"].as_i64().unwrap()).collect();
        let left = imported.left_out.iter().map(|left| (left.reason.clone(), left.places.clone())).collect::<Vec<_>>();
        (times, left)
    };
    const DAY: i64 = 86400;
    let january_1 = 1_704_067_200;
    let february_3 = january_1 + 33 * DAY;
    let (times, left) = chat(&[
        "13.01.24, 10:00 - Ada: a",
        "13.01.24, 10:00 - Bob: b",
        "03.02.24, 00:00 - Ada: a",
        "03.02.24, 00:00 - Bob: b",
        "02.30.24, 10:00 - Ada: lost",
        "of a message without a day",
        "02.13.24, 10:00 - Bob: lost",
        "31.31.24, 10:00 - Bob: lost",
        "04.02.24, 25:00 - Bob: lost",
    ]);
    assert_eq!(times, [january_1 + 12 * DAY + 36000, february_3]);
    let (reason, places) = &left[0];
    assert_eq!(reason, "messages whose day or hour does not exist");
    let lines: Vec<&str> = places.iter().map(|place| place.rsplit(':').next().unwrap()).collect();
    assert_eq!(lines, ["5", "7", "8", "9"]);
    assert_eq!(left[1].0, "lines of no message");
    assert_eq!(left.len(), 2);

    // Nothing tells, or as many dates tell the one as the other: slashes and half days are American.
    for extra in [&[][..], &["13/1/24, 1:00 PM - Eve: x", "1/13/24, 1:00 PM - Eve: x"]] {
        let american = ["2/3/24, 12:00 AM - Ada: a", "2/3/24, 12:00 AM - Bob: b"];
        let (times, _) = chat(&[extra, &american].concat());
        assert_eq!(times, [february_3]);
    }
    let (times, _) = chat(&["3/2/24, 00:00 - Ada: a", "3/2/24, 00:00 - Bob: b"]);
    assert_eq!(times, [february_3]);
}

#[test]
fn notes_are_found_in_folders_without_following_links() {
    let place = Place::new();
    place.write("notes/a.md", "---\ntags: x\n---\n# A\n\nfirst\r\n");
    place.write("notes/deep/b.txt", format!("{}\n\n{}", "x".repeat(2000), "y".repeat(2000)));
    place.write("notes/.obsidian/c.md", "hidden");
    place.write("notes/d.pdf", "no text");
    place.write("notes/e.md", b"caf\xe9");
    place.write("notes/f.md", " \n");
    #[cfg(unix)]
    std::os::unix::fs::symlink(place.path("notes"), place.path("notes/loop")).unwrap();
    let imported = place.import("notes", from(&[&place.path("notes")])).unwrap();
    let mut texts: Vec<usize> = place.records().iter().map(|record| record["text"].as_str().unwrap().len()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["# A\n\nfirst".len(), 2000, 2000]);
    let reasons: Vec<&str> = left(&imported).into_iter().map(|(reason, _)| reason).collect();
    for reason in
        ["hidden folders", "files that are not UTF-8", "empty notes", "files that do not end in .md, .markdown or .txt"]
    {
        assert!(reasons.contains(&reason), "{reason}: {reasons:?}");
    }
}

#[test]
fn a_history_is_private_whole_and_never_lost() {
    let place = Place::new();
    let notes = place.write("a.txt", "words");
    place.import("notes", from(&[&notes])).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(place.path("history.jsonl")).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let before = std::fs::read(place.path("history.jsonl")).unwrap();
    assert!(matches!(place.import("notes", from(&[&notes])), Err(ImportError::Exists(_))));
    // Nothing to import leaves even a history that was to be replaced as it is, and no temporary file.
    let importer = IMPORTERS.iter().find(|importer| importer.name == "notes").unwrap();
    let empty = place.write("b.txt", "");
    let failure = import(importer, &from(&[&empty]), &place.path("history.jsonl"), true).unwrap_err();
    assert!(failure.to_string().contains("1 empty notes"), "{failure}");
    assert_eq!(std::fs::read(place.path("history.jsonl")).unwrap(), before);
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 3);
    let other = place.write("b.txt", "other");
    import(importer, &from(&[&other]), &place.path("history.jsonl"), true).unwrap();
    assert_eq!(place.records()[0]["text"], "other");
}

/// Whatever the bytes, an importer ends with a result or a reason.
#[test]
fn hostile_sources_never_end_an_import_with_a_panic() {
    let mut random = crate::support::Random(11);
    let seeds: [&[u8]; 6] = [
        MAILS.as_bytes(),
        b"[13.05.24, 10:00:00] Ada: x\n[99.99.24, 99:99] Bob: y\n",
        b"{\"messages\":[{\"type\":\"message\",\"from\":\"Bob\",\"text\":[{}]}]}",
        b"[{\"current_node\":\"a\",\"mapping\":{\"a\":{\"parent\":\"a\"}}}]",
        b"Title,Author,My Rating\n\"a,b,5\n",
        b"userId,movieId,rating,timestamp\n1,1,nan,x\n",
    ];
    for seed in seeds {
        for round in 0..8 {
            let mut bytes = seed.to_vec();
            for _ in 0..round {
                let place = random.below(bytes.len());
                bytes[place] = random.below(256) as u8;
            }
            for importer in IMPORTERS.iter().filter(|importer| importer.read.is_some()) {
                let place = Place::new();
                let file = place.write("in/ratings.csv", &bytes);
                let folder = file.parent().unwrap();
                for source in [&file, folder] {
                    let _ = place.import(importer.name, by("Bob", &[source]));
                }
            }
        }
    }
}
