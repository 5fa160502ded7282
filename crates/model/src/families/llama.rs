//! Llama 2 and 3, SmolLM2 and everything else in this form: the family that the others are compared with.

use super::Family;
use crate::config::ModelConfig;
use crate::config_file::ConfigFile;
use crate::error::ModelError;
use crate::rope::RopeConfig;

pub(super) const FAMILY: Family = Family {
    name: "llama",
    architectures: &["LlamaForCausalLM"],
    model_types: &["llama"],
    head_dim_default: None,
    differences,
};

fn differences(file: &ConfigFile, config: &mut ModelConfig) -> Result<(), ModelError> {
    let attention_bias = file.flag("attention_bias")?;
    config.query_key_value_bias = attention_bias;
    config.output_bias = attention_bias;
    config.feed_forward_bias = file.flag("mlp_bias")?;
    // Llama 2's files do not state the base.
    config.ropes = vec![RopeConfig::from_file(file, config.head_dim, Some(10_000.0))?];
    Ok(())
}
