//! LoRA adapters in files: PEFT folders in and out, MLX folders in and out, GGUF files out (and described, not read: the
//! order of their rows is the base model's).
//!
//! In memory an adapter is always in PEFT's terms: A is [r, k_in], B is [n_out, r], and the product is multiplied by
//! [`PeftConfig::scale`]. Reading is strict: a key that is unexpected, missing or of another shape is an error that
//! names it, because an adapter that is applied in part looks like one that learned little.

mod gguf;
mod mlx;
mod pairs;
mod peft;
mod stack;

pub use gguf::{GgufAdapter, GgufMatrix, describe_gguf, is_gguf, write_gguf};
pub use mlx::{read_mlx, write_mlx};
pub use peft::{peft_files, read_peft, write_peft};
pub use stack::StackEntry;

use crate::FormatError;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// An adapter format that can be read: the file by which a folder is recognized, and its reader.
struct AdapterFormat {
    name: &'static str,
    tensor_file: &'static str,
    read: fn(&Path) -> Result<AdapterFile, FormatError>,
}

/// Every adapter format that can be read.
const ADAPTER_FORMATS: &[AdapterFormat] = &[
    AdapterFormat { name: "PEFT", tensor_file: peft::TENSOR_FILE, read: read_peft },
    AdapterFormat { name: "MLX", tensor_file: mlx::TENSOR_FILE, read: read_mlx },
];

/// Reads the adapter in `folder`, whichever format it has.
pub fn read_adapter(folder: &Path) -> Result<AdapterFile, FormatError> {
    let format = ADAPTER_FORMATS.iter().find(|format| folder.join(format.tensor_file).is_file());
    if let Some(format) = format {
        return (format.read)(folder);
    }
    let files = ADAPTER_FORMATS.iter().map(|format| format!("{} ({})", format.tensor_file, format.name));
    let expected = format!("no adapter: expected {} in it", files.collect::<Vec<_>>().join(" or "));
    Err(FormatError::NotAModel { path: folder.to_owned(), expected })
}

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

impl AdapterFile {
    /// The adapted blocks, ascending.
    fn blocks(&self) -> Vec<usize> {
        let mut blocks: Vec<usize> =
            self.matrices.iter().filter_map(|matrix| matrix.block_and_name()?.0.into()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// Refuses to write what no reader could use: no matrices, lengths that disagree with the shapes, values that are
    /// not finite. `path` is where it was to be written.
    fn check(&self, path: &Path) -> Result<(), FormatError> {
        let error = |module: &str, problem: String| Err(FormatError::tensor(path, module, problem));
        if self.matrices.is_empty() {
            return error("lora_A", "an adapter without matrices".into());
        }
        for matrix in &self.matrices {
            let AdapterMatrix { module, n_out, k_in, a, b } = matrix;
            let r = self.config.r;
            if a.len() != r * k_in || b.len() != n_out * r {
                let found = format!("{} and {}", a.len(), b.len());
                return error(module, format!("{found} values, expected A [{r}, {k_in}] and B [{n_out}, {r}]"));
            }
            if matrix.block_and_name().is_none() {
                return error(module, "expected a module of the form model.layers.N.NAME".into());
            }
            if !a.iter().chain(b).all(|value| value.is_finite()) {
                return error(module, "has values that are not finite".into());
            }
        }
        Ok(())
    }
}

impl AdapterMatrix {
    /// `(3, "self_attn.q_proj")` of `model.layers.3.self_attn.q_proj`.
    fn block_and_name(&self) -> Option<(usize, &str)> {
        block_and_name(&self.module)
    }
}

fn block_and_name(module: &str) -> Option<(usize, &str)> {
    let (block, name) = module.strip_prefix("model.layers.")?.split_once('.')?;
    Some((block.parse().ok()?, name))
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
    /// The frozen adapters that it was trained on top of, bottom first. Without them it says nothing sensible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<StackEntry>,
    /// How the adapter came to be: data, configuration, results. Its form is the trainer's.
    pub receipt: serde_json::Value,
}
