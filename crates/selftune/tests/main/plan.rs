//! `plan`: what it counts, where its predictions come from, and what it refuses.

use crate::tiny::Place;
use serde_json::Value;

const PLAN: &[&str] = &["plan", "--model", "model", "--history", "history.jsonl", "--set", "tokens_max=200"];

fn plan(place: &Place, more: &[&str]) -> Value {
    place.json(&[PLAN, more].concat())
}

#[test]
fn a_plan_counts_and_writes_nothing() {
    let place = Place::new();
    let plan = plan(&place, &[]);
    let histogram: u64 =
        plan["tokens_histogram"].as_array().expect("bins").iter().map(|bin| bin[2].as_u64().expect("a count")).sum();
    assert_eq!(plan["counts"]["training_examples"].as_u64(), Some(histogram));
    assert_eq!(plan["basis"]["kind"], "probe");
    for key in ["peak_bytes", "time_s"] {
        let (value, interval) = (plan[key]["value"].as_f64().expect(key), &plan[key]["interval"]);
        assert!(
            value > 0.0 && interval[0].as_f64() <= Some(value) && Some(value) <= interval[1].as_f64(),
            "{key}: {interval}"
        );
    }
    assert!(!place.path("runs").exists() && !place.path("home/costs.json").exists());
    let blind = self::plan(&place, &["--no-probe"]);
    assert_eq!((&blind["time_s"], &blind["basis"]), (&Value::Null, &Value::Null));
    assert_eq!(blind["counts"], plan["counts"]);
}

#[test]
fn a_finished_run_predicts_the_next_in_proportion_to_its_work() {
    let place = Place::new();
    let train =
        ["train", "--model", "model", "--data", "history.jsonl", "--set", "tokens_max=200", "--set", "passes=1"];
    place.json(&train);
    let path = place.path("home/costs.json");
    let mut costs: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("costs")).expect("JSON");
    let run = &mut costs["measurements"][0];
    // As if it had taken 100 s, so that it says more than a probe.
    run["seconds"] = 100.0.into();
    run["pace"] = Value::Array(Vec::new());
    let work = run["work"].as_f64().expect("work");
    std::fs::write(&path, costs.to_string()).expect("written");
    let next = plan(&place, &["--set", "passes=4"]);
    assert_eq!(next["basis"]["kind"], "runs");
    let expected = 100.0 * next["plan"]["work"].as_f64().expect("work") / work;
    let predicted = next["time_s"]["value"].as_f64().expect("time");
    assert!((predicted / expected - 1.0).abs() < 0.02, "{predicted}, expected {expected}");
    std::fs::write(&path, "{\"broken").expect("written");
    assert_eq!(plan(&place, &[])["basis"]["kind"], "probe", "a broken file only costs a probe");
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "{\"broken");
}

#[test]
fn limits_list_settings_that_keep_them() {
    let place = Place::new();
    let phone = |more: &[&str]| plan(&place, &[&["--device", "paper-phone", "--set", "passes=6"], more].concat());
    let whole = phone(&[]);
    assert_eq!(whole["basis"]["kind"], "literature");
    assert!(whole["basis"]["notes"][0].as_str().expect("a note").contains("not measured here"));
    assert!(whole["options"].is_null());
    let fitting = phone(&["--within", "1h"]);
    assert_eq!(fitting["options"][0]["flags"], "", "everything fits as asked");
    let peak = whole["peak_bytes"]["value"].as_f64().expect("bytes");
    assert!(peak > 1e6);
    let none = phone(&["--within", "1s"]);
    assert_eq!(none["options"], Value::Array(Vec::new()));
    assert!(none["nearest"]["flags"].as_str().expect("flags").contains("passes=1"), "{}", none["nearest"]);
}

/// Long examples, so that lengths and depths differ by more memory than one process from another.
#[test]
fn what_a_plan_names_for_a_memory_limit_train_accepts() {
    let place = Place::new();
    let long = |index: usize| {
        let text = (0..99).map(|word| format!("w{} ", index * 31 + word * 7)).collect::<String>();
        serde_json::json!({"text": text}).to_string() + "\n"
    };
    place.write("long.jsonl", &(0..40).map(long).collect::<String>());
    let asked =
        ["--model", "model", "--data", "long.jsonl", "--set", "rank=32", "--set", "passes=1", "--set", "steps=1"];
    let plan = |more: &[&str]| place.json(&[&["plan", "--no-probe"], &asked[..], more].concat());
    let peak = |plan: &Value| plan["peak_bytes"]["value"].as_f64().expect("bytes");
    let (whole, least) = (peak(&plan(&[])), peak(&plan(&["--set", "adapted_blocks=1", "--set", "tokens_max=64"])));
    assert!(whole - least > 8e6, "{whole} and {least} bytes");
    let mut named = 0;
    for part in [0.45, 0.5, 0.55] {
        let limit = format!("{:.3}MB", (least + part * (whole - least)) / 1e6);
        let fitting = plan(&["--memory", &limit]);
        for option in fitting["options"].as_array().expect("options") {
            let flags: Vec<&str> =
                option["flags"].as_str().expect("flags").split(' ').filter(|flag| !flag.is_empty()).collect();
            let output = format!("run-{named}");
            place.json(
                &[&["train", "--no-accept", "--output", &output, "--memory", &limit], &asked[..], &flags].concat(),
            );
            named += 1;
        }
        // The same limit for the settings as asked: refused, with what does fit.
        let refused =
            place.run(&[&["train", "--no-accept", "--output", "refused", "--memory", &limit], &asked[..]].concat());
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(3), "{message}");
        assert!(!place.path("refused").exists(), "a run that never trained leaves no folder: {message}");
        for (before, setting) in
            [("examples of at most ", "tokens_max"), ("an adapter on only the last ", "adapted_blocks")]
        {
            let Some((_, rest)) = message.split_once(before) else { continue };
            let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let setting = format!("{setting}={number}");
            let output = format!("run-{named}");
            let train = ["train", "--no-accept", "--output", &output, "--memory", &limit, "--set", &setting];
            place.json(&[&train, &asked[..]].concat());
            named += 1;
        }
    }
    assert!(named >= 3, "{named} settings were named");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_stops_nothing() {
    let place = Place::new();
    std::fs::create_dir(place.path("home")).expect("a folder");
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(place.path(name)).status();
        made.is_ok_and(|status| status.success())
    };
    if !pipe("home/costs.json") {
        eprintln!("a_pipe_in_place_of_a_file_stops_nothing did NOT run: this machine has no mkfifo");
        return;
    }
    assert_eq!(plan(&place, &[])["basis"]["kind"], "probe");
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--set", "tokens_max=200", "--output", "run"];
    place.json(&train);
    assert!(pipe("run/hold.json"));
    place.refuses(&["status", "run"], 3, &["run/hold.json", "no ordinary file"]);
}

#[test]
fn absurd_limits_are_refused_in_words() {
    let place = Place::new();
    for (flag, value, word) in [
        ("--within", "0s", "no time"),
        ("--within", "30", "30min"),
        ("--battery", "200%", "100%"),
        ("--battery", "20", "20%"),
        ("--memory", "0GB", "900MB"),
        ("--memory", "2GBs", "900MB"),
        ("--device", "my-phone", "paper-phone"),
    ] {
        place.refuses(&[PLAN, &[flag, value]].concat(), 2, &[word]);
    }
    place.refuses(&[PLAN, &["--no-probe", "--within", "1h"]].concat(), 3, &["--no-probe"]);
    place.refuses(&["plan", "--model", "model"], 2, &["--data"]);
}
