//! ROUGE and stems against the rouge-score package (fixture written by `tools/reference`).

use eval::metrics::words::words;
use eval::metrics::{rouge_1, rouge_l};
use serde_json::Value;

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/rouge.json")).expect("the fixture is JSON")
}

#[test]
fn rouge_equals_the_rouge_score_package() {
    let fixture = fixture();
    let pairs = fixture["pairs"].as_array().unwrap();
    assert!(pairs.len() >= 40, "only {} pairs", pairs.len());
    for pair in pairs {
        let (target, prediction) = (pair["target"].as_str().unwrap(), pair["prediction"].as_str().unwrap());
        for (form, stem) in [("plain", false), ("stemmed", true)] {
            let expected = |metric: &str| pair[form][metric]["f1"].as_f64().unwrap();
            for (name, found, expected) in [
                ("ROUGE-1", rouge_1(target, prediction, stem), expected("rouge1")),
                ("ROUGE-L", rouge_l(target, prediction, stem), expected("rougeL")),
            ] {
                assert!(
                    (found - expected).abs() < 1e-12,
                    "{name} {form} of {target:?} and {prediction:?}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn stems_equal_the_packages_stemmer() {
    let fixture = fixture();
    let stems = fixture["stems"].as_object().unwrap();
    assert!(stems.len() >= 150, "only {} stems", stems.len());
    let wrong: Vec<(String, Vec<String>)> = stems
        .iter()
        .map(|(word, expected)| (expected.as_str().unwrap().to_string(), words(word, true)))
        .filter(|(expected, found)| found != std::slice::from_ref(expected))
        .collect();
    assert_eq!(wrong, []);
}
