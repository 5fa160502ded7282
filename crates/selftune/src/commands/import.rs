//! `selftune import`: from what the machine already holds to a history.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::terminal::Terminal;
use std::path::{Path, PathBuf};

/// Turn what you have written into a history file.
///
/// Nothing leaves the machine; the source is only read.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    source: Source,
}

#[derive(clap::Subcommand)]
enum Source {
    /// Your commits: a digest of each change (file names, words added and removed), and the subject that you wrote
    Git(GitArguments),
}

#[derive(clap::Args)]
struct GitArguments {
    /// The repository
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    repo: PathBuf,
    /// Part of the author's name or e-mail address
    #[arg(long)]
    author: String,
    /// The newest N commits [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// The history file to write; never overwritten
    #[arg(long, short, value_name = "FILE", default_value = "history.jsonl")]
    output: PathBuf,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    match arguments.source {
        Source::Git(arguments) => git(arguments, terminal),
    }
}

fn git(arguments: GitArguments, terminal: &Terminal) -> Outcome {
    refuse_existing(&arguments.output)?;
    let options = data::import::git::GitOptions {
        repository: arguments.repo.clone(),
        author: arguments.author.clone(),
        commits_max: arguments.limit,
    };
    let spinner = terminal.spinner("reading commits");
    let report = data::import::git::import(&options, &arguments.output, &mut |count| {
        spinner.set_message(format!("reading commits: {count}"));
    })
    .bad_input(format!("cannot import {}", arguments.repo.display()))?;
    spinner.finish_and_clear();
    terminal.line(format!("{} commits by {} in {}", report.records, arguments.author, arguments.output.display()));
    for (reason, count) in &report.left_out {
        terminal.line(format!("  left out: {count} {reason}"));
    }
    terminal.line(format!("next: selftune train --model MODEL --data {}", arguments.output.display()));
    terminal.json(&serde_json::json!({
        "history": arguments.output,
        "records": report.records,
        "left_out": report.left_out.iter().map(|(reason, count)| serde_json::json!({"reason": reason, "count": count})).collect::<Vec<_>>(),
    }));
    Ok(ExitStatus::Done)
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Err(Failure::usage(format!("{} exists already; choose another --output", path.display())));
    }
    Ok(())
}
