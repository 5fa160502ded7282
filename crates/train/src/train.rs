//! From inputs to a trainer: checks, memory, resume.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use data::Example;
use device::Sensors;
use formats::adapter::StackEntry;
use model::{
    AdapterSpec, AdapterStack, AdapterWeights, BoundaryType, Model, ModelError, PlannedStep, ResidentBytes,
    StepOptions, TrainingSession,
};

use crate::adapter_file::{AdapterNotes, Receipt, StartedFrom};
use crate::config::{MemoryLimit, TrainConfig};
use crate::cost::{self, Candidate, CostHistory, Plateau, Prediction, Predictor, RunWork, Setting};
use crate::error::TrainError;
use crate::events::{Control, TrainEvent};
use crate::governor::{Governor, MissingSensor};
use crate::hash::{example_hash, list_hash, record_hash};
use crate::kept_prefix::PrefixKey;
use crate::learner::{Learner, SessionLearner};
use crate::memory::{PROGRAM_VARIES_BYTES, planned_step, program_now};
use crate::monitor::Monitor;
use crate::outcome::TrainOutcome;
use crate::plan::{TrainPlan, Trained, longest, supervised_tokens};
use crate::run_folder::{ExampleList, ListedExample, RunFolder, RunFolderError};
use crate::state::{Difference, DifferenceKind, Identity, Progress};
use crate::trainer::{Costs, Job, Trainer, probe};

/// What to train, on what, how, and where to keep it.
pub struct TrainInputs<'a> {
    pub model: Arc<Model>,
    /// What people call the model; adapters remember it.
    pub base_name: &'a str,
    /// Frozen adapters under the one that learns.
    pub on: &'a AdapterStack,
    /// Every example of the history but the held-out ones, oldest first.
    pub examples: &'a [Example],
    /// Held-out examples that choose the best adapter; may be empty.
    pub validation: &'a [Example],
    pub config: &'a TrainConfig,
    /// An adapter to begin from instead of a fresh one, with a fresh optimizer and schedule.
    pub start: Option<StartingAdapter>,
    pub run: &'a RunFolder,
    /// Go on with the run in the folder. One that never saved starts from the beginning; one whose state is gone is
    /// refused.
    pub resume: bool,
    /// The file of what runs on this machine have cost: the plan is made from it, and this run is added to it. Without
    /// one a few steps are timed and nothing is remembered.
    pub cost_file: Option<&'a Path>,
}

/// The adapter that a run begins from.
#[derive(Clone, Debug)]
pub struct StartingAdapter {
    /// For people: its path.
    pub name: String,
    /// Its values, of the shape that the configuration asks for. None in a run that goes on and has its state, when the
    /// adapter itself is gone.
    pub weights: Option<AdapterWeights>,
    pub started_from: StartedFrom,
}

/// Trains an adapter. `observer` hears of everything and may stop the run after any event; what was done until then
/// is saved and a later call with `resume` goes on from it to the same final bytes.
///
/// `sensors` are read after every update: those of this machine ([`device::system_sensors`]), of a host application, of
/// a simulated device, or [`device::NoSensors`].
pub fn train(
    inputs: &TrainInputs,
    sensors: &mut dyn Sensors,
    observer: &mut dyn FnMut(&TrainEvent) -> Control,
) -> Result<TrainOutcome, TrainError> {
    let program = program_now(&inputs.model);
    let Prepared { config, spec, planned, work, plan } =
        Prepared::new(&inputs.model, inputs.on, inputs.examples, inputs.validation, inputs.config, program)?;
    let options = planned.options;
    let start = inputs.start.as_ref();
    let session = new_session(&inputs.model, inputs.on, &spec, &config, start, options)?;
    let is_visited_again = plan.tokens_total > plan.tokens_per_pass;
    let prefixes = (config.kept_prefix && session.prefix_blocks() > 0 && is_visited_again).then(|| {
        let stack = format!("{:?}", inputs.on.entries());
        PrefixKey::new(&[inputs.model.content_hash(), &stack, config.precision.name()], session.prefix_blocks())
    });
    let learner = SessionLearner::new(session, prefixes);
    let begin = Begin {
        examples: inputs.examples,
        validation: inputs.validation,
        config: &config,
        stack: inputs.on.entries(),
        base: inputs.model.content_hash().to_owned(),
        base_name: inputs.base_name.to_owned(),
        work,
        setting: setting(&options, inputs.model.content_hash()),
        cost_file: inputs.cost_file,
        start,
    };
    train_learner(learner, begin, plan, inputs.run, inputs.resume, sensors, observer)
}

/// Counts a run and says what it would take by earlier runs in `costs`; where those say too little and `may_probe`,
/// times a few steps, which changes nothing.
pub fn plan(
    model: &Arc<Model>,
    on: &AdapterStack,
    examples: &[Example],
    validation: &[Example],
    config: &TrainConfig,
    costs: &CostHistory,
    may_probe: bool,
) -> Result<Planned, TrainError> {
    let program = program_now(model);
    let Prepared { config, spec, planned, work, mut plan } =
        Prepared::new(model, on, examples, validation, config, program)?;
    let options = planned.options;
    let setting = setting(&options, model.content_hash());
    let probed = match may_probe && !costs.is_enough(&setting) {
        true => {
            let session = new_session(model, on, &spec, &config, None, options)?;
            Some(probe(&mut SessionLearner::new(session, None), examples, &work)?)
        }
        false => None,
    };
    let predictor = Predictor { history: costs.clone(), setting, probe: probed };
    plan.cost = predictor.predict(plan.work);
    Ok(Planned { plan, predictor, program })
}

/// A run as [`plan`] found it.
pub struct Planned {
    pub plan: TrainPlan,
    /// For runs of other settings.
    pub predictor: Predictor,
    /// What this process had in memory besides the weights before anything was planned, as when training begins.
    pub program: ResidentBytes,
}

/// The examples of a run at one length.
pub struct AtLength {
    pub tokens_max: usize,
    pub examples: Vec<Example>,
    pub validation: Vec<Example>,
}

/// What cheaper settings than `config`, which is resolved, would take: fewer blocks adapted, fewer passes, and the
/// lengths of `lengths`, the first of which is as asked. `predict` is given a configuration, its work and its tokens
/// (validation counted as a third of training). Memory is planned within the limit of `config`, with `program` as
/// [`plan`] found it, so that `train` accepts in another process whatever fits here.
pub fn candidates(
    model: &Arc<Model>,
    on: &AdapterStack,
    config: &TrainConfig,
    lengths: &[AtLength],
    program: ResidentBytes,
    predict: &dyn Fn(&TrainConfig, f64, f64) -> Option<Prediction>,
) -> Result<Vec<Candidate>, TrainError> {
    let mut found = Vec::new();
    let Some(asked) = lengths.first() else { return Ok(found) };
    let blocks = config.adapter_spec(model.config())?.blocks.len();
    let mut depths: Vec<usize> =
        (1..=6).rev().map(|sixths| (model.config().blocks.len() * sixths / 6).max(1)).collect();
    depths.retain(|&depth| depth < blocks);
    depths.insert(0, blocks);
    depths.dedup();
    let memory = MemoryLimit(config.memory.0.map(|bytes| bytes.saturating_sub(PROGRAM_VARIES_BYTES)));
    // A run of a fixed number of updates has no passes to leave out.
    let passes: Vec<u64> =
        if config.steps > 0 { vec![config.passes] } else { (1..=config.passes.min(12)).rev().collect() };
    for length in lengths {
        let AtLength { tokens_max, examples, validation } = length;
        let cut = |example: &&Example| {
            let before = asked.examples.iter().find(|other| other.record_id == example.record_id);
            before.is_some_and(|before| before.tokens.len() > example.tokens.len())
        };
        let examples_cut = if *tokens_max == asked.tokens_max { 0 } else { examples.iter().filter(cut).count() };
        for &depth in &depths {
            let config =
                TrainConfig { adapted_blocks: depth as i64, tokens_max: *tokens_max, memory, ..config.clone() };
            let spec = config.adapter_spec(model.config())?;
            let tokens = longest(examples, validation);
            let (options, peak_bytes) = match planned_step(model, &specs(on), &spec, &config, tokens, program) {
                Ok((planned, _)) => (planned.options, planned.peak.total()),
                // Counted all the same, so that the nearest settings can be named.
                Err(ModelError::NothingFits { needed_bytes, .. }) => {
                    (StepOptions::new(tokens), needed_bytes + PROGRAM_VARIES_BYTES)
                }
                Err(error) => return Err(error.into()),
            };
            let work = RunWork::count(model, &specs(on), &spec, options, examples, validation, config.kept_prefix)?;
            for &passes in &passes {
                let config = TrainConfig { passes, ..config.clone() };
                let trained = Trained::new(&spec, model.config());
                let plan = TrainPlan::count(examples, validation, &config, trained, &work);
                let cost = predict(&config, plan.work, plan.tokens_with_validation());
                found.push(Candidate {
                    adapted_blocks: depth,
                    passes,
                    tokens_max: *tokens_max,
                    tokens_total: plan.tokens_total,
                    examples_cut,
                    tokens_kept: plan.tokens_per_pass as f64 / crate::plan::tokens(&asked.examples).max(1) as f64,
                    time_s: cost.as_ref().map(|cost| cost.time_s),
                    energy_j: cost.and_then(|cost| cost.energy_j),
                    peak_bytes: peak_bytes as f64,
                });
            }
        }
    }
    Ok(found)
}

/// What a run is made from, once it is checked.
pub(crate) struct Begin<'a> {
    pub examples: &'a [Example],
    pub validation: &'a [Example],
    pub config: &'a TrainConfig,
    /// Content hash of the base model, and its name for people.
    pub base: String,
    pub base_name: String,
    /// The frozen adapters under the one that learns, bottom first.
    pub stack: &'a [StackEntry],
    pub work: RunWork,
    pub setting: Setting,
    pub cost_file: Option<&'a Path>,
    pub start: Option<&'a StartingAdapter>,
}

/// Trains whatever can learn: takes the run folder, goes on from its state or begins, and runs to the end.
pub(crate) fn train_learner<L: Learner>(
    mut learner: L,
    begin: Begin,
    mut plan: TrainPlan,
    run: &RunFolder,
    resume: bool,
    sensors: &mut dyn Sensors,
    observer: &mut dyn FnMut(&TrainEvent) -> Control,
) -> Result<TrainOutcome, TrainError> {
    let monitor = Monitor::new(sensors);
    let absent = monitor.absent();
    if let Some(missing) = Governor::new(begin.config.limits()).missing(&absent).into_iter().next() {
        let MissingSensor { condition, quantity, reason } = missing;
        return Err(TrainError::SensorMissing { condition, quantity, reason });
    }
    let _lock = run.lock()?;
    let list = ExampleList { training: listed(begin.examples), validation: listed(begin.validation) };
    let identity = identity(&begin, &list, &plan);
    let mut notices = notices(&begin);
    notices.extend(absent_notice(&absent));
    let progress = match run.state()? {
        Some(_) if !resume => return Err(TrainError::Begun { path: run.path().to_owned() }),
        Some((state, fallback)) => {
            if state.identity.lacks_kept_blocks() {
                return Err(RunFolderError::PlanGone { path: run.path().to_owned() }.into());
            }
            let mut differences = state.identity.differences(&identity);
            differences.extend(changed_examples(run, &list)?);
            if !differences.is_empty() {
                return Err(TrainError::Mismatch { path: run.path().to_owned(), differences });
            }
            notices.extend(fallback);
            learner.restore(&state.parameters, &state.first_moment, &state.second_moment)?;
            Some(state.progress)
        }
        None => {
            run.check_never_trained()?;
            if let Some(start) = begin.start.filter(|start| start.weights.is_none()) {
                let problem = "it is gone, and this run has saved nothing yet; begin a new run".to_owned();
                return Err(TrainError::Start { start: start.name.clone(), problem });
            }
            None
        }
    };
    let costs = match begin.cost_file.map_or(Ok(CostHistory::default()), CostHistory::read) {
        Ok(costs) => costs,
        Err(error) => {
            notices.push(format!("earlier runs do not help to predict this one: {error}"));
            CostHistory::default()
        }
    };
    let probed = match costs.is_enough(&begin.setting) {
        true => None,
        false => Some(probe(&mut learner, begin.examples, &begin.work)?),
    };
    plan.cost = cost::predict(&costs, &begin.setting, plan.work, probed.as_ref());
    let plateau = plan.cost.as_ref().and_then(|cost| cost.plateau).unwrap_or(Plateau::NONE);
    match progress {
        None => run.begin(begin.config, &plan, &list)?,
        Some(_) => run.keep_plan(&plan)?,
    }

    let mut stop_asked = observer(&TrainEvent::Started {
        plan: plan.clone(),
        resumed_at: progress.as_ref().map(|progress| progress.step),
    }) == Control::Stop;
    let is_saved = progress.is_some();
    let mut progress = progress.unwrap_or_default();
    notices.extend(forget_missing_best(run, &mut progress));
    for message in notices {
        stop_asked |= observer(&TrainEvent::Notice { message }) == Control::Stop;
    }
    let job = Job {
        examples: begin.examples,
        validation: begin.validation,
        config: begin.config,
        run,
        identity,
        notes: AdapterNotes {
            base_name: begin.base_name,
            stack: begin.stack.to_vec(),
            receipt: Receipt {
                records: seen_records(&list.training),
                started_from: begin.start.map(|start| start.started_from.clone()),
                examples: list.training.into_iter().map(|example| example.sha256).collect(),
                config: begin.config.results_map(),
            },
        },
        costs: Costs { work: begin.work, setting: begin.setting, plateau, file: begin.cost_file },
    };
    learner.keep_prefixes_in(run.files(), &run.prefix_folder());
    // An answer given before the first update counts as one given after it.
    let mut observer = |event: &TrainEvent| match observer(event) {
        Control::Continue if stop_asked => Control::Stop,
        answer => answer,
    };
    Trainer::new(job, learner, progress, is_saved, monitor, &mut observer)?.run()
}

/// A run that was checked and planned, before its memory is taken.
struct Prepared {
    /// Everything resolved.
    config: TrainConfig,
    spec: AdapterSpec,
    planned: PlannedStep,
    work: RunWork,
    plan: TrainPlan,
}

impl Prepared {
    fn new(
        model: &Arc<Model>,
        on: &AdapterStack,
        examples: &[Example],
        validation: &[Example],
        config: &TrainConfig,
        program: ResidentBytes,
    ) -> Result<Self, TrainError> {
        let mut config = config.resolved(model.config())?;
        check_examples(examples, validation, &config)?;
        let spec = config.adapter_spec(model.config())?;
        let (planned, program) =
            planned_step(model, &specs(on), &spec, &config, longest(examples, validation), program)?;
        let memory = planned.options.memory;
        (config.boundaries, config.kept_values) = (Some(memory.boundaries), Some(memory.kept_values));
        if memory.boundaries == BoundaryType::Bfloat16 {
            (config.blocks_kept, config.checkpoint_blocks) = (memory.blocks_kept, memory.checkpoint_blocks);
        }
        let keeps = config.kept_prefix;
        let work = RunWork::count(model, &specs(on), &spec, planned.options, examples, validation, keeps)?;
        let mut plan = TrainPlan::count(examples, validation, &config, Trained::new(&spec, model.config()), &work);
        plan.set_memory(&planned, program);
        let supervised_share = plan.supervised_tokens_per_pass as f64 / plan.tokens_per_pass as f64;
        let tokens = planned.options.tokens_max;
        let supervised = (tokens as f64 * supervised_share).round() as usize;
        plan.set_work(&model::work_shares(model, &spec, &planned.options, tokens, supervised)?);
        Ok(Self { config, spec, planned, work, plan })
    }
}

/// What measurements of this run hold for.
fn setting(options: &StepOptions, model: &str) -> Setting {
    Setting {
        machine: device::Machine::describe().to_string(),
        isa: options.ops.isa.name().to_owned(),
        precision: options.ops.precision.name().to_owned(),
        threads: options.ops.threads,
        selftune_version: env!("CARGO_PKG_VERSION").to_owned(),
        model: model.to_owned(),
    }
}

/// The shapes of the frozen adapters.
fn specs(on: &AdapterStack) -> Vec<&AdapterSpec> {
    on.weights().into_iter().map(|adapter| &adapter.spec).collect()
}

fn new_session(
    model: &Arc<Model>,
    on: &AdapterStack,
    spec: &AdapterSpec,
    config: &TrainConfig,
    start: Option<&StartingAdapter>,
    options: StepOptions,
) -> Result<TrainingSession, TrainError> {
    let adapter = match start.and_then(|start| Some((start, start.weights.as_ref()?))) {
        None => AdapterWeights::initialized(model.config(), spec.clone(), config.seed)?,
        Some((_, weights)) if weights.spec == AdapterSpec { dropout: weights.spec.dropout, ..spec.clone() } => {
            AdapterWeights { spec: spec.clone(), ..weights.clone() }
        }
        Some((start, weights)) => {
            let problem = format!("it has {:?}, the settings ask for {spec:?}", weights.spec);
            return Err(TrainError::Start { start: start.name.clone(), problem });
        }
    };
    Ok(TrainingSession::stacked(Arc::clone(model), &on.weights(), &adapter, options)?)
}

fn check_examples(examples: &[Example], validation: &[Example], config: &TrainConfig) -> Result<(), TrainError> {
    if examples.is_empty() {
        return Err(TrainError::NoExamples);
    }
    let all = || examples.iter().chain(validation);
    for example in all() {
        let (record, tokens) = (|| example.record_id.clone(), example.tokens.len());
        if tokens != example.loss_mask.len() {
            return Err(TrainError::MaskLength { record: record(), tokens, mask: example.loss_mask.len() });
        }
        if tokens > config.tokens_max {
            return Err(TrainError::TooLong { record: record(), tokens, limit: config.tokens_max });
        }
    }
    config.validate_for(examples.len())?;
    let records: Vec<String> =
        all().filter(|example| supervised_tokens(example) == 0).map(|example| example.record_id.clone()).collect();
    match records.len() {
        0 => Ok(()),
        count => Err(TrainError::NothingSupervised { count, total: all().count(), records }),
    }
}

fn listed(examples: &[Example]) -> Vec<ListedExample> {
    let entry = |example: &Example| ListedExample {
        record_id: example.record_id.clone(),
        retrieved_ids: example.retrieved_ids.clone(),
        tokens: example.tokens.len(),
        supervised_tokens: supervised_tokens(example) as usize,
        sha256: example_hash(example),
    };
    examples.iter().map(entry).collect()
}

fn identity(begin: &Begin, list: &ExampleList, plan: &TrainPlan) -> Identity {
    let hash = |examples: &[ListedExample]| {
        list_hash(&examples.iter().map(|example| example.sha256.clone()).collect::<Vec<_>>())
    };
    let [first, end] = plan.adapted_blocks;
    let on: String = begin.stack.iter().map(|entry| format!(", on top of adapter {}", entry.content_hash)).collect();
    Identity {
        base: begin.base.clone(),
        examples: hash(&list.training),
        validation: hash(&list.validation),
        trained: format!(
            "{} in blocks {first}..{end}, {} values in {} matrices{on}",
            plan.targets.join(", "),
            plan.adapter_parameters,
            plan.trained_matrices
        ),
        start: begin.start.map_or_else(String::new, |start| start.started_from.adapter.clone()),
        config: begin.config.to_map(),
    }
}

/// The records that training shows to the model, as targets or as earlier records.
fn seen_records(examples: &[ListedExample]) -> Vec<String> {
    let ids = examples.iter().flat_map(|example| example.retrieved_ids.iter().chain([&example.record_id]));
    ids.map(|id| record_hash(id)).collect::<BTreeSet<_>>().into_iter().collect()
}

/// What the user should know before the first update.
fn notices(begin: &Begin) -> Vec<String> {
    let mut notices = Vec::new();
    let (examples, accumulation) = (begin.examples.len(), begin.config.accumulation);
    if accumulation > examples {
        notices.push(format!("accumulation is {accumulation}, but there are {examples} examples: one update a pass"));
    }
    if begin.validation.is_empty() {
        notices.push("nothing is held out for validation: the last adapter counts as the best".to_owned());
    }
    notices
}

/// What the metrics of this run will lack, said once.
fn absent_notice(absent: &[device::Absent]) -> Option<String> {
    let names: Vec<&str> = absent.iter().map(|absent| absent.quantity.name()).collect();
    let why = "`selftune inspect --machine` says why";
    (!names.is_empty()).then(|| format!("not measured on this machine: {} ({why})", names.join(", ")))
}

/// The records that are not what they were, by name, where the run folder still lists them.
fn changed_examples(run: &RunFolder, now: &ExampleList) -> Result<Vec<Difference>, TrainError> {
    const SHOWN: usize = 5;
    let Some(before) = run.examples()? else { return Ok(Vec::new()) };
    let mut differences = Vec::new();
    for (before, now) in [(&before.training, &now.training), (&before.validation, &now.validation)] {
        let find = |list: &[ListedExample], id: &str| list.iter().find(|entry| entry.record_id == id).cloned();
        for entry in before {
            match find(now, &entry.record_id) {
                None => differences.push(format!("record {} is no longer there", entry.record_id)),
                Some(other) if other.sha256 != entry.sha256 => {
                    differences.push(format!("record {} reads differently", entry.record_id));
                }
                Some(_) => {}
            }
        }
        let new = now.iter().filter(|entry| find(before, &entry.record_id).is_none());
        differences.extend(new.map(|entry| format!("record {} is new", entry.record_id)));
    }
    if differences.len() > SHOWN {
        let more = differences.len() - SHOWN;
        differences.truncate(SHOWN);
        differences.push(format!("{more} more records differ"));
    }
    Ok(differences.into_iter().map(|text| Difference { kind: DifferenceKind::Data, text }).collect())
}

/// The best adapter lives in its own folder. If someone took it away, the next better one must not be compared
/// with what is gone.
fn forget_missing_best(run: &RunFolder, progress: &mut Progress) -> Option<String> {
    let best = progress.best?;
    if run.best_adapter().is_dir() {
        return None;
    }
    progress.best = None;
    Some(format!(
        "the best adapter, of update {}, is no longer in the run folder; the next validation chooses anew",
        best.step
    ))
}
