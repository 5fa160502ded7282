//! A tiny random model with a byte-level tokenizer, a history, and a way to run the program on them.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with a model (`model/`), a history (`history.jsonl`) and a home of its own.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
        let model = folder.path().join("model");
        std::fs::create_dir(&model).expect("a folder");
        for source in ["smollm2/hf", "tokenizer"] {
            for entry in std::fs::read_dir(fixtures.join(source)).expect("fixtures are in the repository").flatten() {
                std::fs::copy(entry.path(), model.join(entry.file_name())).expect("copied");
            }
        }
        let place = Self { folder };
        place.write("history.jsonl", &records(40));
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// The program with its arguments, in this folder and with a home in it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selftune"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("SELFTUNE_HOME", self.path("home"))
            .env("NO_COLOR", "1");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    /// Runs with `--json`; the program must succeed and print one JSON object, whose keys are documented.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?} ended with {:?}: {errors}", output.status.code());
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error} in {text}"));
        crate::documented::check(arguments[0], &value);
        value
    }

    /// Runs and expects this exit code and these words in the message.
    pub fn refuses(&self, arguments: &[&str], code: i32, words: &[&str]) {
        let output = self.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?} should say {word:?}: {message}");
        }
    }
}

/// Prompt and completion records, oldest first.
pub fn records(count: usize) -> String {
    let record = |index: usize| {
        let prompt = format!("what is {index} and {}", index * 7 % 11);
        serde_json::json!({"id": format!("r{index}"), "prompt": prompt, "completion": format!("sum {}", index + index * 7 % 11)})
            .to_string()
            + "\n"
    };
    (0..count).map(record).collect()
}

/// Settings that make a run on the tiny model short.
pub const SHORT: &[&str] = &["--set", "passes=1", "--set", "tokens_max=200"];
