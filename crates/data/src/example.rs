//! Examples: tokens and which of them are learned.

use crate::retrieve::RetrievalMethod;

/// What is learned of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Supervise {
    /// Every answer, each with the token that ends it.
    #[default]
    Answers,
    /// Only the last answer of a conversation, with the token that ends it.
    LastAnswer,
    /// Every token.
    All,
}

/// How examples are made. The defaults are the paper's, without retrieval.
#[derive(Debug, Clone, PartialEq)]
pub struct ExampleOptions {
    /// The most tokens that an example may have.
    pub tokens_max: usize,
    /// How many earlier records a prompt may show, at most [`RETRIEVED_RECORDS_MAX`].
    pub retrieved_records: usize,
    /// The most tokens that one earlier record may take.
    pub retrieved_tokens_max: usize,
    /// How earlier records are chosen.
    pub retriever: RetrievalMethod,
    /// Seed of the choice by chance.
    pub retriever_seed: u64,
    /// What is learned.
    pub supervise: Supervise,
}

/// The most earlier records that a prompt may show.
pub const RETRIEVED_RECORDS_MAX: usize = 4;

impl Default for ExampleOptions {
    fn default() -> ExampleOptions {
        ExampleOptions {
            tokens_max: 1024,
            retrieved_records: 0,
            retrieved_tokens_max: 96,
            retriever: RetrievalMethod::Bm25,
            retriever_seed: 0,
            supervise: Supervise::Answers,
        }
    }
}

/// What had to go so that an example fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Truncation {
    /// Earlier records that were found but not shown.
    pub retrieved_dropped: usize,
    /// Earlier records that are shown cut.
    pub retrieved_cut: usize,
    /// Turns of the conversation left out, oldest first.
    pub turns_dropped: usize,
    /// Tokens cut from the record's own input (or from the end of a text record).
    pub context_tokens_cut: usize,
}

impl Truncation {
    /// Whether anything had to go.
    pub fn is_some(&self) -> bool {
        *self != Truncation::default()
    }
}

/// A record as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Token ids, at most `tokens_max`.
    pub tokens: Vec<u32>,
    /// For each token whether it is learned (predicted from the tokens before it). The first never is.
    pub loss_mask: Vec<bool>,
    /// The record.
    pub record_id: String,
    /// Earlier records shown in the prompt, nearest first.
    pub retrieved_ids: Vec<String>,
    /// What had to go.
    pub truncation: Truncation,
}

impl Example {
    /// Number of learned tokens.
    pub fn supervised_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|learned| **learned).count()
    }
}

/// The prompt of a record, for generation; its tokens are those of the record's [`Example`] before the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// What the person wrote.
    pub gold: String,
    /// The record.
    pub record_id: String,
    /// Earlier records shown in the prompt, nearest first.
    pub retrieved_ids: Vec<String>,
    /// What had to go.
    pub truncation: Truncation,
}
