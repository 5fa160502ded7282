//! What an adapter remembers of its training, beside the values in PEFT's layout.

use std::path::Path;

use formats::FormatError;
use formats::adapter::{StackEntry, write_peft};
use model::TrainingSession;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where an adapter comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdapterNotes {
    /// Name of the base model for people; its content hash is written too.
    pub base_name: String,
    /// The frozen adapters below it, bottom first.
    pub stack: Vec<StackEntry>,
    pub receipt: Receipt,
}

/// The receipt in an adapter's metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// Hash of every example that the adapter was trained on (see [`crate::example_hash`]), oldest first. The ids of
    /// the records stay in the run folder's `examples.json`.
    pub examples: Vec<String>,
    /// The resolved configuration.
    pub config: Map<String, Value>,
}

/// Writes the session's adapter as it is into `folder`. Runs that end with equal values write equal bytes: there is no
/// time and no path in it.
pub(crate) fn write_adapter(folder: &Path, session: &TrainingSession, notes: &AdapterNotes) -> Result<(), FormatError> {
    let receipt = serde_json::to_value(&notes.receipt).expect("a receipt is plain values");
    let adapter = session.adapter().to_file(session.model(), Some(notes.base_name.clone()), receipt);
    write_peft(folder, &adapter.on_top_of(&notes.stack))
}
