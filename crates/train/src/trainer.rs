//! The training loop.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use data::Example;
use device::{ProcessMemory, Stopwatch};
use kernels::AdamWParameters;
use model::ModelError;

use crate::adapter_file::AdapterNotes;
use crate::config::TrainConfig;
use crate::cost::{CostHistory, Measurement, Meter, Plateau, ProbeMeasurement, RunWork, Setting};
use crate::error::TrainError;
use crate::events::{Control, TrainEvent};
use crate::governor::{Governor, Wait};
use crate::hold::Hold;
use crate::learner::Learner;
use crate::metrics::{Line, Metrics, StepReport, ValidationReport};
use crate::monitor::Monitor;
use crate::order::DataOrder;
use crate::outcome::{RunEnd, TrainOutcome};
use crate::plan::{supervised_tokens, validates_after, validations_between};
use crate::run_folder::RunFolder;
use crate::saving::Saving;
use crate::schedule::Schedule;
use crate::state::{Identity, LossTotal, Progress, ValidationPoint};
/// A session of fewer updates says nothing about the next one.
const MEASURED_UPDATES_MIN: u64 = 3;
/// A probe times steps until it has so much, or has no more lengths to try.
const PROBE_SECONDS: f64 = 6.0;

/// On hold, the watcher is asked whether to stop so often, and the sensors what has changed.
const ASK_SECONDS: f64 = 0.25;
const LOOK_SECONDS: f64 = 5.0;

/// Everything that stays the same during a run.
pub(crate) struct Job<'a> {
    pub examples: &'a [Example],
    pub validation: &'a [Example],
    pub config: &'a TrainConfig,
    pub run: &'a RunFolder,
    pub identity: Identity,
    pub notes: AdapterNotes,
    pub costs: Costs<'a>,
}

/// What the cost of a run is measured against.
pub(crate) struct Costs<'a> {
    pub work: RunWork,
    pub setting: Setting,
    /// How this machine slows down in long runs.
    pub plateau: Plateau,
    /// Where the measurement of this session goes.
    pub file: Option<&'a Path>,
}

/// A run on its way.
pub(crate) struct Trainer<'a, L> {
    job: Job<'a>,
    learner: L,
    progress: Progress,
    order: DataOrder,
    schedule: Schedule,
    updates: u64,
    /// The current pass and the order of its examples.
    shuffled: (u64, Vec<usize>),
    metrics: Metrics,
    meter: Meter,
    /// Work of the updates still to make.
    work_left: f64,
    /// Processor time and energy at the beginning of this session.
    processor_start_s: Option<f64>,
    energy_start_j: Option<f64>,
    monitor: Monitor<'a>,
    governor: Governor,
    /// The hold that the run folder tells of.
    hold: Option<Hold>,
    /// Whether the watcher knows of it.
    hold_is_told: bool,
    saving: Saving,
    session: Stopwatch,
    observer: &'a mut dyn FnMut(&TrainEvent) -> Control,
    stop_asked: bool,
}

impl<'a, L: Learner> Trainer<'a, L> {
    /// A trainer at `progress`, whose values `learner` already has. `is_saved`: this progress came from the disk.
    pub fn new(
        job: Job<'a>,
        learner: L,
        progress: Progress,
        is_saved: bool,
        monitor: Monitor<'a>,
        observer: &'a mut dyn FnMut(&TrainEvent) -> Control,
    ) -> Result<Self, TrainError> {
        let config = job.config;
        let updates = config.updates(job.examples.len());
        let order = DataOrder::new(config.seed, job.examples.len(), config.accumulation);
        let pass = order.window(progress.step).pass;
        let work = &job.costs.work;
        let saved = is_saved.then_some(&progress);
        let hold = job.run.hold()?;
        let mut governor = Governor::new(config.limits());
        governor.go_back_to(hold.as_ref().map_or(&[], |hold| &hold.waits));
        let validated = saved.and_then(|progress| progress.validations.last()).map(|last| last.step);
        let files = job.run.files();
        let metrics = Metrics::open(files, &job.run.metrics_path(), saved.map(|progress| progress.step), validated)?;
        let saving = Saving::new(config, files, job.run.state_folder(), metrics.to_sync()?, saved)?;
        Ok(Self {
            schedule: Schedule::new(config, updates),
            shuffled: (pass, order.shuffled(pass)),
            metrics,
            meter: Meter::new(job.costs.plateau),
            work_left: work.total(&order, updates, 0) - work.total(&order, progress.step, 0),
            processor_start_s: device::process_processor_seconds(),
            energy_start_j: progress.energy_j,
            monitor,
            governor,
            hold,
            hold_is_told: false,
            saving,
            session: Stopwatch::start(),
            stop_asked: false,
            job,
            learner,
            progress,
            order,
            updates,
            observer,
        })
    }

    /// Trains to the end, or until the observer asks to stop.
    pub fn run(mut self) -> Result<TrainOutcome, TrainError> {
        let end = loop {
            self.hold_while_told()?;
            if self.hold.is_some() {
                break RunEnd::Interrupted;
            }
            if self.validation_is_due() {
                self.validate()?;
            }
            self.note_saved(false)?;
            if self.saving.is_due(&self.progress) {
                self.save()?;
            }
            if let Some(end) = self.end() {
                break end;
            }
            self.monitor.read();
            let watch = Stopwatch::start();
            let window = self.next_window();
            let loss = self.forward_backward(&window)?;
            let gradient_norm = self.checked_gradient_norm(&window)?;
            let learning_rate = self.update(gradient_norm);
            self.report(&window, loss, gradient_norm, learning_rate, watch.seconds())?;
        };
        self.finish(end)
    }

    fn end(&self) -> Option<RunEnd> {
        let patience = self.job.config.early_stop_patience;
        if self.progress.step == self.updates {
            Some(RunEnd::Completed)
        } else if patience > 0 && self.progress.validations_since_best() >= patience {
            Some(RunEnd::StoppedEarly)
        } else {
            self.stop_asked.then_some(RunEnd::Interrupted)
        }
    }

    /// The examples of the next update, as indices.
    fn next_window(&mut self) -> Vec<usize> {
        let window = self.order.window(self.progress.step);
        if self.shuffled.0 != window.pass {
            self.shuffled = (window.pass, self.order.shuffled(window.pass));
        }
        let places: Range<usize> = window.places;
        self.shuffled.1[places].to_vec()
    }

    /// Adds up the gradient of the mean loss over all supervised tokens of the window.
    fn forward_backward(&mut self, window: &[usize]) -> Result<LossTotal, TrainError> {
        let examples = self.job.examples;
        let supervised: u64 = window.iter().map(|&index| supervised_tokens(&examples[index])).sum();
        let gradient_scale = (1.0 / supervised as f64) as f32;
        let mut total = LossTotal::default();
        for (place, &index) in window.iter().enumerate() {
            let example = &examples[index];
            let seed = self.order.dropout_seed(self.progress.step, place);
            let loss = self.learner.learn(example, gradient_scale, seed);
            let loss = self.checked_loss(loss, example)?;
            total.add(loss, supervised_tokens(example));
        }
        Ok(total)
    }

    /// The gradient's norm, once it is known to be a number and, in the first update, to reach every adapted matrix.
    fn checked_gradient_norm(&mut self, window: &[usize]) -> Result<f64, TrainError> {
        let norm = self.learner.gradient_norm();
        if !norm.is_finite() {
            let records = window.iter().map(|&index| self.job.examples[index].record_id.clone()).collect();
            let error = TrainError::GradientNotFinite { update: self.progress.step + 1, records };
            return Err(self.keep_and_fail(error));
        }
        if self.progress.step == 0 {
            let matrices = self.learner.matrices_without_gradient();
            if !matrices.is_empty() {
                return Err(TrainError::NoGradient { matrices });
            }
        }
        Ok(norm)
    }

    /// Clips and applies the gradient. Returns the learning rate.
    fn update(&mut self, gradient_norm: f64) -> f64 {
        let config = self.job.config;
        let step = self.progress.step + 1;
        let learning_rate = self.schedule.learning_rate(step);
        self.learner.update(&AdamWParameters {
            learning_rate: learning_rate as f32,
            beta1: config.beta1 as f32,
            beta2: config.beta2 as f32,
            epsilon: config.epsilon as f32,
            weight_decay: config.weight_decay as f32,
            step,
            gradient_factor: clip_factor(gradient_norm, config.clip_norm) as f32,
        });
        self.learner.zero_gradients();
        learning_rate
    }

    fn report(
        &mut self,
        window: &[usize],
        loss: LossTotal,
        gradient_norm: f64,
        learning_rate: f64,
        seconds: f64,
    ) -> Result<(), TrainError> {
        let tokens: u64 = window.iter().map(|&index| self.job.examples[index].tokens.len() as u64).sum();
        let mean = loss.mean().expect("windows without supervised tokens were refused");
        let pass = self.shuffled.0 as usize;
        self.progress.step += 1;
        self.progress.tokens += tokens;
        self.progress.passes.resize_with((pass + 1).max(self.progress.passes.len()), LossTotal::default);
        self.progress.passes[pass].add(loss.loss_sum, loss.supervised_tokens);
        self.progress.first_loss.get_or_insert(mean);
        let work = self.job.costs.work.of_update(window, self.shuffled.0);
        self.meter.add_update(work, tokens, seconds);
        self.work_left -= work;
        self.monitor.slowdown.add(tokens, seconds);
        let energy_j = self.count_energy();
        let report = StepReport {
            step: self.progress.step,
            steps: self.updates,
            pass: pass as u64 + 1,
            loss: mean,
            learning_rate,
            gradient_norm,
            clipped: clip_factor(gradient_norm, self.job.config.clip_norm) < 1.0,
            tokens,
            supervised_tokens: loss.supervised_tokens,
            seconds,
            tokens_per_second: self.meter.tokens_per_second(),
            eta_seconds: self.eta_seconds(),
            peak_resident_bytes: ProcessMemory::read().peak_resident_bytes,
            energy_j,
            slowdown: self.monitor.slowdown.factor(),
            device: self.monitor.last().clone(),
        };
        self.metrics.write(Line::Step(&report))?;
        self.notify(&TrainEvent::Step(report));
        for message in self.learner.take_notices() {
            self.notify(&TrainEvent::Notice { message });
        }
        Ok(())
    }

    /// Joules since the reading before, added to those of the run.
    fn count_energy(&mut self) -> Option<f64> {
        let energy_j = self.monitor.energy_since_last()?;
        *self.progress.energy_j.get_or_insert(0.0) += energy_j;
        Some(energy_j)
    }

    fn eta_seconds(&self) -> f64 {
        if self.progress.step == self.updates {
            return 0.0;
        }
        let validations = match self.job.validation.is_empty() {
            true => 0,
            false => validations_between(self.job.config, &self.order, Some(self.progress.step), self.updates),
        };
        let look = self.job.costs.work.of_validation(&self.order, self.updates, false);
        self.meter.remaining_seconds(self.work_left + validations as f64 * look)
    }

    fn validation_is_due(&self) -> bool {
        let step = self.progress.step;
        !self.job.validation.is_empty()
            && validates_after(self.job.config, &self.order, step, self.updates)
            && self.progress.validations.last().is_none_or(|last| last.step < step)
    }

    /// Measures the loss on the held-out examples and keeps the adapter if it is the best so far.
    fn validate(&mut self) -> Result<(), TrainError> {
        self.monitor.read();
        let watch = Stopwatch::start();
        let mut total = LossTotal::default();
        for example in self.job.validation {
            let loss = self.learner.loss(example);
            let loss = self.checked_loss(loss, example)?;
            total.add(loss, supervised_tokens(example));
        }
        let loss = total.mean().expect("validation examples without supervised tokens were refused");
        let step = self.progress.step;
        let is_best = self.progress.add_validation(ValidationPoint { step, loss });
        if is_best {
            // On disk before the state that speaks of it: a kill in between only makes the same adapter again.
            self.learner.write_adapter(self.job.run.files(), &self.job.run.best_adapter(), &self.job.notes)?;
        }
        let seconds = watch.seconds();
        let is_first = self.progress.validations.len() == 1;
        self.meter.add_validation(self.job.costs.work.of_validation(&self.order, self.updates, is_first), seconds);
        let report = ValidationReport { step, loss, is_best, seconds, energy_j: self.count_energy() };
        self.metrics.write(Line::Validation(&report))?;
        self.notify(&TrainEvent::Validation(report));
        Ok(())
    }

    /// Afterwards everything is on the disk.
    fn save_what_is_not(&mut self) -> Result<(), TrainError> {
        if !self.saving.has(&self.progress) {
            self.save()?;
        }
        self.note_saved(true)
    }

    /// Waits, with everything saved, as long as the governor says so. If the watcher asks to stop meanwhile, `hold`
    /// stays set, and the run folder tells what the run waited for.
    fn hold_while_told(&mut self) -> Result<(), TrainError> {
        if self.end().is_some_and(RunEnd::is_final) && !self.validation_is_due() {
            return self.end_hold();
        }
        let mut waits = self.decide();
        if waits.is_empty() {
            return self.end_hold();
        }
        self.save_what_is_not()?;
        self.progress.seconds += self.session.lap();
        let began = self.monitor.last().monotonic_seconds;
        loop {
            if !waits.is_empty() {
                self.note_hold(&waits)?;
            }
            self.notify(&TrainEvent::Waiting { waits });
            self.wait_for_change();
            if self.stop_asked {
                self.count_hold(began);
                return Ok(());
            }
            waits = self.decide();
            if waits.is_empty() {
                break;
            }
        }
        let held_seconds = self.count_hold(began);
        self.end_hold()?;
        self.notify(&TrainEvent::WentOn { held_seconds });
        Ok(())
    }

    /// Adds the time since `began`, by the clock of the sensors, to the time on hold and to no other.
    fn count_hold(&mut self, began: f64) -> f64 {
        self.session.lap();
        let held_seconds = self.monitor.read().monotonic_seconds - began;
        self.progress.held_seconds += held_seconds;
        held_seconds
    }

    fn decide(&mut self) -> Vec<Wait> {
        self.governor.decide(self.monitor.read()).to_vec()
    }

    /// Lets time pass until the sensors should be looked at again or the watcher asks to stop.
    fn wait_for_change(&mut self) {
        for _ in 0..(LOOK_SECONDS / ASK_SECONDS) as u32 {
            if self.stop_asked {
                return;
            }
            self.monitor.wait(Duration::from_secs_f64(ASK_SECONDS));
            self.notify(&TrainEvent::Waiting { waits: self.governor.waits().to_vec() });
        }
    }

    /// Writes the hold into the run folder when it begins and when other conditions join or leave it.
    fn note_hold(&mut self, waits: &[Wait]) -> Result<(), TrainError> {
        let conditions = |waits: &[Wait]| waits.iter().map(|wait| wait.condition.clone()).collect::<Vec<_>>();
        let before = self.hold.as_ref();
        let is_new = before.is_none_or(|hold| conditions(&hold.waits) != conditions(waits));
        let since_unix_seconds = before.map_or(self.monitor.last().unix_seconds, |hold| hold.since_unix_seconds);
        let hold = Hold { step: self.progress.step, since_unix_seconds, waits: waits.to_vec() };
        // A hold from an earlier process may tell of limits that were changed since.
        if is_new || !self.hold_is_told {
            self.job.run.set_hold(&hold)?;
            self.hold_is_told = true;
            self.notify(&TrainEvent::Held(hold.clone()));
        }
        self.hold = Some(hold);
        Ok(())
    }

    fn end_hold(&mut self) -> Result<(), TrainError> {
        if self.hold.take().is_some() {
            self.job.run.end_hold()?;
            self.hold_is_told = false;
        }
        Ok(())
    }

    /// Hands the state to the saving thread.
    fn save(&mut self) -> Result<(), TrainError> {
        self.note_saved(true)?;
        self.progress.seconds += self.session.lap();
        self.saving.begin(&self.job.identity, &self.progress, self.learner.values())?;
        self.note_saved(false)
    }

    /// Reports a save that has ended; `wait`: also one that is still under way.
    fn note_saved(&mut self, wait: bool) -> Result<(), TrainError> {
        if let Some(report) = self.saving.finished(wait)? {
            self.metrics.write(Line::Saved(&report))?;
            self.meter.add_overhead(report.blocked_seconds);
            self.notify(&TrainEvent::Saved(report));
        }
        Ok(())
    }

    /// Leaves adapters, state and summary as they are at the end or at an interruption.
    fn finish(mut self, end: RunEnd) -> Result<TrainOutcome, TrainError> {
        self.save_what_is_not()?;
        let run = self.job.run;
        self.learner.write_adapter(run.files(), &run.last_adapter(), &self.job.notes)?;
        if self.job.validation.is_empty() && end.is_final() {
            self.learner.write_adapter(run.files(), &run.best_adapter(), &self.job.notes)?;
        }
        let progress = &self.progress;
        let outcome = TrainOutcome {
            end,
            step: progress.step,
            steps: self.updates,
            tokens: progress.tokens,
            seconds: progress.seconds,
            held_seconds: progress.held_seconds,
            energy_j: progress.energy_j,
            first_loss: progress.first_loss,
            pass_losses: progress.passes.iter().filter_map(LossTotal::mean).collect(),
            validation_before: progress.validation_before(),
            validation_best: progress.best,
            validation_last: progress.validations.last().copied().filter(|point| point.step > 0),
            adapter_best: run.best_adapter(),
            adapter_last: run.last_adapter(),
            saving: self.saving.totals(),
        };
        run.end(&outcome)?;
        self.remember_cost();
        if end.is_final() {
            self.learner.forget_prefixes();
        }
        self.notify(&TrainEvent::Finished(outcome.clone()));
        Ok(outcome)
    }

    /// Leaves what this session took to the predictions of later ones. That failing is no reason to fail.
    fn remember_cost(&mut self) {
        let Some(file) = self.job.costs.file.filter(|_| self.meter.updates >= MEASURED_UPDATES_MIN) else { return };
        let since = |now: Option<f64>, start: f64| now.map(|now| (now - start).max(0.0));
        let processor_now_s = device::process_processor_seconds();
        let measurement = Measurement {
            setting: self.job.costs.setting.clone(),
            model_name: self.job.notes.base_name.clone(),
            ended_unix_seconds: device::unix_time_seconds(),
            updates: self.meter.updates,
            tokens: self.meter.tokens,
            work: self.meter.work,
            seconds: self.meter.seconds,
            processor_seconds: self.processor_start_s.and_then(|start| since(processor_now_s, start)),
            energy_j: since(self.progress.energy_j, self.energy_start_j.unwrap_or(0.0)),
            pace: self.meter.pace(),
        };
        if let Err(error) = CostHistory::add(file, measurement) {
            let message = format!("what this run cost was not remembered for later plans: {error}");
            self.notify(&TrainEvent::Notice { message });
        }
    }

    /// The loss of one example, if the model could compute one.
    fn checked_loss(&mut self, loss: Result<f64, ModelError>, example: &Example) -> Result<f64, TrainError> {
        let (record, update) = (example.record_id.clone(), self.progress.step + 1);
        match loss {
            Ok(loss) if loss.is_finite() => Ok(loss),
            Ok(loss) => Err(self.keep_and_fail(TrainError::LossNotFinite { loss, record, update })),
            Err(source) => Err(self.keep_and_fail(TrainError::Example { record, update, source })),
        }
    }

    /// Saves the values as they were before the failed update, which has not touched them, and gives `error` back.
    fn keep_and_fail(&mut self, error: TrainError) -> TrainError {
        // The first failure is the one to report; if saving fails too, the state saved earlier is still there.
        let is_saved = self.saving.has(&self.progress) || (self.progress.step > 0 && self.save().is_ok());
        if self.note_saved(true).is_ok() && is_saved && self.progress.step > 0 {
            let _ = self.learner.write_adapter(self.job.run.files(), &self.job.run.last_adapter(), &self.job.notes);
        }
        error
    }

    fn notify(&mut self, event: &TrainEvent) {
        if (self.observer)(event) == Control::Stop {
            self.stop_asked = true;
        }
    }
}

/// What a gradient of `norm` is multiplied by so that its norm is at most `limit`; a limit of 0 is none.
fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 && norm > limit { limit / norm } else { 1.0 }
}

/// Times steps of a short, a middle and a long example, and leaves the learner as it was.
pub(crate) fn probe(
    learner: &mut impl Learner,
    examples: &[Example],
    work: &RunWork,
) -> Result<ProbeMeasurement, ModelError> {
    let whole = Stopwatch::start();
    let mut by_work: Vec<usize> = (0..examples.len()).collect();
    by_work.sort_by(|&a, &b| work.examples[a].total_cmp(&work.examples[b]));
    let mut chosen: Vec<usize> = [1, 2, 3].map(|quarter| by_work[(by_work.len() - 1) * quarter / 4]).to_vec();
    chosen.dedup();
    // Not measured: reads the weights from the disk and fills the caches.
    learner.learn(&examples[chosen[0]], 0.0, 0)?;
    let mut probe =
        ProbeMeasurement { steps: 0, work: 0.0, seconds: 0.0, processor_seconds: None, seconds_in_all: 0.0 };
    let (watch, processor_start_s) = (Stopwatch::start(), device::process_processor_seconds());
    for index in chosen {
        learner.learn(&examples[index], 0.0, 0)?;
        probe.steps += 1;
        probe.work += work.examples[index];
        probe.seconds = watch.seconds();
        if probe.seconds > PROBE_SECONDS {
            break;
        }
    }
    probe.processor_seconds =
        processor_start_s.zip(device::process_processor_seconds()).map(|(start, now)| (now - start).max(0.0));
    learner.zero_gradients();
    probe.seconds_in_all = whole.seconds();
    Ok(probe)
}
