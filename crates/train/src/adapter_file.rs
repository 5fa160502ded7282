//! Adapters on disk: PEFT's layout, with what they were trained from beside the values.

use std::path::Path;

use formats::FormatError;
use model::AdapterWeights;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What an adapter remembers of its training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterNotes {
    /// Content hash of the base model that it belongs to.
    pub base_hash: String,
    /// Name of that model for people.
    pub base_name: String,
    /// The resolved configuration.
    pub config: Map<String, Value>,
    /// Hash of every example that it saw (see [`crate::example_hash`]); ids stay in the run folder.
    pub receipt: Vec<String>,
}

pub(crate) fn write_adapter(
    _folder: &Path,
    _adapter: &AdapterWeights,
    _notes: &AdapterNotes,
) -> Result<(), FormatError> {
    todo!()
}
