//! Mistral: Llama whose early versions see only a window in every block.

use super::Family;
use crate::config::ModelConfig;
use crate::config_file::ConfigFile;
use crate::error::ModelError;
use crate::rope::RopeConfig;

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    architectures: &["MistralForCausalLM"],
    model_types: &["mistral"],
    head_dim_default: None,
    differences,
};

fn differences(file: &ConfigFile, config: &mut ModelConfig) -> Result<(), ModelError> {
    config.ropes = vec![RopeConfig::from_file(file, config.head_dim, Some(10_000.0))?];
    let windowed = file.value("sliding_window").is_some();
    super::set_windows(file, config, |_| windowed)?;
    Ok(())
}
