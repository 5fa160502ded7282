//! Bad input is refused with a message that names it, an exit code that says whose fault it is, and nothing lost.

use crate::tiny::{Place, SHORT, records};

#[test]
fn models_that_are_none() {
    let place = Place::new();
    place.write("junk.gguf", "GGUF but not really");
    std::fs::create_dir(place.path("empty")).expect("a folder");
    place.refuses(&["inspect", "nowhere"], 3, &["nowhere", "no such file"]);
    place.refuses(&["inspect", "junk.gguf"], 3, &["junk.gguf"]);
    place.refuses(&["inspect", "empty"], 3, &["empty"]);
    place.refuses(&["train", "--model", "junk.gguf", "--data", "history.jsonl"], 3, &["junk.gguf"]);
    place.refuses(&["generate", "--model", "smollm2-135m-instruct", "hello"], 3, &["selftune pull"]);
    place.refuses(&["pull", "../x"], 3, &["no such path"]);
    assert!(!place.path("runs").exists());

    let config = std::fs::read_to_string(place.path("model/config.json")).expect("a configuration");
    let unknown = config.replace("LlamaForCausalLM", "OtherForCausalLM").replace("\"llama\"", "\"other\"");
    place.write("model/config.json", &unknown);
    place.refuses(&["generate", "--model", "model", "hello"], 3, &["other"]);
    place.write("model/config.json", &config.replace("\"hidden_size\": 128", "\"hidden_size\": 256"));
    place.refuses(&["generate", "--model", "model", "hello"], 3, &["embed_tokens", "[256, 128]"]);
    place.write("model/config.json", &config);
    std::fs::remove_file(place.path("model/tokenizer.json")).expect("removed");
    place.refuses(&["generate", "--model", "model", "hello"], 3, &["tokenizer"]);
}

#[test]
fn truncated_weights() {
    let place = Place::new();
    let path = place.path("model/model-00002-of-00003.safetensors");
    let bytes = std::fs::read(&path).expect("weights");
    for length in [0, 4, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).expect("written");
        place.refuses(&["generate", "--model", "model", "hello"], 3, &["model-00002-of-00003.safetensors"]);
    }
}

#[test]
fn histories_that_cannot_be_used() {
    let place = Place::new();
    let train =
        |data: &'static str| [&["train", "--model", "model", "--output", "run", "--data", data], SHORT].concat();
    place.refuses(&train("missing.jsonl"), 3, &["missing.jsonl"]);
    place.write("empty.jsonl", "");
    place.refuses(&train("empty.jsonl"), 3, &["empty.jsonl"]);
    place.write("broken.jsonl", &(records(3) + "{\"prompt\": \"a\", \n"));
    place.refuses(&train("broken.jsonl"), 3, &["broken.jsonl:4"]);
    place.write("answerless.jsonl", "{\"prompt\": \"a\", \"completion\": \"\"}\n");
    place.refuses(&train("answerless.jsonl"), 3, &["answerless.jsonl:1", "completion"]);
    // Longer than tokens_max, and longer than the model's context.
    place.write("long.jsonl", &format!("{{\"prompt\": \"a\", \"completion\": \"{}\"}}\n", "b".repeat(900)));
    place.refuses(&train("long.jsonl"), 3, &["long.jsonl:1"]);
    let without_limit = ["train", "--model", "model", "--output", "run", "--data", "long.jsonl"];
    place.refuses(&without_limit, 3, &["long.jsonl:1"]);
    place.write("people.jsonl", "{\"user\":\"a\",\"prompt\":\"x\",\"completion\":\"y\"}\n{\"user\":\"b\",\"prompt\":\"x\",\"completion\":\"y\"}\n");
    place.refuses(&train("people.jsonl"), 3, &["--user", "a (1)"]);
    assert!(!place.path("run").exists(), "nothing is begun with bad input");

    let skipped = place.json(&[&train("broken.jsonl")[..], &["--skip-bad-lines", "--hold-out", "0"]].concat());
    assert_eq!(
        skipped["data"]["left_out"][0]["place"].as_str().map(|text| text.ends_with("broken.jsonl:4")),
        Some(true)
    );
}

#[test]
fn settings_that_are_not_possible() {
    let place = Place::new();
    let with = |setting: &'static str| ["train", "--model", "model", "--data", "history.jsonl", "--set", setting];
    place.refuses(&with("learning_rte=1"), 3, &["learning_rte", "learning_rate"]);
    place.refuses(&with("rank=0"), 3, &["rank"]);
    place.refuses(&with("rank=many"), 3, &["rank"]);
    place.refuses(&with("targets=q,x"), 3, &["x"]);
    place.refuses(&with("adapted_blocks=9"), 3, &["adapted_blocks", "2"]);
    place.refuses(&with("tokens_max=0"), 3, &["tokens_max"]);
    place.write("settings.toml", "rank = 8\nranks = 9\n");
    place.refuses(
        &["train", "--model", "model", "--data", "history.jsonl", "-c", "settings.toml"],
        3,
        &["ranks", "rank"],
    );
    place.refuses(&["train", "--model", "model", "--data", "history.jsonl", "--hold-out", "1.5"], 2, &["--hold-out"]);
    for threads in ["0", "1025"] {
        let words = ["--threads", threads, "expected 1 to 1024"];
        place.refuses(&["train", "--model", "model", "--data", "history.jsonl", "--threads", threads], 2, &words);
        place.refuses(&["generate", "--model", "model", "hi", "--threads", threads], 2, &words);
    }
    place.refuses(&["generate", "--model", "model", "hi", "--context", "99999999"], 2, &["--context"]);
    place.refuses(&["train"], 2, &["--model"]);
    place.refuses(&["bench", "kernels", "--matrices", "10x10"], 2, &["group"]);
    place.refuses(&["bench", "kernels", "--shape", "smollm4"], 2, &["smollm3-3b"]);
    if cfg!(target_os = "linux") {
        let large = ["bench", "kernels", "--matrices", "1048576x1048576", "--tokens", "1"];
        place.refuses(&large, 2, &["1048576x1048576", "GB of memory", "are available"]);
        let stream = ["bench", "kernels", "--matrices", "64x64", "--tokens", "1", "--stream-mb", "1048576"];
        place.refuses(&stream, 2, &["--stream-mb 1048576 takes", "GB of memory", "are available"]);
    }
}

#[test]
fn adapters_for_another_base_and_folders_of_others() {
    let place = Place::new();
    place.json(&[&["train", "--model", "model", "--data", "history.jsonl", "--output", "run"], SHORT].concat());
    // The same architecture with other weights is another base.
    let path = place.path("model/model-00001-of-00003.safetensors");
    let mut bytes = std::fs::read(&path).expect("weights");
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    place.refuses(&["generate", "--run", "run", "hello"], 3, &["adapter"]);
    place.refuses(&["train", "--resume", "run"], 3, &["base"]);

    std::fs::create_dir(place.path("mine")).expect("a folder");
    place.write("mine/letter.txt", "dear");
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output", "mine"];
    place.refuses(&[&train, SHORT].concat(), 2, &["mine", "nothing in it was touched"]);
    assert_eq!(std::fs::read_to_string(place.path("mine/letter.txt")).expect("the letter"), "dear");
    place.refuses(&["eval", "--run", "mine"], 3, &["not a run folder"]);
}

#[test]
fn numbers_that_leave_nothing() {
    let place = Place::new();
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output", "run", "--hold-out"];
    place.refuses(&[&train[..], &["40"]].concat(), 3, &["leaves none to train on"]);
    place.refuses(&[&train[..], &["0.95"]].concat(), 2, &["0.9"]);
    for (option, value) in [("--temperature", "nan"), ("--top-p", "2"), ("--max-tokens", "0"), ("--retrieve", "9")] {
        place.refuses(&["generate", "--model", "model", "hi", option, value], 2, &[option]);
    }
    place.refuses(&["pull", "smollm2-135m-instruct", "--sha256", "beef"], 2, &["64 hexadecimal"]);
    place.refuses(&["pull", "smollm2-135m-instruct", "--sha256", &"0".repeat(64)], 3, &["SHA-256"]);
    assert!(place.run(&["generate", "--model", "model", "hi", "--context", "64"]).status.success());
    assert!(place.run(&["train", "--settings"]).status.success());
}

/// Like errors of all commands give like codes: input that is missing or another thing 3, an output that is there 2, one
/// that cannot be made 1.
#[test]
fn exit_codes_depend_on_the_error_and_not_on_the_command() {
    let place = Place::new();
    place.json(&[&["train", "--model", "model", "--data", "history.jsonl", "--output", "run"], SHORT].concat());
    place.write("diary.csv", "text,day\nrain,2024-05-01\n");
    std::fs::create_dir(place.path("empty")).expect("a folder");
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output", "new"];
    for missing in ["nowhere", "empty"] {
        let commands: [Vec<&str>; 20] = [
            vec!["train", "--model", missing, "--data", "history.jsonl"],
            vec!["train", "--model", "model", "--data", missing],
            [&train[..], &["--config", missing]].concat(),
            [&train[..], &["--on", missing]].concat(),
            [&train[..], &["--from", missing]].concat(),
            vec!["train", "--resume", missing],
            vec!["plan", "--model", "model", "--data", missing],
            vec!["eval", "--run", missing],
            vec!["eval", "--model", "model", "--data", "history.jsonl", "--adapter", missing],
            vec!["eval", "--run", "run", "--other-run", missing],
            vec!["generate", "--run", missing, "hello"],
            vec!["generate", "--model", "model", "--adapter", missing, "hello"],
            vec!["generate", "--model", "model", "--record", missing],
            vec!["export", "--adapter", missing, "--to", "peft", "--out", "new"],
            vec!["merge", "--model", "model", "--adapter", missing, "--out", "new"],
            vec!["inspect", missing],
            vec!["status", missing],
            vec!["forget", "--record", "r3", "--history", missing, "--runs", "."],
            vec!["import", "csv", missing, "--output", "new"],
            vec!["study", missing, "--out", "new"],
        ];
        for command in commands {
            place.refuses(&command, 3, &[missing]);
        }
        assert!(!place.path("new").exists());
    }
    place.refuses(&["runs", "nowhere"], 3, &["nowhere"]);
    place.refuses(&["forget", "--record", "r3", "--runs", "nowhere"], 3, &["nowhere"]);

    let export = ["export", "--adapter", "run/adapter/best", "--to", "peft", "--out"];
    let merge = ["merge", "--model", "model", "--adapter", "run/adapter/best", "--out"];
    let import = ["import", "csv", "diary.csv", "--output"];
    let eval = ["eval", "--run", "run", "--no-generate", "--queries", "1", "--report"];
    let out = |command: &[&'static str], to: &'static str| [command, &[to]].concat();
    for there in [
        out(&["train", "--model", "model", "--data", "history.jsonl", "--output"], "run"),
        out(&export, "run"),
        out(&merge, "run"),
        out(&import, "diary.csv"),
        out(&eval, "run"),
    ] {
        place.refuses(&there, 2, &[there.last().expect("an output")]);
    }
    // Below a file nothing can be made, whoever asks.
    const BELOW: &str = "history.jsonl/x";
    for impossible in [
        out(&["train", "--model", "model", "--data", "history.jsonl", "--output"], BELOW),
        out(&export, BELOW),
        out(&merge, BELOW),
        out(&import, BELOW),
        out(&eval, BELOW),
    ] {
        place.refuses(&impossible, 1, &["history.jsonl"]);
    }
    assert!(!place.path("new").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let output = place.command(&["inspect", "model"]).stdout(full()).output().expect("it starts");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("standard output") && !message.contains("panicked"), "{message}");
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output", "run"];
    let status = place.command(&[&train, SHORT].concat()).stderr(full()).stdout(full()).status().expect("it starts");
    assert_eq!(status.code(), Some(1));
    assert!(place.path("run/adapter/best/adapter_model.safetensors").is_file(), "training went on");
}

#[cfg(unix)]
#[test]
fn paths_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    place.json(
        &[&["train", "--model", "model", "--data", "history.jsonl", "--output", "runs/a", "--no-accept"], SHORT]
            .concat(),
    );
    let name = std::ffi::OsStr::from_bytes(b"runs/\xff\xfe");
    std::fs::rename(place.path("runs/a"), place.path("").join(name)).expect("renamed");
    for json in [&[][..], &["--json"]] {
        assert!(place.run(&[&["runs"], json].concat()).status.success());
        for command in ["status", "inspect"] {
            let output = place.command(&[command]).arg(name).args(json).output().expect("it starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains("runs/\u{fffd}"), "{command}: {text}");
        }
    }
    let listed = place.json(&["runs"]);
    assert_eq!(listed["runs"][0]["run"]["status"], "finished");

    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output"];
    let output = place.command(&train).arg(std::ffi::OsStr::from_bytes(b"new\xff")).output().expect("it starts");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("not UTF-8"), "{message}");
    let resumed = place.command(&["train", "--resume"]).arg(name).output().expect("it starts");
    assert_eq!(resumed.status.code(), Some(2));
}

/// Each of these would wait for a writer for ever.
#[cfg(unix)]
#[test]
fn pipes_in_the_place_of_files() {
    let place = Place::new();
    place.json(
        &[&["train", "--model", "model", "--data", "history.jsonl", "--output", "run", "--no-accept"], SHORT].concat(),
    );
    let pipe = |name: &str| {
        let path = place.path(name);
        let _ = std::fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    };
    for file in ["adapter_config.json", "selftune.json"] {
        let kept = std::fs::read(place.path("run/adapter/best").join(file)).expect("an adapter");
        pipe(&format!("run/adapter/best/{file}"));
        let output = place.run(&["generate", "--model", "model", "--adapter", "run/adapter/best", "hello"]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        // What is only a copy for people is not needed.
        if file == "adapter_config.json" {
            assert_eq!(output.status.code(), Some(3), "{message}");
            assert!(message.contains("no ordinary file"), "{message}");
        }
        std::fs::remove_file(place.path("run/adapter/best").join(file)).expect("removed");
        std::fs::write(place.path("run/adapter/best").join(file), kept).expect("restored");
    }
    place.write("run/plan.json", "{");
    place.refuses(&["train", "--resume", "run"], 3, &["plan.json"]);
    pipe("run/plan.json");
    place.refuses(&["train", "--resume", "run"], 3, &["plan.json", "no ordinary file"]);
    for state in std::fs::read_dir(place.path("run/state")).expect("states").flatten() {
        pipe(&format!("run/state/{}", state.file_name().to_string_lossy()));
    }
    std::fs::remove_file(place.path("run/plan.json")).expect("removed");
    place.refuses(&["inspect", "run"], 3, &["no ordinary file"]);
    place.refuses(&["train", "--resume", "run"], 3, &["no ordinary file"]);
}

#[test]
fn a_file_in_the_place_of_tensorboards_folder() {
    let place = Place::new();
    place.write("file", "content");
    for folder in ["file", "file/below"] {
        let train = ["train", "--model", "nowhere", "--data", "history.jsonl", "--tensorboard", folder];
        place.refuses(&train, 2, &["--tensorboard", "file is no folder"]);
    }
}
