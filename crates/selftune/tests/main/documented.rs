//! `docs/json.md` and the objects that the commands print say the same.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/json.md");

/// Below these keys stands what has a page or a form of its own: settings, Hugging Face's names, people's names.
const FREE: [&str; 6] = ["config", "settings", "inputs", "predictions", "data", "user"];

/// Every word that the page sets as code.
fn documented() -> BTreeSet<&'static str> {
    let marked = PAGE.split('`').skip(1).step_by(2);
    let blocks = PAGE.lines().filter(|line| line.starts_with("    "));
    let words =
        marked.chain(blocks).flat_map(|text| text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c))));
    // Not options (`--rows`), nor beginnings of names (`scored_`).
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.ends_with('_')).collect()
}

/// Panics if the page does not name a key of an object that a command printed.
pub fn check(command: &str, value: &Value) {
    let mut unknown = Vec::new();
    collect(value, &documented(), &mut unknown);
    assert!(unknown.is_empty(), "docs/json.md does not name {unknown:?}, which {command} prints");
}

fn collect(value: &Value, known: &BTreeSet<&str>, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if !known.contains(key.as_str()) && !unknown.contains(key) {
                    unknown.push(key.clone());
                }
                if !FREE.contains(&key.as_str()) {
                    collect(value, known, unknown);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, known, unknown)),
        _ => {}
    }
}

/// The source files of these crates below `folder` of each.
fn sources(crates: &[&str], folder: &str) -> String {
    fn read(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
            let path = entry.path();
            if path.is_dir() {
                read(&path, text);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                text.push_str(&std::fs::read_to_string(&path).expect("UTF-8"));
            }
        }
    }
    let mut text = String::new();
    for name in crates {
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join(folder), &mut text);
    }
    text
}

/// The tests that the page of faults names are there.
#[test]
fn every_fault_is_shown_by_a_test_that_exists() {
    let page = include_str!("../../../../docs/field-faults.md");
    let mut tests = 0;
    for name in page.split('`').skip(1).step_by(2).filter(|name| name.contains("::")) {
        let (of, test) = name.split_once("::").expect("a crate and a test");
        assert!(sources(&[of], "").contains(&format!("fn {test}() {{")), "docs/field-faults.md names {name}");
        tests += 1;
    }
    assert!(tests > 80, "{tests} tests are named");
}

/// The other way round: no word of the page that looks like a key is unknown to the program.
#[test]
fn no_key_is_documented_that_the_program_does_not_know() {
    let source = sources(&["selftune", "eval", "train", "data", "device", "formats", "model", "kernels"], "src");
    let words: BTreeSet<&str> = source.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let is_key = |word: &str| source.contains(&format!("\"{word}\"")) || source.contains(&format!(" {word}:"));
    // Variants of enums are written in the one case and printed in the other.
    let is_variant = |word: &str| {
        let capital = |part: &str| part[..1].to_ascii_uppercase() + &part[1..];
        words.contains(word.split('_').filter(|part| !part.is_empty()).map(capital).collect::<String>().as_str())
    };
    let unknown: Vec<&str> = documented().into_iter().filter(|word| !is_key(word) && !is_variant(word)).collect();
    assert!(unknown.is_empty(), "docs/json.md names {unknown:?}, which no source file has as a key");
}
