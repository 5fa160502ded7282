//! Random models of every family, small enough to differentiate numerically.

use std::collections::BTreeMap;
use std::sync::Arc;

use formats::LoadedTensor;
use kernels::{AffineMatrix, FloatVector, Isa, OpsOptions, PackedMatrix, Precision, ScaleType};
use model::{AdapterSpec, AdapterWeights, Model, ModelConfig, Projection, Random, StepOptions, TrainingSession};
use serde_json::{Value, json};

pub const FAMILIES: [&str; 6] = ["llama", "mistral", "smollm3", "qwen2", "qwen3", "gemma3"];
pub const VOCABULARY: usize = 96;
pub const BLOCKS: usize = 3;
const GROUP_SIZE: usize = 32;

/// A configuration that uses what is special about `family`, with windows and blocks without rope small enough to
/// matter in a few tokens.
pub fn config(family: &str) -> Value {
    let mut config = json!({
        "model_type": family, "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1024, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let own = match family {
        "llama" => json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
        "mistral" => json!({"sliding_window": 5, "tie_word_embeddings": false}),
        "smollm3" => json!({"no_rope_layer_interval": 2, "mlp_bias": true}),
        "qwen2" => json!({"use_sliding_window": true, "sliding_window": 6, "max_window_layers": 1}),
        "qwen3" => json!({"head_dim": 32}),
        "gemma3" => json!({"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 24,
            "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4, "sliding_window_pattern": 2,
            "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        _ => unreachable!("a family of the list"),
    };
    for (key, value) in own.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

/// Every tensor that a model of `config` has, random.
pub fn tensors(config: &ModelConfig, seed: u64) -> BTreeMap<String, LoadedTensor> {
    let mut random = Random::new(seed);
    let mut tensors = BTreeMap::new();
    let mut put = |name: String, tensor| tensors.insert(name, tensor);
    put("model.embed_tokens.weight".into(), matrix(config.vocabulary, config.width, &mut random));
    if config.tied_head == Some(false) {
        put("lm_head.weight".into(), matrix(config.vocabulary, config.width, &mut random));
    }
    put("model.norm.weight".into(), norm(config, config.width, &mut random));
    for block in 0..config.blocks.len() {
        for projection in Projection::ALL {
            let (n_out, k_in) = projection.shape(config);
            let path = projection.module_path(block);
            put(format!("{path}.weight"), matrix(n_out, k_in, &mut random));
            let bias = match projection {
                Projection::Query | Projection::Key | Projection::Value => config.query_key_value_bias,
                Projection::Output => config.output_bias,
                _ => config.feed_forward_bias,
            };
            if bias {
                let values: Vec<f32> = (0..n_out).map(|_| random.symmetric(0.5)).collect();
                put(format!("{path}.bias"), LoadedTensor::Float(FloatVector::from_slice(&values)));
            }
        }
        let mut norms = vec![("input_layernorm", config.width), ("post_attention_layernorm", config.width)];
        if config.query_key_norm {
            norms.extend([("self_attn.q_norm", config.head_dim), ("self_attn.k_norm", config.head_dim)]);
        }
        if config.output_norms {
            norms.extend([("pre_feedforward_layernorm", config.width), ("post_feedforward_layernorm", config.width)]);
        }
        for (name, len) in norms {
            put(format!("model.layers.{block}.{name}.weight"), norm(config, len, &mut random));
        }
    }
    tensors
}

/// 4-bit weights of variance about 1 / k_in.
fn matrix(n_out: usize, k_in: usize, random: &mut Random) -> LoadedTensor {
    let groups = n_out * k_in / GROUP_SIZE;
    let spread = 2.0 / (4.6 * (k_in as f64).sqrt());
    let scales: Vec<f32> = (0..groups).map(|_| (spread * (0.7 + 0.6 * random.unit())) as f32).collect();
    let biases = scales.iter().map(|scale| scale * (random.symmetric(0.5) - 7.5)).collect();
    let codes = (0..n_out * k_in).map(|_| (random.next_u64() >> 60) as u8).collect();
    let scale_type = ScaleType::Float32;
    let matrix = AffineMatrix { n_out, k_in, bits: 4, group_size: GROUP_SIZE, codes, scales, biases, scale_type };
    LoadedTensor::Packed(Arc::new(PackedMatrix::pack(&matrix).expect("a valid matrix")))
}

fn norm(config: &ModelConfig, len: usize, random: &mut Random) -> LoadedTensor {
    let values: Vec<f32> = (0..len).map(|_| 1.0 - config.norm_weight_offset + random.symmetric(0.5)).collect();
    LoadedTensor::Float(FloatVector::from_slice(&values))
}

pub fn model(family: &str) -> Arc<Model> {
    let json = config(family);
    let config = ModelConfig::from_json(&json).expect("a valid configuration");
    let tensors = tensors(&config, 11);
    Arc::new(Model::from_tensors(&json, tensors, "tiny".into()).expect("a complete model"))
}

pub fn spec(targets: &[Projection], blocks: std::ops::Range<usize>) -> AdapterSpec {
    AdapterSpec { rank: 4, lora_alpha: 8.0, dropout: 0.0, targets: targets.to_vec(), blocks, use_rslora: false }
}

/// An adapter whose B is not zero, as after some training.
pub fn adapter(model: &Model, spec: AdapterSpec) -> AdapterWeights {
    let mut adapter = AdapterWeights::initialized(model.config(), spec, 5).expect("a valid spec");
    let mut random = Random::new(6);
    for matrix in &mut adapter.matrices {
        matrix.b.iter_mut().for_each(|value| *value = random.symmetric(0.2));
    }
    adapter
}

pub fn options(precision: Precision) -> StepOptions {
    StepOptions { ops: OpsOptions { threads: 1, isa: Isa::best(), precision }, ..StepOptions::new(32) }
}

pub fn session(model: &Arc<Model>, adapter: &AdapterWeights, options: StepOptions) -> TrainingSession {
    TrainingSession::new(Arc::clone(model), adapter, options).expect("a session")
}

/// A text of `len` tokens of which the last third and one early token are supervised.
pub fn text(len: usize) -> (Vec<u32>, Vec<bool>) {
    let mut random = Random::new(len as u64);
    let tokens = (0..len).map(|_| (random.next_u64() % VOCABULARY as u64) as u32).collect();
    let mask = (0..len).map(|index| index == 2 || index >= len - len / 3).collect();
    (tokens, mask)
}

/// Largest difference over the largest expected value.
pub fn relative_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f64, |most, value| most.max(f64::from(value.abs())));
    let difference = found.iter().zip(expected).fold(0f64, |most, (a, b)| most.max(f64::from((a - b).abs())));
    difference / largest.max(f64::MIN_POSITIVE)
}

/// Norm of the difference over the norm of what is expected.
pub fn norm_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / norm(&mut expected.iter().map(|value| f64::from(*value))).max(f64::MIN_POSITIVE)
}
