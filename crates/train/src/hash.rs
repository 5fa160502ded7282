//! SHA-256 as lower-case hexadecimal text, and the hashes that say what a run was made from.

use data::Example;
use sha2::{Digest, Sha256};

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Identifies one example: the record's id, and the tokens with their targets as the model saw them.
pub fn example_hash(example: &Example) -> String {
    let mut hash = Sha256::new();
    hash.update(b"selftune example 1\0");
    hash.update((example.record_id.len() as u64).to_le_bytes());
    hash.update(example.record_id.as_bytes());
    hash.update((example.tokens.len() as u64).to_le_bytes());
    for (token, target) in example.tokens.iter().zip(&example.loss_mask) {
        hash.update(token.to_le_bytes());
        hash.update([u8::from(*target)]);
    }
    hex(&hash.finalize())
}

/// Identifies a record by its id alone, for receipts.
pub fn record_hash(record_id: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"selftune record 1\0");
    hash.update(record_id.as_bytes());
    hex(&hash.finalize())
}

/// Identifies a list of examples by their hashes in order.
pub(crate) fn list_hash(hashes: &[String]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"selftune examples 1\0");
    for entry in hashes {
        hash.update(entry.as_bytes());
        hash.update(b"\n");
    }
    hex(&hash.finalize())
}
