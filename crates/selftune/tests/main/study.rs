//! Studies: many people in one report, killed and gone on with, with nobody's records in another's adapter.

use crate::tiny::Place;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Three people who answer the same questions, each in their own words; and people who cannot be studied.
fn people() -> String {
    let mut text = String::new();
    for (user, word) in [("ann", "sum"), ("Bob", "TOTAL:"), ("cem/d", "it is")] {
        for index in 0..24 {
            let prompt = format!("what is {index} and {}", index * 7 % 11);
            let completion = format!("{word} {}", index + index * 7 % 11);
            let id = format!("{user}-{index}");
            let record = serde_json::json!({"user": user, "id": id, "prompt": prompt, "completion": completion});
            text += &format!("{record}\n");
        }
    }
    for index in 0..15 {
        text += &format!("{{\"user\": \"eve\", \"prompt\": \"again {index}\", \"completion\": \"same\"}}\n");
    }
    text += "{\"user\": \"fay\", \"prompt\": \"p\", \"completion\": \"once\"}\n";
    text += "{\"user\": \"ann\", \"id\": \"ann-3\", \"prompt\": \"p\", \"completion\": \"twice\"}\nnot json\n";
    text
}

const STUDY: &str = r#"
title = "Sums"
model = "model"
length_groups = [5, 100]
[[histories]]
name = "sums"
path = "people.jsonl"
users = ["ann", "Bob", "cem/d", "eve", "fay", "nobody"]
queries = 6
records_min = 10
[evaluation]
retrieve = 2
tokens_max = 200
answer_tokens_max = 4
[[configurations]]
name = "deep"
depths = [2, 1]
[configurations.train]
passes = 1
validation_fraction = 0.0
learning_rate = 1e-2
[[configurations]]
name = "fast"
adapters_of = "deep-2"
arms = ["base", "adapter"]
precision = "a8"
[[agreements]]
left = "deep-2"
right = "fast"
"#;

fn place() -> Place {
    let place = Place::new();
    place.write("people.jsonl", &people());
    place.write("study.toml", STUDY);
    place
}

/// Every file that holds numbers, by its path; times are taken out, which differ.
fn numbers(folder: &Path) -> BTreeMap<PathBuf, Value> {
    fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, Value>, root: &Path) {
        for entry in std::fs::read_dir(folder).expect("the study's folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, found, root);
            } else if path.extension().is_some_and(|ending| ending == "json") {
                let mut value: Value = serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
                without_times(&mut value);
                found.insert(path.strip_prefix(root).expect("below").to_owned(), value);
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(&folder.join("units"), &mut found, folder);
    let mut study: Value =
        serde_json::from_slice(&std::fs::read(folder.join("study.json")).expect("read")).expect("JSON");
    without_times(&mut study);
    found.insert("study.json".into(), study);
    found
}

fn without_times(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !["wall_s", "seconds", "seconds_median", "date"].contains(&key.as_str()));
            map.values_mut().for_each(without_times);
        }
        Value::Array(list) => list.iter_mut().for_each(without_times),
        _ => {}
    }
}

fn count_files(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.flatten().map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

#[test]
fn a_killed_study_goes_on_to_the_same_numbers_and_people_stay_apart() {
    let place = place();
    let whole = place.json(&["study", "study.toml", "--out", "whole", "--workers", "2", "--threads", "2"]);
    assert_eq!(whole["missing_units"], 0, "{whole:#}");
    assert_eq!(whole["sections"].as_array().map(Vec::len), Some(3));

    let arguments = ["study", "study.toml", "--out", "killed", "--workers", "1", "--threads", "1"];
    let mut kills = 0;
    for wanted in [12, 40, 80, 120] {
        let mut child =
            place.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
        let deadline = Instant::now() + Duration::from_secs(120);
        while count_files(&place.path("killed")) < wanted && child.try_wait().expect("its status").is_none() {
            assert!(Instant::now() < deadline, "no progress");
            std::thread::sleep(Duration::from_millis(2));
        }
        kills += usize::from(child.try_wait().expect("its status").is_none());
        child.kill().expect("killed");
        child.wait().expect("it is gone");
    }
    assert!(kills >= 2, "only {kills} kills hit a running program");
    place.json(&arguments);
    let (left, right) = (numbers(&place.path("whole")), numbers(&place.path("killed")));
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    for (path, value) in &left {
        assert_eq!(value, &right[path], "{}", path.display());
    }

    // Nobody's records in another person's adapter, nor in another's prompts.
    let runs = place.path("whole/runs/sums/deep-2");
    let mut people = 0;
    for entry in std::fs::read_dir(runs).expect("runs").flatten() {
        let read = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(entry.path().join(name)).expect("read")).expect("JSON")
        };
        let user = read("run.json")["inputs"]["history"]["user"].as_str().expect("a user").to_owned();
        let examples = read("examples.json");
        let trained = examples["training"].as_array().expect("examples");
        assert!(trained.len() >= 5, "{user}");
        for example in trained {
            let own = |id: &Value| id.as_str().is_some_and(|id| user == "eve" || id.starts_with(&format!("{user}-")));
            assert!(own(&example["record_id"]), "{user}: {example}");
            assert!(example["retrieved_ids"].as_array().expect("ids").iter().all(own), "{user}: {example}");
        }
        people += 1;
    }
    assert_eq!(people, 4);
}

#[test]
fn what_is_wrong_with_people_is_counted_and_said() {
    let place = place();
    let study = STUDY
        .replace("depths = [2, 1]", "arms = [\"base\", \"adapter\"]")
        .replace("adapters_of = \"deep-2\"", "adapters_of = \"deep\"")
        .replace("left = \"deep-2\"", "left = \"deep\"");
    place.write("study.toml", &study);
    let preview = place.json(&["study", "study.toml", "--dry-run"]);
    assert_eq!((preview["trainings"].as_u64(), preview["evaluations"].as_u64()), (Some(4), Some(16)));
    let found = place.json(&["study", "study.toml", "--out", "out"]);
    let account = &found["histories"][0];
    let user = |name: &str| {
        let users = account["users"].as_array().expect("users");
        users.iter().find(|user| user["name"] == name).unwrap_or_else(|| panic!("{name} is not told of"))
    };
    assert!(user("nobody")["left_out"].as_str().expect("a reason").contains("no record"));
    assert!(user("fay")["left_out"].as_str().expect("a reason").contains("1 record"));
    assert_eq!(user("eve")["all_answers_equal"], true);
    assert_eq!(user("ann")["left_out"], Value::Null);
    let skipped = account["skipped_lines"].as_array().expect("lines");
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(skipped.iter().any(|line| line.as_str().is_some_and(|line| line.contains("ann-3"))), "{skipped:?}");
    let report = std::fs::read_to_string(place.path("out/study.md")).expect("a report");
    for words in ["Table 7", "Table 8", "nobody", "all answers are the same", "Agreement", "Length of the history"] {
        assert!(report.contains(words), "{words} is not in the report");
    }
    let page = std::fs::read_to_string(place.path("out/study.html")).expect("a page");
    assert!(page.contains("<svg"), "the page has no plot");

    // Other settings never take over what was measured; the folder stays as it was.
    let before = numbers(&place.path("out"));
    place.write("study.toml", &study.replace("passes = 1", "passes = 2"));
    place.refuses(&["study", "study.toml", "--out", "out"], 3, &["other settings", "--out"]);
    assert_eq!(before, numbers(&place.path("out")));
    place.write("study.toml", "title = 3");
    place.refuses(&["study", "study.toml", "--out", "out"], 3, &["study.toml", "line 1"]);
    place.refuses(&["study", "none.toml", "--out", "out"], 3, &["none.toml"]);
    // A list that would mean something else than it says.
    place.write("study.toml", &study.replace("arms = [\"base\", \"adapter\"]\nprecision", "arms = []\nprecision"));
    place.refuses(&["study", "study.toml", "--out", "out"], 3, &["study.toml", "arms = []", "leave its key out"]);
    // A report of nothing makes no folder.
    place.write("study.toml", &study);
    let arguments = ["study", "study.toml", "--out", "none", "--report-only"];
    place.refuses(&arguments, 3, &["none", "holds no study"]);
    assert!(!place.path("none").exists());
}
