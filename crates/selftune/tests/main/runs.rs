//! Runs from outside: what they say while and after they train, new runs from old ones, and records that are forgotten.

use crate::tiny::{Place, SHORT};
use serde_json::Value;
use std::path::Path;

const TRAIN: &[&str] = &["train", "--model", "model", "--data", "history.jsonl"];

fn train(place: &Place, output: &str, more: &[&str]) -> Value {
    place.json(&[TRAIN, SHORT, &["--output", output], more].concat())
}

fn tensors(adapter: &Path) -> Vec<u8> {
    std::fs::read(adapter.join("adapter_model.safetensors")).expect("an adapter")
}

#[test]
fn events_status_and_runs_tell_the_same() {
    let place = Place::new();
    let arguments = [TRAIN, SHORT, &["--output", "runs/me", "--json", "--events", "--save-every", "1"]].concat();
    let output = place.run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
    lines.iter().for_each(|line| crate::documented::check("train --events", line));
    let (result, events) = lines.split_last().expect("lines");
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count() as u64;
    let steps = result["steps"].as_u64().expect("steps");
    assert_eq!((count("started"), count("step"), count("finished")), (1, steps, 1));
    assert!(count("saved") >= 2);

    let status = place.json(&["status", "runs/me"]);
    assert_eq!(status["run"]["status"], "finished");
    assert_eq!((&status["run"]["step"], &status["run"]["steps"]), (&result["steps"], &result["steps_planned"]));
    assert_eq!(status["run"]["validation_best"]["loss"], result["validation_best"]["loss"]);
    assert_eq!(
        status["run"]["saved"]["bytes"],
        events.iter().rfind(|event| event["event"] == "saved").unwrap()["bytes"]
    );
    let text = String::from_utf8(place.run(&["status", "runs/me", "--follow"]).stdout).expect("UTF-8");
    assert!(text.contains("finished") && text.contains("chat --run runs/me"), "{text}");

    std::fs::create_dir(place.path("runs/no-run")).expect("a folder");
    let runs = place.json(&["runs"]);
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1));
    let text = String::from_utf8(place.run(&["runs"]).stdout).expect("UTF-8");
    assert!(text.contains("history.jsonl") && text.contains("finished"), "{text}");
    place.refuses(&["status", "runs/no-run"], 3, &["not a run folder"]);

    place.refuses(&[TRAIN, &["--events"]].concat(), 2, &["--json"]);
}

#[test]
fn a_run_that_learned_nothing_leaves_nothing_and_one_that_did_stays() {
    let place = Place::new();
    let fails = |more: &[&str], words: &[&str]| {
        place.refuses(&[TRAIN, SHORT, &["--output", "runs/me"], more].concat(), 3, words);
    };
    fails(&["--memory", "1MB"], &["no plan fits", "runs/me is removed again"]);
    assert!(!place.path("runs/me").exists());
    // A folder that was there stays, and so does what somebody else puts there.
    std::fs::create_dir(place.path("runs/me")).expect("a folder");
    fails(&["--memory", "1MB"], &["no plan fits"]);
    assert_eq!(std::fs::read_dir(place.path("runs/me")).expect("the folder").count(), 0);
    train(&place, "runs/me", &[]);
    let before = tensors(&place.path("runs/me/adapter/best"));
    place.refuses(&["train", "--resume", "runs/me", "--memory", "1MB"], 3, &["no plan fits"]);
    assert_eq!(before, tensors(&place.path("runs/me/adapter/best")));
    place.write("runs/me/hold.json", "{\"step\"");
    place.refuses(&["train", "--resume", "runs/me"], 3, &["hold.json", "remove it"]);
    std::fs::remove_file(place.path("runs/me/hold.json")).expect("removed");
    place.json(&["train", "--resume", "runs/me"]);
}

#[cfg(unix)]
#[test]
fn everything_in_a_run_and_under_a_name_is_its_owners_only() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let learn = ["--set", "passes=6", "--set", "tokens_max=200", "--set", "learning_rate=1e-2", "--hold-out", "10"];
    place.json(&[TRAIN, &learn, &["--output", "runs/me", "--name", "me", "--save-every", "1"]].concat());
    place.json(&["eval", "--run", "runs/me", "--no-generate", "--queries", "2"]);
    place.json(&["eval", "--run", "runs/me", "--no-generate", "--queries", "2", "--report", "reports/deep"]);
    let mut open = Vec::new();
    let mut seen = 0;
    let mut left = vec![place.path("runs"), place.path("home/adapters"), place.path("reports")];
    while let Some(path) = left.pop() {
        let data = std::fs::symlink_metadata(&path).expect("there");
        let expected = if data.is_dir() { 0o700 } else { 0o600 };
        if data.permissions().mode() & 0o777 != expected {
            open.push(format!("{} {:o}", path.display(), data.permissions().mode() & 0o777));
        }
        if data.is_dir() {
            left.extend(std::fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
        }
        seen += 1;
    }
    assert!(open.is_empty() && seen > 25, "{seen} seen, open: {open:#?}");
}

#[test]
fn a_new_run_begins_from_an_adapter_and_a_grown_history_leads_there() {
    let place = Place::new();
    let first = train(&place, "runs/one", &["--set", "rank=4"]);
    let grown = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    let grown = grown + "{\"id\": \"new\", \"prompt\": \"what is new\", \"completion\": \"this\"}\n";
    place.write("history.jsonl", &grown);
    // The last record is held out, so one that was held out is now trained on.
    place.refuses(
        &["train", "--resume", "runs/one"],
        3,
        &["cannot go on", "Nothing was changed", "train --from runs/one"],
    );

    let second = train(&place, "runs/two", &["--from", "runs/one"]);
    let inspected = place.json(&["inspect", "runs/two/adapter/best"]);
    assert_eq!(inspected["rank"], 4, "the adapter decides its shape");
    let start = &inspected["metadata"]["receipt"]["started_from"];
    assert!(start["adapter"].as_str().is_some_and(|hash| hash.len() == 64), "{start}");
    // Better than nothing from its first update on.
    let loss = |run: &Value, key: &str| run[key].as_f64().expect("a loss");
    assert!(loss(&second, "first_loss") < loss(&first, "first_loss"), "{second}");
    assert_ne!(tensors(&place.path("runs/one/adapter/best")), tensors(&place.path("runs/two/adapter/best")));
    let before = tensors(&place.path("runs/two/adapter/last"));
    place.json(&["train", "--resume", "runs/two"]);
    assert_eq!(before, tensors(&place.path("runs/two/adapter/last")));

    let contradicts = [TRAIN, SHORT, &["--output", "runs/three", "--from", "runs/one", "--set", "rank=16"]].concat();
    place.refuses(&contradicts, 2, &["`rank` is 16 in the settings and 4 in"]);
    place.refuses(&["train", "--resume", "runs/one", "--from", "runs/two"], 2, &["cannot be used with"]);
    let missing = [TRAIN, SHORT, &["--output", "runs/three", "--from", "runs/nothing"]].concat();
    place.refuses(&missing, 3, &["runs/nothing"]);
}

#[test]
fn a_forgotten_record_leaves_accepted_versions_and_reports() {
    let place = Place::new();
    // Learns well enough to be accepted, as `me`; another, under a name of its own, never saw r3.
    let learn = ["--set", "passes=6", "--set", "tokens_max=200", "--set", "learning_rate=5e-3", "--hold-out", "10"];
    let trained = |output: &str, name: &str, more: &[&str]| {
        place.json(&[TRAIN, &learn, &["--output", output, "--name", name], more].concat())
    };
    assert_eq!(trained("runs/first", "me", &[])["acceptance"]["accepted"], true);
    trained("runs/stranger", "other", &["--newest", "20"]);
    let versions = |name: &str| {
        let adapters = place.json(&["adapters"])["adapters"].clone();
        let named = adapters.as_array().expect("adapters").iter().filter(|adapter| adapter["name"] == name);
        let versions = named.flat_map(|adapter| adapter["versions"].as_array().expect("versions"));
        versions.map(|version| (version["number"].clone(), version["in_use"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(versions("me"), [(1.into(), true.into())]);
    let other = versions("other");
    let saw = |adapter: &Path| {
        let adapter = adapter.to_str().expect("UTF-8");
        place.json(&["inspect", adapter, "--saw", "r3"])["saw"].clone()
    };
    assert_eq!(saw(&place.path("home/adapters/me/v001")), true);

    // The stranger is asked about r3, which it never saw, and its report quotes it; a report of other records stays.
    train(&place, "runs/asks", &["--newest", "37", "--hold-out", "36", "--no-accept"]);
    let eval = ["eval", "--run", "runs/asks", "--max-tokens", "2"];
    let quoting = place.json(&eval);
    let newest = place.json(&["eval", "--run", "runs/stranger", "--max-tokens", "2"]);
    let report = |evaluation: &Value| place.path(evaluation["kept"].as_str().expect("kept")).join("report.json");
    let samples = std::fs::read_to_string(report(&quoting)).expect("a report");
    let quoted: Value = serde_json::from_str(&samples).expect("JSON");
    let quoted = quoted["samples"][0]["id"].as_str().expect("a sample").to_owned();
    assert_eq!(quoted, "r4", "the oldest of the held-out records is the first sample");

    let forget = ["forget", "--record", "r4", "--history", "history.jsonl"];
    let planned = place.json(&[&forget[..], &["--dry-run"]].concat());
    assert_eq!((&planned["versions"][0]["name"], &planned["versions"][0]["version"]), (&"me".into(), &1.into()));
    assert_eq!(planned["versions"].as_array().map(Vec::len), Some(1), "{planned:#}");
    assert_eq!(planned["reports"].as_array().map(Vec::len), Some(2), "the newest and the kept one: {planned:#}");
    assert!(report(&quoting).exists() && place.path("home/adapters/me/v001").exists(), "nothing is changed");

    place.json(&forget);
    assert!(!place.path("home/adapters/me/v001").exists() && !place.path("runs/first").exists());
    assert_eq!(versions("me"), [(2.into(), true.into())], "the new run was judged and took its place");
    let hash = |adapter: &str| tensors(&place.path(adapter));
    assert_eq!(hash("home/adapters/me/v002"), hash("runs/first-2/adapter/best"));
    assert!(!report(&quoting).exists() && !place.path("runs/asks/report.html").exists());
    assert!(place.path("runs/asks/adapter/best").exists(), "a run that never saw it stays");
    assert!(report(&newest).exists() && place.path("runs/stranger/report.json").exists());
    assert_eq!(versions("other"), other);

    // A version whose run is gone has its receipt.
    std::fs::remove_dir_all(place.path("runs/first-2")).expect("removed");
    let gone = place.json(&["forget", "--record", "r5", "--history", "history.jsonl"]);
    assert_eq!((&gone["versions"][0]["version"], versions("me").len()), (&2.into(), 0));
    place.refuses(&["generate", "--model", "model", "--adapter", "me", "hello"], 3, &["me"]);
}

#[test]
fn a_hold_is_shown_by_status_and_runs() {
    let place = Place::new();
    train(&place, "runs/me", &[]);
    let hold = serde_json::json!({"step": 3, "since_unix_seconds": 1.7e9, "waits": [
        {"condition": "quiet_hours", "waits_for": "the quiet hours 22:00-07:00 (now 12:00)"},
        {"condition": "only_charging", "waits_for": "a charger to be connected"},
    ]});
    // As a run leaves it that was stopped while on hold.
    place.write("runs/me/hold.json", &hold.to_string());
    std::fs::remove_file(place.path("runs/me/summary.json")).expect("removed");
    assert_eq!(place.json(&["status", "runs/me"])["run"]["hold"], hold);
    assert_eq!(place.json(&["runs"])["runs"][0]["run"]["hold"], hold);
    let text = |arguments: &[&str]| {
        let output = place.command(arguments).env("TZ", "UTC").output().expect("the program starts");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let status = text(&["status", "runs/me"]);
    for part in [
        "stopped, on hold",
        "since 2023-11-14 22:13",
        "after update 3, by quiet_hours, only_charging",
        "the quiet hours 22:00-07:00 (now 12:00); and a charger to be connected",
        "train --resume runs/me",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    assert!(text(&["runs"]).contains("stopped, on hold"));
}

#[test]
fn a_forgotten_record_leaves_history_adapters_and_their_heirs() {
    let place = Place::new();
    train(&place, "runs/first", &[]);
    train(&place, "runs/heir", &["--from", "runs/first", "--newest", "30"]);
    train(&place, "runs/stranger", &["--newest", "20"]);
    let stranger = tensors(&place.path("runs/stranger/adapter/best"));
    let saw = |run: &str| place.json(&["inspect", &format!("runs/{run}/adapter/best"), "--saw", "r3"])["saw"].clone();
    assert_eq!((saw("first"), saw("heir"), saw("stranger")), (true.into(), true.into(), false.into()));

    let history = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    let forget = ["forget", "--record", "r3", "--history", "history.jsonl"];
    let planned = place.json(&[&forget[..], &["--dry-run"]].concat());
    assert_eq!(planned["history"]["line"], 4);
    let why: Vec<_> = planned["runs"].as_array().expect("runs").iter().map(|run| run["saw"].clone()).collect();
    assert_eq!(why, ["trained", "inherited"]);
    assert_eq!(
        std::fs::read_to_string(place.path("history.jsonl")).expect("the history"),
        history,
        "nothing is changed"
    );

    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(place.path("history.jsonl"), mode).expect("rights");
    }
    place.json(&forget);
    let left = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    let line = history.lines().nth(3).expect("a line");
    assert!(line.contains("\"r3\""));
    assert_eq!(left, history.replace(&format!("{line}\n"), ""), "every other byte stays");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(place.path("history.jsonl")).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }
    assert!(!place.path("runs/first").exists() && !place.path("runs/heir").exists());
    assert_eq!((saw("first-2"), saw("heir-2")), (false.into(), false.into()));
    assert!(place.path("runs/first-2/report.html").exists(), "as after any other training");
    assert_eq!(stranger, tensors(&place.path("runs/stranger/adapter/best")));
    // The same bytes as those of a run that never had the record.
    train(&place, "runs/never", &[]);
    assert_eq!(tensors(&place.path("runs/never/adapter/best")), tensors(&place.path("runs/first-2/adapter/best")));

    place.refuses(&forget, 3, &["no record r3 in history.jsonl"]);
    place.refuses(&["forget", "--record", "r5"], 3, &["still in"]);
    assert!(place.path("runs/first-2").exists());
}

#[test]
fn what_cannot_be_forgotten_whole_is_refused_before_anything_changes() {
    let place = Place::new();
    train(&place, "runs/me", &[]);
    let history = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    fn forget<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["forget", "--record", "r3"], more].concat()
    }
    place.refuses(&forget(&["--history", "history.jsonl", "--runs", "nowhere"]), 3, &["nowhere", "--runs"]);
    // A copy of the history: the run's own would still hold the record.
    place.write("copy.jsonl", &history);
    place.refuses(&forget(&["--history", "copy.jsonl"]), 3, &["still in", "--history", "history.jsonl"]);
    // An id that only counts lines.
    let nameless = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
    place.write("nameless.jsonl", nameless);
    place.refuses(&["forget", "--record", "nameless-2", "--history", "nameless.jsonl"], 3, &["no \"id\""]);
    // An id on two lines, of which the reader takes the first; and beside a line that it cannot use.
    let twice = format!("{history}{}\n", history.lines().nth(3).expect("r3"));
    place.write("twice.jsonl", &twice);
    place.refuses(&forget(&["--history", "twice.jsonl"]), 3, &["stands on 2 lines", "twice.jsonl:4", "twice.jsonl:41"]);
    let unusable = format!("{{\"id\": \"r3\", \"prompt\": \"no answer\"}}\n{history}");
    place.write("unusable.jsonl", &unusable);
    place.refuses(&forget(&["--history", "unusable.jsonl"]), 3, &["unusable.jsonl:1", "unusable.jsonl:5"]);
    let now = |file: &str| std::fs::read_to_string(place.path(file)).expect("a file");
    assert_eq!((now("twice.jsonl"), now("unusable.jsonl")), (twice, unusable));
    assert_eq!((now("copy.jsonl"), now("history.jsonl")), (history.clone(), history));
    assert_eq!(now("nameless.jsonl"), nameless);
    assert!(place.path("runs/me/adapter/best").exists());
}
