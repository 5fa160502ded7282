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
    /// What of that is left out when the example is visited again and the output of its frozen blocks was kept.
    pub prefixes: Vec<f64>,
    /// One look at all validation examples, and what of it later looks leave out.
    pub validation: f64,
    pub validation_prefixes: f64,
    /// One update of the optimizer.
    pub update: f64,
}

impl RunWork {
    /// Counts the work of a run with an adapter of this shape over `frozen` ones, which keeps the outputs of frozen blocks
    /// between visits where `keeps_prefixes`.
    pub fn count(
        model: &Arc<Model>,
        frozen: &[&AdapterSpec],
        spec: &AdapterSpec,
        options: StepOptions,
        examples: &[Example],
        validation: &[Example],
        keeps_prefixes: bool,
    ) -> Result<RunWork, ModelError> {
        let mut counter = WorkCounter::new(Arc::clone(model), frozen, spec, options)?;
        let prefix = |counter: &mut WorkCounter, example: &Example| match keeps_prefixes {
            true => Ok(work_of(&counter.prefix(&example.tokens, &example.loss_mask)?)),
            false => Ok::<f64, ModelError>(0.0),
        };
        let (mut work, mut prefixes) = (Vec::with_capacity(examples.len()), Vec::with_capacity(examples.len()));
        for example in examples {
            work.push(work_of(&counter.step(&example.tokens, &example.loss_mask)?));
            prefixes.push(prefix(&mut counter, example)?);
        }
        let (mut looks, mut validation_prefixes) = (0.0, 0.0);
        for example in validation {
            looks += work_of(&counter.loss(&example.tokens, &example.loss_mask)?);
            validation_prefixes += prefix(&mut counter, example)?;
        }
        let update = UPDATE_WORK_PER_VALUE * spec.parameter_count(model.config()) as f64;
        Ok(RunWork { examples: work, prefixes, validation: looks, validation_prefixes, update })
    }

    /// Where nothing is known but tokens: one unit a token, a third in validation.
    #[cfg(test)]
    pub(crate) fn of_tokens(examples: &[Example], validation: &[Example]) -> RunWork {
        let tokens = |example: &Example| example.tokens.len() as f64;
        RunWork {
            examples: examples.iter().map(tokens).collect(),
            prefixes: vec![0.0; examples.len()],
            validation: validation.iter().map(tokens).sum::<f64>() / 3.0,
            validation_prefixes: 0.0,
            update: 0.0,
        }
    }

    /// The work of an update in pass `pass`, counted from 0, whose examples `window` names.
    pub fn of_update(&self, window: &[usize], pass: u64) -> f64 {
        window.iter().map(|&index| self.of_visit(index, pass)).sum::<f64>() + self.update
    }

    fn of_visit(&self, index: usize, pass: u64) -> f64 {
        self.examples[index] - if pass > 0 { self.prefixes[index] } else { 0.0 }
    }

    /// The work of a look at the validation examples in a run of so many updates. Prefixes are kept only where examples
    /// are visited again.
    pub fn of_validation(&self, order: &DataOrder, updates: u64, is_first: bool) -> f64 {
        let keeps = updates > order.updates_per_pass();
        self.validation - if keeps && !is_first { self.validation_prefixes } else { 0.0 }
    }

    /// The work of the first `updates` updates, with so many validations if these are all updates of the run.
    pub fn total(&self, order: &DataOrder, updates: u64, validations: u64) -> f64 {
        let passes = updates / order.updates_per_pass();
        let rest = order.window(updates).places.start;
        let partial: f64 = order.shuffled(passes)[..rest].iter().map(|&index| self.of_visit(index, passes)).sum();
        let whole = |pass: u64| (0..self.examples.len()).map(|index| self.of_visit(index, pass)).sum::<f64>();
        let first = if passes > 0 { whole(0) } else { 0.0 };
        let later = passes.saturating_sub(1) as f64 * whole(1);
        let looks = match validations {
            0 => 0.0,
            looks => {
                let later = self.of_validation(order, updates, false);
                self.of_validation(order, updates, true) + (looks - 1) as f64 * later
            }
        };
        first + later + partial + updates as f64 * self.update + looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_sum_over_updates() {
        let work = RunWork {
            examples: (0..7).map(|index| 100.0 + f64::from(index).powi(3)).collect(),
            prefixes: (0..7).map(|index| 10.0 + f64::from(index)).collect(),
            validation: 5.0,
            validation_prefixes: 2.0,
            update: 2.0,
        };
        for accumulation in [1, 2, 3, 10] {
            let order = DataOrder::new(3, work.examples.len(), accumulation);
            let mut sum = 0.0;
            for update in 0..20 {
                // Of one pass nothing is kept.
                let looks = if update > order.updates_per_pass() { 5.0 + 3.0 + 3.0 } else { 15.0 };
                assert!((work.total(&order, update, 3) - sum - looks).abs() < 1e-9, "{update} updates");
                let window = order.window(update);
                let pass = window.pass;
                let examples = &order.shuffled(pass)[window.places];
                let saved: f64 = examples.iter().map(|&index| 10.0 + index as f64).sum();
                let whole: f64 = examples.iter().map(|&index| work.examples[index]).sum();
                let expected = 2.0 + whole - if pass > 0 { saved } else { 0.0 };
                assert!((work.of_update(examples, pass) - expected).abs() < 1e-9);
                sum += expected;
            }
        }
    }
}
