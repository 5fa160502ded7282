//! `selftune demo`: all of it on a real model and a real history.

use crate::run_report;
use crate::commands::pull;
use crate::evaluation::{self, Question};
use crate::failure::{ExitStatus, Failure, Outcome};
use crate::model_store;
use crate::preparation::{self, Division, HoldOut};
use crate::terminal::{MARK, QUIET, Terminal, human_seconds};
use crate::training::{self, RunInputs, WatchArguments};
use crate::workbench::{ComputeArguments, HistoryChoice, ModelChoice, Workbench};
use data::{ExampleOptions, PinnedDate, Record};
use model::{AdapterStack, AdapterWeights};
use std::path::{Path, PathBuf};
use std::time::Instant;
use train::{RunEnd, RunFolder, TrainConfig};

/// Run everything once on a real model and a real history.
///
/// Gets SmolLM2-135M-Instruct (a download of 93 MB, Apache-2.0, only if it is not here yet: the one use of the network), trains on one
/// developer's commits to write subjects the way that developer does, and on another's for control, then asks five
/// arms about the newest fifth of the commits, which training never saw. Two to five minutes on two cores; without
/// network from the second time on.
#[derive(clap::Args)]
pub struct Arguments {
    /// Newest records of each author to use, at least 120
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(120..=500), value_name = "N")]
    records: u32,
    /// Folder of the run [default: runs/demo, or the first free runs/demo-N]
    #[arg(long, short, value_name = "RUN")]
    output: Option<PathBuf>,
    #[command(flatten)]
    compute: ComputeArguments,
}

/// The model of the demo, as `pull` knows it.
const MODEL: &str = "smollm2-135m-instruct";

/// A bundled history: one author's commits with their notices in `data/git-commits/README.md`.
struct Bundled {
    name: &'static str,
    about: &'static str,
    lines: &'static str,
}

/// The person, and the other person whose adapter is the control.
const PERSON: Bundled = Bundled {
    name: "author-08",
    about: "a developer of ggml-org/whisper.cpp (MIT)",
    lines: include_str!("../../../../data/git-commits/author-08.jsonl"),
};
const OTHER: Bundled = Bundled {
    name: "author-12",
    about: "a developer of tokio-rs/tokio (MIT)",
    lines: include_str!("../../../../data/git-commits/author-12.jsonl"),
};

/// The newest fifth is asked about and never trained on.
const HELD_OUT: HoldOut = HoldOut(0.2);

/// Generated subjects shown beside the real ones.
const SAMPLES: usize = 3;

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let start = Instant::now();
    let ops = arguments.compute.options()?;
    let known = model_store::known_model(MODEL).expect("the demo's model is a known one");
    let model_path = pull::ensure_known(known, terminal)?;
    let model = ModelChoice { path: model_path, quantize_bits: 4, quantize_group_size: 64, date: PinnedDate::today() };
    let bench = Workbench::open(&model, false, terminal)?;
    let folder = match &arguments.output {
        Some(folder) => folder.clone(),
        None => super::train::free_run_path(Path::new("demo"))?,
    };
    let config = configuration(&arguments)?.resolved(bench.model.config())?;
    let demo = Demo { bench: &bench, model: &model, config: &config, records: arguments.records as usize, terminal };

    let person = match demo.train(&PERSON, &folder)? {
        Trained::Whole(person) => person,
        Trained::Stopped(folder) => return Err(stopped(&folder)),
    };
    let other = match demo.train(&OTHER, &folder.join("other-person"))? {
        Trained::Whole(other) => other,
        Trained::Stopped(folder) => return Err(stopped(&folder)),
    };
    let question = Question {
        on: Vec::new(),
        earlier: &person.seen,
        queries: &person.held_out,
        adapter: Some(&person.adapter),
        other_adapter: Some(&other.adapter),
        arms: eval::ARMS.iter().collect(),
        options: ExampleOptions { retrieved_records: 4, ..preparation::example_options(&config) },
        answer_tokens_max: Some(40),
        ops,
    };
    let evaluation = evaluation::ask(&bench, &question, terminal)?;
    let verdict = evaluation::show(&evaluation, config.retrieved_records > 0, Vec::new(), terminal);
    show_samples(&evaluation, terminal);

    let mut report = run_report::report_inputs(&person.run, &person.inputs, PERSON.name)?;
    report.evaluation = Some(&evaluation);
    report.verdict = verdict.as_ref();
    report.samples_max = SAMPLES;
    let written = run_report::write_report(person.run.path(), &report, terminal);
    let wall_s = start.elapsed().as_secs_f64();
    if let Some(written) = &written {
        terminal.line(format!("\nreport: {}   ({} in all)", written.display(), human_seconds(wall_s)));
    }
    let (program, run) = (training::program(), person.run.path().display());
    terminal.line(format!("look closer: {program} inspect {run}"));

    let mut json = evaluation.to_json(false);
    json["wall_s"] = wall_s.into();
    json["run_dir"] = person.run.path().display().to_string().into();
    json["verdict"] = verdict.map_or(serde_json::Value::Null, |verdict| verdict.to_json());
    json["samples"] = eval::report::samples(&evaluation, SAMPLES).iter().map(|sample| sample.to_json()).collect();
    json["report"] = written.map(|path| path.display().to_string()).into();
    terminal.json(&json);
    Ok(ExitStatus::Done)
}

/// The default preset without records for validation: all but the newest fifth is trained on.
fn configuration(arguments: &Arguments) -> Result<TrainConfig, Failure> {
    let mut settings = vec!["validation_fraction=0".to_owned(), format!("precision={}", arguments.compute.precision)];
    settings.extend(arguments.compute.threads.map(|threads| format!("threads={threads}")));
    Ok(TrainConfig::load(None, None, &settings)?)
}

/// What both trainings share.
struct Demo<'a> {
    bench: &'a Workbench,
    model: &'a ModelChoice,
    config: &'a TrainConfig,
    records: usize,
    terminal: &'a Terminal,
}

enum Trained {
    Whole(Box<Person>),
    /// The run can be resumed in this folder.
    Stopped(PathBuf),
}

fn stopped(folder: &Path) -> Failure {
    Failure::interrupted(format!("the demo was stopped; its run can go on: selftune train --resume {}", folder.display()))
}

/// A person with an adapter.
struct Person {
    run: RunFolder,
    inputs: RunInputs,
    seen: Vec<Record>,
    held_out: Vec<Record>,
    adapter: AdapterWeights,
}

impl Demo<'_> {
    /// Trains on all but the newest fifth of a bundled history.
    fn train(&self, bundled: &Bundled, folder: &Path) -> Result<Trained, Failure> {
        let terminal = self.terminal;
        terminal.heading(format!("{}, {}", bundled.name, bundled.about));
        let history_choice = self.unpack(bundled)?;
        let history = history_choice.read()?;
        let preparation = preparation::prepare(self.bench, &history, self.config, HELD_OUT)?;
        preparation.show(self.bench, &history_choice, terminal);
        let inputs = RunInputs {
            model: self.model.clone(),
            model_name: self.bench.model_name.clone(),
            on: Vec::new(),
            history: history_choice,
            hold_out: HELD_OUT,
            history_hash: history.source_hash.clone(),
            data: preparation.account(),
            from: None,
            replaces: None,
            no_accept: true,
        };
        let run = RunFolder::create(folder, serde_json::to_value(&inputs)?).map_err(training::run_failure)?;
        let (on, watch) = (AdapterStack::default(), WatchArguments::default());
        let outcome =
            training::train_with_progress(
                training::Job {
                    bench: self.bench,
                    on: &on,
                    preparation: &preparation,
                    config: self.config,
                    run: &run,
                    resume: false,
                    start: None,
                },
                &watch,
                terminal,
            )?;
        if outcome.end == RunEnd::Interrupted {
            return Ok(Trained::Stopped(run.path().to_owned()));
        }
        let adapter = self.bench.adapter(&outcome.adapter_best)?;
        let Division { seen, held_out, .. } = preparation::divide(&history, HELD_OUT)?;
        Ok(Trained::Whole(Box::new(Person { run, inputs, seen, held_out, adapter })))
    }

    /// Puts a bundled history where `selftune train` and `eval --run` find it again.
    fn unpack(&self, bundled: &Bundled) -> Result<HistoryChoice, Failure> {
        let folder = model_store::home()?.join("demo");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}.jsonl", bundled.name));
        if std::fs::read(&path).ok().as_deref() != Some(bundled.lines.as_bytes()) {
            let mut file = tempfile::NamedTempFile::new_in(&folder)?;
            std::io::Write::write_all(&mut file, bundled.lines.as_bytes())?;
            file.persist(&path)?;
        }
        Ok(HistoryChoice {
            path,
            user: Some(bundled.name.to_owned()),
            skip_bad_lines: false,
            newest: Some(self.records),
            everybody: false,
            task: None,
            prompt_field: "prompt".into(),
            completion_field: "completion".into(),
            text_field: "text".into(),
        })
    }
}

fn show_samples(evaluation: &eval::Evaluation, terminal: &Terminal) {
    terminal.heading("What it writes for changes that it never saw");
    for sample in eval::report::samples(evaluation, SAMPLES) {
        terminal.line(format!("  {:<24} {}", "the person wrote", sample.gold.trim()));
        for (arm, text) in &sample.predictions {
            let style = if arm.name == "adapter" { MARK } else { QUIET };
            let text = text.trim().replace('\n', " ");
            let short: String = text.chars().take(90).collect();
            terminal.line(format!("  {:<24} {style}{short}{style:#}", arm.label.to_lowercase()));
        }
        terminal.line("");
    }
}
