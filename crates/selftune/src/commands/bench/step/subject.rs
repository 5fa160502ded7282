//! One side of a comparison: a session of one setting, whose steps are measured one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use device::{ProcessMemory, process_processor_seconds};
use kernels::{AdamWParameters, OpSeconds};
use model::{
    AdapterSpec, AdapterWeights, Model, PlanRequest, PlannedStep, Prefix, Random, ResidentBytes, StepPhases, TrainingSession,
    WorkShares, plan_step, work_shares,
};

use super::setting::Setting;
use crate::failure::{Failure, InputError};

/// Code and libraries that training touches and nothing before it did.
const CODE_BYTES: u64 = 2 << 20;
/// How often memory is looked at. A look costs tens of microseconds.
const LOOK: Duration = Duration::from_millis(20);
/// Copies of the adapter's values that lie beside the session's while it is made.
const ADAPTER_COPIES: usize = 2;
const ADAPTER_SEED: u64 = 1;

pub struct Subject {
    pub setting: Setting,
    pub planned: PlannedStep,
    pub shares: WorkShares,
    /// From the request for a plan to a session that can run.
    pub plan_s: f64,
    pub session: TrainingSession,
    /// The output of the blocks below the adapted ones, as the first of several passes left it.
    prefix: Vec<f32>,
    updates: u64,
}

/// What one step took, seconds by the wall's clock but for the last; means where it is made of several passes.
#[derive(Clone, Debug)]
pub struct StepMeasurement {
    /// Forward, head, recompute, backward and optimizer.
    pub step_s: f64,
    /// Making the example.
    pub batch_s: f64,
    /// Sums over the passes.
    pub phases: StepPhases,
    pub optimizer_s: f64,
    pub ops: OpSeconds,
    /// Of all threads, for the whole step.
    pub processor_s: Option<f64>,
    pub loss: f64,
    /// Multiply-adds of all kinds.
    pub macs: u64,
}

/// The products of one step alone.
#[derive(Clone, Debug)]
pub struct ProductsMeasurement {
    pub products_s: f64,
    pub phases: StepPhases,
    pub processor_s: Option<f64>,
}

/// What the check of a step needs: where it stood and what it found there.
pub struct Answer {
    pub parameters: Vec<f32>,
    pub gradients: Vec<f32>,
    pub loss_sum: f64,
}

impl Subject {
    pub fn new(model: &Arc<Model>, setting: &Setting) -> Result<Self, Failure> {
        let start = Instant::now();
        let planned = plan(model, setting)?;
        let subject = Self::with_plan(model, setting, planned)?;
        Ok(Self { plan_s: start.elapsed().as_secs_f64(), ..subject })
    }

    /// A plan takes what the process has in memory for the program: one made beside another session is too small.
    pub fn with_plan(
        model: &Arc<Model>,
        setting: &Setting,
        (spec, planned): (AdapterSpec, PlannedStep),
    ) -> Result<Self, Failure> {
        let start = Instant::now();
        let supervised = setting.supervised.unwrap_or(setting.tokens);
        let shares = work_shares(model, &spec, &planned.options, setting.tokens, supervised)?;
        let adapter = adapter(model, setting)?;
        let session = TrainingSession::new(Arc::clone(model), &adapter, planned.options)?;
        let plan_s = start.elapsed().as_secs_f64();
        Ok(Self { setting: setting.clone(), planned, shares, plan_s, session, prefix: Vec::new(), updates: 0 })
    }

    /// One step and one update, or as many as the setting has passes. Gives the last gradients where they are asked for.
    pub fn step(&mut self, answer: Option<&mut Option<Answer>>) -> Result<StepMeasurement, Failure> {
        let passes = self.setting.passes;
        let parameters = answer.is_some().then(|| self.session.parameters().to_vec());
        let start = Instant::now();
        let (tokens, mask) = (self.tokens(), self.setting.loss_mask());
        let batch_s = start.elapsed().as_secs_f64();
        let processor_start = process_processor_seconds();
        self.session.take_op_seconds();
        self.session.reset_counters();
        let (mut step_s, mut optimizer_s, mut phases) = (0.0, 0.0, StepPhases::default());
        let mut loss = 0.0;
        let mut wanted = answer;
        for pass in 0..passes {
            let start = Instant::now();
            let kept = &mut self.prefix;
            let found = match (self.session.prefix_blocks() > 0 && passes > 1, pass) {
                (false, _) => self.session.step(&tokens, &mask, 1.0, 0)?,
                (true, 0) => {
                    let mut keep = |values: &[f32]| {
                        kept.clear();
                        kept.extend_from_slice(values);
                    };
                    self.session.step_from(Prefix::Observed(&mut keep), &tokens, &mask, 1.0, 0)?
                }
                (true, _) => self.session.step_from(Prefix::Given(kept), &tokens, &mask, 1.0, 0)?,
            };
            phases.add(self.session.phases());
            loss = found.loss_sum / found.supervised_tokens as f64;
            if let (Some(answer), Some(parameters)) = (wanted.take(), &parameters) {
                let gradients = self.session.flat_gradients().to_vec();
                *answer = Some(Answer { parameters: parameters.clone(), gradients, loss_sum: found.loss_sum });
            }
            let before_update = Instant::now();
            self.updates += 1;
            self.session.update(&adamw(self.updates));
            self.session.zero_gradients();
            optimizer_s += before_update.elapsed().as_secs_f64();
            step_s += start.elapsed().as_secs_f64();
        }
        let ops = self.session.take_op_seconds();
        let processor_s = processor_start.zip(process_processor_seconds()).map(|(start, end)| end - start);
        let counters = self.session.counters();
        let macs = counters.frozen_macs + counters.adapter_macs + counters.attention_macs;
        let share = 1.0 / passes as f64;
        Ok(StepMeasurement {
            step_s: step_s * share,
            batch_s,
            phases,
            optimizer_s: optimizer_s * share,
            ops: ops.scaled(share),
            processor_s: processor_s.map(|seconds| seconds * share),
            loss,
            macs: (macs as f64 * share).round() as u64,
        })
    }

    /// The frozen products of a step, without a kept prefix, and nothing else.
    pub fn products(&mut self) -> Result<ProductsMeasurement, Failure> {
        let (tokens, mask) = (self.tokens(), self.setting.loss_mask());
        let (start, processor_start) = (Instant::now(), process_processor_seconds());
        let phases = self.session.step_products(&tokens, &mask)?;
        let products_s = start.elapsed().as_secs_f64();
        let processor_s = processor_start.zip(process_processor_seconds()).map(|(start, end)| end - start);
        Ok(ProductsMeasurement { products_s, phases, processor_s })
    }

    pub fn tokens(&self) -> Vec<u32> {
        tokens(self.setting.tokens, self.session.model().config().vocabulary)
    }
}

/// How a step of `setting` runs, within the memory that there is. The model may be one that is only planned.
pub fn plan(model: &Arc<Model>, setting: &Setting) -> Result<(AdapterSpec, PlannedStep), Failure> {
    let spec = setting.spec(model.config()).map_err(Failure::usage)?;
    let program = program_bytes(model, setting, &spec);
    let available = device::available_memory_bytes().map(|free| program.total() + free);
    let request = PlanRequest {
        ops: setting.ops,
        necessary_work: setting.skip,
        budget_bytes: [setting.memory_bytes, available].into_iter().flatten().min(),
        boundaries: setting.boundaries,
        kept_values: setting.kept_values,
        weights: setting.weights,
        memory: setting.memory_choice(),
        program: program.into(),
        ..PlanRequest::new(&spec, setting.tokens)
    };
    let planned = plan_step(model, &request).bad_input("no such step")?;
    Ok((spec, planned))
}

/// Tokens all over the vocabulary, the same for everybody.
pub fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    let mut random = Random::new(3);
    (0..count).map(|_| (random.next_u64() % vocabulary as u64) as u32).collect()
}

/// A rate at which parameters move and losses hardly do.
fn adamw(step: u64) -> AdamWParameters {
    AdamWParameters {
        learning_rate: 1e-5,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
        step,
        gradient_factor: 1.0,
    }
}

/// An adapter in the middle of its training: a fresh one has no gradients for A, since its B is zero.
pub fn adapter(model: &Model, setting: &Setting) -> Result<AdapterWeights, Failure> {
    let spec = setting.spec(model.config()).map_err(Failure::usage)?;
    let mut adapter = AdapterWeights::initialized(model.config(), spec, ADAPTER_SEED).bad_input("no such adapter")?;
    let mut random = Random::new(ADAPTER_SEED + 1);
    for matrix in &mut adapter.matrices {
        matrix.b.iter_mut().for_each(|value| *value = random.symmetric(0.01));
    }
    Ok(adapter)
}

/// What the process takes besides sessions and the model's packed weights.
fn program_bytes(model: &Model, setting: &Setting, spec: &AdapterSpec) -> ResidentBytes {
    model.release_mapped();
    let now = ProcessMemory::read();
    let in_memory = (model.weights_bytes() - model.mapped_bytes()) as u64;
    let adapter_bytes = (ADAPTER_COPIES * spec.parameter_count(model.config()) * size_of::<f32>()) as u64;
    let keeps_prefix = setting.passes > 1 && spec.blocks.start > 0;
    let prefix_bytes = if keeps_prefix { (setting.tokens * model.config().width * size_of::<f32>()) as u64 } else { 0 };
    ResidentBytes {
        anonymous_bytes: now.anonymous_bytes.unwrap_or(0).saturating_sub(in_memory) + adapter_bytes + prefix_bytes,
        mapped_bytes: now.file_mapped_bytes.unwrap_or(0) + CODE_BYTES,
    }
}

/// The most that was in memory while something ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryPeak {
    pub anonymous_bytes: u64,
    pub mapped_bytes: u64,
    /// Together at one time.
    pub total_bytes: u64,
}

/// Runs `body` while another thread looks at the memory of the process. `None` where the system does not tell.
pub fn watch_memory<T>(body: impl FnOnce() -> T) -> (T, Option<MemoryPeak>) {
    let done = AtomicBool::new(false);
    let [anonymous, mapped, total] = [const { AtomicU64::new(0) }; 3];
    let look = || {
        let now = ProcessMemory::read();
        if let (Some(now_anonymous), Some(now_mapped)) = (now.anonymous_bytes, now.file_mapped_bytes) {
            anonymous.fetch_max(now_anonymous, Ordering::Relaxed);
            mapped.fetch_max(now_mapped, Ordering::Relaxed);
            total.fetch_max(now_anonymous + now_mapped, Ordering::Relaxed);
        }
    };
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                look();
                std::thread::sleep(LOOK);
            }
        });
        // The watch ends with the body even if that panics.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(&done);
        let result = body();
        look();
        result
    });
    let [anonymous_bytes, mapped_bytes, total_bytes] = [anonymous, mapped, total].map(AtomicU64::into_inner);
    (result, (total_bytes > 0).then_some(MemoryPeak { anonymous_bytes, mapped_bytes, total_bytes }))
}
