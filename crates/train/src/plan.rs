//! What a run will take, counted before its first update.

use std::ops::Range;

use data::Example;
use model::{AdapterSpec, ModelConfig, PlannedStep, ResidentBytes, WorkShare, WorkShares};
use serde::{Deserialize, Serialize};

use crate::config::TrainConfig;
use crate::cost::{Prediction, RunWork};
use crate::memory::PlannedProgram;
use crate::order::DataOrder;
use crate::schedule::Schedule;

/// Exact counts, the memory plan, and what the run will cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainPlan {
    pub examples: usize,
    pub validation_examples: usize,
    /// Updates of the optimizer, and how many of them make one pass over the examples.
    pub updates: u64,
    pub updates_per_pass: u64,
    pub warmup_updates: u64,
    pub validations: u64,
    /// Tokens of one pass, and how many of them are targets.
    pub tokens_per_pass: u64,
    pub supervised_tokens_per_pass: u64,
    /// Tokens of the whole run, each counted once a visit.
    pub tokens_total: u64,
    pub tokens_longest_example: usize,
    pub validation_tokens: u64,
    /// What is trained.
    pub targets: Vec<String>,
    /// First adapted block and the one after the last.
    pub adapted_blocks: [usize; 2],
    pub trained_matrices: usize,
    pub adapter_parameters: usize,
    /// What is kept and what is run again, in words.
    pub memory_choice: String,
    pub memory: Vec<PlannedMemory>,
    pub memory_total_bytes: usize,
    /// The most that the whole process has in physical memory.
    pub memory_peak: PlannedPeak,
    /// Multiply-adds of the longest example with as many targets as the average one.
    #[serde(default)]
    pub step_work: PlannedWork,
    /// A saved state on disk; two are kept, and a third while saving.
    pub state_bytes: usize,
    /// Work of the whole run, validations included: see [`crate::cost::RunWork`].
    #[serde(default)]
    pub work: f64,
    /// Time and energy; none where nothing is known of this machine.
    #[serde(default)]
    pub cost: Option<Prediction>,
}

/// One use of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedMemory {
    pub name: String,
    pub bytes: usize,
}

/// Parts of the physical memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPeak {
    /// What only this process can give back.
    pub anonymous_bytes: u64,
    /// Pages of mapped files, which the system may drop and read again.
    pub mapped_bytes: u64,
}

/// Multiply-adds of one step, and what leaving out unnecessary work saves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedWork {
    pub macs: u64,
    /// Without any of the savings.
    pub macs_full: u64,
    pub savings: Vec<PlannedSaving>,
}

/// One saving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedSaving {
    pub name: String,
    /// Multiply-adds of the step without this saving, all others in place.
    pub macs_without: u64,
    /// The part of those that is saved.
    pub share: f64,
}

/// What an adapter consists of.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    pub targets: Vec<String>,
    pub blocks: Range<usize>,
    pub matrices: usize,
    pub parameters: usize,
}

impl Trained {
    pub fn new(spec: &AdapterSpec, model: &ModelConfig) -> Self {
        Self {
            targets: spec.targets.iter().map(|target| target.module_name().to_owned()).collect(),
            blocks: spec.blocks.clone(),
            matrices: spec.targets.len() * spec.blocks.len(),
            parameters: spec.parameter_count(model),
        }
    }
}

impl TrainPlan {
    /// Tokens of the whole run in training's: a token in validation, which is forward only, takes a third.
    pub fn tokens_with_validation(&self) -> f64 {
        self.tokens_total as f64 + (self.validations * self.validation_tokens) as f64 / 3.0
    }

    /// Counts a run.
    pub(crate) fn count(
        examples: &[Example],
        validation: &[Example],
        config: &TrainConfig,
        trained: Trained,
        work: &RunWork,
    ) -> TrainPlan {
        let order = DataOrder::new(config.seed, examples.len(), config.accumulation);
        let updates = config.updates(examples.len());
        let validations = if validation.is_empty() { 0 } else { validations_between(config, &order, None, updates) };
        TrainPlan {
            examples: examples.len(),
            validation_examples: validation.len(),
            updates,
            updates_per_pass: order.updates_per_pass(),
            warmup_updates: Schedule::new(config, updates).warmup_updates(),
            validations,
            tokens_per_pass: tokens(examples),
            supervised_tokens_per_pass: examples.iter().map(supervised_tokens).sum(),
            tokens_total: tokens_of_updates(examples, &order, updates),
            tokens_longest_example: longest(examples, validation),
            validation_tokens: tokens(validation),
            targets: trained.targets,
            adapted_blocks: [trained.blocks.start, trained.blocks.end],
            trained_matrices: trained.matrices,
            adapter_parameters: trained.parameters,
            memory_choice: String::new(),
            memory: Vec::new(),
            memory_total_bytes: 0,
            memory_peak: PlannedPeak::default(),
            step_work: PlannedWork::default(),
            state_bytes: 3 * size_of::<f32>() * trained.parameters,
            work: work.total(&order, updates, validations),
            cost: None,
        }
    }

    /// Adds what a session takes, and what the process takes besides.
    pub(crate) fn set_memory(&mut self, planned: &PlannedStep, program: PlannedProgram) {
        let mut items = planned.plan.items.clone();
        items.push(("save buffer", program.save_buffer as usize));
        items.push(("program and text", (program.all.total() - program.save_buffer) as usize));
        let total = planned.peak.total() as usize;
        let sum: usize = items.iter().map(|(_, bytes)| bytes).sum();
        items.push(("rounding to pages, threads", total - sum));
        self.memory = items.into_iter().map(|(name, bytes)| PlannedMemory { name: name.to_owned(), bytes }).collect();
        self.memory_total_bytes = total;
        let ResidentBytes { anonymous_bytes, mapped_bytes } = planned.peak;
        self.memory_peak = PlannedPeak { anonymous_bytes, mapped_bytes };
        self.memory_choice = planned.options.memory.to_string();
    }

    /// Adds the multiply-adds of a step.
    pub(crate) fn set_work(&mut self, shares: &WorkShares) {
        let saving = |share: &WorkShare| PlannedSaving {
            name: share.item.to_owned(),
            macs_without: share.macs_without,
            share: 1.0 - shares.macs as f64 / share.macs_without.max(1) as f64,
        };
        let savings = shares.items.iter().map(saving).collect();
        self.step_work = PlannedWork { macs: shares.macs, macs_full: shares.macs_full, savings };
    }
}

pub(crate) fn tokens(examples: &[Example]) -> u64 {
    examples.iter().map(|example| example.tokens.len() as u64).sum()
}

/// Targets of an example. The first token is never one: nothing comes before it.
pub(crate) fn supervised_tokens(example: &Example) -> u64 {
    example.loss_mask.iter().skip(1).filter(|target| **target).count() as u64
}

/// Length of the longest example of a run.
pub(crate) fn longest(examples: &[Example], validation: &[Example]) -> usize {
    examples.iter().chain(validation).map(|example| example.tokens.len()).max().unwrap_or(0)
}

/// Tokens that the first `updates` updates visit.
fn tokens_of_updates(examples: &[Example], order: &DataOrder, updates: u64) -> u64 {
    let passes = updates / order.updates_per_pass();
    let rest = order.window(updates).places.start;
    let shuffled = order.shuffled(passes);
    let partial: u64 = shuffled[..rest].iter().map(|&index| examples[index].tokens.len() as u64).sum();
    passes * tokens(examples) + partial
}

/// Whether the adapter is validated after `step` of `updates` updates.
pub(crate) fn validates_after(config: &TrainConfig, order: &DataOrder, step: u64, updates: u64) -> bool {
    let every = if config.evaluate_every == 0 { order.updates_per_pass() } else { config.evaluate_every };
    step == updates || step.is_multiple_of(every)
}

/// Validations after update `done` (none: from the beginning, the base model's included) up to the last.
pub(crate) fn validations_between(config: &TrainConfig, order: &DataOrder, done: Option<u64>, updates: u64) -> u64 {
    let every = if config.evaluate_every == 0 { order.updates_per_pass() } else { config.evaluate_every };
    let up_to = |step: u64| 1 + step / every + u64::from(step == updates && !step.is_multiple_of(every));
    up_to(updates) - done.map_or(0, up_to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::example;

    #[test]
    fn token_counts_are_those_of_the_visits() {
        let examples: Vec<Example> = (0..7).map(|index| example(index, 10 + index)).collect();
        for accumulation in [1, 2, 3, 10] {
            let order = DataOrder::new(3, examples.len(), accumulation);
            let mut visited = 0;
            for update in 0..20 {
                assert_eq!(tokens_of_updates(&examples, &order, update), visited, "{update} updates");
                let window = order.window(update);
                let shuffled = order.shuffled(window.pass);
                visited += shuffled[window.places].iter().map(|&i| examples[i].tokens.len() as u64).sum::<u64>();
            }
        }
    }

    #[test]
    fn validations_are_counted_as_they_happen() {
        let order = DataOrder::new(3, 7, 2);
        for evaluate_every in [0, 1, 3, 4, 5, 100] {
            let config = TrainConfig { evaluate_every, ..TrainConfig::default() };
            for updates in 1..14 {
                let due = |range: std::ops::RangeInclusive<u64>| {
                    range.filter(|&step| validates_after(&config, &order, step, updates)).count() as u64
                };
                assert_eq!(validations_between(&config, &order, None, updates), due(0..=updates));
                for done in 0..=updates {
                    assert_eq!(validations_between(&config, &order, Some(done), updates), due(done + 1..=updates));
                }
            }
        }
    }
}
