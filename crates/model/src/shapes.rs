//! Shapes of published models by name, for benchmarks and plans that need no download: the one list of them.

use crate::config::ModelConfig;
use crate::projection::Projection::{self, Down, Gate, Key, Output, Query, Up, Value};

/// A published model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownShape {
    /// As in `smollm2-135m`.
    pub name: &'static str,
    /// The numbers of its `config.json`.
    config: &'static str,
}

/// Smallest first. The numbers are those of the `config.json` that each model was published with.
pub const KNOWN_SHAPES: [KnownShape; 5] = [
    KnownShape {
        name: "smollm2-135m",
        config: r#"{"model_type": "llama", "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
            "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5, "rope_theta": 100000, "hidden_act": "silu", "tie_word_embeddings": true}"#,
    },
    KnownShape {
        name: "gemma3-270m",
        config: r#"{"model_type": "gemma3_text", "hidden_size": 640, "num_attention_heads": 4,
            "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "num_hidden_layers": 18,
            "vocab_size": 262144, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
            "rope_local_base_freq": 10000, "query_pre_attn_scalar": 256, "sliding_window": 512,
            "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true}"#,
    },
    KnownShape {
        name: "smollm2-360m",
        config: r#"{"model_type": "llama", "hidden_size": 960, "num_attention_heads": 15, "num_key_value_heads": 5,
            "intermediate_size": 2560, "num_hidden_layers": 32, "vocab_size": 49152, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5, "rope_theta": 100000, "hidden_act": "silu", "tie_word_embeddings": true}"#,
    },
    KnownShape {
        name: "smollm3-3b",
        config: r#"{"model_type": "smollm3", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
            "intermediate_size": 11008, "num_hidden_layers": 36, "vocab_size": 128256,
            "max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "rope_theta": 5000000, "no_rope_layer_interval": 4,
            "hidden_act": "silu", "tie_word_embeddings": true}"#,
    },
    KnownShape {
        name: "qwen3-8b",
        config: r#"{"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 12288, "num_hidden_layers": 36, "vocab_size": 151936,
            "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "hidden_act": "silu",
            "tie_word_embeddings": false}"#,
    },
];

impl KnownShape {
    /// The shape called `name`.
    pub fn by_name(name: &str) -> Option<KnownShape> {
        KNOWN_SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// The model's configuration.
    pub fn config(&self) -> ModelConfig {
        let json = serde_json::from_str(self.config).expect("a shape is written as JSON");
        ModelConfig::from_json(&json).expect("a known shape belongs to a known family")
    }
}

/// Products of a block that share their input: (name, `[n_out, k_in]` of each matrix).
pub type BlockProducts = (&'static str, Vec<(usize, usize)>);

impl ModelConfig {
    /// The products with frozen weights that a block of this model makes, in its order, grouped by common input.
    pub fn block_products(&self) -> Vec<BlockProducts> {
        let shape = |projection: &Projection| projection.shape(self);
        let group = |name, projections: &[Projection]| (name, projections.iter().map(shape).collect());
        vec![
            group("q+k+v", &[Query, Key, Value]),
            group("o", &[Output]),
            group("gate+up", &[Gate, Up]),
            group("down", &[Down]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_the_parameters_of_its_name() {
        // Weights of the blocks and of the embedding, in millions, as the models' cards count them.
        let expected = [134.5, 268.1, 361.8, 3075.1, 7568.4];
        for (shape, expected) in KNOWN_SHAPES.iter().zip(expected) {
            let config = shape.config();
            let block: usize =
                config.block_products().iter().flat_map(|(_, matrices)| matrices).map(|(n, k)| n * k).sum();
            let weights = (block * config.blocks.len() + config.vocabulary * config.width) as f64 / 1e6;
            assert!((weights - expected).abs() < 0.001 * expected, "{}: {weights} million weights", shape.name);
            assert_eq!(KnownShape::by_name(shape.name), Some(*shape));
        }
        assert_eq!(KnownShape::by_name("smollm2"), None);
    }
}
