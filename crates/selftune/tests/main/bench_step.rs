//! `bench step`: its keys, its check, two settings and two programs in turns.

use crate::tiny::Place;

const SHORT: [&str; 10] =
    ["bench", "step", "--shape", "smollm2-135m", "--model-blocks", "2", "--tokens", "12", "--steps", "1"];

fn step(more: &[&str]) -> serde_json::Value {
    Place::new().json(&[&SHORT, more].concat())
}

#[test]
fn a_step_is_timed_counted_and_checked() {
    let result = step(&["--threads", "2"]);
    let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key} of {result}"));
    let phases = ["forward_s", "head_s", "recompute_s", "backward_s", "optimizer_s"];
    let sum: f64 = phases.iter().map(|key| number(key)).sum();
    assert!(sum > 0.0 && sum <= 1.001 * number("step_s") && sum > 0.5 * number("step_s"), "{sum} of {result}");
    for key in ["products_s", "batch_s", "plan_s", "tokens_per_s", "fraction", "macs", "planned_peak_bytes"] {
        assert!(number(key) > 0.0, "{key}");
    }
    assert!(number("macs") < number("macs_full"));
    // What programs were promised at the top.
    let promised = [
        "step_s",
        "forward_s",
        "recompute_s",
        "backward_s",
        "optimizer_s",
        "products_s",
        "tokens_per_s",
        "macs",
        "macs_full",
        "peak_bytes",
        "planned_peak_bytes",
        "kernels",
    ];
    for key in promised {
        assert!(result.get(key).is_some(), "{key} of {result}");
    }
    assert!(result["check"]["loss_error"].as_f64() <= result["check"]["loss_error_max"].as_f64(), "{result}");
    let shares: f64 = ["frozen", "head", "adapter", "attention", "others"]
        .iter()
        .map(|kind| result["shares"][kind].as_f64().expect("a share"))
        .sum();
    assert!((shares - 1.0).abs() < 1e-9, "{result}");
    let kernels = result["kernels"].as_array().expect("kernels");
    assert!(kernels.iter().any(|name| name.as_str().is_some_and(|name| name.contains("input_grad"))), "{result}");
    if cfg!(target_os = "linux") {
        assert!(number("peak_anonymous_bytes") + number("peak_mapped_bytes") >= number("peak_bytes"));
        assert!(number("peak_bytes") <= number("planned_peak_bytes"), "{result}");
        let over_plan = number("peak_bytes") / number("planned_peak_bytes");
        assert!((number("peak_over_plan") - over_plan).abs() < 1e-9 && over_plan > 0.9, "{result}");
    }
    assert!(result["against"].is_null());
}

#[test]
fn settings_run_in_turns() {
    let plain = step(&["--recompute", "per-block", "--against", "recompute=never", "--no-check"]);
    assert_eq!(plain["against"]["losses_equal"], true, "what is kept changes no loss");
    assert!(plain["against"]["ratio"].as_f64() > Some(0.0) && plain["check"].is_null(), "{plain}");

    // Everything again and nothing left out: what `macs_full` counts.
    let everything = ["--supervised", "4", "--blocks", "1", "--recompute", "per-block", "--skip", "off", "--no-check"];
    let savings = step(&everything);
    assert_eq!(savings["macs"], savings["macs_full"]);
    let saved = step(&["--supervised", "4", "--blocks", "1", "--no-check"]);
    assert_eq!(saved["macs_full"], savings["macs_full"]);
    assert!(saved["macs"].as_u64() < savings["macs"].as_u64(), "{saved}");

    let half = step(&["--blocks", "1", "--passes", "3", "--against", "targets=all", "--against", "rank=2"]);
    assert!(half["against"]["losses_equal"].is_null(), "other adapters have other losses: {half}");
    assert!(half["macs"].as_u64() < step(&["--blocks", "1", "--no-check"])["macs"].as_u64(), "kept prefix: {half}");
}

#[test]
fn another_build_runs_in_turns() {
    let itself = env!("CARGO_BIN_EXE_selftune");
    let result = step(&["--rank", "4", "--against-binary", itself, "--no-check"]);
    assert_eq!(result["against"]["losses_equal"], true, "{result}");
    assert_eq!(result["against"]["settings"][0], itself);
}

#[test]
fn what_cannot_run_is_refused_before_weights_are_made() {
    let place = Place::new();
    // Weights of the largest shape would take minutes, and there is no folder for them.
    let large = ["bench", "step", "--shape", "qwen3-8b", "--tokens", "12"];
    let refuses = |more: &[&str], code, words: &[&str]| {
        let mut command = place.command(&[&large, more].concat());
        let output = command.env("TMPDIR", place.path("nowhere")).output().expect("it starts");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{more:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{more:?} should say {word:?}: {message}");
        }
    };
    refuses(&["--against", "colour=red"], 2, &["colour", "targets"]);
    refuses(&["--against", "rank"], 2, &["KEY=VALUE"]);
    refuses(&["--rank", "0"], 2, &["--rank=0", "1 to 1024"]);
    refuses(&["--rank", "-5"], 2, &["--rank=-5", "1 to 1024"]);
    refuses(&["--against", "rank=0"], 2, &["--against rank=0", "1 to 1024"]);
    refuses(&["--threads", "9999"], 2, &["--threads=9999"]);
    refuses(&["--targets", "q,q"], 2, &["--targets=q,q", "each once"]);
    refuses(&["--targets", "q,x"], 2, &["--targets=q,x", "gate, up, down"]);
    refuses(&["--against", "targets=v,v_proj"], 2, &["--against targets=v,v_proj", "each once"]);
    refuses(&["--supervised", "13"], 2, &["--supervised=13", "12 tokens"]);
    refuses(&["--supervised", "10", "--against", "tokens=9"], 2, &["--against supervised=10", "9 tokens"]);
    refuses(&["--blocks", "37"], 2, &["--blocks=37", "the model has 36"]);
    refuses(&["--against", "blocks=37"], 2, &["--against blocks=37", "the model has 36"]);
    refuses(&["--model-blocks", "37"], 2, &["1 to 36"]);
    refuses(&["--against", "tokens=99999"], 3, &["--against", "40960"]);
    refuses(&["--memory", "1MB"], 3, &["1 MB"]);
    refuses(&["--against", "memory=1MB"], 3, &["--against", "1 MB"]);
    // A limit above what the machine has is none; what follows takes about half a terabyte.
    let limits: &[&str] = if has_very_much_memory() { &[] } else { &["any", "900000GB"] };
    for limit in limits {
        let large =
            ["--tokens", "40960", "--targets", "all", "--recompute", "never", "--precision", "exact", "--skip", "off"];
        let mut command = place.command(&["bench", "step", "--shape", "qwen3-8b", "--memory", limit]);
        let output = command.args(large).env("TMPDIR", place.path("nowhere")).output().expect("it starts");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(3) && message.contains("no plan fits"), "{limit}: {message}");
    }
    refuses(&["--against-binary", "no-such-program"], 3, &["cannot start no-such-program"]);
    refuses(&["--against-binary", "/"], 3, &["cannot start /"]);
    refuses(&["--against-binary", "/bin/true"], 1, &["/bin/true", "bench step --serve"]);
    // The weights themselves, which the others do not come to.
    refuses(&["--model-blocks", "1"], 1, &["nowhere"]);
}

/// Whether what is too much for other machines would run on this one, for hours: it is not asked for there.
fn has_very_much_memory() -> bool {
    let much = device::available_memory_bytes().is_some_and(|bytes| bytes > 300_000_000_000);
    if much {
        println!("not tried: what takes all memory of smaller machines");
    }
    much
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_left_of_a_killed_bench() {
    let place = Place::new();
    let folder = place.path("temporary");
    std::fs::create_dir(&folder).expect("a folder");
    let arguments = ["bench", "step", "--shape", "smollm2-135m", "--serve"];
    let mut command = place.command(&arguments);
    let mut child = command.env("TMPDIR", &folder).stdin(std::process::Stdio::piped()).spawn().expect("it starts");
    // Until it writes weights.
    let opened = format!("/proc/{}/fd", child.id());
    let has_file = || {
        let files = std::fs::read_dir(&opened).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|file| file.starts_with(&folder))
    };
    while !has_file() {
        assert!(child.try_wait().expect("its state").is_none(), "it ended without weights");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 0);
}

#[test]
fn answers_that_no_memory_holds_are_refused_before_weights_are_made() {
    let most = [
        "--prompt-tokens",
        "30000",
        "--tokens",
        "10000",
        "--candidates",
        "256",
        "--cache",
        "f32,f32,f32,f32,f32,f32,f32,f32",
    ];
    let generate = ["bench", "generate", "--shape", "qwen3-8b"];
    if !has_very_much_memory() {
        Place::new().refuses(
            &[&generate[..], &most].concat(),
            2,
            &["--candidates 256 takes", "are available: expected"],
        );
    }
}
