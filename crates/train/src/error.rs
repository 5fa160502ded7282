//! Why training stopped or could not start.

use std::path::{Path, PathBuf};

use formats::FormatError;
use model::ModelError;

use crate::config::ConfigError;
use crate::files::FileError;
use crate::run_folder::RunFolderError;
use crate::state::{Difference, DifferenceKind};

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error("there are no examples to train on")]
    NoExamples,
    #[error(
        "{count} of {total} examples have no supervised token, so nothing could be learned from them: {}",
        list(records)
    )]
    NothingSupervised { count: usize, total: usize, records: Vec<String> },
    #[error("record {record} has {tokens} tokens, more than tokens_max = {limit}")]
    TooLong { record: String, tokens: usize, limit: usize },
    #[error("record {record} has {tokens} tokens and a loss mask of {mask}")]
    MaskLength { record: String, tokens: usize, mask: usize },

    #[error("{} holds a run that has begun; resume it, or choose another folder", path.display())]
    Begun { path: PathBuf },
    #[error(
        "{} cannot go on: {}. Nothing was changed. {}",
        path.display(), texts(differences), ways_forward(path, differences)
    )]
    Mismatch { path: PathBuf, differences: Vec<Difference> },
    #[error("{start} does not fit: {problem}")]
    Start { start: String, problem: String },

    #[error("record {record} (update {update}): {source}; the state before this update is saved")]
    Example { record: String, update: u64, source: ModelError },
    #[error(
        "the loss of record {record} is {loss} in update {update}; the state before this update is saved. \
         A smaller learning rate in a new run may help"
    )]
    LossNotFinite { loss: f64, record: String, update: u64 },
    #[error(
        "the gradient is not finite in update {update}, of {}; the state before this update is saved. \
         A smaller learning rate in a new run may help",
        list(records)
    )]
    GradientNotFinite { update: u64, records: Vec<String> },
    #[error("no gradient reaches {} of the adapter, so it would never learn: {}", count(matrices), list(matrices))]
    NoGradient { matrices: Vec<String> },

    #[error(
        "`{condition}` needs to know the {}, which cannot be read here: {reason}. Leave the condition out to train without it",
        quantity.name()
    )]
    SensorMissing { condition: &'static str, quantity: device::Quantity, reason: String },

    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Run(#[from] RunFolderError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Adapter(#[from] FormatError),
}

fn texts(differences: &[Difference]) -> String {
    differences.iter().map(|difference| difference.text.as_str()).collect::<Vec<_>>().join("; ")
}

/// What can be done about each kind of difference, and what always can.
fn ways_forward(run: &Path, differences: &[Difference]) -> String {
    let mut kinds: Vec<_> = differences.iter().map(|difference| difference.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let give_back = kinds.iter().map(|kind| match kind {
        DifferenceKind::Base => "say with --model where its base model lies now",
        DifferenceKind::Start => "give it back the adapter that it began from",
        DifferenceKind::Data => "give its history back the records that it had",
        DifferenceKind::Trained => "use the model and the settings that it was begun with",
        DifferenceKind::Config => "give config.json back the values that it had",
    });
    format!(
        "To go on, {}; or begin a new run from what this one has learned: `selftune train --from {} --model MODEL --data FILE`",
        give_back.collect::<Vec<_>>().join(", "),
        run.display()
    )
}

/// The first few names; a message is no place for hundreds.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        len if len > SHOWN => format!("{shown} and {} more", len - SHOWN),
        _ => shown,
    }
}

fn count(matrices: &[String]) -> String {
    match matrices.len() {
        1 => "one matrix".to_owned(),
        len => format!("{len} matrices"),
    }
}
