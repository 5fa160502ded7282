//! Importing from outside, and the benchmark's files as histories.

use crate::tiny::{Place, SHORT};

#[test]
fn a_table_is_imported_masked_and_trained_on() {
    let place = Place::new();
    let rows: String =
        (0..12).map(|row| format!("2024-01-{:02},write to a{row}@example.org,mail {row}\n", row + 1)).collect();
    place.write("mail.csv", &format!("day,question,answer\n{rows}2024-02-01,short\n"));
    let arguments = [
        "import",
        "csv",
        "mail.csv",
        "--map",
        "prompt=question,completion=answer,time=day",
        "--mask",
        "--output",
        "h.jsonl",
    ];
    let imported = place.json(&arguments);
    assert_eq!((&imported["records"], &imported["history"]), (&12.into(), &"h.jsonl".into()));
    assert_eq!(imported["tasks"], serde_json::json!([{"name": "completion", "records": 12}]));
    assert_eq!(imported["masked"], serde_json::json!([{"kind": "email", "count": 12, "different": 12}]));
    assert_eq!(imported["left_out"][0]["count"], 1);
    assert_eq!(imported["left_out"][0]["places"], serde_json::json!(["mail.csv:14"]));
    place.refuses(&arguments, 2, &["h.jsonl exists already", "--force"]);
    place.json(&[&arguments[..], &["--force"]].concat());
    let onto_itself = ["import", "csv", "mail.csv", "--map", "text=answer", "--output", "mail.csv", "--force"];
    place.refuses(&onto_itself, 3, &["mail.csv is what is read"]);
    let train = ["train", "--model", "model", "--data", "h.jsonl", "--dry-run", "--set", "retriever=recency"];
    assert_eq!(place.json(&[&train, SHORT].concat())["data"]["records"], 12);

    place.refuses(
        &["import", "csv", "mail.csv", "--map", "text", "--output", "x.jsonl"],
        2,
        &["expected FIELD=COLUMN"],
    );
    place.refuses(&["import", "mbox", "mail.csv", "--output", "x.jsonl"], 2, &["--me"]);
    place.refuses(
        &["import", "mbox", "mail.csv", "--me", "a@b", "--output", "x.jsonl"],
        3,
        &["no line begins with \"From \""],
    );
    place.refuses(&["import", "notes", "nowhere", "--output", "x.jsonl"], 3, &["nowhere"]);
    assert!(!place.path("x.jsonl").exists());
}

#[test]
fn every_importer_teaches_how_to_get_its_file() {
    let place = Place::new();
    for importer in data::import::IMPORTERS {
        let output = place.run(&["import", importer.name, "--help"]);
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(output.status.success() && flat(&help).contains(&flat(importer.how_to)), "{}: {help}", importer.name);
        assert!(help.contains("--mask") && help.contains("--force"), "{help}");
        assert_eq!(help.contains("--map"), importer.needs.columns || importer.how_to.contains("--map"), "{help}");
    }
}

#[test]
fn the_benchmarks_files_are_histories() {
    let place = Place::new();
    let words = "What is the score of the following review on a scale of 1 to 5? just answer with 1, 2, 3, 4, or 5 without further explanation. review: ";
    let entries: Vec<_> =
        (0..10).map(|entry| serde_json::json!({"id": entry.to_string(), "text": format!("thing {entry}"), "score": (1 + entry % 5).to_string()})).collect();
    let question = |id: &str| serde_json::json!({"id": id, "input": format!("{words}thing {id}"), "profile": entries});
    let questions =
        [question("a"), question("b"), question("c"), serde_json::json!({"id": "d", "input": words, "profile": []})];
    place.write("LaMP_3_questions.json", &serde_json::to_string(&questions).expect("JSON"));
    place
        .write("LaMP_3_outputs.json", r#"{"task":"LaMP_3","golds":[{"id":"a","output":"3"},{"id":"b","output":"5"}]}"#);
    let train = ["train", "--model", "model", "--data", "LaMP_3_questions.json", "--user", "user-a", "--dry-run"];
    let plan = place.json(&[&train, SHORT].concat());
    assert_eq!((&plan["data"]["records"], &plan["data"]["held_out_records"]), (&12.into(), &2.into()), "{plan}");
    let noticed = plan["data"]["noticed"].as_array().expect("a list");
    assert!(
        noticed.iter().any(|noticed| noticed["count"] == 1
            && noticed["what"].as_str().is_some_and(|what| what.starts_with("questions without an answer"))),
        "{plan}"
    );

    // Tweets hold only a text: said with --task.
    let tweets: String = (0..8).map(|number| format!("{{\"text\": \"Hello NUMBER {number}! #tag\"}}\n")).collect();
    place.write("tweets.jsonl", &tweets);
    let train = ["train", "--model", "model", "--data", "tweets.jsonl", "--task", "tweet", "--dry-run"];
    assert_eq!(place.json(&[&train, SHORT].concat())["data"]["records"], 8);
    place.refuses(
        &["train", "--model", "model", "--data", "tweets.jsonl", "--task", "poem"],
        2,
        &["poem", "movie_tag"],
    );
}

#[cfg(unix)]
#[test]
fn an_interrupted_import_leaves_nothing() {
    let place = Place::new();
    // Nobody writes into it, so the import waits.
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe.csv")).status().expect("mkfifo").success());
    std::fs::create_dir(place.path("out")).expect("a folder");
    let names = || std::fs::read_dir(place.path("out")).expect("a folder").count();
    for signal in ["INT", "TERM"] {
        let mut import = place.command(&["import", "csv", "pipe.csv", "--output", "out/me.jsonl", "--json"]);
        let child =
            import.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().expect("it starts");
        while names() == 0 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let kill = std::process::Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(kill.expect("kill").success());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130));
        assert!(String::from_utf8_lossy(&output.stdout).contains("\"interrupted\""));
        assert_eq!(names(), 0);
    }
}
