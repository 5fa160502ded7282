//! Errors of this crate. Each names the file and line, the record, or the part of the template at fault, and says
//! what was expected. The path that the caller gave is in the error but not in its message: the caller names it.

use std::path::PathBuf;

/// A history that cannot be read, or an import that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The path cannot be opened or read.
    #[error("{source}")]
    Read {
        /// The file or folder that was given.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of a folder cannot be opened or read.
    #[error("{}: {source}", path.display())]
    ReadPart {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A line that is not a record.
    #[error("{0}")]
    BadLine(crate::record::SkippedLine),
    /// Nothing was left to learn from.
    #[error("no record: {reason}")]
    Empty {
        /// The file or folder.
        path: PathBuf,
        /// What was in it instead.
        reason: String,
    },
    /// The path is not a history.
    #[error("{reason}")]
    NotAHistory {
        /// The file or folder.
        path: PathBuf,
        /// What was expected.
        reason: String,
    },
    /// The user filter matched nobody.
    #[error("no record of user \"{user}\"; the users are: {known}")]
    UnknownUser {
        /// The file or folder.
        path: PathBuf,
        /// The name asked for.
        user: String,
        /// The users there are, each with the number of its records; at most the first 20.
        known: String,
    },
    /// A task that is not in the list.
    #[error("unknown task \"{name}\"; known are: {known}")]
    UnknownTask {
        /// The name asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// A repository that cannot be imported.
    #[error(transparent)]
    Git(#[from] crate::import::git::GitError),
}

/// A tokenizer or chat template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The tokenizer file or metadata is not usable.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A GGUF file names a way of splitting words that is not in our list.
    #[error("tokenizer: unknown pre-tokenizer \"{name}\"; known are: {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// All names of the list.
        known: String,
    },
    /// A GGUF file names a tokenizer model that is not in our list.
    #[error("tokenizer: unknown tokenizer model \"{name}\"; known are: gpt2, llama")]
    UnknownTokenizerModel {
        /// The name in the file.
        name: String,
    },
    /// The chat template is not valid.
    #[error("chat template: {0}")]
    Template(String),
    /// The chat template refused the conversation (it called `raise_exception`).
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The chat template did more work or made more text than any honest template does.
    #[error("chat template: stopped after {0}")]
    TemplateLimit(String),
    /// The model has no chat template, and the call needs one.
    #[error("the model has no chat template; use prompt and completion, or a model that was trained to chat")]
    NoTemplate,
    /// The answer's place in the rendered text could not be found, so no loss mask can be made.
    #[error("cannot tell which part of the rendered conversation is the answer: {0}")]
    AnswerNotFound(String),
    /// A date that is not YYYY-MM-DD.
    #[error("date \"{0}\" is not of the form YYYY-MM-DD")]
    Date(String),
}

/// Begins a message about a record; a question asked now needs no name.
fn of_record(record_id: &str) -> String {
    if record_id.is_empty() { String::new() } else { format!("{record_id}: ") }
}

/// A record that gives no example. Counted by the caller, with the record's id, which is empty for a question that is
/// asked now.
#[derive(Debug, thiserror::Error)]
pub enum ExampleError {
    /// The prompt without any context, with the answer, is longer than an example may be.
    #[error("{}the answer needs {needed_tokens} tokens, an example may have {tokens_max}", of_record(record_id))]
    AnswerTooLong {
        /// The record.
        record_id: String,
        /// Tokens of the answer with the shortest prompt around it.
        needed_tokens: usize,
        /// The limit.
        tokens_max: usize,
    },
    /// The shortest prompt leaves the answer less room than was asked for it.
    #[error(
        "{}the prompt does not fit: {tokens_max} tokens are allowed, and {answer_tokens} of them are kept for the answer",
        of_record(record_id)
    )]
    PromptTooLong {
        /// The record.
        record_id: String,
        /// Tokens of the shortest prompt.
        needed_tokens: usize,
        /// The limit for prompt and answer together.
        tokens_max: usize,
        /// How many of them are kept for the answer.
        answer_tokens: usize,
    },
    /// No token would be learned.
    #[error("{}no supervised token: {reason}", of_record(record_id))]
    NothingSupervised {
        /// The record.
        record_id: String,
        /// Why.
        reason: String,
    },
    /// The conversation cannot be rendered.
    #[error("{}{source}", of_record(record_id))]
    Text {
        /// The record.
        record_id: String,
        /// The reason.
        source: TextError,
    },
}
