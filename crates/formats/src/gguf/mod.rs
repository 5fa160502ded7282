//! GGUF files: one file with metadata, tokenizer and tensors.

pub(crate) mod architectures;
mod blocks;
pub(crate) mod container;
mod cursor;
mod tokenizer;

pub(crate) use blocks::BlockType;
pub use tokenizer::GgufTokenizer;

use crate::FormatError;
use crate::float_type::FloatType;
use crate::hugging_face::encoding_summary;
use crate::model_source::{Format, ModelSource, SourceDescription, TokenizerSource};
use crate::special_tokens::SpecialTokens;
use crate::tensor_encoding::{Encoding, RowOrder, SourceTensor};
use architectures::{Architecture, ROPE_DIVISORS_TENSOR};
use container::{Container, TensorEntry};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub(crate) const FORMAT: Format = Format { name: "GGUF file", detect, open };

/// A file that begins as GGUF does, or a folder with one such file and no `config.json`.
fn detect(path: &Path) -> Option<PathBuf> {
    if container::has_magic(path) {
        return Some(path.to_owned());
    }
    if !path.is_dir() || path.join("config.json").exists() {
        return None;
    }
    let mut files = std::fs::read_dir(path).ok()?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let file = files.find(|file| container::has_magic(file))?;
    let is_only_one = !files.any(|file| container::has_magic(&file));
    is_only_one.then_some(file)
}

fn open(path: &Path) -> Result<ModelSource, FormatError> {
    let container = Container::open(path)?;
    if container.unsigned("split.count")?.unwrap_or(1) > 1 {
        return Err(
            container.key_error("split.count", "a model in several files; join them (llama-gguf-split --merge)")
        );
    }
    if let Some(kind) = container.text("general.type")?.filter(|kind| *kind != "model") {
        let help = match kind {
            "adapter" => "; adapters are read in PEFT's and MLX's layout: the folder that this one was exported from",
            _ => "",
        };
        return Err(container.key_error("general.type", format!("`{kind}`, expected `model`{help}")));
    }
    let architecture = architectures::find(&container)?;
    check_spans(&container)?;
    let tensors = read_tensors(&container, architecture)?;
    let embedding = tensors.iter().find(|tensor| tensor.name == "model.embed_tokens.weight");
    let Some(embedding) = embedding.filter(|tensor| tensor.shape.len() == 2) else {
        return Err(FormatError::tensor(path, "token_embd.weight", "missing or no matrix"));
    };
    let tied = !tensors.iter().any(|tensor| tensor.name == "lm_head.weight");
    let rope_divisors = read_rope_divisors(&container)?;
    let divisor_count = rope_divisors.as_ref().map(Vec::len);
    let config = architecture.translate(&container, embedding.shape[0], tied, rope_divisors)?;
    if let Some(count) = divisor_count.filter(|count| Some(*count as u64 * 2) != config["head_dim"].as_u64()) {
        let problem = format!("{count} numbers, expected one for two of a head's {} dimensions", config["head_dim"]);
        return Err(FormatError::tensor(path, ROPE_DIVISORS_TENSOR, problem));
    }
    let tensors = with_row_orders(tensors, architecture, &config)?;
    let tokenizer = tokenizer::read(&container)?;
    Ok(ModelSource {
        description: describe(&container, &tensors)?,
        special: tokenizer.as_ref().map_or_else(SpecialTokens::default, tokenizer::special_tokens),
        tokenizer: match tokenizer {
            Some(tokenizer) => TokenizerSource::Gguf(Box::new(tokenizer)),
            None => TokenizerSource::Missing { expected: path.to_owned() },
        },
        chat_template: container.text("tokenizer.chat_template")?.map(str::to_owned),
        identity: identity(&container, architecture),
        config,
        tensors,
        files: vec![path.to_owned()],
        cache_stem: path.to_owned(),
    })
}

fn describe(container: &Container, tensors: &[SourceTensor]) -> Result<SourceDescription, FormatError> {
    Ok(SourceDescription {
        path: container.path().to_owned(),
        kind: FORMAT.name.into(),
        quantization: encoding_summary(tensors),
        license: container.text("general.license")?.map(str::to_owned),
        name: container.text("general.name")?.map(str::to_owned),
    })
}

/// What makes this model this model besides its tensors: the architecture's own keys, as they stand in the file.
fn identity(container: &Container, architecture: &Architecture) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(architecture.name);
    for (key, value) in container.raw_entries(&format!("{}.", architecture.name)) {
        hash.update((key.len() as u64).to_le_bytes());
        hash.update(key);
        hash.update((value.len() as u64).to_le_bytes());
        hash.update(value);
    }
    hash.finalize().into()
}

/// What a tensor's type number stands for.
enum StoredType {
    Float(FloatType),
    Blocks(&'static BlockType),
}

fn stored_type(path: &Path, entry: &TensorEntry) -> Result<StoredType, FormatError> {
    if let Some((.., float_type)) = blocks::FLOAT_TYPES.iter().find(|(_, id, _)| *id == entry.type_id) {
        return Ok(StoredType::Float(*float_type));
    }
    let block_type = blocks::BLOCK_TYPES.iter().find(|block_type| block_type.type_id == entry.type_id);
    block_type.map(StoredType::Blocks).ok_or_else(|| {
        let name = blocks::unsupported_name(entry.type_id);
        let supported = blocks::supported_names();
        FormatError::tensor(path, &entry.name, format!("unsupported tensor type {name}; supported: {supported}"))
    })
}

/// Bytes of a tensor, or an error when its shape and type give none.
fn byte_len(path: &Path, entry: &TensorEntry) -> Result<usize, FormatError> {
    let columns = entry.shape.last().copied().unwrap_or(1);
    let outer = entry.shape.iter().rev().skip(1).try_fold(1usize, |product, side| product.checked_mul(*side));
    let bytes = match stored_type(path, entry)? {
        StoredType::Float(float_type) => {
            outer.and_then(|outer| outer.checked_mul(columns)).and_then(|count| count.checked_mul(float_type.bytes()))
        }
        StoredType::Blocks(block_type) => outer.and_then(|outer| block_type.byte_len(outer, columns)),
    };
    bytes.ok_or_else(|| {
        FormatError::tensor(path, &entry.name, format!("shape {:?} is impossible for its type", entry.shape))
    })
}

/// Checks that every tensor lies inside the file, starts aligned and overlaps no other.
pub(crate) fn check_spans(container: &Container) -> Result<(), FormatError> {
    let path = container.path();
    let file_len = container.file.bytes().len();
    let mut names = HashSet::new();
    let mut spans = Vec::with_capacity(container.tensors.len());
    for entry in &container.tensors {
        if !names.insert(entry.name.as_str()) {
            return Err(FormatError::tensor(path, &entry.name, "appears twice"));
        }
        if !entry.offset.is_multiple_of(container.alignment) {
            let problem = format!("offset {} is no multiple of the alignment {}", entry.offset, container.alignment);
            return Err(FormatError::tensor(path, &entry.name, problem));
        }
        let len = byte_len(path, entry)?;
        let start = container.data_start.checked_add(entry.offset);
        let end = start.and_then(|start| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => spans.push((start, end, entry.name.as_str())),
            _ => {
                let problem = format!("its {len} bytes end outside the file of {file_len} bytes (cut short?)");
                return Err(FormatError::tensor(path, &entry.name, problem));
            }
        }
    }
    spans.sort();
    match spans.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => Err(FormatError::tensor(path, pair[1].2, format!("its bytes overlap those of `{}`", pair[0].2))),
        None => Ok(()),
    }
}

fn read_tensors(container: &Container, architecture: &Architecture) -> Result<Vec<SourceTensor>, FormatError> {
    let path = container.path();
    let mut tensors = Vec::with_capacity(container.tensors.len());
    for entry in container.tensors.iter().filter(|entry| entry.name != ROPE_DIVISORS_TENSOR) {
        let Some(name) = architecture.hugging_face_name(&entry.name) else {
            let problem = format!("unknown in architecture `{}`", architecture.name);
            return Err(FormatError::tensor(path, &entry.name, problem));
        };
        let start = container.data_start + entry.offset;
        let data = container.file.part(start..start + byte_len(path, entry)?);
        let is_norm = name.ends_with("norm.weight");
        tensors.push(SourceTensor {
            stored_name: entry.name.clone(),
            path: path.to_owned(),
            shape: entry.shape.clone(),
            encoding: match stored_type(path, entry)? {
                StoredType::Float(float_type) => Encoding::Float { float_type, data },
                StoredType::Blocks(block_type) => Encoding::Blocks { block_type, data },
            },
            row_order: RowOrder::AsNamed,
            added: if is_norm && architecture.norms_hold_one_plus { 1.0 } else { 0.0 },
            name,
        });
    }
    Ok(tensors)
}

fn read_rope_divisors(container: &Container) -> Result<Option<Vec<f32>>, FormatError> {
    let path = container.path();
    let Some(entry) = container.tensors.iter().find(|entry| entry.name == ROPE_DIVISORS_TENSOR) else {
        return Ok(None);
    };
    let (StoredType::Float(float_type), [count]) = (stored_type(path, entry)?, entry.shape.as_slice()) else {
        return Err(FormatError::tensor(path, &entry.name, "expected a vector of a float type"));
    };
    let start = container.data_start + entry.offset;
    let mut divisors = vec![0.0; *count];
    float_type.widen(&container.file.bytes()[start..start + byte_len(path, entry)?], &mut divisors);
    if divisors.iter().any(|divisor| !divisor.is_finite() || *divisor <= 0.0) {
        return Err(FormatError::tensor(path, &entry.name, "expected positive numbers"));
    }
    Ok(Some(divisors))
}

fn with_row_orders(
    mut tensors: Vec<SourceTensor>,
    architecture: &Architecture,
    config: &serde_json::Map<String, serde_json::Value>,
) -> Result<Vec<SourceTensor>, FormatError> {
    let heads = |key: &str| config[key].as_u64().and_then(|heads| usize::try_from(heads).ok()).unwrap_or_default();
    for tensor in &mut tensors {
        if architecture.interleaved_heads {
            if tensor.name.contains(".self_attn.q_proj.") {
                tensor.row_order = RowOrder::Interleaved { heads: heads("num_attention_heads") };
            } else if tensor.name.contains(".self_attn.k_proj.") {
                tensor.row_order = RowOrder::Interleaved { heads: heads("num_key_value_heads") };
            }
        }
        tensor.check_shape()?;
    }
    Ok(tensors)
}
