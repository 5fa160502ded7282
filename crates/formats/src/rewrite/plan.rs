//! What will be written, known to the byte before the first is.

use super::additions;
use crate::adapter::AdapterFile;
use crate::float_type::FloatType;
use crate::model_source::{self, ModelSource, TokenizerSource};
use crate::tensor_encoding::{Encoding, SourceTensor};
use crate::{FormatError, json, quantize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// How matrices are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenWeights {
    /// As they are: float ones in their type, quantized ones with their bits and groups.
    AsStored,
    /// All in float: quantized ones in the type of their scales.
    Float,
    /// Float matrices, and quantized ones that an adapter adds to, in so many bits (4 or 8) and weights a group.
    Affine { bits: u32, group_size: usize },
}

/// How a folder is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteOptions {
    pub weights: WrittenWeights,
    /// Weight files are divided before they grow larger than this; a tensor is never divided.
    pub file_bytes_max: u64,
}

impl RewriteOptions {
    pub fn new(weights: WrittenWeights) -> Self {
        Self { weights, file_bytes_max: 5_000_000_000 }
    }
}

/// A model folder that is ready to be written anew with `adapters` in it.
pub struct ModelRewrite<'a> {
    pub(super) source: ModelSource,
    pub(super) folder: PathBuf,
    /// `config.json` of the new folder.
    pub(super) config: Map<String, Value>,
    pub(super) adapters: Vec<&'a AdapterFile>,
    /// One entry a tensor of the source, in the order of writing.
    pub(super) tensors: Vec<PlannedTensor>,
    /// How many of `tensors` each weight file holds.
    pub(super) files: Vec<usize>,
    is_written_quantized: bool,
}

/// How a tensor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Copied,
    Float(FloatType),
    Affine { bits: u32, group_size: usize, float_type: FloatType },
}

pub(super) struct PlannedTensor {
    /// Index into the source's tensors.
    pub(super) index: usize,
    pub(super) form: Form,
    pub(super) parts: Vec<Part>,
}

/// One tensor of a weight file.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) type_name: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: u64,
}

impl PlannedTensor {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// Groups smaller than this are no format of MLX; such matrices stay in float, as MLX itself leaves them.
const GROUP_SIZE_MIN: usize = 32;

impl<'a> ModelRewrite<'a> {
    /// Opens the Hugging Face or MLX folder `path` and checks that all of `adapters` find their matrices in it.
    pub fn open(path: &Path, options: &RewriteOptions, adapters: &[&'a AdapterFile]) -> Result<Self, FormatError> {
        if let WrittenWeights::Affine { bits, group_size } = options.weights {
            let problem = |error: quantize::QuantizeError| FormatError::Options { problem: error.to_string() };
            quantize::check_options(bits, group_size).map_err(problem)?;
            if group_size < GROUP_SIZE_MIN {
                let problem = format!("group size {group_size} asked for; MLX folders have 32, 64 or 128");
                return Err(FormatError::Options { problem });
            }
        }
        let source = model_source::open(path)?;
        if matches!(source.tokenizer, TokenizerSource::Gguf(_)) || !path.is_dir() {
            return Err(FormatError::Unsupported {
                path: path.to_owned(),
                what: "base model to write a folder from",
                found: source.description.kind.clone(),
                supported: "the Hugging Face or MLX folder of the same model".into(),
            });
        }
        let config_path = path.join("config.json");
        let config = json::read_object(&config_path)?;
        if config.contains_key("text_config") {
            let problem = "a checkpoint that is more than a language model; only plain ones can be written anew";
            return Err(FormatError::key(&config_path, "text_config", problem));
        }
        check_modules(path, &source, adapters)?;
        let is_quantized = source.tensors.iter().any(SourceTensor::is_quantized);
        let mut order: Vec<usize> = (0..source.tensors.len()).collect();
        order.sort_by(|one, two| source.tensors[*one].stored_name.cmp(&source.tensors[*two].stored_name));
        let plan = |index: usize| {
            let tensor = &source.tensors[index];
            let is_adapted = !additions(adapters, &tensor.name).is_empty();
            let form = form(tensor, options.weights, is_adapted, is_quantized)?;
            Ok(PlannedTensor { index, form, parts: parts(tensor, form) })
        };
        let tensors = order.into_iter().map(plan).collect::<Result<Vec<_>, FormatError>>()?;
        let files = files(&tensors, options.file_bytes_max);
        let is_written_quantized = tensors.iter().any(|tensor| tensor.parts.len() > 1);
        let config = written_config(config, &source, &tensors, options.weights);
        let adapters = adapters.to_vec();
        Ok(Self { source, folder: path.to_owned(), config, adapters, tensors, files, is_written_quantized })
    }

    /// As [`crate::LoadedModel::config`] of the model that is read.
    pub fn source_config(&self) -> Value {
        Value::Object(self.source.config.clone())
    }
    /// Whether matrices of the model that is read arrive quantized.
    pub fn is_quantized(&self) -> bool {
        self.source.tensors.iter().any(SourceTensor::is_quantized)
    }
    /// Whether the written folder is an MLX folder with quantized matrices.
    pub fn is_written_quantized(&self) -> bool {
        self.is_written_quantized
    }
    /// Bytes of all tensors that will be written; headers and the small files beside them add little.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(PlannedTensor::bytes).sum()
    }
}

/// Every matrix of every adapter must have its place: one that is left out would not be missed later.
fn check_modules(path: &Path, source: &ModelSource, adapters: &[&AdapterFile]) -> Result<(), FormatError> {
    for matrix in adapters.iter().flat_map(|adapter| &adapter.matrices) {
        let name = format!("{}.weight", matrix.module);
        let Some(tensor) = source.tensors.iter().find(|tensor| tensor.name == name) else {
            return Err(FormatError::tensor(path, name, "the adapter adds to it, but the model has no such tensor"));
        };
        if tensor.shape != [matrix.n_out, matrix.k_in] {
            let problem = format!("shape {:?}, the adapter adds [{}, {}]", tensor.shape, matrix.n_out, matrix.k_in);
            return Err(FormatError::tensor(&tensor.path, &tensor.stored_name, problem));
        }
    }
    Ok(())
}

fn form(
    tensor: &SourceTensor,
    weights: WrittenWeights,
    is_adapted: bool,
    is_model_quantized: bool,
) -> Result<Form, FormatError> {
    let &[_, k_in] = tensor.shape.as_slice() else { return Ok(Form::Copied) };
    match (&tensor.encoding, weights) {
        // In a quantized model a float matrix was left so on purpose.
        (Encoding::Float { float_type, .. }, WrittenWeights::Affine { bits, group_size }) if !is_model_quantized => {
            Ok(match quantize::fitting_group_size(k_in, group_size) {
                Ok(group_size) if group_size >= GROUP_SIZE_MIN => {
                    Form::Affine { bits, group_size, float_type: *float_type }
                }
                _ if is_adapted => Form::Float(*float_type),
                _ => Form::Copied,
            })
        }
        (Encoding::Float { float_type, .. }, _) if is_adapted => Ok(Form::Float(*float_type)),
        (Encoding::Float { .. }, _) => Ok(Form::Copied),
        (Encoding::Affine { float_type, .. }, WrittenWeights::Float) => Ok(Form::Float(*float_type)),
        (Encoding::Affine { bits, group_size, float_type, .. }, _) if is_adapted => {
            let (bits, group_size) = match weights {
                WrittenWeights::Affine { bits, group_size } => (bits, group_size),
                _ => (*bits, *group_size),
            };
            let error = |error: quantize::QuantizeError| {
                let problem = format!("{error}; choose bits and group size for the matrices that the adapter adds to");
                FormatError::tensor(&tensor.path, &tensor.stored_name, problem)
            };
            quantize::check_options(bits, group_size).map_err(error)?;
            let group_size = quantize::fitting_group_size(k_in, group_size).map_err(error)?;
            Ok(Form::Affine { bits, group_size, float_type: *float_type })
        }
        (Encoding::Affine { .. } | Encoding::Blocks { .. }, _) => Ok(Form::Copied),
    }
}

/// The tensors of the weight file that one tensor of the source becomes.
fn parts(tensor: &SourceTensor, form: Form) -> Vec<Part> {
    let part = |name: String, type_name, shape: Vec<usize>, element_bytes: usize| {
        let bytes = (shape.iter().product::<usize>() * element_bytes) as u64;
        Part { name, type_name, shape, bytes }
    };
    let float = |float_type: FloatType| {
        vec![part(tensor.stored_name.clone(), float_type.stored_name(), tensor.shape.clone(), float_type.bytes())]
    };
    let affine = |bits: u32, group_size: usize, float_type: FloatType| {
        let (n_out, k_in) = (tensor.shape[0], tensor.shape[1]);
        let layer = tensor.stored_name.strip_suffix(".weight").unwrap_or(&tensor.stored_name);
        let groups = vec![n_out, k_in / group_size];
        vec![
            part(format!("{layer}.weight"), "U32", vec![n_out, k_in * bits as usize / 32], 4),
            part(format!("{layer}.scales"), float_type.stored_name(), groups.clone(), float_type.bytes()),
            part(format!("{layer}.biases"), float_type.stored_name(), groups, float_type.bytes()),
        ]
    };
    match (form, &tensor.encoding) {
        (Form::Float(float_type), _) => float(float_type),
        (Form::Copied, Encoding::Float { float_type, .. }) => float(*float_type),
        (Form::Affine { bits, group_size, float_type }, _) => affine(bits, group_size, float_type),
        (Form::Copied, Encoding::Affine { bits, group_size, float_type, .. }) => {
            affine(*bits, *group_size, *float_type)
        }
        (Form::Copied, Encoding::Blocks { .. }) => unreachable!("GGUF files are refused"),
    }
}

/// How many tensors go into each weight file.
fn files(tensors: &[PlannedTensor], bytes_max: u64) -> Vec<usize> {
    let mut files = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for tensor in tensors {
        if count > 0 && bytes + tensor.bytes() > bytes_max {
            files.push(count);
            (count, bytes) = (0, 0);
        }
        count += 1;
        bytes += tensor.bytes();
    }
    files.push(count);
    files
}

/// The configuration with the entry that says what is quantized how, under both names that MLX writes.
fn written_config(
    mut config: Map<String, Value>,
    source: &ModelSource,
    tensors: &[PlannedTensor],
    weights: WrittenWeights,
) -> Map<String, Value> {
    const NAMES: [&str; 2] = ["quantization", "quantization_config"];
    let stored = NAMES.iter().find_map(|name| config.get(*name)).and_then(Value::as_object).cloned();
    if weights == WrittenWeights::Float {
        NAMES.iter().for_each(|name| drop(config.remove(*name)));
        return config;
    }
    let mut entry = match (stored, weights) {
        (Some(stored), _) => stored,
        (None, WrittenWeights::Affine { bits, group_size }) => {
            Map::from_iter([("group_size".to_owned(), json!(group_size)), ("bits".to_owned(), json!(bits))])
        }
        (None, _) => return config,
    };
    for planned in tensors {
        let Form::Affine { bits, group_size, .. } = planned.form else { continue };
        let name = &source.tensors[planned.index].stored_name;
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let is_default = entry.get("bits") == Some(&json!(bits)) && entry.get("group_size") == Some(&json!(group_size));
        match is_default {
            true => drop(entry.remove(layer)),
            false => drop(entry.insert(layer.to_owned(), json!({"group_size": group_size, "bits": bits}))),
        }
    }
    for name in NAMES {
        config.insert(name.to_owned(), Value::Object(entry.clone()));
    }
    config
}
