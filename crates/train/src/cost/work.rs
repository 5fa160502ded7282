//! The work of a run: multiply-adds, weighted by what each kind costs beside a product with frozen weights.

use std::sync::Arc;

use data::Example;
use kernels::ops::Counters;
use model::{AdapterSpec, Model, ModelError, StepOptions, WorkCounter};

use crate::order::DataOrder;

/// A multiply-add of an adapter takes so many times the time of one with frozen weights: measured 2 to 4 at ranks 8 to
/// 64 (docs/log.md, LoRA). It only matters when settings change from one run to the next.
const ADAPTER_WEIGHT: f64 = 3.0;
/// The same for attention (docs/log.md, attention).
const ATTENTION_WEIGHT: f64 = 2.5;
/// What an update costs for each trained value: clearing, norm and AdamW move 40 bytes, in the time of so many
/// multiply-adds (docs/log.md, elementwise).
const UPDATE_WORK_PER_VALUE: f64 = 150.0;

/// Counted multiply-adds as work.
pub fn work_of(counters: &Counters) -> f64 {
    counters.frozen_macs as f64
        + ADAPTER_WEIGHT * counters.adapter_macs as f64
        + ATTENTION_WEIGHT * counters.attention_macs as f64
}

/// The work of everything that a run does, example by example.
#[derive(Clone, Debug, PartialEq)]
pub struct RunWork {
    /// Forward and backward of each training example.
    pub examples: Vec<f64>,
    /// One look at all validation examples.
    pub validation: f64,
    /// One update of the optimizer.
    pub update: f64,
}

impl RunWork {
    /// Counts the work of a run with an adapter of this shape over `frozen` ones.
    pub fn count(
        model: &Arc<Model>,
        frozen: &[&AdapterSpec],
        spec: &AdapterSpec,
        options: StepOptions,
        examples: &[Example],
        validation: &[Example],
    ) -> Result<RunWork, ModelError> {
        let mut counter = WorkCounter::new(Arc::clone(model), frozen, spec, options)?;
        let mut work = Vec::with_capacity(examples.len());
        for example in examples {
            work.push(work_of(&counter.step(&example.tokens, &example.loss_mask)?));
        }
        let mut looks = 0.0;
        for example in validation {
            looks += work_of(&counter.loss(&example.tokens, &example.loss_mask)?);
        }
        let update = UPDATE_WORK_PER_VALUE * spec.parameter_count(model.config()) as f64;
        Ok(RunWork { examples: work, validation: looks, update })
    }

    /// Where nothing is known but tokens: one unit a token, a third in validation.
    #[cfg(test)]
    pub(crate) fn of_tokens(examples: &[Example], validation: &[Example]) -> RunWork {
        let tokens = |example: &Example| example.tokens.len() as f64;
        RunWork {
            examples: examples.iter().map(tokens).collect(),
            validation: validation.iter().map(tokens).sum::<f64>() / 3.0,
            update: 0.0,
        }
    }

    /// The work of update `update`, counted from 0, whose examples `window` names.
    pub fn of_update(&self, window: &[usize]) -> f64 {
        window.iter().map(|&index| self.examples[index]).sum::<f64>() + self.update
    }

    /// The work of the first `updates` updates and so many validations.
    pub fn total(&self, order: &DataOrder, updates: u64, validations: u64) -> f64 {
        let passes = updates / order.updates_per_pass();
        let rest = order.window(updates).places.start;
        let partial: f64 = order.shuffled(passes)[..rest].iter().map(|&index| self.examples[index]).sum();
        let whole: f64 = self.examples.iter().sum();
        passes as f64 * whole + partial + updates as f64 * self.update + validations as f64 * self.validation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_sum_over_updates() {
        let work = RunWork {
            examples: (0..7).map(|index| 100.0 + f64::from(index).powi(3)).collect(),
            validation: 5.0,
            update: 2.0,
        };
        for accumulation in [1, 2, 3, 10] {
            let order = DataOrder::new(3, work.examples.len(), accumulation);
            let mut sum = 0.0;
            for update in 0..20 {
                assert!((work.total(&order, update, 3) - sum - 15.0).abs() < 1e-9, "{update} updates");
                let window = order.window(update);
                sum += work.of_update(&order.shuffled(window.pass)[window.places]);
            }
        }
    }
}
