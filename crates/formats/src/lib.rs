//! Files in and out: models (Hugging Face folders, MLX folders, GGUF), the packed cache, and adapters (PEFT, MLX, GGUF).
//!
//! [`load_model`] turns any of the model formats into one form: a configuration as in Hugging Face's `config.json`,
//! tensors under their Hugging Face names, every matrix packed for the kernels. [`describe_model`] reads the same
//! without packing. A format is one file and one line in `model_source`'s list.
//!
//! Every size and offset in a file is taken for hostile: arithmetic is checked, no allocation is larger than what the
//! file justifies, and what is wrong is a [`FormatError`] that names the file and the tensor, key or byte.

pub mod adapter;
mod atomic_write;
mod cache;
mod describe;
mod error;
mod float_type;
mod gguf;
mod hugging_face;
mod json;
mod load;
mod mapped;
mod mlx;
mod model_source;
mod paths;
pub mod quantize;
mod rewrite;
mod safetensors_file;
mod special_tokens;
mod tensor_encoding;

pub use atomic_write::NewFolder;
pub use describe::{ModelSummary, TensorSummary, describe_model};
pub use error::FormatError;
pub use gguf::GgufTokenizer;
pub use load::{
    CacheMode, CacheReport, LoadOptions, LoadProgress, LoadStage, LoadedModel, LoadedTensor, load_model,
    map_through_file, model_content_hash,
};
pub use model_source::{SourceDescription, TokenizerSource, format_names};
pub use paths::{not_ordinary, open_ordinary, serialize_lossily};
pub use rewrite::{ModelRewrite, RewriteOptions, WrittenWeights};
pub use special_tokens::SpecialTokens;

/// Key of [`LoadedModel::config`] that only GGUF files with a `rope_freqs` tensor give (Llama 3): a list of head_dim / 2
/// numbers by which the rotary inverse frequencies `base^(-2 i / head_dim)` are *divided*. It stands in for a
/// `rope_scaling` of type `llama3`, whose parameters such files do not hold.
pub const ROPE_INV_FREQ_FACTORS_KEY: &str = "rope_inv_freq_factors";
