//! What is wrong with a model or an adapter is said by name, and nothing panics.

use std::sync::Arc;

use formats::LoadedTensor;
use kernels::{FloatVector, Precision};
use model::{AdapterSpec, AdapterWeights, Model, ModelConfig, ModelError, Projection, TrainingSession};
use serde_json::{Value, json};

use crate::tiny;

fn config_error(family: &str, key: &str, value: Value) -> String {
    let mut config = tiny::config(family);
    config[key] = value;
    ModelConfig::from_json(&config).expect_err("refused").to_string()
}

#[test]
fn broken_configurations_name_the_key() {
    for (family, key, value, said) in [
        ("llama", "model_type", json!("mamba"), "unknown architecture \"mamba\"; supported are LlamaForCausalLM"),
        ("llama", "model_type", json!(7), "model_type is 7"),
        ("llama", "hidden_size", Value::Null, "hidden_size is missing"),
        ("llama", "hidden_size", json!(-64), "hidden_size is -64"),
        ("llama", "hidden_size", json!(0), "hidden_size is 0"),
        ("llama", "hidden_size", json!(1u64 << 60), "hidden_size is 1152921504606846976"),
        ("llama", "hidden_size", json!(66), "num_attention_heads is 4"),
        ("llama", "num_hidden_layers", json!(200_000_000), "num_hidden_layers is 200000000, expected at most"),
        ("llama", "num_hidden_layers", json!(1.5), "num_hidden_layers is 1.5"),
        ("llama", "num_key_value_heads", json!(3), "num_key_value_heads is 3"),
        ("llama", "head_dim", json!(15), "head_dim is 15"),
        ("llama", "head_dim", json!(512), "head_dim is 512"),
        ("llama", "rms_norm_eps", json!("small"), "rms_norm_eps is \"small\""),
        ("llama", "hidden_act", json!("relu"), "hidden_act is \"relu\""),
        ("llama", "hidden_act", Value::Null, "hidden_act is missing"),
        ("llama", "rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), "rope_scaling.rope_type is \"yarn\""),
        ("llama", "rope_scaling", json!({"type": "linear"}), "rope_scaling.factor is missing"),
        ("llama", "rope_scaling", json!([1]), "rope_scaling is [1]"),
        ("llama", "rope_parameters", json!({"rope_theta": 5.0}), "rope_theta is 10000.0, expected 5"),
        ("llama", "partial_rotary_factor", json!(0.5), "partial_rotary_factor is 0.5"),
        ("qwen3", "rope_theta", Value::Null, "rope_theta is missing"),
        ("smollm3", "no_rope_layers", json!([1, 1]), "no_rope_layers is [1,1], expected a list of 3 entries"),
        ("smollm3", "no_rope_layers", json!([1, 2, 1]), "no_rope_layers is [1,2,1]"),
        ("qwen2", "max_window_layers", Value::Null, "max_window_layers is absent"),
        ("qwen2", "layer_types", json!(["full_attention", "linear_attention", "full_attention"]), "layer_types is"),
        ("mistral", "sliding_window", json!(0), "sliding_window is 0"),
        ("gemma3", "final_logit_softcapping", json!(30.0), "final_logit_softcapping is 30.0"),
        ("gemma3", "query_pre_attn_scalar", Value::Null, "query_pre_attn_scalar is missing"),
        ("gemma3", "rope_parameters", json!({"rope_theta": 1e4}), "rope_parameters.full_attention is absent"),
    ] {
        let message = config_error(family, key, value);
        assert!(message.contains(said), "{family} {key}: {message:?} does not say {said:?}");
    }
    for not_an_object in [json!(null), json!([1, 2]), json!("llama"), json!({})] {
        assert!(ModelConfig::from_json(&not_an_object).is_err());
    }
}

fn load_error(family: &str, change: impl FnOnce(&mut std::collections::BTreeMap<String, LoadedTensor>)) -> ModelError {
    let json = tiny::config(family);
    let config = ModelConfig::from_json(&json).expect("a valid configuration");
    let mut tensors = tiny::tensors(&config, 1);
    change(&mut tensors);
    match Model::from_tensors(&json, tensors, "tiny".into()) {
        Ok(_) => panic!("the model was accepted"),
        Err(error) => error,
    }
}

#[test]
fn tensors_that_do_not_fit_the_configuration_are_named() {
    let name = || "model.layers.1.mlp.up_proj.weight".to_string();
    let error = load_error("llama", |tensors| drop(tensors.remove(&name())));
    assert_eq!(error, ModelError::TensorMissing { name: name(), expected: vec![96, 64] });

    let error = load_error("llama", |tensors| {
        let down = tensors.remove("model.layers.1.mlp.down_proj.weight").expect("it is there");
        tensors.insert(name(), down);
    });
    assert_eq!(error, ModelError::TensorShape { name: name(), found: vec![64, 96], expected: vec![96, 64] });

    let error = load_error("llama", |tensors| {
        tensors.insert(name(), LoadedTensor::Float(FloatVector::from_slice(&[1.0; 3])));
    });
    assert_eq!(error, ModelError::TensorShape { name: name(), found: vec![3], expected: vec![96, 64] });

    let norm = || "model.norm.weight".to_string();
    let error = load_error("gemma3", |tensors| {
        tensors.insert(norm(), LoadedTensor::Float(FloatVector::from_slice(&[f32::NAN; 64])));
    });
    assert_eq!(error, ModelError::TensorNotFinite { name: norm(), index: 0 });

    // A bias that the configuration denies would be left out in silence.
    let bias = || "model.layers.0.self_attn.q_proj.bias".to_string();
    let error = load_error("llama", |tensors| {
        tensors.insert(bias(), LoadedTensor::Float(FloatVector::from_slice(&[0.0; 64])));
    });
    assert_eq!(error, ModelError::TensorUnexpected { name: bias(), family: "llama" });
    let error = load_error("qwen2", |tensors| drop(tensors.remove(&bias())));
    assert_eq!(error, ModelError::TensorMissing { name: bias(), expected: vec![64] });

    let error = load_error("mistral", |tensors| drop(tensors.remove("lm_head.weight")));
    assert_eq!(error, ModelError::TensorMissing { name: "lm_head.weight".into(), expected: vec![96, 64] });
}

#[test]
fn a_tied_model_may_repeat_its_embedding_as_head() {
    let json = tiny::config("llama");
    let config = ModelConfig::from_json(&json).expect("a valid configuration");
    let mut tensors = tiny::tensors(&config, 1);
    let other = tiny::tensors(&config, 2).remove("model.embed_tokens.weight").expect("it is there");
    tensors.insert("lm_head.weight".into(), other);
    let count = Model::from_tensors(&json, tensors, "tiny".into()).expect("a model").parameter_count();
    assert_eq!(count, tiny::model("llama").parameter_count());
}

fn spec_error(change: impl FnOnce(&mut AdapterSpec)) -> String {
    let model = tiny::model("llama");
    let mut spec = tiny::spec(&[Projection::Query], 0..2);
    change(&mut spec);
    AdapterWeights::initialized(model.config(), spec, 1).expect_err("refused").to_string()
}

#[test]
fn adapters_that_would_train_nothing_are_refused() {
    for (message, said) in [
        (spec_error(|spec| spec.targets.clear()), "targets nothing"),
        (spec_error(|spec| spec.blocks = 1..1), "targets nothing"),
        (spec_error(|spec| spec.blocks = 1..4), "within the model's 3 blocks"),
        (spec_error(|spec| spec.rank = 0), "rank is 0"),
        (spec_error(|spec| spec.rank = 65), "rank is 65, expected 1 to 64"),
        (spec_error(|spec| spec.lora_alpha = f32::NAN), "lora_alpha is NaN"),
        (spec_error(|spec| spec.dropout = 1.0), "dropout is 1"),
    ] {
        assert!(message.contains(said), "{message:?} does not say {said:?}");
    }
}

#[test]
fn texts_that_cannot_be_trained_on_are_refused() {
    let model = tiny::model("llama");
    let adapter = tiny::adapter(&model, tiny::spec(&[Projection::Query], 0..2));
    let mut session = tiny::session(&model, &adapter, tiny::options(Precision::A16));
    let mut refused = |tokens: &[u32], mask: &[bool]| session.step(tokens, mask, 1.0, 0).expect_err("refused");
    assert_eq!(refused(&[1, 2], &[true]), ModelError::MaskLength { mask: 1, tokens: 2 });
    assert_eq!(refused(&[], &[]), ModelError::NothingSupervised { tokens: 0 });
    assert_eq!(refused(&[1, 2], &[true, false]), ModelError::NothingSupervised { tokens: 2 });
    let outside = ModelError::TokenOutsideVocabulary { token: 96, position: 1, vocabulary: 96 };
    assert_eq!(refused(&[1, 96], &[false, true]), outside);
    let long = ModelError::TooManyTokens { tokens: 33, limit: 32, of: "the session's plan" };
    assert_eq!(refused(&[1; 33], &[true; 33]), long);
    // Nothing of the refused texts is left behind.
    assert!(session.flat_gradients().iter().all(|gradient| *gradient == 0.0));
    session.step(&[1; 32], &[true; 32], 1.0, 0).expect("a step");

    let wrong_length = ModelError::AdapterLength { count: 3, expected: adapter.flat().len() };
    assert_eq!(session.set_parameters(&[0.0; 3]), Err(wrong_length.clone()));
    assert_eq!(session.set_optimizer_moments(&adapter.flat(), &[0.0; 3]), Err(wrong_length));
    let other = tiny::adapter(&model, tiny::spec(&[Projection::Query], 0..3));
    assert!(matches!(session.set_adapter(&other), Err(ModelError::AdapterInvalid { field: "spec", .. })));

    for tokens_max in [0, 1, 1025] {
        let mut options = tiny::options(Precision::A16);
        options.tokens_max = tokens_max;
        assert!(TrainingSession::new(Arc::clone(&model), &adapter, options).is_err(), "{tokens_max}");
    }
}
