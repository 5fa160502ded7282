//! What can go wrong while evaluating or reporting.

use std::path::PathBuf;

/// Every failure names the record, the arm or the file, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error("nothing to evaluate: the held-out set is empty; at least one record with an answer is needed")]
    NoQueries,
    #[error("no held-out record can be evaluated: all {skipped} were left out, the first because {first_reason}")]
    NoUsableQueries { skipped: usize, first_reason: String },
    #[error("no arm to evaluate; choose at least one")]
    NoArms,
    #[error("unknown arm {name:?}; the arms are {known}")]
    UnknownArm { name: String, known: String },
    #[error("arm {arm:?} needs {needs}, which was not given")]
    ArmNeeds { arm: &'static str, needs: &'static str },
    #[error("arm {arm:?}: {source}")]
    Adapter { arm: &'static str, source: model::ModelError },
    #[error("arm {arm:?}, record {record:?}: {source}")]
    Query { arm: &'static str, record: String, source: model::ModelError },
    #[error("arm {arm:?}, record {record:?}: the loss is {value}, expected a finite number")]
    LossNotFinite { arm: &'static str, record: String, value: f64 },
    #[error("the page that general ability is measured on: {source}")]
    GeneralAbility { source: model::ModelError },
    #[error("the page that general ability is measured on cannot be encoded: {reason}")]
    GeneralText { reason: String },
    #[error("stopped before the evaluation was complete")]
    Stopped,
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("not an evaluation: {reason}")]
    Malformed { reason: String },
}
