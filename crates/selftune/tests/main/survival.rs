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

/// Starts the program and kills it after `delay`. Returns whether it was still running.
fn start_and_kill(place: &Place, arguments: &[&str], delay: Duration) -> bool {
    let mut child =
        place.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    std::thread::sleep(delay);
    let running = child.try_wait().expect("its status").is_none();
    child.kill().expect("killed");
    child.wait().expect("it is gone");
    running
}

#[test]
fn killed_runs_end_with_the_same_bytes() {
    let place = Place::new();
    let start = Instant::now();
    place.json(&[TRAIN, &["--output", "whole"]].concat());
    let whole_s = start.elapsed().as_secs_f64();

    let first = [TRAIN, &["--output", "killed"]].concat();
    let resume = ["train", "--resume", "killed"];
    let mut kills = 0;
    for (index, share) in [0.25, 0.4, 0.33, 0.45].into_iter().enumerate() {
        let begun = place.path("killed/config.json").exists();
        let arguments: &[&str] = if begun { &resume } else { &first };
        if !begun {
            // Killed before anything was written: nothing to resume, so the run starts anew.
            let _ = std::fs::remove_dir_all(place.path("killed"));
        }
        kills += usize::from(start_and_kill(
            &place,
            arguments,
            Duration::from_secs_f64(whole_s * share + 0.01 * index as f64),
        ));
    }
    assert!(kills >= 2, "the run was too short to be killed: {whole_s} s");
    if place.path("killed/config.json").exists() {
        place.json(&resume);
    } else {
        place.json(&first);
    }
    assert_eq!(adapters(&place.path("whole")), adapters(&place.path("killed")));
    let steps = |run: &str| {
        let metrics = std::fs::read_to_string(place.path(run).join("metrics.jsonl")).expect("metrics");
        metrics.lines().filter(|line| line.contains("\"event\":\"step\"")).count()
    };
    assert_eq!(steps("whole"), steps("killed"), "every update is reported once");
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

    place.refuses(&train, 3, &["already holds a run"]);
    let text = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    place.write("history.jsonl", &text.replacen("what is 3", "what was 3", 1));
    place.refuses(&["train", "--resume", "run"], 3, &["r3", "Nothing was changed"]);
    assert_eq!(before, adapters(&place.path("run")));
}
