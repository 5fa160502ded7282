//! Merging adapters into models, and exporting them for other programs.

use crate::tiny::{Place, SHORT};
use serde_json::Value;

/// A place with a float model and an adapter that has learned a lot on it.
fn trained(place: &Place, model: &str, output: &str, settings: &[&str]) {
    let train = ["train", "--model", model, "--data", "history.jsonl", "--output", output, "--hold-out", "0.2"];
    place.json(&[&train, SHORT, settings].concat());
}

fn notes(place: &Place, folder: &str) -> Value {
    let text = std::fs::read_to_string(place.path(folder).join("selftune.json")).expect("notes");
    serde_json::from_str(&text).expect("JSON")
}

fn loss(measurement: &Value, which: &str) -> f64 {
    measurement[which].as_f64().unwrap_or_else(|| panic!("{which} of {measurement}"))
}

fn no_unfinished_folder(place: &Place) {
    for entry in std::fs::read_dir(place.path(".")).expect("the place").flatten() {
        assert!(!entry.file_name().to_string_lossy().ends_with(".partial"), "{:?} was left", entry.file_name());
    }
}

const ADAPTER: &str = "run/adapter/best";
const MEASURED: [&str; 4] = ["--history", "history.jsonl", "--hold-out", "0.2"];

#[test]
fn a_merge_into_float_keeps_the_gain_and_the_model_stays_a_model() {
    let place = Place::new();
    trained(&place, "model", "run", &["--set", "passes=4", "--set", "learning_rate=0.01"]);
    let merge = ["merge", "--model", "model", "--adapter", ADAPTER];
    let outcome = place.json(&[&merge[..], &["--out", "eight", "--bits", "8"], &MEASURED].concat());
    let measured = &outcome["measurement"];
    assert_eq!(
        (&measured["records"], &outcome["quantized"], &outcome["forced"]),
        (&8.into(), &true.into(), &false.into())
    );
    assert!(loss(measured, "base_loss") - loss(measured, "adapter_loss") > 0.5, "{measured}");
    assert!((loss(measured, "merged_loss") / loss(measured, "adapter_loss") - 1.0).abs() < 0.02, "{measured}");
    // The same records in the same way as `eval`.
    let eval = ["eval", "--model", "model", "--adapter", ADAPTER, "--data", "history.jsonl", "--hold-out", "0.2"];
    let evaluation = place.json(&[&eval[..], &["--no-generate", "--quantize-bits", "8"]].concat());
    for (arm, which) in [(0, "base_loss"), (2, "adapter_loss")] {
        let expected = evaluation["arms"][arm]["loss_per_answer_token"].as_f64().expect("a loss");
        assert!((loss(measured, which) / expected - 1.0).abs() < 0.02, "{which}: {measured} for {expected}");
    }
    assert_eq!(place.json(&["inspect", "eight"])["model"]["kind"], "MLX folder");
    let metadata = notes(&place, "eight");
    assert_eq!(metadata["adapters"][0]["name"], "run");
    assert!(metadata["base_content_hash"].is_string() && metadata["measurement"]["records"] == 8);

    place.json(&[&merge[..], &["--out", "float"]].concat());
    assert_eq!(place.json(&["inspect", "float"])["model"]["kind"], "Hugging Face folder");
    // Another adapter is trained on the merged model as on any.
    trained(&place, "float", "second", &[]);
    place.refuses(
        &["generate", "--model", "model", "--adapter", "second/adapter/best", "x"],
        3,
        &["another base model"],
    );

    // Nothing is overwritten, and nothing unfinished stays.
    place.refuses(&[&merge[..], &["--out", "float"]].concat(), 2, &["float", "not overwritten"]);
    place.refuses(&[&merge[..], &["--out", "new", "--bits", "5"]].concat(), 2, &["5"]);
    place.refuses(
        &[&merge[..], &["--out", "new", "--bits", "4", "--group-size", "48"]].concat(),
        3,
        &["group size 48"],
    );
    place.refuses(&["merge", "--model", "model", "--adapter", "run", "--out", "new"], 3, &["no adapter"]);
    assert!(!place.path("new").exists());
    no_unfinished_folder(&place);
}

#[test]
fn a_small_gain_that_vanishes_in_the_steps_of_a_quantized_base_is_refused() {
    let place = Place::new();
    trained(&place, "model", "run", &["--set", "learning_rate=0.0001"]);
    place.json(&["merge", "--model", "model", "--adapter", ADAPTER, "--out", "four", "--bits", "4"]);
    // Hardly a weight leaves its step of four bits, and yet the loss falls.
    trained(&place, "four", "small", &[]);
    let merge = ["merge", "--model", "four", "--adapter", "small/adapter/best", "--out", "both"];
    place.refuses(&merge, 3, &["quantized already", "--history"]);
    let words = ["not merged", "8 held-out records", "of the gain is lost", "at most 10 %"];
    place.refuses(&[&merge[..], &MEASURED].concat(), 3, &words);
    assert!(!place.path("both").exists());
    no_unfinished_folder(&place);

    let forced = place.json(&[&merge[..], &MEASURED, &["--force"]].concat());
    assert_eq!(forced["forced"], true);
    let metadata = notes(&place, "both");
    assert_eq!(metadata["forced"], true);
    let measured = &metadata["measurement"];
    assert!(loss(measured, "adapter_loss") < loss(measured, "base_loss"), "{measured}");
    assert!(loss(measured, "loss_of_gain") > 0.5, "{measured}");

    // In finer steps it does not vanish.
    let finer = ["merge", "--model", "four", "--adapter", "small/adapter/best", "--out", "finer", "--bits", "8"];
    let kept = place.json(&[&finer[..], &["--group-size", "32"], &MEASURED].concat());
    assert!(loss(&kept["measurement"], "loss_of_gain") < 0.1, "{kept}");

    // A file for other programs says the same of its base.
    let export = ["export", "--model", "model", "--adapter", "small/adapter/best", "--to", "mlx", "--out", "elsewhere"];
    place.refuses(&export, 3, &["trained on other files", "--other-base"]);
    assert!(!place.path("elsewhere").exists());
    place.json(&[&export[..], &["--other-base"]].concat());
    place.json(&["generate", "--model", "model", "--adapter", "elsewhere", "x", "--max-tokens", "2"]);

    // The float original is another base, which has to be said.
    let other = ["merge", "--model", "model", "--adapter", "small/adapter/best", "--out", "other"];
    place.refuses(&other, 3, &["trained on other files", "--other-base"]);
    place.json(&[&other[..], &["--other-base"]].concat());
}

#[test]
fn exported_adapters_compute_the_same_and_a_stack_becomes_one() {
    let place = Place::new();
    trained(&place, "model", "task", &["--set", "rank=4"]);
    let on =
        ["--on", "task/adapter/best", "--set", "targets=q,v,down", "--set", "learning_rate=0.01", "--set", "seed=7"];
    trained(&place, "model", "run", &on);
    let (task, user) = ("task/adapter/best", ADAPTER);
    let losses = |adapters: &[&str]| {
        let eval = [
            "eval",
            "--model",
            "model",
            "--data",
            "history.jsonl",
            "--hold-out",
            "0.2",
            "--no-generate",
            "--arms",
            "adapter",
        ];
        let evaluation = place.json(&[&eval[..], adapters].concat());
        evaluation["arms"][0]["loss_per_answer_token"].as_f64().expect("a loss")
    };
    let expected = losses(&["--adapter", task, "--adapter", user]);
    for (to, out) in [("peft", "as-peft"), ("mlx", "as-mlx")] {
        let export = ["export", "--adapter", task, "--adapter", user, "--model", "model", "--to", to, "--out", out];
        let outcome = place.json(&export);
        assert_eq!((&outcome["rank"], &outcome["scale"]), (&12.into(), &1.0.into()));
        let found = losses(&["--adapter", out]);
        assert!((found / expected - 1.0).abs() < 1e-5, "{to}: {found} for {expected}");
        place.refuses(&export, 2, &[out, "not overwritten"]);
    }
    let alone = losses(&["--adapter", task]);
    assert!((alone / expected - 1.0).abs() > 1e-3, "the upper adapter changes nothing: {alone} and {expected}");
    place.json(&["export", "--adapter", task, "--to", "peft", "--out", "task-peft"]);
    assert_eq!(losses(&["--adapter", "task-peft"]), alone);

    place.json(&[
        "export",
        "--adapter",
        task,
        "--adapter",
        user,
        "--model",
        "model",
        "--to",
        "gguf",
        "--out",
        "both.gguf",
    ]);
    let bytes = std::fs::read(place.path("both.gguf")).expect("a file");
    assert!(bytes.starts_with(b"GGUF"));
    let names = String::from_utf8_lossy(&bytes);
    assert!(names.contains("blk.1.ffn_down.weight.lora_b") && names.contains("adapter.lora.alpha"));

    // What was trained on top of another is nothing without it, in any format.
    for to in ["peft", "merged"] {
        let export = ["export", "--adapter", user, "--model", "model", "--to", to, "--out", "alone"];
        place.refuses(&export, 3, &["on top of task"]);
    }
    place.refuses(&["export", "--adapter", task, "--to", "gguf", "--out", "x.gguf"], 2, &["--model"]);
    let merged =
        ["export", "--adapter", task, "--adapter", user, "--model", "model", "--to", "merged", "--out", "whole"];
    assert_eq!(place.json(&merged)["adapters"].as_array().map(Vec::len), Some(2));
    no_unfinished_folder(&place);

    // The newest records are held out; whatever was made of the adapters tells what they saw.
    for made in [task, "task-peft", "as-peft", "as-mlx", "both.gguf", "whole"] {
        let saw = |record: &str| place.json(&["inspect", made, "--saw", record])["saw"].clone();
        assert_eq!((saw("r0"), saw("r39")), (true.into(), false.into()), "{made}");
    }
}
