//! Adapters as GGUF files, as llama.cpp's `--lora` loads them: `blk.N.attn_q.weight.lora_a` [r, k_in] and `.lora_b`
//! [n_out, r], multiplied by `adapter.lora.alpha` / r, rows of q and k in the order of the base file. selftune's own
//! metadata stands as JSON under a key of its own, which other programs pass over.

use super::peft::read_metadata;
use super::{AdapterFile, AdapterMetadata};
use crate::atomic_write::{self, Readers};
use crate::gguf::architectures::{self, Architecture};
use crate::gguf::check_spans;
use crate::gguf::container::{Container, MAGIC, has_magic, value_type};
use crate::tensor_encoding::interleave_rows;
use crate::{FormatError, json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const VERSION: u32 = 3;
const ALIGNMENT: usize = 32;
/// GGUF's number for float32 tensors.
const TYPE_FLOAT32: u32 = 0;
const TYPE_KEY: &str = "general.type";
const ARCHITECTURE_KEY: &str = "general.architecture";
const ADAPTER_TYPE_KEY: &str = "adapter.type";
const ALPHA_KEY: &str = "adapter.lora.alpha";
/// [`AdapterMetadata`] as JSON.
const METADATA_KEY: &str = "selftune.metadata";
const SIDES: [&str; 2] = [".lora_a", ".lora_b"];

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
    let metadata = adapter.metadata.as_ref().map(|metadata| serde_json::json!(metadata).to_string());
    let mut texts = vec![(TYPE_KEY, "adapter"), (ARCHITECTURE_KEY, architecture.name), (ADAPTER_TYPE_KEY, "lora")];
    texts.extend(metadata.as_deref().map(|metadata| (METADATA_KEY, metadata)));
    atomic_write::write(path, &file_bytes(&texts, alpha, &tensors), Readers::OwnerOnly)
}

/// What a GGUF adapter says about itself, without its values.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufAdapter {
    /// `llama`, `qwen3`, ...
    pub architecture: String,
    pub rank: usize,
    pub lora_alpha: f64,
    /// In the order of their names.
    pub matrices: Vec<GgufMatrix>,
    /// What selftune knows about the adapter; `None` for one made by another program.
    pub metadata: Option<AdapterMetadata>,
}

/// One adapted matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufMatrix {
    /// `blk.3.attn_q.weight`
    pub name: String,
    pub n_out: usize,
    pub k_in: usize,
}

/// Whether the file at `path` is a GGUF file that says that it is an adapter.
pub fn is_gguf(path: &Path) -> bool {
    let says_so = |file: Container| matches!(file.text(TYPE_KEY), Ok(Some("adapter")));
    has_magic(path) && Container::open(path).is_ok_and(says_so)
}

/// Describes the GGUF adapter at `path`: its header is read and checked, its values are not.
pub fn describe_gguf(path: &Path) -> Result<GgufAdapter, FormatError> {
    let file = Container::open(path)?;
    let text = |key: &str| file.text(key)?.ok_or_else(|| file.key_error(key, "missing, expected a text"));
    for (key, expected) in [(TYPE_KEY, "adapter"), (ADAPTER_TYPE_KEY, "lora")] {
        let found = text(key)?;
        if found != expected {
            return Err(file.key_error(key, format!("`{found}`, expected `{expected}`")));
        }
    }
    let lora_alpha = file.float(ALPHA_KEY)?.filter(|alpha| *alpha > 0.0);
    let lora_alpha = lora_alpha.ok_or_else(|| file.key_error(ALPHA_KEY, "missing or not positive"))?;
    check_spans(&file)?;
    let (rank, matrices) = described_pairs(path, &file)?;
    let metadata = file.text(METADATA_KEY)?.map(|text| read_metadata(path, json::parse(path, text.as_bytes())?));
    Ok(GgufAdapter {
        architecture: text(ARCHITECTURE_KEY)?.to_owned(),
        rank,
        lora_alpha,
        matrices,
        metadata: metadata.transpose()?,
    })
}

/// The rank of all pairs of `file`, which must be complete and alike, and their shapes.
fn described_pairs(path: &Path, file: &Container) -> Result<(usize, Vec<GgufMatrix>), FormatError> {
    let mut pairs: BTreeMap<&str, [Option<[usize; 2]>; 2]> = BTreeMap::new();
    for tensor in &file.tensors {
        let error = |problem: String| FormatError::tensor(path, &tensor.name, problem);
        let side = SIDES.iter().position(|side| tensor.name.ends_with(side));
        let side = side.ok_or_else(|| error(format!("expected NAME{} or NAME{}", SIDES[0], SIDES[1])))?;
        let &[rows, columns] = tensor.shape.as_slice() else {
            return Err(error(format!("shape {:?}, expected a matrix", tensor.shape)));
        };
        pairs.entry(&tensor.name[..tensor.name.len() - SIDES[side].len()]).or_default()[side] = Some([rows, columns]);
    }
    let mut rank = None;
    let mut matrices = Vec::with_capacity(pairs.len());
    for (name, pair) in pairs {
        let error = |problem: String| FormatError::tensor(path, name, problem);
        let [Some([a_rank, k_in]), Some([n_out, b_rank])] = pair else {
            let missing = SIDES[usize::from(pair[0].is_some())];
            return Err(error(format!("has no `{name}{missing}`")));
        };
        let expected = *rank.get_or_insert(a_rank);
        if a_rank != expected || b_rank != expected || expected == 0 {
            return Err(error(format!(
                "ranks {a_rank} and {b_rank}, expected {expected}, above 0, as the first matrix has"
            )));
        }
        matrices.push(GgufMatrix { name: name.to_owned(), n_out, k_in });
    }
    let nothing = || FormatError::tensor(path, "lora_a", "the file holds no adapter matrices");
    Ok((rank.ok_or_else(nothing)?, matrices))
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

fn file_bytes(texts: &[(&str, &str)], alpha: f32, tensors: &[Tensor]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(texts.len() as u64 + 1).to_le_bytes());
    for (key, value) in texts {
        push_text(&mut bytes, key);
        bytes.extend_from_slice(&value_type::TEXT.to_le_bytes());
        push_text(&mut bytes, value);
    }
    push_text(&mut bytes, ALPHA_KEY);
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
