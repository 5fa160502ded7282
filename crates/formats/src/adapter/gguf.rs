//! Adapters as GGUF files, as llama.cpp's `--lora` loads them: `blk.N.attn_q.weight.lora_a` [r, k_in] and `.lora_b`
//! [n_out, r], multiplied by `adapter.lora.alpha` / r, rows of q and k in the order of the base file.

use super::AdapterFile;
use crate::FormatError;
use crate::atomic_write::{self, Readers};
use crate::gguf::architectures::{self, Architecture};
use crate::gguf::container::{MAGIC, value_type};
use crate::tensor_encoding::interleave_rows;
use serde_json::Value;
use std::path::Path;

const VERSION: u32 = 3;
const ALIGNMENT: usize = 32;
/// GGUF's number for float32 tensors.
const TYPE_FLOAT32: u32 = 0;

struct Tensor {
    name: String,
    shape: [usize; 2],
    values: Vec<f32>,
}

/// Writes `adapter` to the file `path`. `base_config` is [`crate::LoadedModel::config`] of the base model: it decides the
/// architecture and the order of rows.
pub fn write_gguf(path: &Path, adapter: &AdapterFile, base_config: &Value) -> Result<(), FormatError> {
    adapter.check(path)?;
    let model_type = base_config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let architecture = architectures::of_model_type(model_type).ok_or_else(|| FormatError::Unsupported {
        path: path.to_owned(),
        what: "model type for a GGUF adapter",
        found: model_type.to_owned(),
        supported: architectures::model_types().join(", "),
    })?;
    let mut tensors = Vec::with_capacity(2 * adapter.matrices.len());
    for matrix in &adapter.matrices {
        let unknown = || FormatError::tensor(path, &matrix.module, "has no name in GGUF");
        let (block, name) = matrix.block_and_name().ok_or_else(unknown)?;
        let stem = format!("blk.{block}.{}.weight", architecture.stored_block_name(name).ok_or_else(unknown)?);
        let b = match interleaved_heads(path, architecture, name, base_config, matrix.n_out)? {
            Some(heads) => interleave_rows(&matrix.b, adapter.config.r, heads),
            None => matrix.b.clone(),
        };
        let r = adapter.config.r;
        tensors.push(Tensor { name: format!("{stem}.lora_a"), shape: [r, matrix.k_in], values: matrix.a.clone() });
        tensors.push(Tensor { name: format!("{stem}.lora_b"), shape: [matrix.n_out, r], values: b });
    }
    let alpha = (adapter.config.scale() * adapter.config.r as f64) as f32;
    atomic_write::write(path, &file_bytes(architecture.name, alpha, &tensors), Readers::OwnerOnly)
}

/// The number of heads in which rows of the module's output alternate, if they do.
fn interleaved_heads(
    path: &Path,
    architecture: &Architecture,
    module: &str,
    base_config: &Value,
    n_out: usize,
) -> Result<Option<usize>, FormatError> {
    let key = match module {
        "self_attn.q_proj" => "num_attention_heads",
        "self_attn.k_proj" => "num_key_value_heads",
        _ => return Ok(None),
    };
    if !architecture.interleaved_heads {
        return Ok(None);
    }
    let heads = base_config.get(key).or_else(|| base_config.get("num_attention_heads")).and_then(Value::as_u64);
    let heads = heads.and_then(|heads| usize::try_from(heads).ok());
    match heads.filter(|heads| *heads > 0 && n_out.is_multiple_of(*heads) && (n_out / heads).is_multiple_of(2)) {
        Some(heads) => Ok(Some(heads)),
        None => Err(FormatError::key(path, key, format!("the base model's configuration does not fit {n_out} rows"))),
    }
}

fn file_bytes(architecture: &str, alpha: f32, tensors: &[Tensor]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    let texts = [("general.type", "adapter"), ("general.architecture", architecture), ("adapter.type", "lora")];
    bytes.extend_from_slice(&(texts.len() as u64 + 1).to_le_bytes());
    for (key, value) in texts {
        push_text(&mut bytes, key);
        bytes.extend_from_slice(&value_type::TEXT.to_le_bytes());
        push_text(&mut bytes, value);
    }
    push_text(&mut bytes, "adapter.lora.alpha");
    bytes.extend_from_slice(&value_type::F32.to_le_bytes());
    bytes.extend_from_slice(&alpha.to_le_bytes());
    let mut offset = 0;
    for tensor in tensors {
        push_text(&mut bytes, &tensor.name);
        bytes.extend_from_slice(&2u32.to_le_bytes());
        // The innermost dimension comes first.
        for side in tensor.shape.iter().rev() {
            bytes.extend_from_slice(&(*side as u64).to_le_bytes());
        }
        bytes.extend_from_slice(&TYPE_FLOAT32.to_le_bytes());
        bytes.extend_from_slice(&(offset as u64).to_le_bytes());
        offset += (tensor.values.len() * 4).next_multiple_of(ALIGNMENT);
    }
    for tensor in tensors {
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}
