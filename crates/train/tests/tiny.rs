//! A random model and a small history for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use data::{Example, Truncation};
use formats::LoadedTensor;
use kernels::{AffineMatrix, FloatVector, PackedMatrix, ScaleType};
use model::{Model, ModelConfig, Projection, Random};
use train::TrainConfig;

const VOCABULARY: usize = 64;
const GROUP_SIZE: usize = 32;

/// Two Llama blocks of width 64.
pub fn model(seed: u64) -> Arc<Model> {
    let json = serde_json::json!({
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let config = ModelConfig::from_json(&json).unwrap();
    let mut random = Random::new(seed);
    let mut tensors = BTreeMap::new();
    let ones = |len: usize| LoadedTensor::Float(FloatVector::from_slice(&vec![1.0; len]));
    tensors.insert("model.embed_tokens.weight".to_owned(), matrix(VOCABULARY, 64, &mut random));
    tensors.insert("model.norm.weight".to_owned(), ones(64));
    for block in 0..2 {
        for projection in Projection::ALL {
            let (n_out, k_in) = projection.shape(&config);
            tensors.insert(format!("{}.weight", projection.module_path(block)), matrix(n_out, k_in, &mut random));
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            tensors.insert(format!("model.layers.{block}.{norm}.weight"), ones(64));
        }
    }
    Arc::new(Model::from_tensors(&json, tensors, format!("tiny model {seed}")).unwrap())
}

/// 4-bit weights of variance about 1 / k_in.
fn matrix(n_out: usize, k_in: usize, random: &mut Random) -> LoadedTensor {
    let groups = n_out * k_in / GROUP_SIZE;
    let scale = (2.0 / (4.6 * (k_in as f64).sqrt())) as f32;
    let codes = (0..n_out * k_in).map(|_| (random.next_u64() >> 60) as u8).collect();
    let matrix = AffineMatrix {
        n_out,
        k_in,
        bits: 4,
        group_size: GROUP_SIZE,
        codes,
        scales: vec![scale; groups],
        biases: vec![-7.5 * scale; groups],
        scale_type: ScaleType::Float32,
    };
    LoadedTensor::Packed(Arc::new(PackedMatrix::pack(&matrix).unwrap()))
}

/// Records that end in an alphabet of their own: easy to learn, unlike what a random model expects.
pub fn examples(range: std::ops::Range<usize>) -> Vec<Example> {
    let example = |index: usize| {
        let (prompt, answer) = (4 + index % 5, 3 + index % 4);
        let tokens = (0..prompt + answer).map(|place| match place < prompt {
            true => 10 + (index * 13 + place * 5) % 50,
            false => 1 + (place - prompt) % 3,
        });
        Example {
            tokens: tokens.map(|token| token as u32).collect(),
            loss_mask: (0..prompt + answer).map(|place| place >= prompt).collect(),
            record_id: format!("record-{index}"),
            retrieved_ids: Vec::new(),
            truncation: Truncation::default(),
        }
    };
    range.map(example).collect()
}

pub fn config() -> TrainConfig {
    TrainConfig {
        rank: 4,
        lora_alpha: 8.0,
        dropout: 0.1,
        learning_rate: 1e-2,
        accumulation: 3,
        passes: 3,
        evaluate_every: 4,
        threads: 1,
        save_every_steps: 1,
        save_sync: false,
        ..TrainConfig::default()
    }
}
