//! `selftune eval`: did it help?

use crate::run_report;
use crate::evaluation::{self, Question};
use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::preparation::{self, Division, HoldOut};
use crate::serving;
use crate::terminal::Terminal;
use crate::training::{self, RunInputs};
use crate::workbench::{self, ComputeArguments, HistoryArguments, HistoryChoice, ModelChoice, ReadingArguments, Workbench};
use anyhow::Context;
use data::{ExampleOptions, RETRIEVED_RECORDS_MAX, Record};
use eval::report::ReportInputs;
use eval::study::{GroupGain, gains_by_length};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use train::RunFolder;

/// Compare base, retrieval, adapter, both, and another person's adapter.
///
/// Asks each arm about the person's newest records, which training never saw: the loss of what the person really
/// wrote, and what the model writes instead. Another person's adapter tells how much of a gain is the person's own.
///   selftune eval --run runs/me --other-run runs/ann
///   selftune eval --model M --adapter FOLDER --data me.jsonl --hold-out 0.2
///   selftune eval --model M --adapter TASK --adapter FOLDER --data me.jsonl
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// A run: its model, history, held-out records and best adapter
    #[arg(long, value_name = "RUN", conflicts_with_all = [
        "adapter", "data", "hold_out", "user", "newest", "skip_bad_lines", "prompt_field", "completion_field",
        "text_field", "quantize_bits", "quantize_group_size",
    ])]
    run: Option<PathBuf>,
    /// GGUF file, Hugging Face or MLX folder, or the name of a pulled model; with --run: where its model lies now
    #[arg(long, required_unless_present = "run")]
    model: Option<String>,
    /// Without --run: adapter folder (PEFT or MLX layout); may be repeated, bottom first: the last is judged, the
    /// others stand under every arm
    #[arg(long, value_name = "FOLDER")]
    adapter: Vec<PathBuf>,
    /// Without --run: the history
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Without --run: the newest records to ask about, a share below 1 or a number
    #[arg(long, default_value = "0.1", value_parser = HoldOut::parse, value_name = "SHARE")]
    hold_out: HoldOut,
    /// Another person's adapter, trained on the same model, as a control
    #[arg(long, value_name = "FOLDER", conflicts_with = "other_run")]
    other_adapter: Option<PathBuf>,
    /// Another person's run, as a control
    #[arg(long, value_name = "RUN")]
    other_run: Option<PathBuf>,
    /// Only these arms, comma-separated: base, retrieval, adapter, adapter_retrieval, other_adapter
    #[arg(long, value_delimiter = ',', value_name = "ARMS")]
    arms: Option<Vec<String>>,
    /// Earlier records shown by the arms with retrieval
    #[arg(long, default_value_t = 4, value_name = "N")]
    retrieve: usize,
    /// How they are chosen: bm25 (words in common), or as controls recency or random [default: as the run was trained]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(data::RETRIEVAL_METHODS.map(|(_, name)| name)))]
    retriever: Option<String>,
    /// Ask only about the newest N held-out records
    #[arg(long, value_name = "N")]
    queries: Option<usize>,
    /// Only measure losses, write no answers (no ROUGE, no exact match)
    #[arg(long)]
    no_generate: bool,
    /// The most tokens of a written answer
    #[arg(long, default_value_t = 64, value_name = "N")]
    max_tokens: usize,
    /// With --json: every question, answer and loss too
    #[arg(long)]
    rows: bool,
    /// Folder for report.html, report.md and report.json [default: the run's]
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    #[command(flatten)]
    history: HistoryArguments,
    #[command(flatten)]
    compute: ComputeArguments,
    #[command(flatten)]
    reading: ReadingArguments,
}

/// What is evaluated, from a run or from single arguments.
struct Subject {
    model: ModelChoice,
    history: HistoryChoice,
    hold_out: HoldOut,
    options: ExampleOptions,
    /// Adapters under every arm, bottom first.
    on: Vec<PathBuf>,
    adapter: Option<PathBuf>,
    run: Option<(RunFolder, RunInputs)>,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    if !(1..=RETRIEVED_RECORDS_MAX).contains(&arguments.retrieve) {
        return Err(Failure::usage(format!("--retrieve {}: expected 1 to {RETRIEVED_RECORDS_MAX}", arguments.retrieve)));
    }
    if !(1..=ANSWER_TOKENS_MAX).contains(&arguments.max_tokens) || arguments.queries == Some(0) {
        return Err(Failure::usage(format!("--max-tokens must be 1 to {ANSWER_TOKENS_MAX}, --queries at least 1")));
    }
    if let Some(folder) = &arguments.report {
        prepare_report_folder(folder)?;
    }
    let subject = subject(&arguments)?;
    let other_folder = other_adapter(&arguments)?;
    let arms = evaluation::arms(arguments.arms.as_deref(), subject.adapter.is_some(), other_folder.is_some())?;
    let history = subject.history.read()?;
    let Division { seen, held_out: mut queries, .. } = preparation::divide(&history, subject.hold_out)?;
    let mut cautions = Vec::new();
    if let Some((run, inputs)) = &subject.run {
        cautions.extend(leave_out_trained(run, &mut queries)?);
        if inputs.history_hash != history.source_hash {
            cautions.push("The history has changed since the run.".to_owned());
        }
    }
    cautions.extend(repeated(&seen, &queries));
    if queries.is_empty() {
        return Err(Failure::input(
            "no record is held out that training did not see: train with --hold-out, or give --data with --hold-out",
        ));
    }
    if let Some(count) = arguments.queries {
        queries.drain(..queries.len().saturating_sub(count));
    }
    let bench = Workbench::open(&subject.model, arguments.reading.no_cache, terminal)?;
    let on = match &subject.run {
        Some((_, inputs)) => bench.adapters_below(&inputs.on)?,
        None => bench.adapters(&subject.on)?,
    };
    let on_top = |folder: &PathBuf| bench.adapters(&[&subject.on[..], std::slice::from_ref(folder)].concat());
    let adapter = subject.adapter.as_ref().map(on_top).transpose()?;
    let other = other_folder.as_ref().map(on_top).transpose()?;
    workbench::show_stack(adapter.as_ref().unwrap_or(&on).entries(), terminal);
    let with_retrieval = subject.options.retrieved_records > 0;
    let question = Question {
        earlier: &seen,
        queries: &queries,
        on: on.weights(),
        adapter: adapter.as_ref().and_then(|stack| stack.weights().pop()),
        other_adapter: other.as_ref().and_then(|stack| stack.weights().pop()),
        arms,
        options: ExampleOptions {
            retrieved_records: arguments.retrieve,
            retriever: (arguments.retriever.as_deref().and_then(data::RetrievalMethod::by_name))
                .unwrap_or(subject.options.retriever),
            tokens_max: subject.options.tokens_max.min(bench.model.config().context_tokens_max),
            ..subject.options
        },
        answer_tokens_max: if arguments.no_generate { None } else { Some(arguments.max_tokens) },
        ops: arguments.compute.options()?,
    };
    let evaluation = evaluation::ask(&bench, &question, terminal)?;
    let verdict = evaluation::show(&evaluation, with_retrieval, cautions, terminal);
    let report_folder = arguments.report.clone().or_else(|| subject.run.as_ref().map(|(run, _)| run.path().to_owned()));
    let who = subject.history.user.clone().unwrap_or_else(|| subject.history.path.display().to_string());
    let mut report = match &subject.run {
        Some((run, inputs)) => run_report::report_inputs(run, inputs, &who).unwrap_or_else(|failure| {
            terminal.warning(format!("the report tells nothing of the training: {}", failure.message()));
            plain_report(&who, &bench)
        }),
        None => plain_report(&who, &bench),
    };
    report.evaluation = Some(&evaluation);
    report.verdict = verdict.as_ref();
    let kept = match (&arguments.report, &subject.run) {
        (None, Some((run, _))) => Some(next_evaluation(run.path())?),
        _ => None,
    };
    if let Some(kept) = &kept {
        run_report::write_report(kept, &report, terminal);
    }
    let written = report_folder.and_then(|folder| run_report::write_report(&folder, &report, terminal));
    if let Some(written) = &written {
        terminal.line(format!("\nreport: {}", written.display()));
    }
    let owners: BTreeMap<&str, &str> =
        queries.iter().map(|query| (query.id.as_str(), query.user.as_str())).collect();
    let mut records = BTreeMap::<&str, usize>::new();
    seen.iter().for_each(|record| *records.entry(&record.user).or_default() += 1);
    let groups = gains_by_length(&evaluation, &owners, &records);
    show_groups(&groups, terminal);
    let mut json = evaluation.to_json(arguments.rows);
    let group_json = |(metric, group): &(&eval::Metric, GroupGain)| {
        let mut json = group.to_json();
        json["metric"] = metric.name.into();
        json
    };
    json["groups"] = groups.iter().map(group_json).collect();
    json["wall_s"] = evaluation.wall_s.into();
    json["run_dir"] = subject.run.as_ref().map(|(run, _)| run.path().display().to_string()).into();
    json["verdict"] = verdict.map_or(serde_json::Value::Null, |verdict| verdict.to_json());
    json["report"] = written.map(|path| path.display().to_string()).into();
    json["kept"] = kept.map(|path| path.display().to_string()).into();
    terminal.json(&json);
    Ok(if training::stop_asked() { ExitStatus::Interrupted } else { ExitStatus::Done })
}

/// Gains by the length of the people's histories, where the questions are several people's.
fn show_groups(groups: &[(&eval::Metric, GroupGain)], terminal: &Terminal) {
    if !groups.is_empty() {
        terminal.heading("By records before the questions");
    }
    for (metric, group) in groups {
        let GroupGain { of, minus, users, gain, .. } = group;
        let interval = gain.interval.map_or_else(String::new, |interval| format!(" (95 % {:+.3} to {:+.3})", interval.low, interval.high));
        let records = group.records();
        terminal.line(format!("  {}: {} − {}, {records} records, {users} people: {:+.3}{interval}", metric.label, of.label, minus.label, gain.value));
    }
}

fn subject(arguments: &Arguments) -> Result<Subject, Failure> {
    if let Some(path) = &arguments.run {
        let run = RunFolder::open(path).bad_input("cannot evaluate")?;
        let inputs = RunInputs::of(&run)?;
        let config = run.config().bad_input("cannot evaluate")?.unwrap_or_default();
        return Ok(Subject {
            model: {
                let mut model = inputs.model.clone();
                model.relocate(arguments.model.as_deref())?;
                model
            },
            history: inputs.history.clone(),
            hold_out: inputs.hold_out,
            options: preparation::example_options(&config),
            on: inputs.on.iter().map(|below| below.path.clone()).collect(),
            adapter: Some(serving::adapter_of(&run)?),
            run: Some((run, inputs)),
        });
    }
    let (Some(model), Some(data)) = (&arguments.model, &arguments.data) else {
        return Err(Failure::usage("--run, or --model and --data, are needed"));
    };
    let (adapter, on) = match arguments.adapter.split_last() {
        Some((last, on)) => (Some(last.clone()), on.to_vec()),
        None => (None, Vec::new()),
    };
    Ok(Subject {
        model: ModelChoice::new(model, &arguments.reading)?,
        history: HistoryChoice::new(data, &arguments.history),
        hold_out: arguments.hold_out,
        options: ExampleOptions::default(),
        on,
        adapter,
        run: None,
    })
}

/// A longer answer than this is no answer to a record.
const ANSWER_TOKENS_MAX: usize = 4096;

fn plain_report(who: &str, bench: &Workbench) -> ReportInputs<'static> {
    ReportInputs { title: format!("{who} on {}", bench.model_name), samples_max: 3, ..ReportInputs::default() }
}

/// `RUN/evaluations/001`, 002, ...: the report beside the run is the newest one, and none is ever written over here.
fn next_evaluation(run: &Path) -> Result<PathBuf, Failure> {
    let folder = run.join("evaluations");
    crate::study::make_private_folder(&folder)?;
    for number in 1..100_000 {
        let path = folder.join(format!("{number:03}"));
        match make_private(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display()))?,
        }
    }
    Err(Failure::usage(format!("{} is full", folder.display())))
}

/// Makes one folder, for its owner only; an existing one is an error.
fn make_private(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes the folder before anything is computed; a report that is there already is somebody's.
fn prepare_report_folder(folder: &Path) -> Result<(), Failure> {
    crate::study::make_private_folder(folder)?;
    if folder.join("report.html").exists() {
        return Err(Failure::usage(format!("{} already holds a report.html; choose another --report", folder.display())));
    }
    Ok(())
}

/// Takes the records that the run was trained on out of the questions: a history may have changed since.
fn leave_out_trained(run: &RunFolder, queries: &mut Vec<Record>) -> Result<Option<String>, Failure> {
    let Some(examples) = run.examples().bad_input("cannot evaluate")? else { return Ok(None) };
    let trained: HashSet<&str> =
        examples.training.iter().chain(&examples.validation).map(|example| example.record_id.as_str()).collect();
    let before = queries.len();
    queries.retain(|query| !trained.contains(query.id.as_str()));
    Ok(match before - queries.len() {
        0 => None,
        count => Some(format!("{count} of the newest records were left out: the run was trained on them.")),
    })
}

/// Says how many questions stand word for word in the history that was trained on.
fn repeated(seen: &[Record], queries: &[Record]) -> Option<String> {
    let text = |record: &Record| (record.task().input_text(record), record.answer());
    let known: HashSet<(String, String)> = seen.iter().map(text).collect();
    match queries.iter().filter(|query| known.contains(&text(query))).count() {
        0 => None,
        count => Some(format!("{count} of {} questions stand in the earlier history with the same answer.", queries.len())),
    }
}

fn other_adapter(arguments: &Arguments) -> Result<Option<PathBuf>, Failure> {
    match (&arguments.other_adapter, &arguments.other_run) {
        (Some(folder), _) => Ok(Some(folder.clone())),
        (None, Some(path)) => {
            let run = RunFolder::open(path).bad_input("cannot use --other-run")?;
            Ok(Some(serving::adapter_of(&run)?))
        }
        (None, None) => Ok(None),
    }
}
