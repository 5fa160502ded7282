//! `selftune train`: history in, adapter out.

use crate::run_report;
use crate::acceptance::{self, Candidate};
use crate::accepted;
use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::governing::GoverningArguments;
use crate::preparation;
use crate::recipe::{Prepared, Recipe};
use crate::terminal::Terminal;
use crate::training::{self, RunInputs, WatchArguments};
use crate::workbench::{self, AdapterBelow, Workbench};
use model::AdapterStack;
use std::path::{Path, PathBuf};
use train::{MemoryLimit, RunEnd, RunFolder, TrainConfig};

/// Train an adapter on a history.
///
/// Prints the plan first: records kept and left out, one example with its learned tokens, memory, time. The newest
/// records are held out to judge the adapter later (`selftune eval --run`), and of the rest the newest choose the best
/// adapter. Ctrl-C finishes the update and saves; `--resume RUN` goes on to the same final bytes, also after a kill.
///
/// At the end the adapter is judged on the held-out records, against no adapter and against the one in use, and for what
/// it costs elsewhere; an accepted one is used from now on as `--adapter NAME` (`selftune adapters`, `rollback`). That needs
/// at least 24 records to learn from and 8 held out: 36 in all with the defaults.
///
/// Settings come from a preset, then a TOML file, then `--set`, e.g.
///   selftune train --model smollm2-135m-instruct --data me.jsonl
///   selftune train --model M --data me.jsonl --memory 500MB
///   selftune train --resume runs/me                                   go on with this run
///   selftune train --from runs/me --model M --data grown.jsonl        a new run from what that one learned
///   selftune train --model M --data me.jsonl --preset paper --set passes=2 --set targets=q,v
///   selftune train --model M --data me.jsonl --only-charging --battery-floor 30% --quiet-hours 22:00-07:00
///   (--battery-floor needs a battery)
///
/// In two stages, an adapter first learns a task from many people's records, then one on top of it learns the person:
///   selftune train --model M --data everybody.jsonl --stage task --output runs/task
///   selftune train --model M --data everybody.jsonl --stage user --user ann --on runs/task/adapter/best
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    #[command(flatten)]
    recipe: Recipe,
    /// Go on with the run in this folder; takes everything else from there (--model only says where it lies now)
    #[arg(long, value_name = "RUN", conflicts_with_all = [
        "on", "stage", "data", "output", "preset", "config", "settings", "dry_run", "hold_out", "user", "newest", "skip_bad_lines", "task",
        "prompt_field", "completion_field", "text_field", "quantize_bits", "quantize_group_size",
    ])]
    resume: Option<PathBuf>,
    /// Begin a new run from what this adapter, or this run's best one, has learned: its values with a fresh optimizer and
    /// schedule, its rank, alpha and targets. For a run that was interrupted use --resume
    #[arg(long, value_name = "ADAPTER|RUN", conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// Folder of the run [default: runs/ and the history's name]
    #[arg(long, short, value_name = "RUN")]
    output: Option<PathBuf>,
    /// Print all settings of the chosen preset, file and --set as TOML with what each means, and stop
    #[arg(long = "settings")]
    show_settings: bool,
    /// Do not judge the adapter at the end, and do not use it: only train
    #[arg(long)]
    no_accept: bool,
    /// Name under which an accepted adapter is used (`--adapter NAME`) [default: the person, or the history's file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The most memory that the process may take, such as 900MB or 1.5GB [default: half of what is free]; the fastest plan that fits is used
    #[arg(long, value_parser = memory)]
    memory: Option<MemoryLimit>,
    /// Save the state after every N updates, or every so many seconds (`30s`) [default: 10s]
    #[arg(long, value_name = "N|SECONDS", value_parser = SaveEvery::parse)]
    save_every: Option<SaveEvery>,
    /// Write at most so much an hour for saving (`2GB`, `500MB`, 0 for no bound): flash wears out [default: 2GB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    save_bytes_per_hour: Option<u64>,
    /// Print the plan and stop, as `selftune plan` does
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    governing: GoverningArguments,
    #[command(flatten)]
    watch: WatchArguments,
}

fn memory(text: &str) -> Result<MemoryLimit, String> {
    MemoryLimit::parse(text)
}

/// When the state is saved.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SaveEvery {
    Updates(u64),
    Seconds(f64),
}

impl SaveEvery {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}`: expected a number of updates, as 20, or of seconds, as 30s");
        match text.strip_suffix('s') {
            Some(seconds) => match seconds.trim().parse() {
                Ok(seconds) if (0.0..1e9).contains(&seconds) => Ok(SaveEvery::Seconds(seconds)),
                _ => Err(expected()),
            },
            None => text.parse().ok().filter(|&updates| updates > 0).map(SaveEvery::Updates).ok_or_else(expected),
        }
    }
}

/// `2GB`, `500 MB`, `0`: decimal units.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return Err(format!("`{text}`: the units are kB, MB, GB, TB")),
    };
    match digits.trim().parse::<f64>() {
        Ok(number) if (0.0..9e18 / factor).contains(&number) => Ok((number * factor) as u64),
        _ => Err(format!("`{text}`: expected a size, as 2GB or 500MB")),
    }
}

impl Arguments {
    /// The flags that change no result; they win over everything, also when a run goes on.
    fn apply(&self, config: &mut TrainConfig) {
        if let Some(threads) = self.recipe.threads {
            config.threads = threads;
        }
        if let Some(memory) = self.memory {
            config.memory = memory;
        }
        match self.save_every {
            None => {}
            Some(SaveEvery::Updates(updates)) => config.save_every_steps = updates,
            Some(SaveEvery::Seconds(seconds)) => {
                (config.save_every_steps, config.save_every_seconds) = (0, seconds);
            }
        }
        if let Some(bytes) = self.save_bytes_per_hour {
            config.save_bytes_per_hour = bytes;
        }
        self.governing.apply(config);
    }
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    arguments.watch.check(terminal)?;
    let recipe = &arguments.recipe;
    let single = [&arguments.output, &arguments.from, &arguments.resume, &recipe.data];
    single.into_iter().flatten().chain(&recipe.on).try_for_each(|path| training::check_is_text(path))?;
    if let Some(path) = &arguments.resume {
        return resume(path, &arguments, terminal);
    }
    if let Some(name) = arguments.name.as_ref().filter(|name| !accepted::is_name(name)) {
        return Err(Failure::usage(format!("--name {name:?}: expected letters, digits, '-', '_' and '.'")));
    }
    let mut config = arguments.recipe.configuration()?;
    arguments.apply(&mut config);
    config.validate().bad_input("settings")?;
    if arguments.show_settings {
        terminal.line(config.to_commented_toml().trim_end());
        terminal.json(&serde_json::json!({"settings": config}));
        return Ok(ExitStatus::Done);
    }
    let recipe = &arguments.recipe;
    let prepared = recipe.prepare(config, arguments.from.as_deref(), terminal)?;
    if arguments.dry_run {
        return super::plan::show(&prepared, &super::plan::Asked::default(), terminal);
    }
    if !arguments.no_accept {
        prepared.warn_of_shortfall(terminal);
    }
    let Prepared { history_choice, history, model_choice, bench, config, from, on, hold_out, preparation } = prepared;
    let (from, start) = from.unzip();
    let inputs = RunInputs {
        model: model_choice,
        model_name: bench.model_name.clone(),
        on: AdapterBelow::list(&recipe.on, &on)?,
        history: history_choice,
        hold_out,
        history_hash: history.source_hash.clone(),
        data: preparation.account(),
        from,
        replaces: None,
        no_accept: arguments.no_accept,
    };
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => free_run_path(recipe.data.as_deref().unwrap_or(Path::new("run")))?,
    };
    let run = RunFolder::create(&path, serde_json::to_value(&inputs)?).map_err(training::run_failure)?;
    let outcome = training::train_with_progress(
        training::Job { bench: &bench, on: &on, preparation: &preparation, config: &config, run: &run, resume: false, start },
        &arguments.watch,
        terminal,
    )?;
    conclude(&arguments, outcome, &Trained { bench, on, run, inputs, preparation, config }, terminal)
}

fn resume(path: &Path, arguments: &Arguments, terminal: &Terminal) -> Outcome {
    let run = RunFolder::open(path).bad_input("cannot resume")?;
    // Found out now and not after the training, whose report needs it.
    run.plan().bad_input("cannot resume")?;
    let mut inputs = RunInputs::of(&run)?;
    inputs.model.relocate(arguments.recipe.model.as_deref())?;
    let mut config = run.config().bad_input("cannot resume")?.ok_or_else(|| {
        Failure::input(format!(
            "{} has no config.json: if it holds nothing else, begin it anew with `selftune train --output {0} ...`; \
             adapters in it stay usable with --adapter",
            path.display()
        ))
    })?;
    arguments.apply(&mut config);
    config.validate().bad_input("settings")?;
    let history = inputs.history.read()?;
    let bench = Workbench::open(&inputs.model, arguments.recipe.reading.no_cache, terminal)?;
    let on = bench.adapters_below(&inputs.on)?;
    workbench::show_stack(on.entries(), terminal);
    let preparation = preparation::prepare(&bench, &history, &config, inputs.hold_out)?;
    let start = inputs.from.as_ref().map(|from| from.resume(&bench));
    let outcome = training::train_with_progress(
        training::Job { bench: &bench, on: &on, preparation: &preparation, config: &config, run: &run, resume: true, start },
        &arguments.watch,
        terminal,
    )?;
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
    run_report::leave_report(run, inputs, terminal)?;
    let judged = match outcome.end {
        RunEnd::Interrupted => None,
        _ if arguments.no_accept || inputs.no_accept => None,
        _ => judge(arguments, trained, terminal)?,
    };
    terminal.json(&serde_json::json!({
        "acceptance": judged,
        "run_dir": run.path().display().to_string(),
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
        "adapter_best": outcome.adapter_best.display().to_string(),
        "adapter_last": outcome.adapter_last.display().to_string(),
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
    let candidate = Candidate { bench, on, on_folders, run, preparation, config, name, leaving: Vec::new() };
    acceptance::conclude(&candidate, terminal)
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
