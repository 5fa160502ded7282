//! `selftune study`: many people, many configurations, one report.

use crate::failure::{Failure, InputError, Outcome};
use crate::study::{self, StudyOptions};
use crate::terminal::Terminal;
use crate::workbench::ReadingArguments;
use eval::study::Study;
use std::path::PathBuf;

/// Train and compare for many people, and report it in one page.
///
/// The file says whose histories, which configurations and which arms; `docs/studies.md` explains every key. The folder
/// holds a run for every adapter, a file for every evaluation, and the report: study.html, study.md, study.json. Stop
/// it or kill it at any instant: the same command goes on and gives the same numbers. A study may grow: people and
/// configurations that are added to the file are done next to what is there.
///   selftune study studies/commits.toml --out out/commits
///   selftune study studies/commits.toml --dry-run
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// The study's file (TOML)
    study: PathBuf,
    /// Folder for everything that the study makes; one that was begun is gone on with
    #[arg(long, short, required_unless_present = "dry_run", value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Units at a time, each with its share of the threads [default: one for each processor]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Threads of all workers together [default: all processors]; changes no number
    #[arg(long)]
    threads: Option<usize>,
    /// Where the model lies, if not where the file says
    #[arg(long)]
    model: Option<String>,
    /// Folder that the histories' paths start at, if not that of the file
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Read the histories, say what would be done, and stop
    #[arg(long)]
    dry_run: bool,
    /// Only write the report of what is there
    #[arg(long, conflicts_with = "dry_run")]
    report_only: bool,
    #[command(flatten)]
    reading: ReadingArguments,
}

/// More workers than this are a slip of the keyboard.
const WORKERS_MAX: usize = 256;

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let study = Study::read(&arguments.study, arguments.data.as_deref()).bad_input("cannot use the study")?;
    let Some(folder) = arguments.out.filter(|_| !arguments.dry_run) else {
        return study::preview(&study, terminal);
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(processors);
    let workers = arguments.workers.unwrap_or(threads);
    if !(1..=WORKERS_MAX).contains(&workers) || !(1..=1024).contains(&threads) {
        return Err(Failure::usage(format!("--workers must be 1 to {WORKERS_MAX}, --threads 1 to 1024")));
    }
    let options = StudyOptions {
        folder,
        workers,
        threads_per_worker: (threads / workers).max(1),
        reading: arguments.reading,
        model: arguments.model,
        report_only: arguments.report_only,
    };
    study::run(study, &options, terminal)
}
