//! Answers of every cache format, several to one prompt, and their benchmark.

use crate::tiny::Place;
use serde_json::Value;

#[test]
fn the_benchmark_of_generation_checks_its_answers() {
    let place = Place::new();
    let bench = ["bench", "generate", "--shape", "smollm2-135m", "--prompt-tokens", "70", "--tokens", "3"];
    let more = ["--cache", "f32,f16,8bit", "--candidates", "2", "--threads", "2", "--rounds", "1"];
    let result = place.json(&[&bench[..], &more].concat());
    let rows = result["rows"].as_array().expect("rows");
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
    assert_eq!(rows.iter().map(|row| row["cache"].as_str()).collect::<Vec<_>>(), ["f32", "f16", "8bit"].map(Some));
    // Two heads of 64 values, keys and values, in 30 blocks of three key/value heads; 73 tokens take two pages of 64,
    // the second answer two more.
    let value_bytes = (30 * 2 * 3 * 64 * 4 * 64) as f64;
    let scale_bytes = (30 * 2 * 3 * 4 * 64 * size_of::<f32>()) as f64;
    let positions_read = (70 + 2 * (72 - 70)) as f64 / (4 * 64) as f64;
    for (row, bytes) in rows.iter().zip([4.0, 2.0, 1.0]) {
        let expected = value_bytes * bytes + if bytes == 1.0 { scale_bytes } else { 0.0 };
        assert_eq!(of(row, "cache_bytes"), expected, "{row}");
        assert!((of(row, "cache_bytes_per_step") / (expected * positions_read) - 1.0).abs() < 1e-6, "{row}");
        for key in ["prefill_tokens_per_s", "prefill_fraction_of_products", "decode_tokens_per_s", "read_gbyte_per_s"] {
            assert!(of(row, key) > 0.0, "{key} of {row}");
        }
        assert!(of(row, "relative_error") <= of(row, "relative_error_max"), "{row}");
    }
    let errors = [0, 1, 2].map(|row| of(&rows[row], "relative_error"));
    assert!(errors[0] < errors[1] && errors[1] < errors[2], "{errors:?}");
    // Blocks and head, 4 bits a weight, a float16 scale and offset for 64 of them.
    let weights = 134.5e6 * (0.5 + 4.0 / 64.0);
    assert!((of(&rows[0], "weights_bytes_per_step") / weights - 1.0).abs() < 0.1, "{}", rows[0]);
    assert!(result["peak_bytes"].as_f64().is_none_or(|peak| peak > weights));

    for (arguments, word) in [
        (&["--shape", "smollm2-135m", "--prompt-tokens", "8192"], "8192"),
        (&["--shape", "smollm2-135m", "--cache", "f64"], "8bit"),
        (&["--shape", "smollm2-135m", "--tokens", "1"], "--tokens"),
        (&["--shape", "smollm2-135m", "--candidates", "0"], "--candidates"),
        (&["--shape", "smollm2-135m", "--threads", "0"], "--threads"),
        (&["--shape", "gpt", "--threads", "1"], "smollm3-3b"),
    ] {
        place.refuses(&[&["bench", "generate"], &arguments[..]].concat(), 2, &[word]);
    }
}

#[test]
fn several_answers_are_those_of_their_seeds() {
    let place = Place::new();
    let generate = ["generate", "--model", "model", "--max-tokens", "12", "--temperature", "1", "what is 3 and 4"];
    let answer = |more: &[&str]| place.json(&[&generate, more].concat());
    for format in ["f32", "f16", "8bit"] {
        let together = answer(&["--cache", format, "--seed", "5", "--candidates", "3"]);
        let candidates = together["candidates"].as_array().expect("candidates").clone();
        assert_eq!(candidates.len(), 3);
        assert_eq!(together["text"], candidates[0]["text"]);
        for (candidate, seed) in candidates.iter().zip(["5", "6", "7"]) {
            let alone = answer(&["--cache", format, "--seed", seed]);
            assert_eq!((&candidate["text"], &candidate["answer_tokens"]), (&alone["text"], &alone["answer_tokens"]));
        }
        assert!(candidates.iter().any(|candidate| *candidate != candidates[0]), "{candidates:?}");
    }
    let question = ["generate", "--model", "model", "hello", "--candidates"];
    place.refuses(&[&question[..], &["2"]].concat(), 2, &["--temperature"]);
    place.refuses(&[&question[..], &["0", "--temperature", "1"]].concat(), 2, &["--candidates"]);
    place.refuses(&["chat", "--model", "model", "--cache", "16"], 2, &["f16"]);
}
