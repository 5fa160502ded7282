//! `selftune plan`: what a run would take, before it starts.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::preparation;
use crate::recipe::{Prepared, Recipe};
use crate::terminal::{STRONG, Terminal, human_bytes, human_count, human_joules, human_seconds};
use crate::training;
use crate::units;
use data::Example;
use model::ResidentBytes;
use serde_json::{Value, json};
use train::cost::{Candidate, CostHistory, DEVICE_PROFILES, DeviceProfile, Estimate, Limits, Prediction, Ranked};
use train::{AtLength, MemoryLimit, Planned, Schedule, TrainConfig, TrainPlan};

/// Say what a run would take: records, tokens, memory, time, energy.
///
/// Counts are exact: retrieval, templates and cuts are done as in training. Memory is the planner's. Time comes from earlier
/// runs on this machine; before the first, a few steps are timed (some seconds, no results kept). With a limit, the
/// settings that fit it are listed, those that give up least first, with what the paper measured that they cost.
///
///   selftune plan --model smollm2-135m-instruct --data me.jsonl
///   selftune plan --model M --data me.jsonl --preset paper --within 30min --memory 2GB
///   selftune plan --model M --data me.jsonl --device paper-phone --battery 20%
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    #[command(flatten)]
    recipe: Recipe,
    /// Time nothing: without earlier runs of this model the time is then that of other models' runs, or unknown
    #[arg(long)]
    no_probe: bool,
    /// Time and energy on a device that others have measured (paper-phone: the paper's iPhone 17 Pro)
    #[arg(long, value_name = "NAME", value_parser = DEVICE_PROFILES.map(|profile| profile.name))]
    device: Option<String>,
    /// List settings that end within this time, e.g. 90s, 30min, 1h30min
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    within: Option<f64>,
    /// List settings that take at most this share of a battery charge, e.g. 20%
    #[arg(long, value_name = "SHARE", value_parser = units::parse_percent)]
    battery: Option<f64>,
    /// List settings that need at most so much memory, e.g. 2GB, 800MB, 1.5GiB
    #[arg(long, value_name = "SIZE", value_parser = units::parse_memory)]
    memory: Option<u64>,
}

/// What is asked beside the plan itself.
#[derive(Default)]
pub struct Asked {
    no_probe: bool,
    device: Option<&'static DeviceProfile>,
    within_s: Option<f64>,
    battery_share: Option<f64>,
    memory_bytes: Option<u64>,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let config = arguments.recipe.configuration()?;
    let asked = Asked {
        no_probe: arguments.no_probe,
        device: arguments.device.as_deref().and_then(DeviceProfile::by_name),
        within_s: arguments.within,
        battery_share: arguments.battery,
        memory_bytes: arguments.memory,
    };
    show(&arguments.recipe.prepare(config, None, terminal)?, &asked, terminal)
}

/// Shorter lengths to try, as many as are below the longest example.
const LENGTHS: [usize; 7] = [768, 512, 384, 256, 192, 128, 64];
const LENGTHS_TRIED: usize = 4;
/// A process stays below its plan and within a tenth of it.
const MEMORY_INTERVAL_LOW: f64 = 0.9;

/// Shows the plan of a prepared run, and the settings that fit what was asked.
pub fn show(prepared: &Prepared, asked: &Asked, terminal: &Terminal) -> Outcome {
    let Prepared { bench, config, on, preparation, .. } = prepared;
    let model = &bench.model;
    let costs = read_costs(terminal);
    let may_probe = !asked.no_probe && asked.device.is_none();
    let Planned { mut plan, predictor, program } =
        train::plan(model, on, &preparation.training, &preparation.validation, config, &costs, may_probe)
            .bad_input("cannot plan")?;
    let predict = |config: &TrainConfig, work: f64, tokens: f64| match asked.device {
        Some(device) => Some(device.predict(model.config(), config, tokens)),
        None => predictor.predict(work),
    };
    let battery_j = asked.device.map(|device| device.battery_j).or_else(battery_capacity_j);
    let peak_bytes = plan.memory_total_bytes as f64;
    plan.cost = predict(config, plan.work, plan.tokens_with_validation());
    let limits = limits(asked, &plan, battery_j)?;

    prepared.warn_of_shortfall(terminal);
    show_histogram(&preparation.training, terminal);
    training::show_plan(&plan, terminal);
    if !terminal.is_quiet() {
        if let (Some(energy), Some(battery)) = (plan.cost.as_ref().and_then(|cost| cost.energy_j), battery_j) {
            terminal.line(format!("  {:.1} % of a battery charge of {}", 100.0 * energy.value / battery, human_joules(battery)));
        }
        terminal.line(format!("  learning rate  {}  {}", sparkline(config, plan.updates), curve_words(config, &plan)));
    }
    let mut object = to_json(&plan, preparation, config, peak_bytes, battery_j);
    if limits != Limits::default() {
        let ranked = search(prepared, &plan, program, &limits, &predict)?;
        show_options(&ranked, &asked_candidate(&plan, config, peak_bytes), prepared, terminal);
        let blocks = model.config().blocks.len();
        let first = asked_candidate(&plan, config, peak_bytes);
        let option = |candidate: &Candidate| option_json(candidate, &first, blocks);
        object["options"] = ranked.fitting.iter().map(option).collect();
        object["nearest"] = ranked.nearest.as_ref().map_or(Value::Null, option);
    }
    terminal.json(&object);
    Ok(ExitStatus::Done)
}

/// Earlier runs; a file that cannot be used is said and left alone.
fn read_costs(terminal: &Terminal) -> CostHistory {
    let read = crate::model_store::cost_file().map_or(Ok(CostHistory::default()), |file| CostHistory::read(&file));
    read.unwrap_or_else(|error| {
        terminal.warning(format!("earlier runs do not help to predict this one: {error}"));
        CostHistory::default()
    })
}

fn battery_capacity_j() -> Option<f64> {
    let reading = device::system_sensors().read();
    reading.battery.and_then(|battery| battery.capacity_wh).map(|capacity| capacity * 3600.0)
}

/// What was asked, in numbers; an error where nobody can know whether it is kept.
fn limits(asked: &Asked, plan: &TrainPlan, battery_j: Option<f64>) -> Result<Limits, Failure> {
    if asked.within_s.is_some() && plan.cost.is_none() {
        return Err(Failure::input(
            "--within: nothing is known of this machine's speed yet; leave --no-probe out, or train once",
        ));
    }
    let energy_j = match asked.battery_share {
        None => None,
        Some(share) => {
            let battery_j = battery_j.ok_or_else(|| {
                Failure::input("--battery: this machine tells of no battery's capacity; --device paper-phone answers for a phone")
            })?;
            if plan.cost.as_ref().is_none_or(|cost| cost.energy_j.is_none()) {
                return Err(Failure::input(
                    "--battery: no run on this machine has measured its energy yet; train once on battery, or use --device paper-phone",
                ));
            }
            Some(share * battery_j)
        }
    };
    Ok(Limits { time_s: asked.within_s, energy_j, peak_bytes: asked.memory_bytes.map(|bytes| bytes as f64) })
}

fn asked_candidate(plan: &TrainPlan, config: &TrainConfig, peak_bytes: f64) -> Candidate {
    Candidate {
        adapted_blocks: plan.adapted_blocks[1] - plan.adapted_blocks[0],
        passes: config.passes,
        tokens_max: config.tokens_max,
        tokens_total: plan.tokens_total,
        examples_cut: 0,
        tokens_kept: 1.0,
        time_s: plan.cost.as_ref().map(|cost| cost.time_s),
        energy_j: plan.cost.as_ref().and_then(|cost| cost.energy_j),
        peak_bytes,
    }
}

/// Tries depths, passes and lengths.
fn search(
    prepared: &Prepared,
    plan: &TrainPlan,
    program: ResidentBytes,
    limits: &Limits,
    predict: &dyn Fn(&TrainConfig, f64, f64) -> Option<Prediction>,
) -> Result<Ranked, Failure> {
    let Prepared { bench, history, config, on, preparation, .. } = prepared;
    let mut lengths = vec![AtLength {
        tokens_max: config.tokens_max,
        examples: preparation.training.clone(),
        validation: preparation.validation.clone(),
    }];
    let shorter = LENGTHS.into_iter().filter(|length| *length < plan.tokens_longest_example.min(config.tokens_max));
    for tokens_max in shorter.take(LENGTHS_TRIED) {
        let config = TrainConfig { tokens_max, ..config.clone() };
        // Lengths at which records no longer fit would train on something else.
        if let Ok(other) = preparation::prepare(bench, history, &config, prepared.hold_out)
            && other.training.len() == preparation.training.len()
        {
            lengths.push(AtLength { tokens_max, examples: other.training, validation: other.validation });
        }
    }
    let memory = limits.peak_bytes.map_or(config.memory, |bytes| MemoryLimit(Some(bytes as u64)));
    let within = TrainConfig { memory, ..config.clone() };
    let candidates =
        train::candidates(&bench.model, on, &within, &lengths, program, predict).bad_input("cannot plan")?;
    let asked = candidates.first().ok_or_else(|| Failure::input("nothing to plan"))?;
    Ok(train::cost::rank(&candidates, asked, bench.model.config().blocks.len(), limits))
}

fn show_options(ranked: &Ranked, asked: &Candidate, prepared: &Prepared, terminal: &Terminal) {
    let blocks = prepared.bench.model.config().blocks.len();
    let (title, shown): (_, Vec<&Candidate>) = match &ranked.nearest {
        None => ("Settings that fit, those that give up least first", ranked.fitting.iter().take(5).collect()),
        Some(nearest) => ("Nothing fits; the nearest", vec![nearest]),
    };
    terminal.heading(title);
    for candidate in shown {
        let mut costs = Vec::new();
        costs.extend(candidate.time_s.map(|time| human_seconds(time.value)));
        costs.extend(candidate.energy_j.map(|energy| human_joules(energy.value)));
        costs.push(human_bytes(candidate.peak_bytes as u64));
        let flags = flags(candidate, asked);
        let flags = if flags.is_empty() { "as asked".to_owned() } else { flags };
        terminal.line(format!("  {STRONG}{flags}{STRONG:#}"));
        terminal.line(format!("      {}", costs.join(", ")));
        for sentence in candidate.quality(asked, blocks) {
            terminal.line(format!("      {sentence}"));
        }
    }
}

/// The arguments that choose these settings.
fn flags(candidate: &Candidate, asked: &Candidate) -> String {
    let mut flags = Vec::new();
    if candidate.adapted_blocks != asked.adapted_blocks {
        flags.push(format!("--set adapted_blocks={}", candidate.adapted_blocks));
    }
    if candidate.passes != asked.passes {
        flags.push(format!("--set passes={}", candidate.passes));
    }
    if candidate.tokens_max != asked.tokens_max {
        flags.push(format!("--set tokens_max={}", candidate.tokens_max));
    }
    flags.join(" ")
}

fn option_json(candidate: &Candidate, asked: &Candidate, blocks: usize) -> Value {
    let mut option = serde_json::to_value(candidate).unwrap_or_default();
    option["flags"] = flags(candidate, asked).into();
    option["quality"] = candidate.quality(asked, blocks).into();
    option
}

fn to_json(
    plan: &TrainPlan,
    preparation: &preparation::Preparation,
    config: &TrainConfig,
    peak_bytes: f64,
    battery_j: Option<f64>,
) -> Value {
    let cost = plan.cost.as_ref();
    let energy = cost.and_then(|cost| cost.energy_j);
    let share = energy.zip(battery_j).map(|(energy, battery)| Estimate {
        value: energy.value / battery,
        interval: energy.interval.map(|ends| ends.map(|end| end / battery)),
    });
    let schedule = Schedule::new(config, plan.updates);
    let stride = plan.updates.div_ceil(64).max(1);
    let rates: Vec<Value> =
        (1..=plan.updates).step_by(stride as usize).map(|update| json!([update, schedule.learning_rate(update)])).collect();
    json!({
        "counts": {
            "records": preparation.records,
            "training_examples": plan.examples,
            "validation_examples": plan.validation_examples,
            "held_out_records": preparation.held_out.len(),
            "left_out_records": preparation.left_out.len(),
            "truncated_examples": preparation.truncated(),
            "updates": plan.updates,
            "tokens_per_pass": plan.tokens_per_pass,
            "supervised_tokens_per_pass": plan.supervised_tokens_per_pass,
            "tokens_total": plan.tokens_total,
            "tokens_longest_example": plan.tokens_longest_example,
        },
        "peak_bytes": {"value": peak_bytes, "interval": [MEMORY_INTERVAL_LOW * peak_bytes, peak_bytes]},
        "time_s": cost.map(|cost| cost.time_s),
        "processor_s": cost.and_then(|cost| cost.processor_s),
        "energy_j": energy,
        "battery_share": share,
        "basis": cost.map(|cost| &cost.basis),
        "tokens_histogram": histogram(&preparation.training),
        "learning_rate": rates,
        "plan": plan,
        "data": preparation.account(),
    })
}

/// Numbers of examples by length: from, to (not included), count.
fn histogram(examples: &[Example]) -> Vec<[usize; 3]> {
    let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
    let widths = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
    let width = widths.into_iter().find(|width| longest / width < 10).unwrap_or(32768);
    let mut bins: Vec<[usize; 3]> = (0..=longest / width).map(|bin| [bin * width, (bin + 1) * width, 0]).collect();
    examples.iter().for_each(|example| bins[example.tokens.len() / width][2] += 1);
    bins
}

fn show_histogram(examples: &[Example], terminal: &Terminal) {
    if terminal.is_quiet() {
        return;
    }
    terminal.heading("Lengths of the examples to train on");
    let bins = histogram(examples);
    let most = bins.iter().map(|bin| bin[2]).max().unwrap_or(1).max(1);
    let first = bins.iter().position(|bin| bin[2] > 0).unwrap_or(0);
    for [from, to, count] in &bins[first..] {
        let bar = "█".repeat((count * 40).div_ceil(most));
        terminal.line(format!("  {from:>6} to {:<6} {bar} {}", to - 1, human_count(*count as u64)));
    }
}

/// The learning rate over the run, in one line.
fn sparkline(config: &TrainConfig, updates: u64) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const COLUMNS: u64 = 40;
    let schedule = Schedule::new(config, updates);
    let columns = COLUMNS.min(updates).max(1);
    let level = |column: u64| {
        let update = 1 + column * updates.saturating_sub(1) / (columns - 1).max(1);
        let part = schedule.learning_rate(update) / config.learning_rate;
        LEVELS[((part * 7.0).round() as usize).min(7)]
    };
    (0..columns).map(level).collect()
}

fn curve_words(config: &TrainConfig, plan: &TrainPlan) -> String {
    let schedule = Schedule::new(config, plan.updates);
    let last = schedule.learning_rate(plan.updates);
    format!("{}, {} updates of warm-up, up to {:.1e}, {last:.1e} at the end", config.schedule.name(), plan.warmup_updates, config.learning_rate)
}
