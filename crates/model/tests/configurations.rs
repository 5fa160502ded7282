//! How configurations are read: spellings, defaults, and what each family makes of its own keys.

use std::path::PathBuf;

use model::{BlockConfig, ModelConfig, RopeConfig};
use serde_json::{Value, json};

use crate::oracle::{fixtures, read_json};
use crate::tiny;

fn with(family: &str, changes: Value) -> ModelConfig {
    let mut config = tiny::config(family);
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    ModelConfig::from_json(&config).expect("a valid configuration")
}

fn ropes(config: &ModelConfig) -> Vec<Option<usize>> {
    config.blocks.iter().map(|block| block.rope).collect()
}
fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.blocks.iter().map(|block| block.window).collect()
}

/// `found` is `expected` up to two roundings.
fn assert_close(found: &RopeConfig, expected: impl IntoIterator<Item = f64>) {
    let expected: Vec<f64> = expected.into_iter().collect();
    assert_eq!(found.inverse_frequencies.len(), expected.len());
    for (found, expected) in found.inverse_frequencies.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() <= 2e-7 * expected, "{found} for {expected}");
    }
}

#[test]
fn the_spellings_of_transformers_and_of_mlx_mean_the_same() {
    for family in ["llama", "mistral", "smollm3", "qwen2", "qwen3", "gemma3"] {
        let read = |folder: &str| {
            let path: PathBuf = fixtures().join(family).join(folder).join("config.json");
            ModelConfig::from_json(&read_json(&path)).expect("a valid configuration")
        };
        assert_eq!(read("hf"), read("mlx_q4_g64"), "{family}");
    }
}

#[test]
fn a_family_is_found_by_type_or_by_architecture() {
    let named = |changes| with("llama", changes).family;
    assert_eq!(named(json!({"model_type": "mistral"})), "mistral");
    assert_eq!(named(json!({"model_type": null, "architectures": ["SmolLM3ForCausalLM"]})), "smollm3");
    assert_eq!(named(json!({"text_config": tiny::config("gemma3"), "model_type": "gemma3"})), "gemma3");
}

#[test]
fn frequencies_follow_base_and_scaling() {
    let plain = |index: i32| 10_000f64.powf(-f64::from(index) / 8.0);
    let scaled = |scaling: Value| with("qwen2", json!({"rope_scaling": scaling})).ropes.remove(0);
    assert_close(&scaled(Value::Null), (0..8).map(plain));
    assert_close(&scaled(json!({"rope_type": "default"})), (0..8).map(plain));
    assert_close(&scaled(json!({"type": "linear", "factor": 4.0})), (0..8).map(|index| plain(index) / 4.0));
    assert_close(&scaled(json!({"type": "dynamic", "factor": 4.0})), (0..8).map(plain));
    let nested = with("qwen2", json!({"rope_theta": null, "rope_parameters": {"rope_theta": 10000.0}}));
    assert_close(&nested.ropes[0], (0..8).map(plain));

    // Llama 3 with a context of 64: turns above 4 are kept, below 1 stretched, between blended.
    let blended = |frequency: f64| {
        let turns = 64.0 * frequency / std::f64::consts::TAU;
        let kept = ((turns - 1.0) / 3.0).clamp(0.0, 1.0);
        kept * frequency + (1.0 - kept) * frequency / 8.0
    };
    let config = with("llama", json!({}));
    assert_close(&config.ropes[0], (0..8).map(plain).map(blended));
    assert!((f64::from(config.ropes[0].inverse_frequencies[1]) - plain(1) / 8.0) > 1e-3, "one is between");

    // Files that hold the divisors themselves.
    let divisors: Vec<f64> = (1..9).map(f64::from).collect();
    let key = formats::ROPE_INV_FREQ_FACTORS_KEY;
    let divided = with("llama", json!({"rope_scaling": null, key: divisors}));
    assert_close(&divided.ropes[0], (0..8).map(|index| plain(index) / f64::from(index + 1)));
}

#[test]
fn smollm3_leaves_rotation_out_of_every_fourth_block() {
    let config = with("smollm3", json!({"num_hidden_layers": 8, "no_rope_layer_interval": null}));
    let (yes, no) = (Some(0), None);
    assert_eq!(ropes(&config), [yes, yes, yes, no, yes, yes, yes, no]);
    let config = with("smollm3", json!({"no_rope_layers": [1, 0, 0]}));
    assert_eq!(ropes(&config), [yes, no, no]);
    let windowed = json!({"no_rope_layers": [1, 0, 1], "use_sliding_window": true, "sliding_window": 7});
    assert_eq!(windows(&with("smollm3", windowed)), [None, Some(7), None]);
}

#[test]
fn windows_come_from_the_list_or_the_rule_of_the_family() {
    assert_eq!(windows(&with("mistral", json!({}))), [Some(5); 3]);
    assert_eq!(windows(&with("mistral", json!({"sliding_window": null}))), [None; 3]);
    assert_eq!(windows(&with("qwen2", json!({}))), [None, Some(6), Some(6)]);
    assert_eq!(windows(&with("qwen2", json!({"use_sliding_window": false}))), [None; 3]);
    let listed = json!({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]});
    assert_eq!(windows(&with("qwen2", listed)), [Some(6), None, Some(6)]);
}

#[test]
fn gemma_has_two_kinds_of_blocks() {
    let config = with("gemma3", json!({"num_hidden_layers": 7, "sliding_window_pattern": null}));
    let sliding = BlockConfig { window: Some(4), rope: Some(1) };
    let full = BlockConfig { window: None, rope: Some(0) };
    assert_eq!(config.blocks, [sliding, sliding, sliding, sliding, sliding, full, sliding]);
    // Scaling is for the full blocks only.
    assert_close(&config.ropes[0], (0..8).map(|index| 1e6f64.powf(-f64::from(index) / 8.0) / 8.0));
    assert_close(&config.ropes[1], (0..8).map(|index| 1e4f64.powf(-f64::from(index) / 8.0)));
    assert_eq!((config.embedding_scale, config.norm_weight_offset), (8.0, 1.0));
    assert_eq!(config.attention_scale, (24f64).powf(-0.5) as f32);
    assert_eq!(with("gemma3", json!({"tie_word_embeddings": null})).tied_head, Some(true));
}

#[test]
fn heads_have_the_size_of_the_file_or_of_the_family() {
    assert_eq!(with("llama", json!({})).head_dim, 16);
    assert_eq!(with("llama", json!({"head_dim": 24})).head_dim, 24);
    assert_eq!(with("qwen3", json!({"head_dim": null})).head_dim, 128);
    assert_eq!(with("gemma3", json!({"head_dim": null})).head_dim, 256);
    assert_eq!(with("llama", json!({"num_key_value_heads": null})).kv_heads, 4);
}
