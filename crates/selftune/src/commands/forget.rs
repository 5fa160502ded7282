//! `selftune forget`: a record leaves the history and every adapter that saw it.

use crate::run_report;
use crate::acceptance::{self, Candidate};
use crate::accepted;
use crate::commands::runs::run_folders;
use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::preparation;
use crate::terminal::Terminal;
use crate::traces::{self, Quote, SeenVersion};
use crate::training::{self, FromAdapter, RunInputs, WatchArguments};
use crate::workbench::{AdapterBelow, Workbench};
use anyhow::Context;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use train::{Receipt, RunEnd, RunFolder, RunStatus, TrainConfig};

/// Remove a record from the history, and from what was learned of it.
///
/// The record's line leaves the history file; every other byte stays. Each run whose adapter saw the record, as an
/// answer, as an earlier record in a prompt, for validation, or through an adapter that it began from, is trained anew
/// from its own configuration into a new run, and only then removed as a whole: adapters, state, metrics, report.
/// A run that was interrupted here goes on when the command is given again.
///
/// Accepted versions that saw the record (`selftune adapters`) go too, once the new run was judged; if it is accepted it is
/// in use in their place, else the newest version left. Reports of other runs that quote the record are removed.
/// Study folders, reports written with --report and exported or merged models are not searched: delete those yourself.
///
/// Files are deleted as the system deletes them; a disk may keep their content until it needs the place.
///
/// Examples:
///   selftune forget --record note-17 --history me.jsonl --dry-run    what would be done
///   selftune forget --record note-17 --history me.jsonl
///   selftune inspect runs/me/adapter/best --saw note-17              did this adapter see it?
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// The record's id
    #[arg(long, value_name = "ID")]
    record: String,
    /// The history it is in; without it the record stays there and only the adapters forget it
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// The folder that holds the run folders
    #[arg(long, default_value = "runs", value_name = "FOLDER")]
    runs: PathBuf,
    /// Remove the runs that saw it without training new ones
    #[arg(long)]
    no_retrain: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Why a run has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Saw {
    /// The record was an answer to learn.
    Trained,
    /// It stood in the prompt of another one.
    Retrieved,
    /// It helped to choose the best adapter.
    Validated,
    /// The run began from, or stands on, an adapter that saw it.
    Inherited,
}

struct Affected {
    path: PathBuf,
    saw: Saw,
    inputs: RunInputs,
    config: Option<TrainConfig>,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let place = arguments.history.as_deref().map(|history| find(history, &arguments.record)).transpose()?.flatten();
    let found = find_traces(&arguments.runs, &arguments.record)?;
    let has_history = arguments.history.is_some();
    if place.is_none() && found.is_empty() {
        let looked = arguments.history.iter().map(|path| path.display().to_string());
        let looked: Vec<_> = looked.chain([format!("the runs in {}", arguments.runs.display())]).collect();
        return Err(Failure::input(format!("there is no record {} in {}", arguments.record, looked.join(" nor in "))));
    }
    // Nothing is changed before everything that can be refused was.
    refuse_what_would_be_left(&arguments, &found)?;
    announce(&arguments, place.as_ref(), has_history, &found, terminal);
    let mut done: Vec<serde_json::Value> = Vec::new();
    if !arguments.dry_run {
        if let Some(place) = &place {
            place.remove(&arguments.record)?;
        }
        // Quick, and nothing waits for it.
        found.quotes.iter().try_for_each(Quote::remove)?;
        let mut replaced = Replaced::default();
        for run in &found.runs {
            let versions: Vec<&SeenVersion> = found.versions.iter().filter(|seen| seen.version.note.run == run.path).collect();
            let new = if arguments.no_retrain { None } else { Some(replace(run, &versions, &replaced, &arguments, terminal)?) };
            remove_versions(&versions, terminal)?;
            std::fs::remove_dir_all(&run.path).with_context(|| format!("cannot remove {}", run.path.display()))?;
            match &new {
                Some(new) => terminal.line(format!("  {} is replaced by {}", run.path.display(), new.display())),
                None => terminal.line(format!("  {} is removed", run.path.display())),
            }
            done.push(serde_json::json!({"run": run.path.display().to_string(), "saw": run.saw, "replaced_by": new.as_ref().map(|new| new.display().to_string())}));
            if let Some(new) = new {
                let hashes = versions.iter().map(|seen| (seen.hash.clone(), RunFolder::open(&new).map(|run| run.best_adapter())));
                for (hash, adapter) in hashes {
                    replaced.versions.insert(hash, adapter.bad_input("cannot use a run")?);
                }
                replaced.runs.insert(run.path.clone(), new);
            }
        }
        // Those whose run is gone already.
        let left: Vec<&SeenVersion> = found.versions.iter().filter(|seen| !found.has_run(&seen.version.note.run)).collect();
        remove_versions(&left, terminal)?;
    } else {
        done.extend(found.runs.iter().map(|run| serde_json::json!({"run": run.path.display().to_string(), "saw": run.saw, "replaced_by": null})));
    }
    terminal.json(&serde_json::json!({
        "record": arguments.record,
        "history": place.as_ref().map(|place| serde_json::json!({"path": place.file.display().to_string(), "line": place.line})),
        "runs": done,
        "versions": found.versions.iter().map(|seen| serde_json::json!({
            "name": seen.name, "version": seen.version.number, "folder": seen.version.folder.display().to_string(), "run": seen.version.note.run.display().to_string(),
        })).collect::<Vec<_>>(),
        "reports": found.quotes,
        "dry_run": arguments.dry_run,
    }));
    Ok(ExitStatus::Done)
}

/// Everything that the record left.
struct Traces {
    runs: Vec<Affected>,
    versions: Vec<SeenVersion>,
    /// In runs that stay.
    quotes: Vec<Quote>,
}

impl Traces {
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.versions.is_empty() && self.quotes.is_empty()
    }
    fn has_run(&self, path: &Path) -> bool {
        self.runs.iter().any(|run| run.path == path)
    }
}

/// What stands where something else stood.
#[derive(Default)]
struct Replaced {
    /// Run folders.
    runs: BTreeMap<PathBuf, PathBuf>,
    /// Adapters by the hash of the accepted version that is gone.
    versions: BTreeMap<String, PathBuf>,
}

impl Replaced {
    /// Where the adapter at `path`, with this hash, is now.
    fn moved(&self, path: &Path, hash: &str) -> PathBuf {
        let in_run = self.runs.iter().find_map(|(old, new)| Some(new.join(path.strip_prefix(old).ok()?)));
        in_run.or_else(|| self.versions.get(hash).cloned()).unwrap_or_else(|| path.to_owned())
    }
}

fn remove_versions(versions: &[&SeenVersion], terminal: &Terminal) -> Result<(), Failure> {
    for SeenVersion { name, version, .. } in versions {
        accepted::remove(name, version.number)?;
        let now = match accepted::current(name)? {
            Some(now) => format!("version {} is in use", now.number),
            None => "no version is in use".to_owned(),
        };
        terminal.line(format!("  version {} of {name} is removed: {now}", version.number));
    }
    Ok(())
}

fn announce(arguments: &Arguments, place: Option<&Place>, has_history: bool, found: &Traces, terminal: &Terminal) {
    terminal.heading(format!("Record {}", arguments.record));
    match place {
        Some(place) => terminal.line(format!("  line {} of {} is removed", place.line, place.file.display())),
        None if has_history => terminal.line("  it is no longer in the history"),
        None => terminal.line("  stays in its history (--history removes it there)"),
    }
    for run in &found.runs {
        let why = match run.saw {
            Saw::Trained => "was trained on it",
            Saw::Retrieved => "saw it in the prompt of another record",
            Saw::Validated => "was chosen with it",
            Saw::Inherited => "began from an adapter that saw it",
        };
        let then = if arguments.no_retrain { "is removed" } else { "is trained anew, then removed" };
        terminal.line(format!("  {} {why}: {then}", run.path.display()));
    }
    if found.runs.is_empty() {
        terminal.line(format!("  no run in {} saw it", arguments.runs.display()));
    }
    for SeenVersion { name, version, .. } in &found.versions {
        terminal.line(format!("  version {} of the accepted adapter {name} saw it: is removed", version.number));
    }
    for quote in &found.quotes {
        terminal.line(format!("  the report in {} quotes it: is removed (selftune eval writes a new one)", quote.report.display()));
    }
    terminal.line("  study folders, reports elsewhere, exported and merged models are not searched");
}

/// Where a record stands.
struct Place {
    file: PathBuf,
    /// Counted from 1.
    line: usize,
}

/// Finds the record in a history of one record a line. None: it is not there.
///
/// The reader leaves out lines that it cannot use and the second line of an id, so the lines themselves are asked.
fn find(history: &Path, id: &str) -> Result<Option<Place>, Failure> {
    let options = data::ReadOptions { on_bad_line: data::OnBadLine::Skip, ..data::ReadOptions::default() };
    let history = data::read_history(history, &options).bad_input(format!("cannot use the history {}", history.display()))?;
    let mut places = Vec::new();
    for file in &history.files {
        let bytes = std::fs::read(file).bad_input(format!("cannot read {}", file.display()))?;
        places.extend(lines_that_say(&bytes, id).into_iter().map(|line| Place { file: file.clone(), line }));
    }
    let read = history.records.iter().find(|record| record.id == id);
    if let Some(record) = read.filter(|record| !places.iter().any(|place| place.is_that_of(record))) {
        let place = format!("{}:{}", record.file.display(), record.line);
        // A record without an id is named after its line: the name would be another record's once the line is gone.
        return Err(Failure::input(match record.id.strip_suffix(&format!("-{}", record.line)) {
            Some(_) => format!("{place}: this record has no \"id\", {id} only counts lines; give the records ids first"),
            None => format!("{place}: the file does not hold one record a line; take the record out by hand and give the command again"),
        }));
    }
    if places.len() > 1 {
        let places: Vec<_> = places.iter().map(|place| format!("{}:{}", place.file.display(), place.line)).collect();
        return Err(Failure::input(format!(
            "record {id} stands on {} lines, {}; take out by hand those that are copies, or give each an id of its own",
            places.len(),
            places.join(" and ")
        )));
    }
    Ok(places.pop())
}

/// The lines of a file, counted from 1, that are an object with this id.
fn lines_that_say(file: &[u8], id: &str) -> Vec<usize> {
    let says = |line: &[u8]| {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let fields = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).unwrap_or_default();
        match fields.get("id") {
            Some(serde_json::Value::String(own)) => own == id,
            Some(serde_json::Value::Number(own)) => own.to_string() == id,
            _ => false,
        }
    };
    let lines = file.split(|&byte| byte == b'\n').enumerate();
    lines.filter(|(_, line)| says(line)).map(|(index, _)| index + 1).collect()
}

/// Refuses, before anything is changed, what would leave the record in an adapter: runs that cannot be found, and runs
/// whose history would still hold it.
fn refuse_what_would_be_left(arguments: &Arguments, found: &Traces) -> Result<(), Failure> {
    if !arguments.runs.is_dir() {
        let problem = format!("{}: no such folder; say with --runs where the runs are", arguments.runs.display());
        return Err(Failure::input(problem));
    }
    for seen in &found.versions {
        let run = &seen.version.note.run;
        if run.exists() && !found.has_run(run) {
            return Err(Failure::input(format!(
                "version {} of the accepted adapter {} came out of {}, which is not among the runs of {}; say with --runs \
                 where it is",
                seen.version.number,
                seen.name,
                run.display(),
                arguments.runs.display()
            )));
        }
    }
    for run in &found.runs {
        if std::fs::symlink_metadata(&run.path).is_ok_and(|data| data.is_symlink()) {
            return Err(Failure::input(format!(
                "{} is a link; say with --runs where the run itself is",
                run.path.display()
            )));
        }
        let history = &run.inputs.history.path;
        let same = |given: &PathBuf| std::fs::canonicalize(given).ok() == std::fs::canonicalize(history).ok();
        if arguments.no_retrain || arguments.history.as_ref().is_some_and(same) {
            continue;
        }
        if run.inputs.history.read()?.records.iter().any(|record| record.id == arguments.record) {
            return Err(Failure::input(format!(
                "record {} is still in {1}, the history of {2}; say --history {1} to take it out",
                arguments.record,
                history.display(),
                run.path.display()
            )));
        }
    }
    Ok(())
}

impl Place {
    fn is_that_of(&self, record: &data::Record) -> bool {
        self.file == *record.file && self.line == record.line
    }

    /// Takes the line out of the file: at once, and with the rights and all other bytes that it had.
    fn remove(&self, id: &str) -> Result<(), Failure> {
        let context = || format!("cannot remove line {} of {}", self.line, self.file.display());
        // Through a link to the file itself.
        let path = std::fs::canonicalize(&self.file).with_context(context)?;
        let bytes = std::fs::read(&path).with_context(context)?;
        if lines_that_say(&bytes, id) != [self.line] {
            return Err(Failure::input(format!("{}: it was changed meanwhile; give the command again", context())));
        }
        let lines = bytes.split_inclusive(|&byte| byte == b'\n').enumerate();
        let rest: Vec<u8> = lines.filter(|(index, _)| index + 1 != self.line).flat_map(|(_, line)| line).copied().collect();
        let write = || {
            let folder = path.parent().unwrap_or(Path::new("."));
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(&rest)?;
            file.as_file().set_permissions(std::fs::metadata(&path)?.permissions())?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            // Not every system can sync a folder; the change is made all the same.
            let _ = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
            Ok::<_, std::io::Error>(())
        };
        Ok(write().with_context(context)?)
    }
}

/// Looks through runs and accepted adapters; the runs that others are built on come first.
fn find_traces(folder: &Path, id: &str) -> Result<Traces, Failure> {
    let mut affected: Vec<Affected> = Vec::new();
    let mut others = Vec::new();
    for path in run_folders(folder).bad_input(format!("cannot list {}", folder.display()))? {
        let run = RunFolder::open(&path).bad_input("cannot use a run")?;
        let (inputs, config) = (RunInputs::of(&run)?, run.config().bad_input("cannot use a run")?);
        let saw = saw(&run, id)?;
        let path = std::path::absolute(&path).unwrap_or(path);
        match saw {
            Some(saw) => affected.push(Affected { path, saw, inputs, config }),
            None => others.push(Affected { path, saw: Saw::Inherited, inputs, config }),
        }
        let is_affected = saw.is_some();
        if is_affected && run.watch().bad_input("cannot use a run")?.status == RunStatus::Running {
            return Err(Failure::input(format!("{} is being trained; stop it first (Ctrl-C saves it)", run.path().display())));
        }
    }
    // A run that is built on an affected one, or on an accepted version that saw the record, is affected, and so on; and
    // the versions that came out of it are, too.
    let paths = |runs: &[Affected]| runs.iter().map(|run| run.path.clone()).collect::<Vec<_>>();
    let mut versions = traces::versions_that_saw(id, &paths(&affected))?;
    while let Some(index) = others.iter().position(|run| {
        affected.iter().any(|before| run.inputs.is_built_on(&before.path))
            || versions.iter().any(|seen| run.inputs.is_built_on_adapter(&seen.hash))
    }) {
        let run = others.remove(index);
        if RunFolder::open(&run.path).and_then(|run| run.watch()).bad_input("cannot use a run")?.status == RunStatus::Running {
            return Err(Failure::input(format!("{} is being trained; stop it first (Ctrl-C saves it)", run.path.display())));
        }
        affected.push(run);
        versions = traces::versions_that_saw(id, &paths(&affected))?;
    }
    let mut quotes = Vec::new();
    for run in &others {
        quotes.extend(traces::quotes(&run.path, id)?);
    }
    let is_built_on = |run: &Affected, other: &Affected| {
        let mut copies = versions.iter().filter(|seen| seen.version.note.run == other.path);
        run.inputs.is_built_on(&other.path) || copies.any(|seen| run.inputs.is_built_on_adapter(&seen.hash))
    };
    // Stable: of two runs the one that the other is built on comes first.
    let mut ordered: Vec<Affected> = Vec::new();
    while !affected.is_empty() {
        let free = |run: &Affected| !affected.iter().any(|other| run.path != other.path && is_built_on(run, other));
        let next = affected.iter().position(free).unwrap_or(0);
        ordered.push(affected.remove(next));
    }
    Ok(Traces { runs: ordered, versions, quotes })
}

impl RunInputs {
    /// Whether the run began from, or stands on, an adapter in the folder of another run.
    fn is_built_on(&self, run: &Path) -> bool {
        let below = self.on.iter().map(|below| &below.path);
        self.from.iter().map(|from| &from.adapter).chain(below).any(|adapter| adapter.starts_with(run))
    }

    /// Whether the run began from, or stands on, an adapter that computes the same as the one with this hash.
    fn is_built_on_adapter(&self, hash: &str) -> bool {
        let below = self.on.iter().map(|below| &below.entry.content_hash);
        self.from.iter().map(|from| &from.hash).chain(below).any(|adapter| adapter == hash)
    }
}

/// How the record came into a run, by its list of examples and by the receipt of its adapter.
fn saw(run: &RunFolder, id: &str) -> Result<Option<Saw>, Failure> {
    let examples = run.examples().bad_input("cannot use a run")?.unwrap_or_default();
    let all = || examples.training.iter().map(|entry| (entry, Saw::Trained)).chain(examples.validation.iter().map(|entry| (entry, Saw::Validated)));
    if let Some((_, saw)) = all().find(|(entry, _)| entry.record_id == id) {
        return Ok(Some(saw));
    }
    if all().any(|(entry, _)| entry.retrieved_ids.iter().any(|retrieved| retrieved == id)) {
        return Ok(Some(Saw::Retrieved));
    }
    let adapter = formats::adapter::read_adapter(&run.best_adapter()).ok();
    let receipt = adapter.and_then(|file| serde_json::from_value::<Receipt>(file.metadata?.receipt).ok());
    Ok(receipt.and_then(|receipt| receipt.saw(id)).filter(|saw| *saw).map(|_| Saw::Inherited))
}

/// Trains the run anew without the record, or goes on with an attempt that was interrupted, and judges it under the
/// names of the accepted `versions` that came out of the old one. Returns the new folder.
fn replace(
    old: &Affected,
    versions: &[&SeenVersion],
    replaced: &Replaced,
    arguments: &Arguments,
    terminal: &Terminal,
) -> Result<PathBuf, Failure> {
    let config = old.config.as_ref().ok_or_else(|| {
        Failure::input(format!("{} has no config.json to train it anew from; --no-retrain removes it", old.path.display()))
    })?;
    let attempt = attempt_to_replace(&old.path, &arguments.runs)?;
    if let (Some((path, true)), true) = (&attempt, versions.is_empty()) {
        return Ok(path.clone());
    }
    terminal.heading(format!("Training {} anew", old.path.display()));
    let mut inputs = old.inputs.clone();
    let history = inputs.history.read()?;
    if history.records.iter().any(|record| record.id == arguments.record) {
        return Err(Failure::input(format!(
            "record {} is still in {1}, the history of {2}; say --history {1} to take it out",
            arguments.record,
            inputs.history.path.display(),
            old.path.display()
        )));
    }
    let bench = Workbench::open(&inputs.model, false, terminal)?;
    let below: Vec<PathBuf> =
        inputs.on.iter().map(|below| replaced.moved(&below.path, &below.entry.content_hash)).collect();
    let on = bench.adapters(&below)?;
    inputs.on = AdapterBelow::list(&below, &on)?;
    let mut config = config.clone();
    let from = inputs.from.as_ref().map(|from| FromAdapter::begin(&replaced.moved(&from.adapter, &from.hash), &bench, &mut config)).transpose()?;
    let (from, start) = from.unzip();
    let preparation = preparation::prepare(&bench, &history, &config, inputs.hold_out)?;
    inputs.from = from;
    inputs.history_hash = history.source_hash.clone();
    inputs.data = preparation.account();
    inputs.replaces = Some(old.path.clone());
    let (run, resume) = match attempt {
        Some((path, _)) => (RunFolder::open(&path).bad_input("cannot use a run")?, true),
        None => {
            let path = free_path(&old.path)?;
            (RunFolder::create(&path, serde_json::to_value(&inputs)?).map_err(training::run_failure)?, false)
        }
    };
    let watch = WatchArguments::default();
    let outcome = training::train_with_progress(
        training::Job { bench: &bench, on: &on, preparation: &preparation, config: &config, run: &run, resume, start },
        &watch,
        terminal,
    )?;
    if outcome.end == RunEnd::Interrupted {
        return Err(Failure::interrupted(format!(
            "{} is not trained to its end and {} is still there; give the command again to go on",
            run.path().display(),
            old.path.display()
        )));
    }
    run_report::leave_report(&run, &inputs, terminal)?;
    let mut names: Vec<&String> = versions.iter().map(|seen| &seen.name).collect();
    names.dedup();
    for name in names {
        let (bench, preparation, config) = (&bench, &preparation, &config);
        let leaving = versions.iter().filter(|seen| seen.name == *name).map(|seen| seen.version.number).collect();
        let (on_folders, name) = (below.clone(), name.clone());
        let candidate = Candidate { bench, on: &on, on_folders, run: &run, preparation, config, name, leaving };
        if acceptance::conclude(&candidate, terminal)?.is_none() {
            return Err(Failure::interrupted("stopped before the new adapter was judged; give the command again to go on"));
        }
    }
    Ok(run.path().to_owned())
}

/// A run that an earlier call began in place of `old`, and whether it is finished.
fn attempt_to_replace(old: &Path, runs: &Path) -> Result<Option<(PathBuf, bool)>, Failure> {
    for path in run_folders(runs).bad_input(format!("cannot list {}", runs.display()))? {
        let run = RunFolder::open(&path).bad_input("cannot use a run")?;
        let is_ours = RunInputs::of(&run).is_ok_and(|inputs| inputs.replaces.as_deref() == Some(old));
        if is_ours && run.config().bad_input("cannot use a run")?.is_some() {
            let finished = run.watch().bad_input("cannot use a run")?.status == RunStatus::Finished;
            return Ok(Some((path, finished)));
        }
    }
    Ok(None)
}

/// `NAME-2`, `NAME-3`, ... beside the old run.
fn free_path(old: &Path) -> Result<PathBuf, Failure> {
    let name = old.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_else(|| "run".to_owned());
    (2..10_000)
        .map(|number| old.with_file_name(format!("{name}-{number}")))
        .find(|path| !path.exists())
        .ok_or_else(|| Failure::usage(format!("there are thousands of runs beside {}", old.display())))
}
