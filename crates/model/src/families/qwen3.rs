//! Qwen3: Llama with queries and keys normed per head and a head size of its own.

use super::Family;
use crate::config::ModelConfig;
use crate::config_file::ConfigFile;
use crate::error::ModelError;
use crate::rope::RopeConfig;

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    architectures: &["Qwen3ForCausalLM"],
    model_types: &["qwen3"],
    head_dim_default: Some(128),
    differences,
};

fn differences(file: &ConfigFile, config: &mut ModelConfig) -> Result<(), ModelError> {
    let attention_bias = file.flag("attention_bias")?;
    config.query_key_value_bias = attention_bias;
    config.output_bias = attention_bias;
    config.query_key_norm = true;
    config.ropes = vec![RopeConfig::from_file(file, config.head_dim, None)?];
    super::qwen2::set_late_windows(file, config)
}
