//! A run that is killed at any instant and resumed ends with the bytes of the undisturbed one.

use crate::tiny::Place;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const TRAIN: &[&str] = &[
    "train",
    "--model",
    "model",
    "--data",
    "history.jsonl",
    "--set",
    "passes=30",
    "--set",
    "tokens_max=200",
    "--set",
    "save_every_steps=1",
    "--set",
    "dropout=0.1",
    "--threads",
    "1",
];

fn adapters(run: &Path) -> [Vec<u8>; 2] {
    ["best", "last"].map(|name| {
        let path = run.join("adapter").join(name).join("adapter_model.safetensors");
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    })
}

/// Updates that the run has reported so far.
fn updates(run: &Path) -> usize {
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    metrics.lines().filter(|line| line.contains("\"event\":\"step\"")).count()
}

/// Starts the program and kills it as soon as it has reported `count` updates. Returns whether it was still running.
fn start_and_kill(place: &Place, arguments: &[&str], count: usize) -> bool {
    let mut child =
        place.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    let deadline = Instant::now() + Duration::from_secs(120);
    while updates(&place.path("killed")) < count && child.try_wait().expect("its status").is_none() {
        assert!(Instant::now() < deadline, "no progress");
        std::thread::sleep(Duration::from_millis(1));
    }
    let running = child.try_wait().expect("its status").is_none();
    child.kill().expect("killed");
    child.wait().expect("it is gone");
    running
}

#[test]
fn killed_runs_end_with_the_same_bytes() {
    let place = Place::new();
    place.json(&[TRAIN, &["--output", "whole"]].concat());
    let total = updates(&place.path("whole"));
    assert!(total >= 300, "{total} updates");

    // How often the state is saved changes no result, so the other run may do it otherwise.
    let first = [TRAIN, &["--output", "killed", "--set", "save_sync=false"]].concat();
    let resume = ["train", "--resume", "killed"];
    let mut kills = 0;
    for (index, count) in [1, total / 5, total / 5 + 7, total / 2, total * 4 / 5].into_iter().enumerate() {
        let arguments: &[&str] = if index > 0 { &resume } else { &first };
        kills += usize::from(start_and_kill(&place, arguments, count));
    }
    assert!(kills >= 4, "only {kills} kills hit a running program");
    place.json(&resume);
    assert_eq!(adapters(&place.path("whole")), adapters(&place.path("killed")));
    assert_eq!(updates(&place.path("killed")), total, "every update is reported once");
}

#[test]
fn a_finished_run_resumes_to_itself_and_a_changed_history_is_refused() {
    let place = Place::new();
    let train = [
        "train",
        "--model",
        "model",
        "--data",
        "history.jsonl",
        "--output",
        "run",
        "--set",
        "passes=1",
        "--set",
        "tokens_max=200",
    ];
    place.json(&train);
    let before = adapters(&place.path("run"));
    place.json(&["train", "--resume", "run"]);
    assert_eq!(before, adapters(&place.path("run")));

    place.refuses(&train, 2, &["already holds a run"]);
    let text = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    place.write("history.jsonl", &text.replacen("what is 3", "what was 3", 1));
    place.refuses(&["train", "--resume", "run"], 3, &["r3", "Nothing was changed"]);
    assert_eq!(before, adapters(&place.path("run")));
}
