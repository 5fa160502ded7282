//! What a command ends with.

use std::fmt;

/// Documented in `selftune --help` and docs/json.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Done,
    /// The machine or a file system said no, or training broke down.
    Failed,
    /// The arguments contradict each other; clap exits with the same code for those it finds itself.
    WrongUsage,
    /// A model, history, adapter or configuration cannot be used as it is.
    BadInput,
    /// Stopped by the user; everything is saved.
    Interrupted,
}

impl ExitStatus {
    pub fn name(self) -> &'static str {
        match self {
            ExitStatus::Done => "done",
            ExitStatus::Failed => "failed",
            ExitStatus::WrongUsage => "wrong_usage",
            ExitStatus::BadInput => "bad_input",
            ExitStatus::Interrupted => "interrupted",
        }
    }
}

/// A command's error with the exit code that it leads to.
#[derive(Debug)]
pub struct Failure {
    pub exit: ExitStatus,
    pub error: anyhow::Error,
}

pub type Outcome = Result<ExitStatus, Failure>;

impl Failure {
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { exit: ExitStatus::WrongUsage, error: anyhow::anyhow!("{message}") }
    }
    pub fn input(message: impl fmt::Display) -> Self {
        Self { exit: ExitStatus::BadInput, error: anyhow::anyhow!("{message}") }
    }
    /// Stopped by the user where there is no result to give.
    pub fn interrupted(message: impl fmt::Display) -> Self {
        Self { exit: ExitStatus::Interrupted, error: anyhow::anyhow!("{message}") }
    }
    /// The error with its causes, each once.
    pub fn message(&self) -> String {
        let mut message = String::new();
        for cause in self.error.chain() {
            let text = cause.to_string();
            if message.contains(&text) {
                continue;
            }
            if !message.is_empty() {
                message.push_str(": ");
            }
            message.push_str(&text);
        }
        message
    }
}

/// Errors without a class of their own: the machine said no.
impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { exit: ExitStatus::Failed, error: error.into() }
    }
}

/// Marks an error as the input's fault, with a sentence of context.
pub trait InputError<T> {
    fn bad_input(self, context: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> InputError<T> for Result<T, E> {
    fn bad_input(self, context: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure { exit: ExitStatus::BadInput, error: error.into().context(context.to_string()) })
    }
}
