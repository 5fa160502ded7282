//! `selftune train`: history in, adapter out.

use crate::acceptance::{self, Candidate};
use crate::accepted;
use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::governing::GoverningArguments;
use crate::preparation::{self, HoldOut};
use crate::terminal::Terminal;
use crate::training::{self, RunInputs};
use crate::workbench::{self, AdapterBelow, HistoryArguments, HistoryChoice, ModelChoice, ReadingArguments, Workbench};
use std::path::{Path, PathBuf};
use model::AdapterStack;
use train::{PRESETS, RunEnd, RunFolder, Stage, TrainConfig};

/// Train an adapter on a history.
///
/// Prints the plan first: records kept and left out, one example with its learned tokens, memory, time. The newest
/// records are held out to judge the adapter later (`selftune eval --run`), and of the rest the newest choose the best
/// adapter. Ctrl-C finishes the update and saves; `--resume RUN` goes on to the same final bytes, also after a kill.
///
/// At the end the adapter is judged on the held-out records, against no adapter and against the one in use, and for what
/// it costs elsewhere; an accepted one is used from now on as `--adapter NAME` (`selftune adapters`, `rollback`).
///
/// Settings come from a preset, then a TOML file, then `--set`, e.g.
///   selftune train --model smollm2-135m-instruct --data me.jsonl
///   selftune train --model M --data me.jsonl --preset paper --set passes=2 --set targets=q,v
///   selftune train --model M --data me.jsonl --only-charging --battery-floor 30% --quiet-hours 22:00-07:00
///
/// In two stages, an adapter first learns a task from many people's records, then one on top of it learns the person:
///   selftune train --model M --data everybody.jsonl --stage task --output runs/task
///   selftune train --model M --data everybody.jsonl --stage user --user ann --on runs/task/adapter/best
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// GGUF file, Hugging Face or MLX folder, or the name of a pulled model
    #[arg(long, required_unless_present_any = ["resume", "show_settings"])]
    model: Option<String>,
    /// The history: a JSON Lines file, or a folder of them
    #[arg(long, required_unless_present_any = ["resume", "show_settings"], value_name = "FILE")]
    data: Option<PathBuf>,
    /// Go on with the run in this folder; takes everything else from there (--model only says where it lies now)
    #[arg(long, value_name = "RUN", conflicts_with_all = [
        "on", "stage", "data", "output", "preset", "config", "settings", "dry_run", "hold_out", "user", "newest", "skip_bad_lines", "task",
        "prompt_field", "completion_field", "text_field", "quantize_bits", "quantize_group_size",
    ])]
    resume: Option<PathBuf>,
    /// Folder of the run [default: runs/ and the history's name]
    #[arg(long, short, value_name = "RUN")]
    output: Option<PathBuf>,
    /// Train on top of this adapter, which stays as it is (PEFT or MLX folder); may be repeated, bottom first
    #[arg(long, value_name = "ADAPTER")]
    on: Vec<PathBuf>,
    /// user: one person's records; task: everybody's in the file, each with only the own earlier ones in the prompt
    #[arg(long, value_parser = ["user", "task"], value_name = "STAGE")]
    stage: Option<String>,
    /// default (small histories, minutes on a laptop) or paper (the recipe of the study's Table 1)
    #[arg(long, value_parser = PRESETS.map(|preset| preset.name))]
    preset: Option<String>,
    /// Settings from a TOML file; unknown keys are errors
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting, over preset and file; may be repeated (`selftune train --settings` lists them)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Print all settings of the chosen preset, file and --set as TOML, and stop
    #[arg(long = "settings")]
    show_settings: bool,
    /// Newest records that training never sees: a share below 1 (of a short history at least 8 records, at most a quarter), or a number
    #[arg(long, default_value = "0.1", value_parser = HoldOut::parse, value_name = "SHARE")]
    hold_out: HoldOut,
    /// Worker threads [default: all processors]; changes no result
    #[arg(long)]
    threads: Option<usize>,
    /// Do not judge the adapter at the end, and do not use it: only train
    #[arg(long)]
    no_accept: bool,
    /// Name under which an accepted adapter is used (`--adapter NAME`) [default: the person, or the history's file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print the plan and stop
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    governing: GoverningArguments,
    #[command(flatten)]
    history: HistoryArguments,
    #[command(flatten)]
    reading: ReadingArguments,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    if let Some(path) = &arguments.resume {
        return resume(path, &arguments, terminal);
    }
    if let Some(name) = arguments.name.as_ref().filter(|name| !accepted::is_name(name)) {
        return Err(Failure::usage(format!("--name {name:?}: expected letters, digits, '-', '_' and '.'")));
    }
    let config = configuration(&arguments)?;
    if arguments.show_settings {
        terminal.line(config.to_toml().trim_end());
        terminal.json(&serde_json::json!({"settings": config}));
        return Ok(ExitStatus::Done);
    }
    let (Some(model), Some(data)) = (&arguments.model, &arguments.data) else {
        return Err(Failure::usage("--model and --data are needed"));
    };
    let mut history_choice = HistoryChoice::new(data, &arguments.history);
    history_choice.everybody = config.stage == Stage::Task;
    if history_choice.everybody && history_choice.user.is_some() {
        return Err(Failure::usage("--stage task learns from everybody's records: leave --user out"));
    }
    let history = history_choice.read()?;
    if history_choice.everybody && history.users().len() < 2 {
        terminal.warning("all records are one person's: what the adapter learns is the person, not the task alone");
    }
    let model_choice = ModelChoice::new(model, &arguments.reading)?;
    let bench = Workbench::open(&model_choice, arguments.reading.no_cache, terminal)?;
    let config = config.resolved(bench.model.config()).bad_input("settings")?;
    let on = bench.adapters(&arguments.on)?;
    workbench::show_stack(on.entries(), terminal);
    let preparation = preparation::prepare(&bench, &history, &config, arguments.hold_out)?;
    preparation.show(&bench, &history_choice, terminal);
    if arguments.dry_run {
        return dry_run(&bench, &on, &preparation, &config, terminal);
    }
    let inputs = RunInputs {
        model: model_choice,
        model_name: bench.model_name.clone(),
        on: AdapterBelow::list(&arguments.on, &on),
        history: history_choice,
        hold_out: arguments.hold_out,
        history_hash: history.source_hash.clone(),
        data: preparation.account(),
    };
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => free_run_path(data)?,
    };
    let run = RunFolder::create(&path, serde_json::to_value(&inputs)?).map_err(training::run_failure)?;
    let outcome = training::train_with_progress(&bench, &on, &preparation, &config, &run, false, terminal)?;
    conclude(&arguments, outcome, &Trained { bench, on, run, inputs, preparation, config }, terminal)
}

/// Preset, file, settings and flags, in this order.
fn configuration(arguments: &Arguments) -> Result<TrainConfig, Failure> {
    let file = match &arguments.config {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).bad_input(format!("cannot read the settings {}", path.display()))?;
            Some((text, path.display().to_string()))
        }
    };
    let file = file.as_ref().map(|(text, name)| (text.as_str(), name.as_str()));
    let mut settings = arguments.settings.clone();
    settings.extend(arguments.stage.iter().map(|stage| format!("stage={stage}")));
    settings.extend(arguments.threads.map(|threads| format!("threads={threads}")));
    let mut config = TrainConfig::load(arguments.preset.as_deref(), file, &settings).bad_input("settings")?;
    arguments.governing.apply(&mut config);
    config.validate().bad_input("settings")?;
    Ok(config)
}

fn resume(path: &Path, arguments: &Arguments, terminal: &Terminal) -> Outcome {
    let run = RunFolder::open(path).bad_input("cannot resume")?;
    let mut inputs = RunInputs::of(&run)?;
    inputs.model.relocate(arguments.model.as_deref())?;
    let mut config = run.config().bad_input("cannot resume")?.ok_or_else(|| {
        Failure::input(format!(
            "{} has no config.json: if it holds nothing else, begin it anew with `selftune train --output {0} ...`; \
             adapters in it stay usable with --adapter",
            path.display()
        ))
    })?;
    if let Some(threads) = arguments.threads {
        config.threads = threads;
    }
    arguments.governing.apply(&mut config);
    config.validate().bad_input("settings")?;
    let history = inputs.history.read()?;
    let bench = Workbench::open(&inputs.model, arguments.reading.no_cache, terminal)?;
    let on = bench.adapters_below(&inputs.on)?;
    workbench::show_stack(on.entries(), terminal);
    let preparation = preparation::prepare(&bench, &history, &config, inputs.hold_out)?;
    let outcome = training::train_with_progress(&bench, &on, &preparation, &config, &run, true, terminal)?;
    conclude(arguments, outcome, &Trained { bench, on, run, inputs, preparation, config }, terminal)
}

/// What a training leaves for its conclusion.
struct Trained {
    bench: Workbench,
    on: AdapterStack,
    run: RunFolder,
    inputs: RunInputs,
    preparation: preparation::Preparation,
    config: TrainConfig,
}

fn conclude(arguments: &Arguments, outcome: train::TrainOutcome, trained: &Trained, terminal: &Terminal) -> Outcome {
    let Trained { run, inputs, .. } = trained;
    let held_out = inputs.data["held_out_records"].as_u64().unwrap_or(0) as usize;
    training::show_outcome(&outcome, run, held_out, terminal);
    let who = inputs.history.user.clone().unwrap_or_else(|| inputs.history.path.display().to_string());
    let report = training::report_inputs(run, inputs, &who)?;
    if let Some(report) = training::write_report(run.path(), &report, terminal) {
        terminal.line(format!("  report: {}", report.display()));
    }
    let judged = match outcome.end {
        RunEnd::Interrupted => None,
        _ if arguments.no_accept => None,
        _ => judge(arguments, trained, terminal)?,
    };
    terminal.json(&serde_json::json!({
        "acceptance": judged,
        "run_dir": run.path(),
        "end": outcome.end,
        "steps": outcome.step,
        "steps_planned": outcome.steps,
        "tokens": outcome.tokens,
        "wall_s": outcome.seconds,
        "held_s": outcome.held_seconds,
        "energy_j": outcome.energy_j,
        "first_loss": outcome.first_loss,
        "pass_losses": outcome.pass_losses,
        "validation_before": outcome.validation_before,
        "validation_best": outcome.validation_best,
        "validation_last": outcome.validation_last,
        "adapter_best": outcome.adapter_best,
        "adapter_last": outcome.adapter_last,
        "data": inputs.data,
    }));
    Ok(if outcome.end == RunEnd::Interrupted { ExitStatus::Interrupted } else { ExitStatus::Done })
}

fn judge(arguments: &Arguments, trained: &Trained, terminal: &Terminal) -> Result<Option<eval::Acceptance>, Failure> {
    let Trained { bench, on, run, inputs, preparation, config } = trained;
    let name = arguments.name.clone().unwrap_or_else(|| acceptance::default_name(inputs));
    if !accepted::is_name(&name) {
        return Err(Failure::usage(format!("--name {name:?}: expected letters, digits, '-', '_' and '.'")));
    }
    let on_folders = inputs.on.iter().map(|below| below.path.clone()).collect();
    acceptance::conclude(&Candidate { bench, on, on_folders, run, preparation, config, name }, terminal)
}

fn dry_run(
    bench: &Workbench,
    on: &AdapterStack,
    preparation: &preparation::Preparation,
    config: &TrainConfig,
    terminal: &Terminal,
) -> Outcome {
    let plan = train::plan(&bench.model, on, &preparation.training, &preparation.validation, config, &Default::default(), true).bad_input("cannot plan")?;
    training::show_plan(&plan, terminal);
    terminal.json(&serde_json::json!({"plan": plan, "data": preparation.account()}));
    Ok(ExitStatus::Done)
}

/// `runs/NAME`, or the first free `runs/NAME-2`, `runs/NAME-3`, ...
pub fn free_run_path(data: &Path) -> Result<PathBuf, Failure> {
    let stem = data.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    // A history called `...jsonl` must not become the folder above.
    let stem = stem.filter(|stem| !stem.starts_with('.')).unwrap_or_else(|| "run".to_owned());
    let candidates = std::iter::once(stem.clone()).chain((2..10_000).map(|number| format!("{stem}-{number}")));
    candidates
        .map(|name| Path::new("runs").join(name))
        .find(|path| !path.exists())
        .ok_or_else(|| Failure::usage("runs/ is full of runs of this history; choose --output"))
}
