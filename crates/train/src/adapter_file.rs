//! What an adapter remembers of its training, beside the values in PEFT's layout.

use std::path::Path;

use formats::adapter::{StackEntry, peft_files};
use model::TrainingSession;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::TrainError;
use crate::files::Files;
use crate::hash::record_hash;

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
    /// Hash of the id of every record that it saw, of those shown as earlier records too (see [`crate::record_hash`]),
    /// sorted.
    #[serde(default)]
    pub records: Vec<String>,
    /// The adapter that the training began from, none for a fresh one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_from: Option<StartedFrom>,
    /// The resolved configuration.
    pub config: Map<String, Value>,
}

/// What an adapter inherits from the one that its training began from: that one's values, and so its records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartedFrom {
    /// Hash of its values and settings ([`formats::adapter::AdapterFile::content_hash`]).
    pub adapter: String,
    /// As in [`Receipt`]: all that the other one saw, its own beginnings included. None if it came without a receipt.
    pub records: Option<Vec<String>>,
}

impl Receipt {
    /// Whether the adapter, or one that it began from, saw the record with this id. None: it cannot be told, because
    /// an adapter on the way came without a receipt.
    pub fn saw(&self, record_id: &str) -> Option<bool> {
        let hash = record_hash(record_id);
        if self.records.contains(&hash) {
            return Some(true);
        }
        match &self.started_from {
            None => Some(false),
            Some(start) => start.records.as_ref().map(|records| records.contains(&hash)),
        }
    }

    /// The receipt of adapters that become one, bottom first; none if one of them cannot tell all that it saw.
    pub fn together(receipts: &[Receipt]) -> Option<Receipt> {
        let mut records = receipts.iter().map(Receipt::all_records).collect::<Option<Vec<_>>>()?.concat();
        records.sort_unstable();
        records.dedup();
        let config = match receipts {
            [one] => one.config.clone(),
            _ => Map::new(),
        };
        let examples = receipts.iter().flat_map(|receipt| receipt.examples.iter().cloned()).collect();
        Some(Receipt { examples, records, started_from: None, config })
    }

    /// Every record that it saw, its beginnings included; none if that is not known.
    pub fn all_records(&self) -> Option<Vec<String>> {
        let mut records = self.records.clone();
        if let Some(start) = &self.started_from {
            records.extend(start.records.clone()?);
        }
        records.sort_unstable();
        records.dedup();
        Some(records)
    }
}

/// Writes the session's adapter as it is into `folder`. Runs that end with equal values write equal bytes: there is no
/// time and no path in it. Each file is replaced at once, the tensors last.
pub(crate) fn write_adapter(
    files: &Files,
    folder: &Path,
    session: &TrainingSession,
    notes: &AdapterNotes,
) -> Result<(), TrainError> {
    let receipt = serde_json::to_value(&notes.receipt).expect("a receipt is plain values");
    let adapter = session.adapter().to_file(session.model(), Some(notes.base_name.clone()), receipt);
    files.create_folder(folder)?;
    for (name, bytes) in peft_files(folder, &adapter.on_top_of(&notes.stack))? {
        files.replace(&folder.join(name), &bytes)?;
    }
    Ok(())
}
