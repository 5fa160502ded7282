//! From a person's history to examples: records, importers, tasks, retrieval, tokenizer, chat templates, loss masks.
//!
//! ```text
//! history file --read_history--> Record --build_example--> Example { tokens, loss_mask }
//!                                            ^ TextPipeline (tokenizer, chat template)
//!                                            ^ Retriever (BM25 over the person's earlier records)
//! ```
//!
//! `Example` is the only thing that goes on to the model. This crate knows nothing of models.

#![warn(missing_docs)]

mod benchmark;
pub mod bm25;
mod build;
mod dates;
pub mod error;
pub mod example;
pub mod import;
mod question;
pub mod read;
pub mod record;
pub mod retrieve;
pub mod tasks;
pub mod text;
pub mod time;

pub use build::{PreviewPiece, build_choice, build_example, build_prompt, example_preview};
pub use error::{DataError, ExampleError, TextError};
pub use example::{Example, ExampleOptions, Prompt, RETRIEVED_RECORDS_MAX, Supervise, Truncation};
pub use question::read_question;
pub use read::{OnBadLine, ReadOptions, read_history};
pub use record::{DEFAULT_USER, HeldOut, History, Message, Noticed, Record, RecordBody, SkippedLine, Split};
pub use retrieve::{Found, RETRIEVAL_METHODS, RetrievalMethod, Retriever};
pub use tasks::{AnswerKind, ColumnNames, Cut, TASKS, Task, task_by_name};
pub use text::{Encoded, MarkedText, StreamDecoder, TextOptions, TextPipeline};
pub use time::PinnedDate;
