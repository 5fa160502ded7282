//! Hugging Face folders: `config.json`, `model.safetensors` or shards with an index, `tokenizer.json`.
//!
//! The pieces that MLX folders share (weights, configuration, tokenizer) are here; [`crate::mlx`] adds quantization.

use crate::FormatError;
use crate::json;
use crate::model_source::{Format, ModelSource, SourceDescription, TokenizerSource};
use crate::safetensors_file::{self, StoredTensor};
use crate::special_tokens;
use crate::tensor_encoding::{Encoding, RowOrder, SourceTensor};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub(crate) const FORMAT: Format = Format { name: "Hugging Face folder", detect, open };

fn detect(path: &Path) -> Option<PathBuf> {
    path.join("config.json").is_file().then(|| path.to_owned())
}

fn open(path: &Path) -> Result<ModelSource, FormatError> {
    let folder = Folder::open(path)?;
    if let Some(quantization) = folder.config.get("quantization_config").filter(|value| !value.is_null()) {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return Err(FormatError::Unsupported {
            path: path.join("config.json"),
            what: "quantization method",
            found: method.to_owned(),
            supported: "float weights, MLX affine folders, GGUF".into(),
        });
    }
    let tensors = folder.weights.iter().filter_map(|(stored_name, stored)| {
        let name = hugging_face_name(stored_name)?;
        Some(float_tensor(name, stored_name, stored))
    });
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    folder.into_source(FORMAT.name, tensors)
}

/// A model folder with its configuration flattened and its weight files opened.
pub(crate) struct Folder {
    path: PathBuf,
    /// `config.json` with a nested text configuration brought up.
    pub(crate) config: Map<String, Value>,
    identity: [u8; 32],
    /// Stored tensors by stored name.
    pub(crate) weights: BTreeMap<String, StoredTensor>,
    files: Vec<PathBuf>,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Folder, FormatError> {
        let config_path = path.join("config.json");
        let config = json::read_object(&config_path)?;
        let identity = Sha256::digest(json::canonical(&Value::Object(config.clone())).to_string()).into();
        let (weights, mut files) = read_weights(path)?;
        files.push(config_path);
        Ok(Folder { path: path.to_owned(), config: flatten_text_config(config), identity, weights, files })
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// Completes the source with tokenizer, template and description, and checks names and shapes of `tensors`.
    pub(crate) fn into_source(self, kind: &str, mut tensors: Vec<SourceTensor>) -> Result<ModelSource, FormatError> {
        // Some checkpoints carry a copy of the tied matrix; the configuration decides.
        if self.config.get("tie_word_embeddings") == Some(&Value::Bool(true)) {
            tensors.retain(|tensor| tensor.name != "lm_head.weight");
        }
        let mut names = BTreeSet::new();
        for tensor in &tensors {
            tensor.check_shape()?;
            if !names.insert(&tensor.name) {
                let problem = format!("a second tensor for `{}`", tensor.name);
                return Err(FormatError::tensor(&tensor.path, &tensor.stored_name, problem));
            }
        }
        if tensors.is_empty() {
            return Err(FormatError::NotAModel {
                path: self.path,
                expected: "its files hold no language model".into(),
            });
        }
        let tokenizer_config = json::read_object_if_there(&self.path.join("tokenizer_config.json"))?;
        let tokenizer_json = self.path.join("tokenizer.json");
        let name = self.config.get("_name_or_path").and_then(Value::as_str).filter(|name| !name.is_empty());
        Ok(ModelSource {
            description: SourceDescription {
                kind: kind.into(),
                quantization: encoding_summary(&tensors),
                license: license(&self.path),
                name: name.map(str::to_owned).or_else(|| folder_name(&self.path)),
                path: self.path.clone(),
            },
            chat_template: chat_template(&self.path, tokenizer_config.as_ref())?,
            special: special_tokens::from_folder(&self.path, &self.config, tokenizer_config.as_ref())?,
            tokenizer: if tokenizer_json.is_file() {
                TokenizerSource::HuggingFace { tokenizer_json, config: tokenizer_config.map(Value::Object) }
            } else {
                TokenizerSource::Missing { expected: tokenizer_json }
            },
            config: self.config,
            tensors,
            identity: self.identity,
            files: self.files,
            cache_stem: self.path.join("selftune"),
        })
    }
}

fn folder_name(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// `bf16 x210`, `affine 4-bit group 64 x197, bf16 x1`: how matrices are stored.
pub(crate) fn encoding_summary(tensors: &[SourceTensor]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.shape.len() == 2) {
        *counts.entry(tensor.encoding_name()).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.iter().map(|(name, count)| format!("{name} x{count}")).collect::<Vec<_>>().join(", ")
}

/// A tensor of a float type.
pub(crate) fn float_tensor(
    name: String,
    stored_name: &str,
    stored: &StoredTensor,
) -> Result<SourceTensor, FormatError> {
    let path = stored.data.path().to_owned();
    let Some(float_type) = stored.float_type() else {
        let problem = format!("type {}, expected F32, F16 or BF16", stored.type_name);
        return Err(FormatError::tensor(&path, stored_name, problem));
    };
    Ok(SourceTensor {
        name,
        stored_name: stored_name.to_owned(),
        path,
        shape: stored.shape.clone(),
        encoding: Encoding::Float { float_type, data: stored.data.clone() },
        row_order: RowOrder::AsNamed,
        added: 0.0,
    })
}

/// Parts of multimodal checkpoints that are no language model, and buffers that follow from the configuration.
fn is_ignored(name: &str) -> bool {
    const PREFIXES: [&str; 6] = [
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
        "visual.",
        "model.visual.",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || name.ends_with(".rotary_emb.inv_freq")
}

/// The plain name of a stored tensor: the text model of a multimodal checkpoint loses its prefix. `None`: not wanted.
pub(crate) fn hugging_face_name(stored: &str) -> Option<String> {
    if is_ignored(stored) {
        return None;
    }
    if let Some(rest) = stored.strip_prefix("model.language_model.") {
        return Some(format!("model.{rest}"));
    }
    Some(stored.strip_prefix("language_model.").unwrap_or(stored).to_owned())
}

/// Multimodal checkpoints keep the language model's configuration under `text_config`: its keys win over those above.
/// Published Gemma 3 ones leave out what equals the defaults of the class; those are filled in.
fn flatten_text_config(mut config: Map<String, Value>) -> Map<String, Value> {
    let Some(Value::Object(text)) = config.remove("text_config") else { return config };
    for key in ["vision_config", "mm_tokens_per_image", "image_token_index", "boi_token_index", "eoi_token_index"] {
        config.remove(key);
    }
    config.extend(text);
    if config.get("model_type").and_then(Value::as_str) == Some("gemma3_text") {
        for (key, value) in [
            ("num_attention_heads", Value::from(8)),
            ("num_key_value_heads", Value::from(4)),
            ("head_dim", Value::from(256)),
            ("query_pre_attn_scalar", Value::from(256)),
            ("sliding_window", Value::from(4096)),
            ("sliding_window_pattern", Value::from(6)),
            ("rms_norm_eps", Value::from(1e-6)),
            ("vocab_size", Value::from(262_208)),
            ("max_position_embeddings", Value::from(131_072)),
            ("hidden_activation", Value::from("gelu_pytorch_tanh")),
            ("tie_word_embeddings", Value::from(true)),
        ] {
            config.entry(key).or_insert(value);
        }
        if !config.contains_key("rope_parameters") {
            config.entry("rope_theta").or_insert(Value::from(1e6));
            config.entry("rope_local_base_freq").or_insert(Value::from(1e4));
        }
    }
    config
}

/// All tensors of the folder's weight files, and the files.
fn read_weights(folder: &Path) -> Result<(BTreeMap<String, StoredTensor>, Vec<PathBuf>), FormatError> {
    let index_path = folder.join("model.safetensors.index.json");
    let (files, index) = if index_path.is_file() {
        let index = read_index(&index_path)?;
        let files: BTreeSet<String> = index.values().cloned().collect();
        (files.into_iter().map(|file| folder.join(file)).collect(), Some(index))
    } else {
        (weight_files(folder)?, None)
    };
    let mut weights = BTreeMap::new();
    for file in &files {
        if !file.is_file() {
            let expected = format!("{} names it", index_path.display());
            return Err(FormatError::MissingFile { path: file.clone(), expected });
        }
        for (name, tensor) in safetensors_file::read(file)?.tensors {
            if let Some(earlier) = weights.insert(name.clone(), tensor) {
                let earlier: StoredTensor = earlier;
                let problem = format!("stored a second time; the first is in {}", earlier.data.path().display());
                return Err(FormatError::tensor(file, name, problem));
            }
        }
    }
    if let Some(name) = index.iter().flatten().map(|(name, _)| name).find(|name| !weights.contains_key(*name)) {
        return Err(FormatError::tensor(&index_path, name, "named by the index and in none of its files"));
    }
    let mut files = files;
    if index.is_some() {
        files.push(index_path);
    }
    Ok((weights, files))
}

/// `weight_map` of the index: tensor name to file name.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, FormatError> {
    let mut index = json::read_object(path)?;
    let Some(Value::Object(map)) = index.remove("weight_map") else {
        return Err(FormatError::key(path, "weight_map", "missing or no object"));
    };
    let file_name = |(name, value): (String, Value)| match value {
        // A name with a folder in it could lead anywhere.
        Value::String(file) if Path::new(&file).file_name().is_some_and(|last| last == file.as_str()) => {
            Ok((name, file))
        }
        other => {
            Err(FormatError::key(path, format!("weight_map.{name}"), format!("expected a file name, found {other}")))
        }
    };
    map.into_iter().map(file_name).collect()
}

/// Weight files of a folder without an index: `model*.safetensors`, or the only safetensors file there is.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let entries = std::fs::read_dir(folder).map_err(|source| FormatError::read(folder, source))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let safetensors: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
    let mut models: Vec<&String> = safetensors.iter().copied().filter(|name| name.starts_with("model")).collect();
    if models.is_empty() {
        models = safetensors;
        models.retain(|name| !name.starts_with("adapter"));
    }
    let path = folder.join("model.safetensors");
    match models.as_slice() {
        [] if names.iter().any(|name| name.ends_with(".bin") || name.ends_with(".pth")) => {
            Err(FormatError::MissingFile {
                path,
                expected: "only PyTorch pickle files are here; convert the weights to safetensors".into(),
            })
        }
        [] => {
            Err(FormatError::MissingFile { path, expected: "a model folder holds its weights as safetensors".into() })
        }
        models => Ok(models.iter().map(|name| folder.join(name)).collect()),
    }
}

/// `chat_template.jinja`, else the `chat_template` of `tokenizer_config.json` (a text, or a list of named ones of which
/// `default` counts), else that of `chat_template.json`.
fn chat_template(folder: &Path, tokenizer_config: Option<&Map<String, Value>>) -> Result<Option<String>, FormatError> {
    let file = folder.join("chat_template.jinja");
    if file.is_file() {
        let text = String::from_utf8(json::read_bytes(&file)?);
        return match text {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(FormatError::malformed(&file, error.utf8_error().valid_up_to(), "not UTF-8")),
        };
    }
    let stored = tokenizer_config.and_then(|config| config.get("chat_template")).filter(|value| !value.is_null());
    match stored {
        Some(Value::String(text)) => return Ok(Some(text.clone())),
        Some(Value::Array(named)) => {
            let name_is = |entry: &&Value, name| entry.get("name").and_then(Value::as_str) == Some(name);
            let chosen = named.iter().find(|entry| name_is(entry, "default")).or(named.first());
            return Ok(chosen.and_then(|entry| entry.get("template")).and_then(Value::as_str).map(str::to_owned));
        }
        Some(other) => {
            let problem = format!("expected a text or a list of named texts, found {}", json::kind_name(other));
            return Err(FormatError::key(&folder.join("tokenizer_config.json"), "chat_template", problem));
        }
        None => {}
    }
    let older = json::read_object_if_there(&folder.join("chat_template.json"))?;
    Ok(older.and_then(|object| object.get("chat_template")?.as_str().map(str::to_owned)))
}

/// The `license:` line of the header of README.md.
fn license(folder: &Path) -> Option<String> {
    let text = String::from_utf8(json::read_bytes(&folder.join("README.md")).ok()?).ok()?;
    let mut lines = text.lines();
    if lines.next()?.trim_end() != "---" {
        return None;
    }
    let line = lines.take_while(|line| line.trim_end() != "---").find_map(|line| line.strip_prefix("license:"))?;
    Some(line.trim().trim_matches(['"', '\'']).to_owned()).filter(|license| !license.is_empty())
}
