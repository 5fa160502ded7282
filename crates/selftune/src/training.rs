//! Runs a training with progress on the terminal; used by `train` and `demo`.

use crate::accepted;
use crate::failure::{ExitStatus, Failure, InputError};
use crate::preparation::{HoldOut, Preparation};
use crate::run_report;
use crate::tensorboard::Scalars;
use crate::terminal::{Terminal, human_bytes, human_count, human_joules, human_seconds};
use crate::workbench::{AdapterBelow, HistoryChoice, ModelChoice, Workbench};
use model::AdapterStack;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use train::cost::{Basis, Comparison, Estimate, Prediction};
use train::{
    Control, Receipt, RunEnd, RunFolder, StartingAdapter, TrainConfig, TrainEvent, TrainInputs, TrainOutcome, TrainPlan,
};

/// What a run folder remembers of where things came from, so that `--resume` and `eval --run` need no arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunInputs {
    pub model: ModelChoice,
    pub model_name: String,
    /// The adapters that the run's own is trained on top of, bottom first.
    #[serde(default)]
    pub on: Vec<AdapterBelow>,
    pub history: HistoryChoice,
    pub hold_out: HoldOut,
    /// SHA-256 of the history's bytes as they were read.
    pub history_hash: String,
    pub data: serde_json::Value,
    /// The adapter that the run began from (`--from`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FromAdapter>,
    /// The run that this one is trained in place of (`forget`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<PathBuf>,
    /// The adapter is not judged at the end (`--no-accept`), also when the run goes on later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_accept: bool,
}

/// The adapter that a run began from, and the run that made it, where one did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FromAdapter {
    pub adapter: PathBuf,
    pub run: Option<PathBuf>,
    /// Hash of its values, and of the ids of all records that it saw (none if it came without a receipt).
    pub hash: String,
    pub records: Option<Vec<String>>,
}

impl FromAdapter {
    /// Reads the adapter in an adapter folder, or the best of a run folder, and takes over its shape into `config`.
    pub fn begin(
        path: &Path,
        bench: &Workbench,
        config: &mut TrainConfig,
    ) -> Result<(FromAdapter, StartingAdapter), Failure> {
        let run = RunFolder::open(path).ok();
        let folder = match &run {
            Some(run) => run.best_adapter(),
            None => accepted::folder_of(path)?.unwrap_or_else(|| path.to_owned()),
        };
        let weights = bench.adapter(&folder)?;
        take_shape(config, &weights.spec, bench.model.config().blocks.len(), &folder)?;
        let file = formats::adapter::read_adapter(&folder).bad_input("cannot begin from this adapter")?;
        let hash = file.content_hash();
        let receipt = file.metadata.and_then(|metadata| serde_json::from_value::<Receipt>(metadata.receipt).ok());
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let from = FromAdapter {
            adapter: absolute(&folder),
            run: run.is_some().then(|| absolute(path)),
            hash,
            records: receipt.and_then(|receipt| receipt.all_records()),
        };
        let start = from.start(Some(weights));
        Ok((from, start))
    }

    /// The adapter for a run that goes on: its values are needed only if nothing was saved yet.
    pub fn resume(&self, bench: &Workbench) -> StartingAdapter {
        let file = formats::adapter::read_adapter(&self.adapter).ok().filter(|file| file.content_hash() == self.hash);
        self.start(file.and_then(|_| bench.adapter(&self.adapter).ok()))
    }

    fn start(&self, weights: Option<model::AdapterWeights>) -> StartingAdapter {
        StartingAdapter {
            name: self.adapter.display().to_string(),
            weights,
            started_from: train::StartedFrom { adapter: self.hash.clone(), records: self.records.clone() },
        }
    }
}

/// The settings that an adapter decides by its shape. A setting that was given and says something else is refused.
fn take_shape(
    config: &mut TrainConfig,
    spec: &model::AdapterSpec,
    blocks: usize,
    folder: &Path,
) -> Result<(), Failure> {
    if spec.blocks.end != blocks {
        let problem =
            format!("it adapts blocks {} to {}, a run adapts the last ones", spec.blocks.start, spec.blocks.end - 1);
        return Err(Failure::input(format!("cannot begin from {}: {problem}", folder.display())));
    }
    let shaped = TrainConfig {
        rank: spec.rank,
        lora_alpha: f64::from(spec.lora_alpha),
        use_rslora: spec.use_rslora,
        targets: spec.targets.clone(),
        adapted_blocks: spec.blocks.len() as i64,
        ..config.clone()
    };
    let (given, default, taken) = (config.to_map(), TrainConfig::default().to_map(), shaped.to_map());
    let contradicts = |key: &&String| {
        let key = key.as_str();
        given[key] != taken[key] && given[key] != default[key] && !(key == "adapted_blocks" && given[key] == blocks)
    };
    if let Some(key) = taken.keys().find(contradicts) {
        let (given, taken) = (&given[key.as_str()], &taken[key.as_str()]);
        return Err(Failure::usage(format!(
            "`{key}` is {given} in the settings and {taken} in {}; leave the setting out, the adapter decides it",
            folder.display()
        )));
    }
    *config = shaped;
    Ok(())
}

/// How a training is watched, besides the terminal.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct WatchArguments {
    /// With --json: before the object, one JSON object a line for each event
    #[arg(long)]
    pub events: bool,
    /// Also write losses, learning rate and speed for TensorBoard into this folder
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
}

impl WatchArguments {
    /// Refuses what cannot be done, before any work.
    pub fn check(&self, terminal: &Terminal) -> Result<(), Failure> {
        if self.events && !terminal.is_json() {
            return Err(Failure::usage("--events prints JSON: it needs --json"));
        }
        let folder = self.tensorboard.as_deref();
        let found = folder.and_then(|folder| folder.ancestors().find(|path| path.exists()));
        match found.filter(|found| !found.is_dir()) {
            Some(file) => Err(Failure::usage(format!("--tensorboard: {} is no folder", file.display()))),
            None => Ok(()),
        }
    }
}

/// Refuses a path that a run could not write down: its files are JSON, which holds only text.
pub fn check_is_text(path: &Path) -> Result<(), Failure> {
    match std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_str() {
        Some(_) => Ok(()),
        None => Err(Failure::usage(format!(
            "{}: a run keeps paths as text, and this one is not UTF-8; choose or rename to another",
            path.display()
        ))),
    }
}

impl RunInputs {
    pub fn of(run: &RunFolder) -> Result<Self, Failure> {
        serde_json::from_value(run.inputs().clone()).map_err(|error| {
            Failure::input(format!(
                "{}: run.json does not say what the run was made from: {error}",
                run.path().display()
            ))
        })
    }
}

/// How many times the user asked to stop. The first finishes the update and saves; the second ends the process,
/// which loses nothing but time: the last saved state stands.
static STOPS: AtomicUsize = AtomicUsize::new(0);

/// Whether the user has asked to stop since the process began. Installs the handler on the first call.
pub fn stop_asked() -> bool {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        let handler = || {
            if STOPS.fetch_add(1, Ordering::SeqCst) >= 1 {
                std::process::exit(130);
            }
        };
        // Without a handler Ctrl-C kills the process, which the saved state survives.
        let _ = ctrlc::set_handler(handler);
    });
    STOPS.load(Ordering::SeqCst) > 0
}

/// What is trained, on what, and where it goes.
pub struct Job<'a> {
    pub bench: &'a Workbench,
    /// The adapters below.
    pub on: &'a AdapterStack,
    pub preparation: &'a Preparation,
    pub config: &'a TrainConfig,
    pub run: &'a RunFolder,
    pub resume: bool,
    pub start: Option<StartingAdapter>,
}

/// Trains, showing the plan and the progress. A new run that fails before it has learned anything leaves no folder.
pub fn train_with_progress(job: Job, watch: &WatchArguments, terminal: &Terminal) -> Result<TrainOutcome, Failure> {
    let run = job.run;
    let outcome = train_in_folder(job, watch, terminal);
    if outcome.is_err() && run.discard_if_nothing_was_trained().is_ok_and(|gone| gone) {
        terminal.remark(format!("nothing was trained: {} is removed again", run.path().display()));
    }
    outcome
}

fn train_in_folder(job: Job, watch: &WatchArguments, terminal: &Terminal) -> Result<TrainOutcome, Failure> {
    let Job { bench, on, preparation, config, run, resume, start } = job;
    stop_asked();
    let cost_file = crate::model_store::cost_file();
    let mut scalars = watch.tensorboard.as_deref().map(Scalars::create).transpose()?;
    let inputs = TrainInputs {
        model: bench.model.clone(),
        base_name: &bench.model_name,
        on,
        examples: &preparation.training,
        validation: &preparation.validation,
        config,
        start,
        run,
        resume,
        cost_file: cost_file.as_deref(),
    };
    let mut sensors = device::system_sensors();
    let bar = terminal.bar(0, "train", "updates");
    let plain_lines = !terminal.shows_progress();
    let mut observer = |event: &TrainEvent| {
        if watch.events {
            terminal.event(event);
        }
        if let Some(Err(error)) = scalars.as_mut().map(|scalars| scalars.event(event)) {
            bar.suspend(|| terminal.warning(format!("TensorBoard is told no more: {error}")));
            scalars = None;
        }
        match event {
            TrainEvent::Started { plan, resumed_at } => {
                bar.set_length(plan.updates);
                bar.suspend(|| {
                    show_plan(plan, terminal);
                    if let Some(step) = resumed_at {
                        terminal.remark(format!("going on after update {step}"));
                    }
                });
                bar.set_position(resumed_at.unwrap_or(0));
                bar.reset_eta();
            }
            TrainEvent::Notice { message } => bar.suspend(|| terminal.warning(message)),
            TrainEvent::Step(step) => {
                bar.set_position(step.step);
                bar.set_message(format!(
                    "loss {:.3}  {:.0} tokens/s  {}",
                    step.loss,
                    step.tokens_per_second,
                    step.peak_resident_bytes.map(human_bytes).unwrap_or_default()
                ));
                let every = (step.steps / 10).max(1);
                if plain_lines && (step.step.is_multiple_of(every) || step.step == step.steps) {
                    terminal.remark(format!(
                        "update {}/{}  loss {:.3}  {:.0} tokens/s  {} left",
                        step.step,
                        step.steps,
                        step.loss,
                        step.tokens_per_second,
                        human_seconds(step.eta_seconds)
                    ));
                }
            }
            TrainEvent::Validation(validation) => {
                let best = if validation.is_best && validation.step > 0 { "  (best so far)" } else { "" };
                let message = format!("held-out loss after update {}: {:.3}{best}", validation.step, validation.loss);
                bar.suspend(|| terminal.remark(message));
            }
            TrainEvent::Saved(_) => {}
            TrainEvent::Held(hold) => {
                let waits: Vec<_> = hold.waits.iter().map(|wait| wait.waits_for.as_str()).collect();
                bar.suspend(|| {
                    terminal.remark(format!("on hold, everything is saved; waiting for {}", waits.join("; and ")))
                });
            }
            TrainEvent::Waiting { waits } => {
                let waits: Vec<_> = waits.iter().map(|wait| wait.waits_for.as_str()).collect();
                bar.set_message(format!("waiting for {}", waits.join("; and ")));
            }
            TrainEvent::WentOn { held_seconds } => {
                bar.suspend(|| terminal.remark(format!("going on after a hold of {}", human_seconds(*held_seconds))));
                bar.reset_eta();
            }
            TrainEvent::Finished(_) => bar.finish_and_clear(),
        }
        if stop_asked() { Control::Stop } else { Control::Continue }
    };
    let outcome = train::train(&inputs, sensors.as_mut(), &mut observer);
    bar.finish_and_clear();
    outcome.map_err(training_failure)
}

/// Configuration, data and folder are the user's to mend; the rest is the machine's or the numbers' fault.
pub fn training_failure(error: train::TrainError) -> Failure {
    use train::TrainError::*;
    let exit = match error {
        Example { .. } | LossNotFinite { .. } | GradientNotFinite { .. } | NoGradient { .. } | File(_) | Adapter(_) => {
            ExitStatus::Failed
        }
        NoExamples
        | NothingSupervised { .. }
        | TooLong { .. }
        | MaskLength { .. }
        | Begun { .. }
        | Mismatch { .. }
        | SensorMissing { .. }
        | Start { .. }
        | Config(_)
        | Model(_)
        | Run(_) => ExitStatus::BadInput,
    };
    Failure { exit, error: error.into() }
}

/// Why a new run's folder could not be made: the system refuses it, or it is there already, as with any other output.
pub fn run_failure(error: train::RunFolderError) -> Failure {
    let exit = match error {
        train::RunFolderError::File(_) => ExitStatus::Failed,
        train::RunFolderError::Exists { .. } | train::RunFolderError::Foreign { .. } => ExitStatus::WrongUsage,
        _ => ExitStatus::BadInput,
    };
    Failure { exit, error: error.into() }
}

/// The plan, before the first update.
pub fn show_plan(plan: &TrainPlan, terminal: &Terminal) {
    if terminal.is_quiet() {
        return;
    }
    terminal.heading("Plan");
    terminal.line(format!(
        "  {} updates over {} tokens ({} learned a pass), longest example {} tokens",
        human_count(plan.updates),
        human_count(plan.tokens_total),
        human_count(plan.supervised_tokens_per_pass),
        plan.tokens_longest_example
    ));
    terminal.line(format!(
        "  trains {} values in {} matrices: {} of blocks {} to {}",
        human_count(plan.adapter_parameters as u64),
        plan.trained_matrices,
        plan.targets.iter().map(|target| short_name(target)).collect::<Vec<_>>().join(", "),
        plan.adapted_blocks[0],
        plan.adapted_blocks[1].saturating_sub(1)
    ));
    let largest = plan.memory.iter().filter(|item| item.bytes >= plan.memory_total_bytes / 50);
    let parts: Vec<_> = largest.map(|item| format!("{} {}", item.name, human_bytes(item.bytes as u64))).collect();
    terminal.line(format!(
        "  memory at most {} ({} of it mapped, which the system may drop): {}",
        human_bytes(plan.memory_total_bytes as u64),
        human_bytes(plan.memory_peak.mapped_bytes),
        parts.join(", ")
    ));
    terminal.line(format!("  {}", plan.memory_choice));
    let work = &plan.step_work;
    let full_share = 100.0 * work.macs as f64 / work.macs_full.max(1) as f64;
    terminal.line(format!(
        "  {:.1} G multiply-adds for the longest example, {full_share:.0} % of a step that leaves nothing out:",
        work.macs as f64 / 1e9
    ));
    for saving in work.savings.iter().filter(|saving| saving.share >= 0.005) {
        terminal.line(format!("    {} saves {:.0} %", saving.name, 100.0 * saving.share));
    }
    if let Some(cost) = &plan.cost {
        for line in cost_lines(cost, plan.tokens_total) {
            terminal.line(format!("  {line}"));
        }
    }
}

/// Time and energy with their intervals, and where they come from.
fn cost_lines(cost: &Prediction, tokens: u64) -> Vec<String> {
    let range = |estimate: &Estimate, human: fn(f64) -> String| {
        let value = human(estimate.value);
        match estimate.interval {
            Some([low, high]) => format!("{value} ({} to {} in 95 of 100 cases)", human(low), human(high)),
            None => value,
        }
    };
    let basis = match &cost.basis {
        Basis::Runs { runs: 1, .. } => "from one earlier run of this model here".to_owned(),
        Basis::Runs { runs, r, .. } => {
            let fit = r.map(|r| format!(", r {r:.3}")).unwrap_or_default();
            format!("from {runs} earlier runs of this model here{fit}")
        }
        Basis::OtherModels { runs } => format!("from {runs} runs of other models here: rough"),
        Basis::Probe { steps, seconds } => format!("from {steps} steps timed just now, in {}", human_seconds(*seconds)),
        Basis::Literature { device, .. } => format!("on {device}"),
    };
    let rate = tokens as f64 / cost.time_s.value;
    let mut lines =
        vec![format!("time {}, {rate:.0} tokens/s", range(&cost.time_s, human_seconds)), format!("  {basis}")];
    if let Some(plateau) = cost.plateau.filter(|_| !matches!(cost.basis, Basis::Literature { .. })) {
        let percent = 100.0 * plateau.level;
        lines.push(format!("  long runs here slow down to {percent:.0} % of their first rate: counted in"));
    }
    lines.extend(cost.energy_j.map(|energy| format!("energy {}", range(&energy, human_joules))));
    if let Basis::Literature { notes, .. } = &cost.basis {
        lines.extend(notes.iter().map(|note| format!("  {note}")));
    }
    lines
}

/// `self_attn.q_proj` as `q_proj`.
fn short_name(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// How the user called this program, for commands to try next.
pub fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "selftune".into())
}

/// What a finished or interrupted training leaves to say.
pub fn show_outcome(outcome: &TrainOutcome, run: &RunFolder, held_out: usize, terminal: &Terminal) {
    terminal.heading(match outcome.end {
        RunEnd::Completed => "Trained",
        RunEnd::StoppedEarly => "Trained (stopped early: validation got no better)",
        RunEnd::Interrupted => "Stopped",
    });
    terminal.line(format!(
        "  {} of {} updates, {} tokens in {}",
        human_count(outcome.step),
        human_count(outcome.steps),
        human_count(outcome.tokens),
        human_seconds(outcome.seconds)
    ));
    if let Some(energy_j) = outcome.energy_j {
        let per_token = energy_j / outcome.tokens.max(1) as f64;
        terminal.line(format!(
            "  {} used while it ran, {per_token:.3} J a token, idle power included",
            human_joules(energy_j)
        ));
    }
    if outcome.held_seconds > 0.0 {
        terminal.line(format!("  {} on hold besides", human_seconds(outcome.held_seconds)));
    }
    if let (Some(before), Some(best)) = (outcome.validation_before, outcome.validation_best) {
        terminal.line(format!(
            "  held-out loss {before:.3} before, {:.3} with the best adapter (update {})",
            best.loss, best.step
        ));
    }
    if let (Some(first), [.., last]) = (outcome.first_loss, outcome.pass_losses.as_slice()) {
        terminal.line(format!("  training loss {first:.3} in the first update, {last:.3} over the last pass"));
    }
    show_cost(outcome, run, terminal);
    let run_path = run.path().display();
    if outcome.end == RunEnd::Interrupted {
        terminal.line(format!("  everything is saved; go on with: {} train --resume {run_path}", program()));
    } else {
        terminal.line(format!("  adapter: {}", outcome.adapter_best.display()));
        if held_out > 0 {
            terminal.line(format!("  did it help?   {} eval --run {run_path}", program()));
        }
        terminal.line(format!(
            "  try it:        {} generate --run {run_path} --record FILE   (or a prompt, or chat)",
            program()
        ));
    }
}

/// What a run cost beside what it was planned to.
fn show_cost(outcome: &TrainOutcome, run: &RunFolder, terminal: &Terminal) {
    let plan = run.plan().ok().flatten();
    let mut parts = Vec::new();
    let cost = plan.as_ref().and_then(|plan| plan.cost.as_ref()).filter(|_| outcome.end == RunEnd::Completed);
    if let Some(cost) = cost {
        let beside = |planned, measured, human| beside_plan(&Comparison { planned, measured }, human);
        parts.push(beside(cost.time_s, outcome.seconds, human_seconds));
        if let (Some(planned), Some(measured)) = (cost.energy_j, outcome.energy_j) {
            parts.push(beside(planned, measured, human_joules));
        }
    }
    if let (Some(plan), Ok(Some(peak))) = (&plan, run_report::peak_memory(run)) {
        let planned = human_bytes(plan.memory_total_bytes as u64);
        parts.push(format!("{} of memory (planned {planned})", human_bytes(peak)));
    }
    let saving = &outcome.saving;
    if saving.saves > 0 {
        let blocked_ms = 1e3 * saving.blocked_seconds / saving.saves as f64;
        parts.push(format!(
            "{} saves of {}, {blocked_ms:.1} ms each",
            saving.saves,
            human_bytes(saving.bytes / saving.saves)
        ));
    }
    if !parts.is_empty() {
        terminal.line(format!("  cost {}", parts.join("; ")));
    }
}

/// A measured cost beside its prediction: `48 s (planned 45 s, 39 s to 52 s: as planned)`.
fn beside_plan(comparison: &Comparison, human: fn(f64) -> String) -> String {
    let (measured, planned) = (human(comparison.measured), human(comparison.planned.value));
    let range = comparison.planned.interval.map(|[low, high]| format!(", {} to {}", human(low), human(high)));
    let held = match comparison.is_inside() {
        Some(true) => ": as planned".to_owned(),
        Some(false) => format!(": {:.2} times the plan", comparison.ratio()),
        None => String::new(),
    };
    format!("{measured} (planned {planned}{}{held})", range.unwrap_or_default())
}
