//! LoRA adapters in files: PEFT folders in and out, MLX folders in and out, GGUF files out.
//!
//! In memory an adapter is always in PEFT's terms: A is [r, k_in], B is [n_out, r], and the product is multiplied by
//! [`PeftConfig::scale`]. Reading is strict: a key that is unexpected, missing or of another shape is an error that
//! names it, because an adapter that is applied in part looks like one that learned little.

use serde::{Deserialize, Serialize};

/// An adapter as its files hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    pub config: PeftConfig,
    /// What selftune knows about the adapter; `None` for one made by another program.
    pub metadata: Option<AdapterMetadata>,
    /// In the order of block and module.
    pub matrices: Vec<AdapterMatrix>,
}

/// The two matrices of one adapted module.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterMatrix {
    /// `model.layers.3.self_attn.q_proj`
    pub module: String,
    pub n_out: usize,
    pub k_in: usize,
    /// [r, k_in]
    pub a: Vec<f32>,
    /// [n_out, r]
    pub b: Vec<f32>,
}

/// The entries of PEFT's `adapter_config.json` that selftune uses.
#[derive(Clone, Debug, PartialEq)]
pub struct PeftConfig {
    pub r: usize,
    pub lora_alpha: f64,
    pub lora_dropout: f64,
    pub use_rslora: bool,
    /// `q_proj`, `v_proj`, ...
    pub target_modules: Vec<String>,
    /// The adapted blocks; `None` for all.
    pub layers_to_transform: Option<Vec<usize>>,
    /// Hugging Face name or path of the base model.
    pub base_model_name_or_path: Option<String>,
}

impl PeftConfig {
    /// What the product B·A is multiplied by: alpha / r, or alpha / sqrt(r) with rslora.
    pub fn scale(&self) -> f64 {
        let rank = self.r as f64;
        self.lora_alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }
}

/// selftune's own file beside an adapter, and the metadata inside of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterMetadata {
    /// Version of selftune that wrote the adapter.
    pub selftune_version: String,
    /// [`crate::LoadedModel::content_hash`] of the base model.
    pub base_content_hash: String,
    /// How the adapter came to be: data, configuration, results. Its form is the trainer's.
    pub receipt: serde_json::Value,
}
