//! Chooses the fastest plan that fits a budget of memory.
//!
//! Plans are compared by counted work: multiply-adds weighted by what they cost relative to those of the frozen
//! products (`docs/log.md`, kernels), and bytes of weights read again when they are streamed.

use std::sync::Arc;

use kernels::ops::Counters;
use kernels::{Ops, OpsOptions};

use super::{
    BoundaryType, KeptBlocks, KeptType, MemoryChoice, MemoryPlan, ResidentBytes, WeightsPlace, first_kept_block,
};
use crate::adapter::AdapterSpec;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::FrozenStack;
use crate::step::{
    NecessaryWork, Planned, Program, SAVINGS, StepOptions, StepPhases, Supervision, Tables, check_options,
};
use crate::weights::Model;

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    pub spec: &'a AdapterSpec,
    /// The frozen adapters under it.
    pub frozen: &'a [&'a AdapterSpec],
    pub ops: OpsOptions,
    pub tokens_max: usize,
    pub necessary_work: NecessaryWork,
    /// What the whole process may take. `None`: the fastest plan, whatever it takes.
    pub budget_bytes: Option<u64>,
    /// Only plans with these boundaries: a run that goes on must not change them.
    pub boundaries: Option<BoundaryType>,
    /// The same of what gate and up are kept as.
    pub kept_values: Option<KeptType>,
    /// Only plans that keep so much of the blocks. A run that goes on with bfloat16 boundaries must not change it either,
    /// so what another process would need more (`program.varies`) is granted beyond the budget.
    pub kept_blocks: Option<KeptBlocks>,
    /// Only plans with the weights there; streaming needs mapped ones.
    pub weights: Option<WeightsPlace>,
    /// Only this choice, if it fits, instead of the fastest one.
    pub memory: Option<MemoryChoice>,
    /// What the process takes besides the session and the model's packed weights.
    pub program: ProgramBytes,
}

/// What a process takes besides a session and the model's packed weights, for adapters and lengths of all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramBytes {
    pub fixed: ResidentBytes,
    /// Anonymous bytes besides for each value of the adapter.
    pub per_adapter_value: u64,
    /// Anonymous bytes besides for each token of the longest example, where blocks below the adapter are frozen.
    pub per_token_above_frozen: u64,
    /// By so much `fixed` may be larger in another process. What an error names as fitting leaves it free.
    pub varies: u64,
}

impl From<ResidentBytes> for ProgramBytes {
    /// The same for every adapter and length.
    fn from(fixed: ResidentBytes) -> Self {
        Self { fixed, ..Self::default() }
    }
}

impl ProgramBytes {
    /// What the program takes with this adapter and examples of this length.
    pub fn with(&self, spec: &AdapterSpec, model: &ModelConfig, tokens_max: usize) -> ResidentBytes {
        let values = spec.parameter_count(model) as u64 * self.per_adapter_value;
        let prefix = if spec.blocks.start > 0 { tokens_max as u64 * self.per_token_above_frozen } else { 0 };
        ResidentBytes { anonymous_bytes: self.fixed.anonymous_bytes + values + prefix, ..self.fixed }
    }
}

impl<'a> PlanRequest<'a> {
    /// The usual choices, no budget.
    pub fn new(spec: &'a AdapterSpec, tokens_max: usize) -> Self {
        Self {
            spec,
            frozen: &[],
            ops: OpsOptions::default(),
            tokens_max,
            necessary_work: NecessaryWork::default(),
            budget_bytes: None,
            boundaries: None,
            kept_values: None,
            kept_blocks: None,
            weights: None,
            memory: None,
            program: ProgramBytes::default(),
        }
    }
}

/// A plan that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStep {
    pub options: StepOptions,
    pub plan: MemoryPlan,
    /// The most that the whole process has in physical memory.
    pub peak: ResidentBytes,
    /// Weighted multiply-adds of the longest step, to compare plans.
    pub cost: f64,
}

/// Stacks and bookkeeping that a worker thread touches.
const THREAD_BYTES: u64 = 64 << 10;
/// Buffers of this size and more lie on huge pages, which are in memory as a whole.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// What an adapter or attention multiply-add costs in frozen ones: rates of about 35 and 52 against 140 G a second.
const ADAPTER_COST: f64 = 4.0;
const ATTENTION_COST: f64 = 2.7;
/// What reading a byte of weights again costs in frozen multiply-adds: disks give about a gigabyte a second.
const STREAMED_BYTE_COST: f64 = 140.0;
/// What storing or loading a bfloat16 value costs: memory traffic.
const STORED_VALUE_COST: f64 = 10.0;
/// What gate and up of one column and row cost more as 16-bit integers, kept or only rounded: 0.15 ns.
const KEPT_GATES_COST: f64 = 21.0;

/// The fastest plan of a training step that fits the request's budget.
///
/// # Errors
/// [`ModelError::NothingFits`] says what would fit; otherwise what is wrong with the request.
pub fn plan_step(model: &Arc<Model>, request: &PlanRequest) -> Result<PlannedStep, ModelError> {
    request.spec.validate(model.config())?;
    let planner = Planner::new(model, request)?;
    match planner.fastest()? {
        Some(planned) => Ok(planned),
        None => Err(planner.nothing_fits()?),
    }
}

/// What one item of the necessary work saves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkShare {
    pub item: &'static str,
    /// Multiply-adds of a step without the item's saving, all others in place.
    pub macs_without: u64,
}

/// The multiply-adds of one step: as it is, without any saving, and without each by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkShares {
    pub macs: u64,
    pub macs_full: u64,
    pub items: Vec<WorkShare>,
}

/// Counts a step of `tokens` tokens of which the last `supervised` are targets, with each saving on and off.
pub fn work_shares(
    model: &Arc<Model>,
    spec: &AdapterSpec,
    options: &StepOptions,
    tokens: usize,
    supervised: usize,
) -> Result<WorkShares, ModelError> {
    spec.validate(model.config())?;
    check_options(model, options)?;
    let tables = Arc::new(Tables::new(model.config(), options.tokens_max));
    let stack = FrozenStack::default();
    let count = |necessary_work: NecessaryWork, memory: MemoryChoice| {
        let options = StepOptions { necessary_work, memory, ..*options };
        let program = Program::new(Arc::clone(model), spec, &stack, options, Arc::clone(&tables))?;
        let (mut ops, mut supervision) = (Ops::planner(options.ops), Supervision::new(options.tokens_max));
        let rows = tokens.clamp(2, options.tokens_max) - 1;
        let phases = program.dry_step(&mut ops, &mut supervision, rows, supervised.clamp(1, rows));
        Ok::<u64, ModelError>(all_macs(&phases.macs()))
    };
    let (work, memory) = (options.necessary_work, options.memory);
    let per_block = MemoryChoice { blocks_kept: 1, attentions_kept: 0, ..memory };
    let savings = SAVINGS.iter().map(|saving| (saving.item, saving.switched_off(work), memory));
    let items = savings.chain([("values kept instead of run again", work, per_block)]);
    let items = items.map(|(item, work, memory)| Ok(WorkShare { item, macs_without: count(work, memory)? }));
    Ok(WorkShares {
        macs: count(work, memory)?,
        macs_full: count(NecessaryWork::ALL_WORK, per_block)?,
        items: items.collect::<Result<_, ModelError>>()?,
    })
}

fn all_macs(counters: &Counters) -> u64 {
    counters.frozen_macs + counters.adapter_macs + counters.attention_macs
}

/// One model, adapter and length, for which plans are tried.
struct Planner<'a> {
    model: &'a Arc<Model>,
    request: &'a PlanRequest<'a>,
    stack: FrozenStack,
    tables: Arc<Tables>,
    /// Does not depend on the choice.
    scratch_bytes: usize,
    /// Blocks that backward runs through.
    blocks: usize,
}

impl<'a> Planner<'a> {
    fn new(model: &'a Arc<Model>, request: &'a PlanRequest) -> Result<Self, ModelError> {
        let mut planner = Self {
            model,
            request,
            stack: FrozenStack::new(request.frozen.iter().copied(), model.config()),
            tables: Arc::new(Tables::new(model.config(), 0)),
            scratch_bytes: 0,
            blocks: 0,
        };
        let options = planner.options(MemoryChoice::default());
        check_options(model, &options)?;
        planner.tables = Arc::new(Tables::new(model.config(), request.tokens_max));
        planner.blocks = model.config().blocks.len() - first_kept_block(request.spec, &options);
        let program = planner.program(MemoryChoice::default())?;
        planner.scratch_bytes = program.dry_run(&mut Supervision::new(request.tokens_max - 1)).scratch_bytes;
        Ok(planner)
    }

    fn options(&self, memory: MemoryChoice) -> StepOptions {
        let PlanRequest { ops, tokens_max, necessary_work, .. } = *self.request;
        StepOptions { ops, tokens_max, memory, necessary_work }
    }
    fn program(&self, memory: MemoryChoice) -> Result<Program, ModelError> {
        let (options, tables) = (self.options(memory), Arc::clone(&self.tables));
        Program::new(Arc::clone(self.model), self.request.spec, &self.stack, options, tables)
    }

    /// The plan of one choice.
    fn plan(&self, memory: MemoryChoice) -> Result<PlannedStep, ModelError> {
        let program = self.program(memory)?;
        let mut supervision = Supervision::new(self.request.tokens_max - 1);
        let mut ops = Ops::planner(self.request.ops);
        let rows = self.request.tokens_max - 1;
        let phases = program.dry_step(&mut ops, &mut supervision, rows, rows);
        let plan = program.memory_plan(&Planned { phases, scratch_bytes: self.scratch_bytes }, supervision.bytes());
        let cost = self.cost(&phases, memory, rows);
        Ok(PlannedStep { options: program.options, peak: self.peak(&plan), plan, cost })
    }

    fn peak(&self, plan: &MemoryPlan) -> ResidentBytes {
        let program = self.request.program.with(self.request.spec, self.model.config(), self.request.tokens_max);
        let in_huge_pages = |bytes: usize| match bytes as u64 {
            bytes if bytes >= HUGE_PAGE_BYTES => bytes.next_multiple_of(HUGE_PAGE_BYTES) - bytes,
            _ => 0,
        };
        let rounding = in_huge_pages(plan.arena_bytes) + in_huge_pages(plan.scratch_bytes);
        let threads = self.request.ops.threads as u64 * THREAD_BYTES;
        let ResidentBytes { anonymous_bytes, mapped_bytes } = plan.resident();
        ResidentBytes {
            anonymous_bytes: program.anonymous_bytes + anonymous_bytes + rounding + threads,
            mapped_bytes: program.mapped_bytes + mapped_bytes,
        }
    }

    fn cost(&self, phases: &StepPhases, memory: MemoryChoice, rows: usize) -> f64 {
        let work = phases.macs();
        let macs = work.frozen_macs as f64
            + ADAPTER_COST * work.adapter_macs as f64
            + ATTENTION_COST * work.attention_macs as f64;
        // Forward and backward each read all weights once more; those inside groups a third time.
        let passes = if memory.checkpoint_blocks > 1 { 3.0 } else { 2.0 };
        let streamed = match memory.weights {
            WeightsPlace::Resident => 0.0,
            WeightsPlace::Streamed => passes * STREAMED_BYTE_COST * self.model.mapped_bytes() as f64,
        };
        let stored = match memory.boundaries {
            BoundaryType::Float32 => 0.0,
            BoundaryType::Bfloat16 => {
                passes * STORED_VALUE_COST * (self.blocks * rows * self.model.config().width) as f64
            }
        };
        let kept = match memory.kept_values {
            KeptType::Float32 => 0.0,
            KeptType::Int16 => KEPT_GATES_COST * (self.blocks * rows * self.model.config().feed_forward) as f64,
        };
        macs + streamed + stored + kept
    }

    fn fits(&self, planned: &PlannedStep) -> bool {
        let granted = if self.request.kept_blocks.is_some() { self.request.program.varies } else { 0 };
        self.request.budget_bytes.is_none_or(|budget| planned.peak.total() <= budget.saturating_add(granted))
    }

    /// Weights may be streamed only from a file.
    fn weight_places(&self) -> &'static [WeightsPlace] {
        match self.model.mapped_bytes() > 0 {
            _ if self.request.weights == Some(WeightsPlace::Resident) => &[WeightsPlace::Resident],
            true if self.request.weights == Some(WeightsPlace::Streamed) => &[WeightsPlace::Streamed],
            true => &[WeightsPlace::Resident, WeightsPlace::Streamed],
            false => &[WeightsPlace::Resident],
        }
    }
    /// Float32 first: of equal costs the first is taken.
    fn kept_types(&self) -> Vec<KeptType> {
        self.request.kept_values.map_or(vec![KeptType::Float32, KeptType::Int16], |kept_values| vec![kept_values])
    }
    /// Every place of weights, boundaries and kept values that the request leaves open, with each block run again unless it
    /// says what is kept.
    fn bases(&self) -> Vec<MemoryChoice> {
        let boundary_types = match self.request.boundaries {
            Some(boundaries) => vec![boundaries],
            None => vec![BoundaryType::Float32, BoundaryType::Bfloat16],
        };
        let kept_blocks = self.request.kept_blocks.map_or(MemoryChoice::default(), KeptBlocks::choice);
        let mut bases = Vec::new();
        for &weights in self.weight_places() {
            for &boundaries in &boundary_types {
                for kept_values in self.kept_types() {
                    bases.push(MemoryChoice { weights, boundaries, kept_values, ..kept_blocks });
                }
            }
        }
        bases
    }

    fn fastest(&self) -> Result<Option<PlannedStep>, ModelError> {
        if let Some(memory) = self.request.memory {
            return Ok(Some(self.plan(memory)?).filter(|planned| self.fits(planned)));
        }
        let mut best: Option<PlannedStep> = None;
        for base in self.bases() {
            for memory in self.candidates(base)? {
                let planned = self.plan(memory)?;
                let is_faster = best.as_ref().is_none_or(|best| planned.cost < best.cost);
                if is_faster && self.fits(&planned) {
                    best = Some(planned);
                }
            }
        }
        Ok(best)
    }

    /// Choices with the types and the weights' place of `base` that are worth a look: each fits, or nothing of its kind does.
    fn candidates(&self, base: MemoryChoice) -> Result<Vec<MemoryChoice>, ModelError> {
        if self.request.kept_blocks.is_some() {
            return Ok(vec![base]);
        }
        let mut candidates = vec![base];
        if !self.fits(&self.plan(base)?) {
            candidates.extend(self.group_sizes().map(|checkpoint_blocks| MemoryChoice { checkpoint_blocks, ..base }));
            return Ok(candidates);
        }
        let whole = |blocks_kept: usize| MemoryChoice { blocks_kept, ..base };
        let blocks_kept = self.most(1, self.blocks, &whole)?;
        candidates.push(whole(blocks_kept));
        if base.boundaries == BoundaryType::Float32 {
            // What room is left behind whole blocks, and the other way round.
            let more = |attentions_kept: usize| MemoryChoice { attentions_kept, ..whole(blocks_kept) };
            candidates.push(more(self.most(0, self.blocks - blocks_kept, &more)?));
            let attention = |attentions_kept: usize| MemoryChoice { attentions_kept, ..base };
            let attentions_kept = self.most(0, self.blocks - 1, &attention)?;
            candidates.push(attention(attentions_kept));
            if attentions_kept == self.blocks - 1 {
                let all = |blocks_kept: usize| MemoryChoice {
                    blocks_kept,
                    attentions_kept: self.blocks - blocks_kept,
                    ..base
                };
                candidates.push(all(self.most(1, self.blocks, &all)?));
            }
        }
        Ok(candidates)
    }

    /// The largest number from `low`, which fits, to `high` whose choice fits; memory grows with it.
    fn most(&self, low: usize, high: usize, choice: &dyn Fn(usize) -> MemoryChoice) -> Result<usize, ModelError> {
        let (mut low, mut high) = (low, high);
        while low < high {
            let middle = (low + high).div_ceil(2);
            match self.fits(&self.plan(choice(middle))?) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        Ok(low)
    }

    /// Group sizes for which fewer inputs are kept than for any smaller one.
    fn group_sizes(&self) -> impl Iterator<Item = usize> {
        let kept = |size: usize, blocks: usize| size - 1 + blocks.div_ceil(size);
        let (mut fewest, blocks) = (kept(1, self.blocks), self.blocks);
        (2..=blocks).filter(move |size| {
            let inputs = kept(*size, blocks);
            let is_fewer = inputs < fewest;
            fewest = fewest.min(inputs);
            is_fewer
        })
    }

    /// The plan that takes the least. Of a small model streamed weights can take more than resident ones.
    fn smallest(&self) -> Result<PlannedStep, ModelError> {
        if let Some(memory) = self.request.memory {
            return self.plan(memory);
        }
        let mut smallest: Option<PlannedStep> = None;
        // No block but the last is kept: the type of kept values changes nothing.
        let kept_type = self.kept_types()[0];
        for base in self.bases().into_iter().filter(|base| base.kept_values == kept_type) {
            let group_sizes = self.group_sizes().filter(|_| self.request.kept_blocks.is_none());
            for checkpoint_blocks in std::iter::once(base.checkpoint_blocks).chain(group_sizes) {
                let planned = self.plan(MemoryChoice { checkpoint_blocks, ..base })?;
                if smallest.as_ref().is_none_or(|smallest| planned.peak.total() < smallest.peak.total()) {
                    smallest = Some(planned);
                }
            }
        }
        Ok(smallest.expect("at least one place and type"))
    }

    /// The error that says what would fit.
    fn nothing_fits(&self) -> Result<ModelError, ModelError> {
        let needed_bytes = self.smallest()?.peak.total();
        let budget_bytes = self.request.budget_bytes.unwrap_or(u64::MAX);
        let fits = |request: PlanRequest| -> Result<bool, ModelError> {
            let planner = Planner::new(self.model, &request)?;
            Ok(planner.smallest()?.peak.total() + self.request.program.varies <= budget_bytes)
        };
        let with_tokens = |tokens_max: usize| fits(PlanRequest { tokens_max, ..self.request.clone() });
        let tokens_that_fit = largest(2, self.request.tokens_max - 1, with_tokens)?;
        let spec = self.request.spec;
        let with_blocks = |blocks: usize| {
            let spec = AdapterSpec { blocks: spec.blocks.end - blocks..spec.blocks.end, ..spec.clone() };
            fits(PlanRequest { spec: &spec, ..self.request.clone() })
        };
        let blocks_that_fit = largest(1, spec.blocks.len() - 1, with_blocks)?;
        let tokens = self.request.tokens_max;
        Ok(ModelError::NothingFits { budget_bytes, tokens, needed_bytes, tokens_that_fit, blocks_that_fit })
    }
}

/// The largest number from `low` to `high` for which `holds`, which holds for smaller ones too.
fn largest(
    low: usize,
    high: usize,
    holds: impl Fn(usize) -> Result<bool, ModelError>,
) -> Result<Option<usize>, ModelError> {
    if low > high || !holds(low)? {
        return Ok(None);
    }
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if holds(middle)? {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(Some(low))
}
