//! SmolLM3: Llama with blocks that know no positions, every fourth one unless the file says otherwise.

use super::Family;
use crate::config::ModelConfig;
use crate::config_file::ConfigFile;
use crate::error::ModelError;
use crate::rope::RopeConfig;

pub(super) const FAMILY: Family = Family {
    name: "smollm3",
    architectures: &["SmolLM3ForCausalLM"],
    model_types: &["smollm3"],
    head_dim_default: None,
    differences,
};

/// A block without rotation follows after this many with it, less one.
const NO_ROPE_INTERVAL_DEFAULT: usize = 4;

fn differences(file: &ConfigFile, config: &mut ModelConfig) -> Result<(), ModelError> {
    let attention_bias = file.flag("attention_bias")?;
    config.query_key_value_bias = attention_bias;
    config.output_bias = attention_bias;
    config.feed_forward_bias = file.flag("mlp_bias")?;
    config.ropes = vec![RopeConfig::from_file(file, config.head_dim, None)?];

    // Despite its name, `no_rope_layers` holds 1 for a block with rotation.
    let listed = file.optional_list("no_rope_layers", config.blocks.len(), "0 or 1", |entry| match entry.as_u64() {
        Some(entry @ (0 | 1)) => Some(entry == 1),
        _ => None,
    })?;
    let interval = file.optional_size("no_rope_layer_interval")?.unwrap_or(NO_ROPE_INTERVAL_DEFAULT);
    let rotated =
        listed.unwrap_or_else(|| (0..config.blocks.len()).map(|block| !(block + 1).is_multiple_of(interval)).collect());
    for (block, rotated) in config.blocks.iter_mut().zip(&rotated) {
        block.rope = rotated.then_some(0);
    }
    let windowed = file.flag("use_sliding_window")? && file.value("sliding_window").is_some();
    super::set_windows(file, config, |block| windowed && !rotated[block])?;
    Ok(())
}
