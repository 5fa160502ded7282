//! What a model file says about itself, without decoding any tensor.

use crate::model_source::{self, SourceDescription, TokenizerSource};
use crate::special_tokens::SpecialTokens;
use crate::{FormatError, gguf};
use std::path::Path;

/// A model's description for `inspect`.
#[derive(Clone, Debug)]
pub struct ModelSummary {
    pub source: SourceDescription,
    /// As in [`crate::LoadedModel::config`].
    pub config: serde_json::Value,
    /// In the order of their Hugging Face names.
    pub tensors: Vec<TensorSummary>,
    pub parameter_count: u64,
    /// Bytes of the stored tensors.
    pub tensor_bytes: u64,
    /// `tokenizer.json`, `GGUF gpt2, 49152 tokens`, or what is missing.
    pub tokenizer: String,
    pub special: SpecialTokens,
    pub has_chat_template: bool,
}

/// One tensor of a model file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TensorSummary {
    /// Hugging Face name.
    pub name: String,
    /// Name in the file.
    pub stored_name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// `bf16`, `affine 4-bit group 64`, `Q4_K`.
    pub encoding: String,
    pub bytes: u64,
}

/// Describes the model at `path`. Reads headers and metadata only.
pub fn describe_model(path: &Path) -> Result<ModelSummary, FormatError> {
    let source = model_source::open(path)?;
    let mut tensors: Vec<TensorSummary> = source.tensors.iter().map(summary).collect();
    tensors.sort_by(|one, two| one.name.cmp(&two.name));
    let elements = |tensor: &TensorSummary| tensor.shape.iter().map(|side| *side as u64).product::<u64>();
    Ok(ModelSummary {
        parameter_count: tensors.iter().map(elements).sum(),
        tensor_bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
        tokenizer: match &source.tokenizer {
            TokenizerSource::HuggingFace { .. } => "tokenizer.json".into(),
            TokenizerSource::Gguf(tokenizer) => tokenizer_summary(tokenizer),
            TokenizerSource::Missing { expected } => format!("missing: {}", expected.display()),
        },
        has_chat_template: source.chat_template.is_some(),
        config: serde_json::Value::Object(source.config),
        special: source.special,
        source: source.description,
        tensors,
    })
}

fn summary(tensor: &crate::tensor_encoding::SourceTensor) -> TensorSummary {
    TensorSummary {
        name: tensor.name.clone(),
        stored_name: tensor.stored_name.clone(),
        shape: tensor.shape.clone(),
        encoding: tensor.encoding_name(),
        bytes: tensor.stored_len(),
    }
}

fn tokenizer_summary(tokenizer: &gguf::GgufTokenizer) -> String {
    let pre = tokenizer.pre.as_deref().map(|pre| format!(" ({pre})")).unwrap_or_default();
    format!("GGUF {}{pre}, {} tokens", tokenizer.model, tokenizer.tokens.len())
}
