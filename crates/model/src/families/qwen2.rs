//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and optionally a window in the later blocks.

use super::Family;
use crate::config::ModelConfig;
use crate::config_file::ConfigFile;
use crate::error::ModelError;
use crate::rope::RopeConfig;

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    architectures: &["Qwen2ForCausalLM"],
    model_types: &["qwen2"],
    head_dim_default: None,
    differences,
};

fn differences(file: &ConfigFile, config: &mut ModelConfig) -> Result<(), ModelError> {
    config.query_key_value_bias = true;
    config.ropes = vec![RopeConfig::from_file(file, config.head_dim, None)?];
    set_late_windows(file, config)
}

/// Blocks from `max_window_layers` on see a window, if the file switches windows on at all.
pub(super) fn set_late_windows(file: &ConfigFile, config: &mut ModelConfig) -> Result<(), ModelError> {
    if !file.flag("use_sliding_window")? {
        return Ok(());
    }
    let full_blocks = match file.value("max_window_layers") {
        Some(value) => value.as_u64().ok_or_else(|| file.invalid("max_window_layers", "a whole number"))?,
        None => return Err(file.invalid("max_window_layers", "the number of blocks without a window")),
    };
    super::set_windows(file, config, |block| block as u64 >= full_blocks)?;
    Ok(())
}
