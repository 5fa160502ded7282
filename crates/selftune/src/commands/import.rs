//! `selftune import`: from what the machine already holds to a history.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::terminal::Terminal;
use clap::{Args, ArgMatches, Command};
use data::import::git::{self, GitImportOptions};
use data::import::{IMPORTERS, ImportError, ImportOptions, Imported, Importer, LeftOut};
use std::path::{Path, PathBuf};

/// Turn what you have written into a history file.
///
/// Nothing leaves the machine; the source is only read. Every import says what it took, what it left out and why.
/// `selftune import KIND --help` tells how to get the file from the program or site that has it, e.g.
///   selftune import git --repo . --author you@example.org
///   selftune import mbox Sent INBOX --me you@example.org --mask
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    #[command(subcommand)]
    source: Source,
}

/// Git has options of its own; the others come from the list of importers.
enum Source {
    Git(GitArguments),
    Files(&'static Importer, FileArguments),
}

impl clap::Subcommand for Source {
    fn augment_subcommands(command: Command) -> Command {
        IMPORTERS.iter().fold(command.subcommand_required(true), |command, importer| {
            let kind = Command::new(importer.name).about(importer.about);
            let kind = match importer.read {
                None => GitArguments::augment_args(kind),
                Some(_) => file_options(FileArguments::augment_args(kind), importer),
            };
            let about = importer.about.to_string();
            command.subcommand(kind.about(about.clone()).long_about(format!("{about}\n\n{}", importer.how_to)))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        IMPORTERS.iter().any(|importer| importer.name == name)
    }
}

/// Shows only the options that the importer reads.
fn file_options(command: Command, importer: &Importer) -> Command {
    let needs = importer.needs;
    command
        .mut_arg("me", |argument| argument.hide(!needs.me).required(needs.me))
        .mut_arg("map", |argument| argument.hide(!needs.columns))
}

impl clap::FromArgMatches for Source {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Source, clap::Error> {
        let chosen = matches.subcommand().and_then(|(name, matches)| {
            let importer = IMPORTERS.iter().find(|importer| importer.name == name)?;
            Some((importer, matches))
        });
        match chosen {
            Some((importer, matches)) if importer.read.is_some() => {
                Ok(Source::Files(importer, FileArguments::from_arg_matches(matches)?))
            }
            Some((_, matches)) => Ok(Source::Git(GitArguments::from_arg_matches(matches)?)),
            None => Err(clap::Error::raw(clap::error::ErrorKind::MissingSubcommand, "say what to import\n")),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
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
    #[command(flatten)]
    output: HistoryOutput,
}

#[derive(clap::Args)]
struct FileArguments {
    /// Files or folders to read
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// Your address or name in it; may be repeated
    #[arg(long, value_name = "NAME")]
    me: Vec<String>,
    /// Which column is which field, e.g. text=body,time=date
    #[arg(long, value_name = "FIELD=COLUMN,...", value_delimiter = ',', value_parser = parse_pair)]
    map: Vec<(String, String)>,
    /// The task of the records, where the fields alone could mean another
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// The name to write into the records; of a source with many people, the one to take
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    output: HistoryOutput,
}

#[derive(clap::Args)]
struct HistoryOutput {
    /// The history file to write
    #[arg(long, short, value_name = "FILE", default_value = "history.jsonl")]
    output: PathBuf,
    /// Replace the history file if it is there
    #[arg(long)]
    force: bool,
    /// Replace e-mail addresses, phone, account, card and other long numbers, IP addresses and addresses with passwords
    #[arg(long)]
    mask: bool,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((field, column)) if !field.is_empty() && !column.is_empty() => Ok((field.to_string(), column.to_string())),
        _ => Err("expected FIELD=COLUMN".to_string()),
    }
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let of_handler = terminal.another();
    // Ended at once: reading the sources changes nothing, and what was written so far is nobody's yet. Without a handler
    // (one that cannot be set) only a temporary file would stay.
    let _ = ctrlc::set_handler(move || {
        data::import::discard_unfinished_imports();
        of_handler.failure(&Failure::interrupted("stopped before the history was whole"));
        std::process::exit(130);
    });
    match arguments.source {
        Source::Git(arguments) => git(arguments, terminal),
        Source::Files(importer, arguments) => files(importer, arguments, terminal),
    }
}

fn files(importer: &'static Importer, arguments: FileArguments, terminal: &Terminal) -> Outcome {
    let FileArguments { sources, me, map, task, user, output } = arguments;
    refuse_existing(&output)?;
    if !map.is_empty() && !importer.needs.columns {
        return Err(Failure::usage(format!("--map is for tables; import {} knows its columns", importer.name)));
    }
    let task = match task {
        None => None,
        Some(name) => Some(data::task_by_name(&name).ok_or_else(|| {
            Failure::usage(format!("unknown task \"{name}\"; known are: {}", data::tasks::task_names()))
        })?),
    };
    let options = ImportOptions { sources, me, columns: map, task, user, mask: output.mask };
    let spinner = terminal.spinner("reading");
    let imported = data::import::import(importer, &options, &output.output, output.force);
    spinner.finish_and_clear();
    let imported = imported.map_err(|error| failure(error, format!("cannot import {}", importer.name)))?;
    report(&imported, imported.left_out.clone(), &output, serde_json::json!([]), terminal);
    Ok(ExitStatus::Done)
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
    let output = &arguments.output;
    let imported = git::write_history(&output.output, &import, output.mask, output.force)
        .map_err(|error| failure(error, format!("cannot import {}", arguments.repo.display())))?;

    let authors: Vec<_> = import.authors.iter().map(|(name, count)| format!("{name} ({count})")).collect();
    terminal.line(format!("by {}", authors.join(", ")));
    let counted = [
        (import.older_count, "older than the newest ones asked for"),
        (import.merges_count, "merges, whose subjects git writes"),
        (import.without_subject_count, "without a subject"),
        (import.without_change_count, "without a change"),
        (import.shallow_boundary_count, "at the end of a shallow clone, whose change is not known"),
    ];
    let counted = counted.into_iter().filter(|(count, _)| *count > 0);
    let counted = counted.map(|(count, reason)| LeftOut { reason: reason.to_string(), count, places: Vec::new() });
    let left_out = counted.chain(imported.left_out.iter().cloned()).collect();
    let authors = import.authors.iter().map(|(name, count)| serde_json::json!({"name": name, "records": count}));
    report(&imported, left_out, output, authors.collect(), terminal);
    Ok(ExitStatus::Done)
}

/// Says what was taken, what was left and why, and what to do next.
fn report(
    imported: &Imported,
    left_out: Vec<LeftOut>,
    output: &HistoryOutput,
    authors: serde_json::Value,
    terminal: &Terminal,
) {
    let history = output.output.display();
    let tasks: Vec<String> = imported.tasks.iter().map(|(name, count)| format!("{count} {name}")).collect();
    terminal.line(format!("{} records in {history} ({})", imported.records, tasks.join(", ")));
    if !left_out.is_empty() {
        terminal.line("left out:");
    }
    for left in &left_out {
        terminal.line(format!("  {left}"));
    }
    for masked in &imported.masked {
        terminal.line(format!("replaced: {} {} ({} different)", masked.count, masked.kind, masked.different));
    }
    if output.mask && imported.masked.is_empty() {
        terminal.line("replaced: nothing; no address or number was found");
    }
    terminal.line(format!("next: selftune train --model MODEL --data {history}"));
    let tasks = imported.tasks.iter().map(|(name, count)| serde_json::json!({"name": name, "records": count}));
    terminal.json(&serde_json::json!({
        "history": output.output.display().to_string(),
        "records": imported.records,
        "tasks": tasks.collect::<Vec<_>>(),
        "authors": authors,
        "left_out": left_out,
        "masked": imported.masked,
    }));
}

/// What is wrong with the output is not the source's fault.
fn failure(error: ImportError, context: String) -> Failure {
    let exit = match error {
        ImportError::Write { .. } => ExitStatus::Failed,
        ImportError::Exists(_) => ExitStatus::WrongUsage,
        _ => ExitStatus::BadInput,
    };
    Failure { exit, error: anyhow::Error::new(error).context(context) }
}

/// Said before the work is done; writing checks it again.
fn refuse_existing(output: &HistoryOutput) -> Result<(), Failure> {
    let path: &Path = &output.output;
    if !output.force && std::fs::symlink_metadata(path).is_ok() {
        return Err(Failure::usage(format!("{} exists already; choose another --output, or --force", path.display())));
    }
    Ok(())
}
