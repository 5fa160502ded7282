//! The memory that `train` plans against what the process takes, on SmolLM2-135M-Instruct. Runs where `SELFTUNE_MODEL`
//! names its GGUF file and the program is built for speed; says so where it does not run.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// (planned, measured) peak bytes of two updates on examples of `tokens` tokens.
fn train(model: &Path, tokens: usize, memory: Option<&str>) -> (u64, u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A text of more tokens than any length here, cut to the length by `tokens_max`.
    let words: Vec<String> = (0..6000).map(|index| format!("word{}", index * 7919 % 997)).collect();
    let records: Vec<String> =
        (0..3).map(|record| serde_json::json!({"text": format!("{record} {}", words.join(" "))}).to_string()).collect();
    let history = folder.path().join("history.jsonl");
    std::fs::write(&history, records.join("\n")).expect("a history");
    let run = folder.path().join("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_selftune"));
    command.args(["train", "--json", "--hold-out", "0", "--model"]).arg(model).arg("--data").arg(&history);
    command.arg("--output").arg(&run).args(["--set", "steps=2", "--set", "supervise=all", "--set", "targets=q,v"]);
    command.args(["--set", "validation_fraction=0", "--set", "accumulation=1"]);
    command.arg("--set").arg(format!("tokens_max={tokens}"));
    command.args(memory.map(|memory| ["--memory", memory]).into_iter().flatten());
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&std::fs::read(run.join("plan.json")).expect("a plan")).expect("JSON");
    assert_eq!(plan["tokens_longest_example"], tokens, "{plan}");
    let (steps, _) = train::read_metrics(&run.join("metrics.jsonl")).expect("metrics");
    let measured = steps.iter().filter_map(|step| step.peak_resident_bytes).max().expect("a measured peak");
    let planned = plan["memory_total_bytes"].as_u64().expect("a number");
    eprintln!("{tokens} tokens, {memory:?}: planned {planned}, measured {measured}, {}", plan["memory_choice"]);
    (planned, measured)
}

#[test]
fn real_model_memory_is_as_planned() {
    let Some(model) = std::env::var_os("SELFTUNE_MODEL").filter(|_| !cfg!(debug_assertions)) else {
        eprintln!("real_model_memory_is_as_planned did NOT run: it needs SELFTUNE_MODEL and a release build");
        return;
    };
    let model = Path::new(&model);
    // The first start may have to verify or pack the model, which takes memory of its own and is not planned.
    train(model, 32, None);
    let cases = [(32, None), (128, Some("290MB")), (512, None), (1024, Some("400MB")), (4096, Some("900MB"))];
    for (tokens, memory) in cases {
        let (planned, measured) = train(model, tokens, memory);
        assert!(measured <= planned, "{tokens} tokens took {measured} bytes, {planned} were planned");
        assert!(measured * 10 >= planned * 9, "{tokens} tokens took {measured} bytes, {planned} were planned");
    }
}
