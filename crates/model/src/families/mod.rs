//! The model families: one file each, one line in [`FAMILIES`]. A family states only in what it differs from Llama.

mod gemma3;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod smollm3;

use crate::config::ModelConfig;
use crate::config_file::ConfigFile;
use crate::error::ModelError;

/// Every family that can be loaded.
pub const FAMILIES: &[&Family] =
    &[&llama::FAMILY, &mistral::FAMILY, &smollm3::FAMILY, &qwen2::FAMILY, &qwen3::FAMILY, &gemma3::FAMILY];

/// A family: how its files name it and what sets it apart.
pub struct Family {
    pub name: &'static str,
    /// Values of `architectures` in `config.json`.
    pub architectures: &'static [&'static str],
    /// Values of `model_type`.
    pub model_types: &'static [&'static str],
    /// Size of a head when the file does not say; `None` means width / heads.
    pub head_dim_default: Option<usize>,
    /// Completes a configuration that holds what all families share. Must fill `ropes`.
    pub(crate) differences: fn(&ConfigFile, &mut ModelConfig) -> Result<(), ModelError>,
}

/// The architecture names of all families, for messages.
pub fn supported_architectures() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|family| family.architectures).copied().collect()
}

/// Sets the window of every block that the file's `layer_types` calls sliding, or, where the file has no such
/// list, of the blocks for which `slides` is true.
fn set_windows(
    file: &ConfigFile,
    config: &mut ModelConfig,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ModelError> {
    let listed =
        file.optional_list("layer_types", config.blocks.len(), SLIDING_OR_FULL, |kind| match kind.as_str() {
            Some("sliding_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        })?;
    let sliding = listed.unwrap_or_else(|| (0..config.blocks.len()).map(slides).collect());
    if sliding.contains(&true) {
        let window = file.size("sliding_window")?;
        for (block, sliding) in config.blocks.iter_mut().zip(&sliding) {
            block.window = sliding.then_some(window);
        }
    }
    Ok(sliding)
}
const SLIDING_OR_FULL: &str = "\"sliding_attention\" or \"full_attention\"";
