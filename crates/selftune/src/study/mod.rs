//! Runs a study: reads the histories, divides the work into units that lie on disk, and lets workers do them.
//!
//! Nothing that is done is done twice: a training is an ordinary run folder, which goes on from where it was killed; an
//! evaluation is one file that appears whole. The same command goes on with what is left, and the numbers are those
//! of a study that was never stopped, because every unit depends on its settings and records only.

mod people;
mod units;
mod work;
mod workers;

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::terminal::{Terminal, human_seconds};
use crate::workbench::{ModelChoice, ReadingArguments, Workbench};
use anyhow::Context;
use eval::report::Fact;
use eval::study::report::write_study;
use eval::study::{Findings, Study};
use model::AdapterStack;
use people::StudiedHistory;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Instant;
use units::Units;
pub use units::{make_private_folder, write_whole};

/// How a study is run; none of it changes a number.
pub struct StudyOptions {
    /// Holds everything: runs, units, the report.
    pub folder: PathBuf,
    /// Units at a time; each has one thread of its own, or an equal share of them.
    pub workers: usize,
    pub threads_per_worker: usize,
    pub reading: ReadingArguments,
    /// Another place of the model than the file says.
    pub model: Option<String>,
    /// Only write the report of what is there.
    pub report_only: bool,
}

/// Everything that a unit's work needs, shared by all workers.
struct Scene {
    study: Study,
    bench: Workbench,
    model: ModelChoice,
    histories: Vec<StudiedHistory>,
    /// The frozen adapters under every arm of each history.
    on: Vec<AdapterStack>,
    folder: PathBuf,
    threads: usize,
}

/// Reads the histories only and tells what would be done.
pub fn preview(study: &Study, terminal: &Terminal) -> Outcome {
    let histories = people::read_all(study)?;
    show_people(&histories, terminal);
    let units = Units::of(study, &histories)?;
    terminal.line(format!("  {} trainings, {} evaluations", units.trainings(), units.evaluations()));
    terminal.json(&serde_json::json!({
        "histories": histories.iter().map(|history| &history.account).collect::<Vec<_>>(),
        "trainings": units.trainings(),
        "evaluations": units.evaluations(),
    }));
    Ok(ExitStatus::Done)
}

pub fn run(study: Study, options: &StudyOptions, terminal: &Terminal) -> Outcome {
    let start = Instant::now();
    crate::training::stop_asked();
    if options.report_only && !options.folder.join(DEFINITION).is_file() {
        return Err(Failure::input(format!("{} holds no study; --report-only begins none", options.folder.display())));
    }
    let histories = people::read_all(&study)?;
    show_people(&histories, terminal);
    let units = Units::of(&study, &histories)?;
    units::make_private_folder(&options.folder)?;
    let _lock = lock(&options.folder)?;
    let mut model = ModelChoice::new(options.model.as_deref().unwrap_or(&study.model), &options.reading)?;
    keep_definition(&options.folder, &study, &mut model)?;
    let bench = Workbench::open(&model, options.reading.no_cache, terminal)?;
    let on = study.histories.iter().map(|history| bench.adapters(&history.on)).collect::<Result<_, _>>()?;
    let (folder, threads) = (options.folder.clone(), options.threads_per_worker);
    let scene = Scene { study, bench, model, histories, on, folder, threads };
    let workers = if options.report_only { 0 } else { options.workers };
    let done = workers::do_all(&scene, units, workers, terminal)?;
    let accounts = scene.histories.iter().map(|history| history.account.clone()).collect();
    let findings = Findings::of(&scene.study, accounts, &done.results, done.missing);
    let files = write_study(&options.folder, &scene.study, &facts(&scene), &findings)
        .with_context(|| format!("cannot write the report into {}", options.folder.display()))?;
    show(&findings, terminal);
    if !findings.failures.is_empty() {
        terminal.warning(format!("{} units could not be measured; the report says why", findings.failures.len()));
    }
    terminal.line(format!("\nreport: {}", files.html.display()));
    terminal.remark(format!("{} in this session", human_seconds(start.elapsed().as_secs_f64())));
    let mut json = findings.to_json();
    json["wall_s"] = start.elapsed().as_secs_f64().into();
    json["report"] = files.html.display().to_string().into();
    json["units_done"] = done.results.len().into();
    terminal.json(&json);
    match (crate::training::stop_asked(), done.stopped_by) {
        (true, _) => {
            terminal.line("stopped; the same command goes on with what is left");
            Ok(ExitStatus::Interrupted)
        }
        (false, Some(failure)) => Err(failure),
        (false, None) => Ok(ExitStatus::Done),
    }
}

/// One study at a time in a folder. Released when the process ends, however it ends.
fn lock(folder: &Path) -> Result<File, Failure> {
    let path = folder.join("study.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(Failure::input(format!("another process is at work on the study in {}", folder.display())))
        }
        // A file system without locks: the protection is lost, the study is not.
        _ => Ok(file),
    }
}

/// What a folder was begun with: the day that chat templates see must stay the same for all units.
#[derive(serde::Serialize, serde::Deserialize)]
struct Begun {
    format: String,
    date: data::PinnedDate,
    /// As it was last run, for people.
    study: serde_json::Value,
}

const FORMAT: &str = "selftune study 1";
const DEFINITION: &str = "definition.json";

/// Keeps the definition beside its results. A study may grow by people and configurations; the date stays.
fn keep_definition(folder: &Path, study: &Study, model: &mut ModelChoice) -> Result<(), Failure> {
    let path = folder.join(DEFINITION);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let begun: Begun = serde_json::from_str(&text).bad_input(format!("cannot use {}", path.display()))?;
            if begun.format != FORMAT {
                return Err(Failure::input(format!("{} is {:?}, expected {FORMAT:?}", path.display(), begun.format)));
            }
            model.date = begun.date;
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display()))?,
    }
    let begun = Begun { format: FORMAT.into(), date: model.date, study: serde_json::to_value(study)? };
    units::write_whole(&path, &format!("{}\n", serde_json::to_string_pretty(&begun)?))
}

fn facts(scene: &Scene) -> Vec<Fact> {
    let machine = device::Machine::describe();
    vec![
        Fact::new("Model", scene.bench.model_name.clone()),
        Fact::new("Machine", machine.to_string()),
        Fact::new("selftune", env!("CARGO_PKG_VERSION")),
        Fact::new("Bootstrap", format!("95 % intervals, seed {}", scene.study.seed)),
    ]
}

fn show_people(histories: &[StudiedHistory], terminal: &Terminal) {
    for history in histories {
        let account = &history.account;
        let left_out = account.users.len() - account.studied().count();
        terminal.heading(format!("History {} ({})", account.name, account.task));
        let mut line = format!(
            "  {} people, {} records before {} queries",
            account.studied().count(),
            account.studied().map(|user| user.seen).sum::<usize>(),
            account.studied().map(|user| user.queries).sum::<usize>()
        );
        if left_out > 0 {
            line += &format!("; {left_out} left out");
        }
        terminal.line(line);
        for user in account.users.iter().filter(|user| user.left_out.is_some()).take(5) {
            terminal.line(format!("    {}: {}", user.name, user.left_out.as_deref().unwrap_or("")));
        }
        for line in account.skipped_lines.iter().take(3) {
            terminal.line(format!("    {line}"));
        }
    }
}

/// The means over people of every section, and how often one's own adapter wins.
fn show(findings: &Findings, terminal: &Terminal) {
    for section in &findings.sections {
        terminal.heading(format!(
            "{}, {}: {} people, {} queries",
            section.history,
            section.configuration,
            section.users.len(),
            section.queries
        ));
        for metric in &section.metrics {
            let digits = metric.metric.digits;
            let mean = |arm: &eval::study::findings::ArmMeans| {
                let value = arm.over_users.map_or("–".into(), |mean| format!("{:.digits$}", mean.value));
                format!("{} {value}", arm.arm.name)
            };
            let means: Vec<String> = metric.arms.iter().map(mean).collect();
            terminal.line(format!("  {}: {}", metric.metric.label, means.join("  ")));
        }
        for metric in &section.metrics {
            let swap = |one: &&eval::study::findings::StudyDifference| {
                one.of.name == "adapter" && one.minus.name == "other_adapter"
            };
            if let Some(swap) = metric.differences.iter().find(swap) {
                terminal.line(format!(
                    "  own adapter beats another's in {}: {} of {}",
                    metric.metric.label.to_lowercase(),
                    swap.users_better,
                    swap.by_user.len()
                ));
            }
        }
    }
}
