//! `selftune rollback`: back to an adapter that was accepted before.

use crate::accepted;
use crate::failure::{ExitStatus, Failure, Outcome};
use crate::terminal::Terminal;

/// Use an earlier accepted version of an adapter again.
///
/// Nothing is deleted: rolling back is undone by rolling forward (`--to` a higher version).
///   selftune rollback me
///   selftune rollback me --to 2
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// Name of the adapter, as `selftune adapters` lists it
    name: String,
    /// The version [default: the one before that in use]
    #[arg(long, value_name = "VERSION")]
    to: Option<u32>,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let name = &arguments.name;
    let versions = accepted::versions(name)?;
    let known = versions.iter().map(|version| version.number.to_string()).collect::<Vec<_>>().join(", ");
    if versions.is_empty() {
        return Err(Failure::input(format!("no adapter was accepted under the name {name:?}; see selftune adapters")));
    }
    let in_use = versions.iter().find(|version| version.in_use).map(|version| version.number);
    let target = match arguments.to {
        Some(number) => versions.iter().find(|version| version.number == number),
        None => versions.iter().rev().find(|version| in_use.is_none_or(|now| version.number < now)),
    };
    let Some(target) = target else {
        return Err(Failure::input(match arguments.to {
            Some(number) => format!("{name} has no version {number}; it has {known}"),
            None => format!("{name} is at its oldest version; it has {known}"),
        }));
    };
    accepted::use_version(name, target.number)?;
    terminal.line(format!("{name} is at version {} now", target.number));
    terminal.json(&serde_json::json!({"name": name, "version": target.number, "before": in_use, "folder": target.folder.display().to_string()}));
    Ok(ExitStatus::Done)
}
