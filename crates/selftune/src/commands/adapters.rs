//! `selftune adapters`: which adapters were accepted, and which are in use.

use crate::accepted;
use crate::failure::{ExitStatus, Failure, Outcome};
use crate::terminal::{GOOD, Terminal};

/// List accepted adapters and their versions.
///
/// A training that is accepted becomes the next version under its name; `--adapter NAME` of generate, chat and eval uses
/// the version in use, `selftune rollback NAME` goes back.
///   selftune adapters
///   selftune adapters me --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// Only this name
    name: Option<String>,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let names = match arguments.name {
        Some(name) if accepted::versions(&name)?.is_empty() => {
            return Err(Failure::input(format!(
                "no adapter was accepted under the name `{name}`; `selftune adapters` lists those that were"
            )));
        }
        Some(name) => vec![name],
        None => accepted::names()?,
    };
    let mut listed = Vec::new();
    for name in names {
        let versions = accepted::versions(&name)?;
        terminal.heading(&name);
        for version in &versions {
            let mark = if version.in_use { format!("{GOOD}in use{GOOD:#}  ") } else { "        ".into() };
            terminal.line(format!(
                "  {mark}version {}  {}  {}",
                version.number, version.note.model_name, version.note.acceptance.reason
            ));
        }
        if let Err(failure) = accepted::current(&name) {
            terminal.warning(failure.message());
        }
        listed.push(serde_json::json!({"name": name, "versions": versions}));
    }
    if listed.is_empty() {
        terminal.line("no adapter was accepted yet");
    }
    terminal.json(&serde_json::json!({"adapters": listed}));
    Ok(ExitStatus::Done)
}
