//! The demo on SmolLM2-135M-Instruct. Runs where `SELFTUNE_MODEL` names its GGUF file inside of a `SELFTUNE_HOME`
//! (after `selftune pull smollm2-135m-instruct`), as continuous integration does; says so where it does not run.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn real_model_demo() {
    let Some(model) = std::env::var_os("SELFTUNE_MODEL") else {
        eprintln!("real_model_demo did NOT run: SELFTUNE_MODEL is not set");
        return;
    };
    let model = Path::new(&model);
    let home = model.ancestors().nth(3).expect("HOME/models/NAME/FILE");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(env!("CARGO_BIN_EXE_selftune"))
        .args(["demo", "--json"])
        .current_dir(folder.path())
        .env("SELFTUNE_HOME", home)
        // The model is there: no package client may be asked for it.
        .env("PATH", "")
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let demo: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let loss = |name: &str| {
        let arm = demo["arms"].as_array().and_then(|arms| arms.iter().find(|arm| arm["name"] == name));
        arm.and_then(|arm| arm["loss_per_answer_token"].as_f64()).unwrap_or_else(|| panic!("no arm {name} in {demo}"))
    };
    eprintln!(
        "demo in {} s: base {:.3}, adapter {:.3}, other {:.3}",
        demo["wall_s"],
        loss("base"),
        loss("adapter"),
        loss("other_adapter")
    );
    assert!(loss("adapter") <= loss("base") - 1.0, "the adapter must beat the base by a nat");
    assert!(loss("adapter") < loss("other_adapter"), "the adapter must beat another person's");
    let run = folder.path().join(demo["run_dir"].as_str().expect("a path"));
    let report = std::fs::read_to_string(run.join("report.html")).expect("a report");
    assert!(report.contains("<svg") && report.contains("</html>"));
    assert_eq!(demo["samples"].as_array().map(Vec::len), Some(3));
}
