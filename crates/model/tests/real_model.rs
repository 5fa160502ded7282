//! SmolLM2-135M-Instruct against transformers. Runs where `SELFTUNE_MODEL` names its Q4_1 GGUF file; without it the
//! test says that it was left out.

use std::path::Path;
use std::sync::Arc;

use formats::LoadOptions;
use kernels::{OpsOptions, Precision};
use model::{Generator, GeneratorOptions, Model, SamplingOptions};
use serde_json::Value;

use crate::oracle::{fixtures, numbers, read_json};

/// Logits of two float32 programs differ by about 1e-4 of 30; where the best two are closer, either may win.
const TIE: f64 = 2e-3;

fn token_list(value: &Value) -> Vec<u32> {
    numbers(value, |token| token.as_u64().map(|token| token as u32))
}

fn generator(precision: Precision) -> Option<Generator> {
    let Ok(path) = std::env::var("SELFTUNE_MODEL") else {
        eprintln!("left out: SELFTUNE_MODEL does not name the model file");
        return None;
    };
    let loaded = formats::load_model(Path::new(&path), &LoadOptions::default(), &mut |_| {}).expect("the model loads");
    let model = Arc::new(Model::from_loaded(loaded).expect("a complete model"));
    assert_eq!(model.parameter_count(), 134_515_008);
    let ops = OpsOptions { precision, ..OpsOptions::default() };
    Some(Generator::new(model, None, GeneratorOptions::new(ops, 512)).expect("a generator"))
}

#[test]
fn greedy_continuations_equal_those_of_transformers() {
    let Some(mut generator) = generator(Precision::Exact) else { return };
    let oracle = read_json(&fixtures().join("smollm2_continuation.json"));
    for case in oracle["continuations"].as_array().expect("a list") {
        let (prompt, expected) = (token_list(&case["prompt"]), token_list(&case["continuation"]));
        let margins = numbers(&case["margins"], Value::as_f64);
        assert_eq!(expected.len(), 64);
        assert!(margins.iter().all(|margin| *margin > TIE), "the oracle itself is undecided");
        let sampling = SamplingOptions { tokens_max: expected.len(), ..SamplingOptions::default() };
        let found = generator.generate(&prompt, &sampling, &mut |_| true).expect("a text");
        assert_eq!(found, expected, "{}", case["messages"]);
        // And in one pass: each token is the most likely one behind those before it.
        let whole: Vec<u32> = prompt.iter().chain(&expected).copied().collect();
        let top = numbers(&case["top_logits"], Value::as_f64);
        for (index, top) in top.iter().enumerate().step_by(9) {
            let logits = generator.logits(&whole[..prompt.len() + index]).expect("logits");
            let found = f64::from(logits[expected[index] as usize]);
            assert!((found - top).abs() < 1e-3 * top.abs(), "logit {index} is {found} for {top}");
        }
    }
}

#[test]
fn token_losses_equal_those_of_transformers() {
    for (precision, bound) in [(Precision::Exact, 1e-4), (Precision::A16, 5e-3)] {
        let Some(mut generator) = generator(precision) else { return };
        let oracle = read_json(&fixtures().join("smollm2_continuation.json"));
        for case in oracle["losses"].as_array().expect("a list") {
            let mask = numbers(&case["loss_mask"], Value::as_bool);
            let token_losses = numbers(&case["token_losses"], Value::as_f64);
            let expected: Vec<f64> =
                token_losses.iter().zip(&mask).filter(|(_, supervised)| **supervised).map(|(loss, _)| *loss).collect();
            let found = generator.losses(&token_list(&case["tokens"]), &mask).expect("losses");
            assert_eq!(found.losses.len(), expected.len());
            for (index, (found, expected)) in found.losses.iter().zip(&expected).enumerate() {
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference < bound * (1.0 + expected), "{precision:?} loss {index} is {found} for {expected}");
            }
        }
    }
}
