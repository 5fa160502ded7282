//! The list of model formats, and the one form into which each of them opens a model before anything is decoded.

use crate::FormatError;
use crate::gguf::GgufTokenizer;
use crate::special_tokens::SpecialTokens;
use crate::tensor_encoding::SourceTensor;
use crate::{gguf, hugging_face, mlx};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A model format: how to recognize it, and how to open a model without decoding its tensors.
pub(crate) struct Format {
    pub(crate) name: &'static str,
    /// The file or folder to open when `path` is a model of this format.
    pub(crate) detect: fn(path: &Path) -> Option<PathBuf>,
    pub(crate) open: fn(path: &Path) -> Result<ModelSource, FormatError>,
}

/// Every model format, most specific first.
const FORMATS: &[Format] = &[gguf::FORMAT, mlx::FORMAT, hugging_face::FORMAT];

/// Names of the formats that [`crate::load_model`] reads.
pub fn format_names() -> Vec<&'static str> {
    FORMATS.iter().map(|format| format.name).collect()
}

/// A model that has been opened: configuration, checked tensor table, mapped bytes.
pub(crate) struct ModelSource {
    pub(crate) description: SourceDescription,
    /// As Hugging Face's `config.json`.
    pub(crate) config: Map<String, Value>,
    pub(crate) tensors: Vec<SourceTensor>,
    pub(crate) tokenizer: TokenizerSource,
    pub(crate) chat_template: Option<String>,
    pub(crate) special: SpecialTokens,
    /// Hash of what belongs to the model's identity besides its tensors. Computed from what the files say, not from
    /// the translated configuration, so that it outlives changes of the translation.
    pub(crate) identity: [u8; 32],
    /// Files on which identity and tensors depend.
    pub(crate) files: Vec<PathBuf>,
    /// Path to which the name of a cache file is appended.
    pub(crate) cache_stem: PathBuf,
}

/// Where a model came from, for reports.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SourceDescription {
    #[serde(serialize_with = "crate::serialize_lossily")]
    pub path: PathBuf,
    /// Name of the format.
    pub kind: String,
    /// How matrices are stored: `Q4_1 x210, Q8_0 x1`.
    pub quantization: String,
    pub license: Option<String>,
    pub name: Option<String>,
}

/// Where the tokenizer is.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizerSource {
    /// `tokenizer.json`, with the content of `tokenizer_config.json` when there is one.
    HuggingFace { tokenizer_json: PathBuf, config: Option<Value> },
    /// In the metadata of the GGUF file.
    Gguf(Box<GgufTokenizer>),
    /// The model has none. Weights are usable all the same; text is not.
    Missing { expected: PathBuf },
}

/// Opens the model at `path` with the first format that recognizes it.
pub(crate) fn open(path: &Path) -> Result<ModelSource, FormatError> {
    if let Err(source) = std::fs::metadata(path) {
        return Err(FormatError::read(path, source));
    }
    for format in FORMATS {
        if let Some(found) = (format.detect)(path) {
            return (format.open)(&found);
        }
    }
    Err(FormatError::NotAModel { path: path.to_owned(), expected: expectation(path) })
}

fn expectation(path: &Path) -> String {
    let names = format_names().join(", ");
    if path.is_file() {
        if path.extension().is_some_and(|extension| extension == "safetensors" || extension == "json") {
            return "not a model by itself; give the folder that holds it".into();
        }
        return format!("not a model: a file must be GGUF (known formats: {names})");
    }
    let has = |extension: &str| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|found| found == extension)).count()
    };
    if has("gguf") > 1 {
        return "several GGUF files; give the path of one".into();
    }
    format!("not a model folder: no config.json and no GGUF file in it (known formats: {names})")
}
