//! Everything that can be wrong with a model, an adapter or a request, said so that a user can act on it.

use crate::families::supported_architectures;

/// What went wrong and what was expected instead.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum ModelError {
    #[error("unknown architecture {found:?}; supported are {}", supported_architectures().join(", "))]
    UnknownArchitecture { found: String },
    #[error("model configuration: {key} is missing, expected {expected}")]
    ConfigMissing { key: String, expected: &'static str },
    #[error("model configuration: {key} is {found}, expected {expected}")]
    ConfigInvalid { key: String, found: String, expected: String },
    #[error("tensor {name} is missing, expected shape {expected:?}")]
    TensorMissing { name: String, expected: Vec<usize> },
    #[error("tensor {name} has shape {found:?}, but the model configuration asks for {expected:?}")]
    TensorShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {name} is not part of a {family} model with this configuration")]
    TensorUnexpected { name: String, family: &'static str },
    #[error("tensor {name} holds a value that is not finite at index {index}")]
    TensorNotFinite { name: String, index: usize },

    #[error("adapter: {field} is {found}, expected {expected}")]
    AdapterInvalid { field: &'static str, found: String, expected: String },
    #[error("adapter targets nothing: {reason}")]
    AdapterTargetsNothing { reason: String },
    #[error(
        "adapter was made for another base model (its hash is {found}, this model's is {expected}); load that base or train again"
    )]
    AdapterWrongBase { found: String, expected: String },
    #[error(
        "adapter was trained on top of {expected}, and cannot be used on top of {found}; give those first, in this order"
    )]
    AdapterWrongStack { expected: String, found: String },
    #[error("adapter: {count} values for {expected} parameters")]
    AdapterLength { count: usize, expected: usize },

    #[error("token {token} at position {position} is outside the vocabulary of {vocabulary}")]
    TokenOutsideVocabulary { token: u32, position: usize, vocabulary: usize },
    #[error("{tokens} tokens do not fit: {limit} is the limit of {of}")]
    TooManyTokens { tokens: usize, limit: usize, of: &'static str },
    #[error("the loss mask has {mask} entries for {tokens} tokens")]
    MaskLength { mask: usize, tokens: usize },
    #[error(
        "no token is supervised: of {tokens} tokens none (but possibly the first, which nothing predicts) is a target"
    )]
    NothingSupervised { tokens: usize },
    #[error("the kept prefix has {count} values, this text needs {expected}")]
    PrefixLength { count: usize, expected: usize },
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("{option} is {found}, expected {expected}")]
    OptionInvalid { option: &'static str, found: String, expected: &'static str },
    #[error("cannot write synthetic weights: {problem}")]
    SyntheticFile { problem: String },
    #[error(
        "no plan fits {} of memory: examples of {tokens} tokens need at least {}{}",
        megabytes(*budget_bytes), megabytes(*needed_bytes), what_fits(*tokens_that_fit, *blocks_that_fit)
    )]
    NothingFits {
        budget_bytes: u64,
        tokens: usize,
        /// What the smallest plan takes.
        needed_bytes: u64,
        /// The longest examples that fit with the same adapter; `None` if none do.
        tokens_that_fit: Option<usize>,
        /// The most last blocks that can be adapted with examples of this length; `None` if not even one can.
        blocks_that_fit: Option<usize>,
    },
    #[error("the model produced a value that is not a number at position {position}")]
    NotANumber { position: usize },
}

fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        _ => format!("{:.0} MB", bytes as f64 / 1e6),
    }
}

fn what_fits(tokens: Option<usize>, blocks: Option<usize>) -> String {
    let tokens = tokens.map(|tokens| format!("examples of at most {tokens} tokens"));
    let blocks = blocks.map(|blocks| format!("an adapter on only the last {blocks} blocks"));
    match (tokens, blocks) {
        (Some(tokens), Some(blocks)) => format!("; what would fit: {tokens}, or {blocks}"),
        (Some(one), None) | (None, Some(one)) => format!("; what would fit: {one}"),
        (None, None) => "; neither shorter examples nor fewer adapted blocks would fit".into(),
    }
}
