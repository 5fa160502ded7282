//! `selftune import`: from what the machine already holds to a history.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::terminal::Terminal;
use data::import::git::{self, GitImportOptions};
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
    /// The name to write into the records [default: the author's commonest]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
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
    if arguments.limit == Some(0) {
        return Err(Failure::usage("--limit 0 leaves no commit"));
    }
    let options = GitImportOptions {
        repository: arguments.repo.clone(),
        author: arguments.author.clone(),
        limit: arguments.limit.unwrap_or(usize::MAX),
        user: arguments.user.clone(),
    };
    let spinner = terminal.spinner("reading commits");
    let import = git::import_git(&options);
    spinner.finish_and_clear();
    let import = import.bad_input(format!("cannot import {}", arguments.repo.display()))?;
    git::write_history(&arguments.output, &import)?;

    terminal.line(format!("{} commits in {}", import.records.len(), arguments.output.display()));
    let authors: Vec<_> = import.authors.iter().map(|(name, count)| format!("{name} ({count})")).collect();
    terminal.line(format!("  by {}", authors.join(", ")));
    let left_out = [
        (import.older_count, "older than the newest ones asked for"),
        (import.merges_count, "merges, whose subjects git writes"),
        (import.without_subject_count, "without a subject"),
        (import.without_change_count, "without a change"),
        (import.shallow_boundary_count, "at the end of a shallow clone, whose change is not known"),
    ];
    for (count, reason) in left_out.iter().filter(|(count, _)| *count > 0) {
        terminal.line(format!("  left out: {count} {reason}"));
    }
    terminal.line(format!("next: selftune train --model MODEL --data {}", arguments.output.display()));
    let left_out: Vec<_> =
        left_out.iter().map(|(count, reason)| serde_json::json!({"reason": reason, "count": count})).collect();
    terminal.json(&serde_json::json!({
        "history": arguments.output,
        "records": import.records.len(),
        "authors": import.authors.iter().map(|(name, count)| serde_json::json!({"name": name, "records": count})).collect::<Vec<_>>(),
        "left_out": left_out,
    }));
    Ok(ExitStatus::Done)
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Err(Failure::usage(format!("{} exists already; choose another --output", path.display())));
    }
    Ok(())
}
