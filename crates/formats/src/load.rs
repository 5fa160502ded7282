//! From a path to a model ready for the kernels.

use crate::cache;
use crate::model_source::{self, ModelSource, SourceDescription, TokenizerSource};
use crate::special_tokens::SpecialTokens;
use crate::tensor_encoding::{DecodedTensor, SourceTensor};
use crate::{FormatError, quantize};
use kernels::{FloatVector, PackedMatrix};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to load a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Bits for matrices that arrive in a float type: 4 or 8. Where other matrices of the model arrive quantized, the
    /// float ones were kept so on purpose and get 8 whatever is said here.
    pub quantize_bits: u32,
    /// Weights a group for matrices that arrive in a float type: 16, 32, 64 or 128. Rows that it does not divide get the
    /// largest smaller one that does.
    pub quantize_group_size: usize,
    pub cache: CacheMode,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { quantize_bits: 4, quantize_group_size: 64, cache: CacheMode::BesideModel }
    }
}

/// Where the packed cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Beside the model, or in the user's cache folder when the model's cannot be written.
    BesideModel,
    Folder(PathBuf),
    Off,
}

/// What happened with the packed cache. A cache that cannot be written never fails a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheReport {
    /// The model is mapped from this cache file, which was there already.
    Hit { path: PathBuf },
    /// The model is mapped from this cache file, which was written just now.
    Written { path: PathBuf },
    /// The model is in memory, because the cache was switched off.
    Off,
    /// The model is in memory, because no cache file could be written.
    NotWritten { reason: String },
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    pub stage: LoadStage,
    /// Bytes of the model's files handled and in all.
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// The stages of loading that take time. A model found in the cache goes through neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// Reading everything once to know which model it is.
    Hashing,
    /// Decoding or quantizing, and packing for the kernels.
    Packing,
}

/// A model whose matrices are packed.
#[derive(Debug)]
pub struct LoadedModel {
    /// As Hugging Face's `config.json`, translated for GGUF. [`crate::ROPE_INV_FREQ_FACTORS_KEY`] is the only key of ours.
    pub config: serde_json::Value,
    /// By Hugging Face name: `model.layers.0.self_attn.q_proj.weight`.
    pub tensors: BTreeMap<String, LoadedTensor>,
    pub tokenizer: TokenizerSource,
    pub chat_template: Option<String>,
    pub special: SpecialTokens,
    pub source: SourceDescription,
    /// SHA-256 (hexadecimal) of the stored tensors and the configuration: which model this is, independent of the
    /// options of loading.
    pub content_hash: String,
    pub cache: CacheReport,
}

/// A tensor of a loaded model: every matrix is packed, every vector is float32.
pub enum LoadedTensor {
    Packed(Arc<PackedMatrix>),
    Float(FloatVector),
}

impl std::fmt::Debug for LoadedTensor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            LoadedTensor::Packed(matrix) => write!(formatter, "Packed({:?})", matrix.header()),
            LoadedTensor::Float(values) => write!(formatter, "Float([{}])", values.len()),
        }
    }
}

/// Loads the model at `path`: a GGUF file, an MLX folder or a Hugging Face folder. The first load packs the matrices
/// into a cache file; later ones map it. `progress` is called from this thread.
pub fn load_model(
    path: &Path,
    options: &LoadOptions,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<LoadedModel, FormatError> {
    quantize::check_options(options.quantize_bits, options.quantize_group_size)
        .map_err(|error| FormatError::Options { problem: error.to_string() })?;
    let source = model_source::open(path)?;
    let (tensors, content_hash, cache) = cache::obtain(&source, options, progress)?;
    Ok(LoadedModel {
        config: serde_json::Value::Object(source.config),
        tensors,
        tokenizer: source.tokenizer,
        chat_template: source.chat_template,
        special: source.special,
        source: source.description,
        content_hash,
        cache,
    })
}

/// [`LoadedModel::content_hash`] of the model at `path`. Reads all of it, unless a cache of it knows.
pub fn model_content_hash(path: &Path, progress: &mut dyn FnMut(&LoadProgress)) -> Result<String, FormatError> {
    cache::identify(&model_source::open(path)?, progress)
}

/// Writes tensors one by one into a packed file in `folder` and gives them back mapped from it, so that no more than one
/// is in memory at a time. For models that no file describes. The file has no name where the system can do that, so that
/// nothing is left of it however the program ends.
pub fn map_through_file(
    folder: &Path,
    tensors: impl Iterator<Item = (String, LoadedTensor)>,
) -> Result<BTreeMap<String, LoadedTensor>, FormatError> {
    cache::map_through_file(folder, tensors)
}

/// Bits for the float matrices of `source`; `None` when it has none.
pub(crate) fn float_matrix_bits(source: &ModelSource, options: &LoadOptions) -> Option<u32> {
    let has_quantized = source.tensors.iter().any(SourceTensor::is_quantized);
    let has_float = source.tensors.iter().any(|tensor| tensor.shape.len() == 2 && !tensor.is_quantized());
    has_float.then_some(if has_quantized { 8 } else { options.quantize_bits })
}

/// Decodes and packs one tensor.
pub(crate) fn pack_tensor(
    tensor: &SourceTensor,
    float_bits: u32,
    options: &LoadOptions,
) -> Result<LoadedTensor, FormatError> {
    match tensor.decode(float_bits, options.quantize_group_size)? {
        DecodedTensor::Vector(values) => Ok(LoadedTensor::Float(FloatVector::from_slice(&values))),
        DecodedTensor::Matrix(matrix) => {
            let packed = PackedMatrix::pack(&matrix)
                .map_err(|error| FormatError::tensor(&tensor.path, &tensor.stored_name, error.to_string()))?;
            Ok(LoadedTensor::Packed(Arc::new(packed)))
        }
    }
}
