//! Gemma 3 text models: four norms a block whose weights are stored less one, normed queries and keys, GELU,
//! scaled embeddings, and two kinds of blocks, windowed and full, each with its own rotation.

use super::Family;
use crate::config::ModelConfig;
use crate::config_file::ConfigFile;
use crate::error::ModelError;
use crate::rope::RopeConfig;

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    architectures: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    model_types: &["gemma3_text", "gemma3"],
    head_dim_default: Some(256),
    differences,
};

/// Every sixth block sees everything unless the file says otherwise.
const FULL_INTERVAL_DEFAULT: usize = 6;
/// Rotation base of windowed blocks in files that leave it out.
const LOCAL_BASE_DEFAULT: f64 = 10_000.0;

fn differences(file: &ConfigFile, config: &mut ModelConfig) -> Result<(), ModelError> {
    file.refuse("attn_logit_softcapping", "none: capped attention scores are not built")?;
    file.refuse("final_logit_softcapping", "none: capped logits are not built")?;
    file.refuse("use_bidirectional_attention", "false: only causal models can be trained")?;
    let attention_bias = file.flag("attention_bias")?;
    config.query_key_value_bias = attention_bias;
    config.output_bias = attention_bias;
    config.norm_weight_offset = 1.0;
    config.query_key_norm = true;
    config.output_norms = true;
    config.embedding_scale = (config.width as f32).sqrt();
    config.attention_scale = file.positive("query_pre_attn_scalar")?.powf(-0.5) as f32;
    // The files of this family leave out that the head is tied.
    config.tied_head = config.tied_head.or(Some(true));

    let interval = file.optional_size("sliding_window_pattern")?;
    let interval = interval.or(file.optional_size("_sliding_window_pattern")?).unwrap_or(FULL_INTERVAL_DEFAULT);
    let sliding = super::set_windows(file, config, |block| !(block + 1).is_multiple_of(interval))?;
    config.ropes = ropes(file, config.head_dim)?;
    for (block, sliding) in config.blocks.iter_mut().zip(sliding) {
        block.rope = Some(if sliding { LOCAL } else { GLOBAL });
    }
    Ok(())
}

const GLOBAL: usize = 0;
const LOCAL: usize = 1;

/// The rotations of full and of windowed blocks, in this order; only the former are scaled in old files.
fn ropes(file: &ConfigFile, head_dim: usize) -> Result<Vec<RopeConfig>, ModelError> {
    let Some(parameters) = file.value("rope_parameters") else {
        let local_base = file.optional_positive("rope_local_base_freq")?.unwrap_or(LOCAL_BASE_DEFAULT);
        return Ok(vec![RopeConfig::from_file(file, head_dim, None)?, RopeConfig::new(local_base, head_dim)]);
    };
    let parameters = ConfigFile::nested(parameters, "rope_parameters.")?;
    let of_kind = |kind: &'static str, prefix: &'static str| {
        let object = parameters.value(kind).ok_or_else(|| parameters.invalid(kind, "an object with rope_theta"))?;
        RopeConfig::from_parameters(ConfigFile::nested(object, prefix)?, head_dim)
    };
    Ok(vec![
        of_kind("full_attention", "rope_parameters.full_attention.")?,
        of_kind("sliding_attention", "rope_parameters.sliding_attention.")?,
    ])
}
