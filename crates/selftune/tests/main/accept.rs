//! What is accepted, what is kept, and the way back; evaluations that do not replace each other.

use crate::tiny::{Place, records};

/// A training of the tiny model on this history.
const TRAIN: &[&str] = &["train", "--model", "model", "--set", "tokens_max=200", "--data"];

/// Learns the tiny history well enough to be accepted.
fn learn<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let enough = ["history.jsonl", "--hold-out", "10", "--set", "passes=6", "--set", "learning_rate=1e-2"];
    [TRAIN, &enough, more].concat()
}

#[test]
fn accepted_adapters_are_kept_used_by_name_and_rolled_back() {
    let place = Place::new();
    let first = place.json(&learn(&["--output", "one", "--name", "me"]));
    assert_eq!(first["acceptance"]["accepted"], true, "{:#}", first["acceptance"]);
    assert!(first["acceptance"]["general_ability"]["tokens"].as_u64() >= Some(100));
    let again = place.json(&["train", "--resume", "one", "--name", "me"]);
    assert_eq!(again["acceptance"], first["acceptance"], "a run is judged once");

    // The same training again is no worse than the one in use, and becomes the next version.
    let second = place.json(&learn(&["--output", "two", "--name", "me", "--set", "seed=7"]));
    assert_ne!(second["acceptance"]["minus_earlier"], serde_json::Value::Null);
    let versions = || {
        let listed = place.json(&["adapters", "me"]);
        let versions = listed["adapters"][0]["versions"].as_array().expect("versions").clone();
        versions.iter().map(|version| (version["number"].as_u64(), version["in_use"].as_bool())).collect::<Vec<_>>()
    };
    let newest = if second["acceptance"]["accepted"] == true { 2 } else { 1 };
    assert_eq!(versions().len(), newest);
    assert_eq!(versions()[newest - 1], (Some(newest as u64), Some(true)));

    let ask = |adapter: &str| {
        place.json(&["generate", "--model", "model", "--adapter", adapter, "--max-tokens", "8", "what is 3 and 4"])
    };
    if newest == 2 {
        let rolled = place.json(&["rollback", "me"]);
        assert_eq!((rolled["version"].as_u64(), rolled["before"].as_u64()), (Some(1), Some(2)));
    }
    assert_eq!(ask("me")["text"], ask("one/adapter/best")["text"]);
    place.refuses(&["rollback", "me"], 3, &["oldest"]);
    place.refuses(&["rollback", "me", "--to", "9"], 3, &["no version 9"]);
    place.refuses(&["rollback", "../me"], 2, &["no name"]);
    place.refuses(&["rollback", "nobody"], 3, &["nobody"]);
    assert_eq!(place.json(&["adapters"])["adapters"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_name_stands_for_the_version_of_that_day_below_and_before_another_run() {
    let place = Place::new();
    let learn = |output: &str, more: &[&str]| place.json(&learn(&[&["--output", output][..], more].concat()));
    assert_eq!(learn("one", &["--name", "me"])["acceptance"]["accepted"], true);
    assert_eq!(place.json(&["runs", "."])["runs"][0]["verdict"], "kept", "judged at the end of its training");
    learn("above", &["--on", "me", "--no-accept"]);
    learn("after", &["--from", "me", "--no-accept"]);
    let adapter =
        |run: &str| std::fs::read(place.path(run).join("adapter/last/adapter_model.safetensors")).expect("it");
    let before = adapter("above");
    let below: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path("above/run.json")).expect("it")).expect("JSON");
    let path = below["inputs"]["on"][0]["path"].as_str().expect("a path").to_owned();
    assert!(path.ends_with("home/adapters/me/v001"), "{path}");
    // Another version is in use when the run goes on.
    if learn("two", &["--name", "me", "--set", "seed=7"])["acceptance"]["accepted"] == true {
        assert_eq!(place.json(&["adapters", "me"])["adapters"][0]["versions"][1]["in_use"], true);
    }
    place.json(&["train", "--resume", "above"]);
    assert!(adapter("above") == before, "other bytes");
    place.json(&["eval", "--run", "above", "--no-generate", "--queries", "2"]);
    place.json(&["train", "--resume", "after"]);
}

#[test]
fn damaged_files_of_accepted_adapters_are_named_with_the_way_forward() {
    let place = Place::new();
    place.json(&learn(&["--output", "one", "--name", "me"]));
    let generate = ["generate", "--model", "model", "--adapter", "me", "--max-tokens", "2", "what is 3 and 4"];
    for damaged in ["", "first", "7", "-1", "\u{0}\u{0}"] {
        place.write("home/adapters/me/current", damaged);
        place.refuses(&generate, 3, &["home/adapters/me/current", "selftune rollback me --to", "1"]);
        assert!(place.run(&["adapters"]).status.success(), "what is there can be listed");
        assert_eq!(place.json(&["rollback", "me", "--to", "1"])["version"], 1);
        place.json(&generate);
    }
    for damaged in ["", "{\"run\": ", "[]"] {
        place.write("home/adapters/me/v001/accepted.json", damaged);
        place.refuses(&generate, 3, &["v001/accepted.json", "remove the folder"]);
        place.refuses(&["adapters"], 3, &["v001/accepted.json", "do without version 1 of me"]);
    }
    place.write("one/acceptance.json", "{");
    place.refuses(&["train", "--resume", "one"], 3, &["one/acceptance.json", "judged anew"]);
}

#[test]
fn what_is_not_accepted_says_why_and_replaces_nothing() {
    let place = Place::new();
    // An adapter that has learned nothing is no better than none.
    let little = ["--set", "passes=1", "--output"];
    let idle = ["history.jsonl", "--hold-out", "10", "--set", "learning_rate=1e-9"];
    let judged = &place.json(&[TRAIN, &idle, &little, &["idle"]].concat())["acceptance"];
    assert_eq!(judged["accepted"], false);
    place.write("short.jsonl", &records(20));
    let short = place.json(&[TRAIN, &["short.jsonl"], &little, &["short"]].concat());
    assert!(short["acceptance"]["reason"].as_str().expect("a reason").contains("are needed"), "{short:#}");
    let skipped = place.json(&learn(&["--output", "skipped", "--no-accept"]));
    assert_eq!(skipped["acceptance"], serde_json::Value::Null);
    assert_eq!(place.json(&["adapters"])["adapters"].as_array().map(Vec::len), Some(0));
    place.refuses(&["generate", "--model", "model", "--adapter", "history", "hello"], 3, &["history"]);
    place.refuses(&["train", "--model", "model", "--data", "short.jsonl", "--name", "a/b"], 2, &["--name"]);

    // A second evaluation is beside the first, not in its place.
    let eval = ["eval", "--run", "idle", "--no-generate"];
    let (one, two) = (place.json(&eval), place.json(&eval));
    assert_ne!(one["kept"], two["kept"]);
    for evaluation in [one, two] {
        let kept = evaluation["kept"].as_str().expect("a folder").to_owned();
        assert!(place.path(&kept).join("report.json").is_file(), "{kept}");
    }
}

#[test]
fn an_adapter_trained_with_earlier_records_is_judged_and_serves_with_them() {
    let place = Place::new();
    let with = ["--set", "retrieved_records=1", "--set", "retriever=\"recency\"", "--output", "with"];
    let judged = &place.json(&learn(&with))["acceptance"];
    assert_eq!((judged["retrieved_records"].as_u64(), judged["queries"].as_u64()), (Some(1), Some(10)), "{judged:#}");
    let findings = judged["verdict"]["findings"].as_array().expect("findings");
    let compared: Vec<_> = findings.iter().filter_map(|finding| finding["comparison"].as_str()).collect();
    assert_eq!(compared, ["adapter_retrieval_minus_retrieval"]);
    let reason = judged["verdict"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("Adapter + retrieval") && reason.contains("against Base + retrieval"), "{reason}");

    // The run's way of finding records: the newest one, though others are more like the question.
    let question = ["generate", "--run", "with", "--retrieve", "1", "--max-tokens", "4", "what is 3 and 10"];
    assert_eq!(place.json(&question)["retrieved_ids"], serde_json::json!(["r39"]));
}
