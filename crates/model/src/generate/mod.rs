//! Text from a model: the block's forward over a cache of keys and values, in chunks for a prompt and row by row
//! for what follows, or one row for each of several answers to one prompt.

mod batch;
mod measure;
mod pages;
mod program;

use std::sync::Arc;

use kernels::ops::Counters;
use kernels::{CacheFormat, Ops, OpsOptions};

use crate::adapter::{AdapterSpec, AdapterWeights};
use crate::error::ModelError;
use crate::plan::MemoryPlan;
use crate::sampling::{Sampler, SamplingOptions};
use crate::step::{TokenLosses, check_tokens, check_vocabulary};
use crate::weights::Model;
use batch::Batch;
use program::{Program, frozen_below_top};

/// How a generator runs.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorOptions {
    pub ops: OpsOptions,
    /// Tokens of the longest text, prompt and answer together.
    pub context_tokens_max: usize,
    /// How keys and values are kept. Float32 gives the losses of training, bit for bit.
    pub cache: CacheFormat,
    /// The most answers to one prompt at a time, 1 to 256.
    pub candidates_max: usize,
    /// The longest of several answers; one alone may fill the context.
    pub candidate_tokens_max: usize,
}

impl GeneratorOptions {
    /// One answer at a time, keys and values in float32.
    pub fn new(ops: OpsOptions, context_tokens_max: usize) -> Self {
        let cache = CacheFormat::Float32;
        Self { ops, context_tokens_max, cache, candidates_max: 1, candidate_tokens_max: 0 }
    }
}

/// A model, with or without an adapter, that continues texts and measures them.
pub struct Generator {
    ops: Ops,
    program: Program,
    plan: MemoryPlan,
    /// The tokens of text 0 whose keys and values are in the cache.
    cached: Vec<u32>,
    batch: Batch,
}

impl Generator {
    /// Plans all memory, then takes it.
    pub fn new(
        model: Arc<Model>,
        adapter: Option<&AdapterWeights>,
        options: GeneratorOptions,
    ) -> Result<Self, ModelError> {
        Self::stacked(model, adapter.as_slice(), options)
    }

    /// As [`Self::new`], with any number of `adapters`, bottom first: their products add up. The top one takes the
    /// place that it has in training, so that the same stack gives the same bits there and here.
    pub fn stacked(
        model: Arc<Model>,
        adapters: &[&AdapterWeights],
        options: GeneratorOptions,
    ) -> Result<Self, ModelError> {
        for adapter in adapters {
            adapter.validate(model.config())?;
        }
        let specs = adapters.iter().map(|adapter| adapter.spec.clone()).collect();
        let (program, batch, planned) = laid_out(model, specs, options)?;
        let plan = program.memory_plan(planned);
        let ops = Ops::new(options.ops, &program.places.arena, planned.scratch_bytes);
        let cached = Vec::with_capacity(options.context_tokens_max);
        let mut generator = Self { ops, program, plan, cached, batch };
        generator.write_adapters(adapters);
        Ok(generator)
    }

    /// What a generator with adapters of these shapes would take, without taking it. The model may be one that is only
    /// planned.
    pub fn planned(
        model: &Arc<Model>,
        specs: &[AdapterSpec],
        options: GeneratorOptions,
    ) -> Result<MemoryPlan, ModelError> {
        laid_out(Arc::clone(model), specs.to_vec(), options).map(|(program, _, planned)| program.memory_plan(planned))
    }

    /// What the generator takes and what its fullest chunk computes.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }
    pub fn model(&self) -> &Arc<Model> {
        &self.program.model
    }
    pub fn context_tokens_max(&self) -> usize {
        self.program.options.context_tokens_max
    }

    /// Work done since the generator was made or last rebuilt for another adapter.
    pub fn counters(&self) -> Counters {
        self.ops.counters()
    }

    /// Puts another adapter, or none, in the place of the present ones.
    pub fn set_adapter(&mut self, adapter: Option<&AdapterWeights>) -> Result<(), ModelError> {
        self.set_adapters(adapter.as_slice())
    }
    /// Puts other adapters, bottom first, in the place of the present ones.
    pub fn set_adapters(&mut self, adapters: &[&AdapterWeights]) -> Result<(), ModelError> {
        if !self.program.specs.iter().eq(adapters.iter().map(|adapter| &adapter.spec)) {
            // Another shape needs another plan.
            *self = Self::stacked(Arc::clone(&self.program.model), adapters, self.program.options)?;
        } else if !adapters.is_empty() {
            for adapter in adapters {
                adapter.validate(self.program.model.config())?;
            }
            self.write_adapters(adapters);
            self.cached.clear();
        }
        Ok(())
    }
    /// Writes the values of adapters that were checked and have the specs of the plan.
    fn write_adapters(&mut self, adapters: &[&AdapterWeights]) {
        let Program { model, specs, places, .. } = &self.program;
        if let (Some(place), Some((top, below))) = (places.parameters, adapters.split_last()) {
            self.ops.write(place, &top.flat());
            if let Some(place) = places.frozen.parameters {
                let stack = frozen_below_top(specs, model.config());
                self.ops.write(place, &stack.values(below, model.config()));
            }
        }
    }

    /// Continues `prompt` until a stop token (left out of the result), `tokens_max` tokens, or `on_token` returning
    /// false. What the prompt has in common with the text before is not computed again.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &SamplingOptions,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Vec<u32>, ModelError> {
        let answers = self.candidates(prompt, std::slice::from_ref(sampling), &mut |_, token| on_token(token))?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    /// Continues `prompt` once for each of `sampling`, all answers in step with each other: the prompt is computed and
    /// kept once, and each step reads the weights once for all. Answer i has the tokens that [`Self::generate`] gives
    /// with `sampling[i]` alone. `on_token(i, token)` returning false ends answer i.
    pub fn candidates(
        &mut self,
        prompt: &[u32],
        sampling: &[SamplingOptions],
        on_token: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        self.check_candidates(prompt, sampling)?;
        let mut samplers: Vec<Sampler> = sampling.iter().map(Sampler::new).collect();
        let mut answers = vec![Vec::new(); sampling.len()];
        // Answers that go on, in the order of their rows.
        let mut alive: Vec<usize> = (0..sampling.len()).filter(|answer| sampling[*answer].tokens_max > 0).collect();
        self.read_prompt(prompt)?;
        let mut position = prompt.len();
        let vocabulary = self.program.model.config().vocabulary;
        while !alive.is_empty() {
            let logits = self.checked_logits(if position == prompt.len() { 1 } else { alive.len() }, position - 1)?;
            let mut rows = logits.chunks(vocabulary).cycle();
            alive.retain(|&answer| {
                let (Some(logits), options) = (rows.next(), &sampling[answer]) else { return false };
                let token = samplers[answer].choose(logits);
                if options.stop_tokens.contains(&token) {
                    return false;
                }
                answers[answer].push(token);
                on_token(answer, token) && answers[answer].len() < options.tokens_max
            });
            if alive.is_empty() {
                break;
            }
            if position == prompt.len() {
                for answer in alive.iter().filter(|answer| **answer > 0) {
                    self.program.branch(&mut self.ops, *answer, position);
                }
            }
            let last = |answer: &usize| (answers[*answer][answers[*answer].len() - 1], *answer as u32);
            self.batch.step(alive.iter().map(last), position);
            self.program.forward(&mut self.ops, &self.batch);
            self.program.logits(&mut self.ops, alive.len());
            if alive[0] == 0 {
                self.cached.push(self.batch.tokens[0]);
            }
            position += 1;
        }
        Ok(answers)
    }

    fn check_candidates(&self, prompt: &[u32], sampling: &[SamplingOptions]) -> Result<(), ModelError> {
        let GeneratorOptions { candidates_max, candidate_tokens_max, .. } = self.program.options;
        if !(1..=candidates_max).contains(&sampling.len()) {
            let (found, expected) = (sampling.len().to_string(), "1 to the candidates that the generator was made for");
            return Err(ModelError::OptionInvalid { option: "candidates", found, expected });
        }
        for options in sampling {
            options.validate()?;
            let tokens = options.tokens_max;
            self.check_fits(prompt.len().saturating_add(tokens))?;
            if sampling.len() > 1 && tokens > candidate_tokens_max {
                let limit = candidate_tokens_max;
                return Err(ModelError::TooManyTokens { tokens, limit, of: "one of several answers" });
            }
        }
        Ok(())
    }

    /// The logits behind the last of `tokens`: one for each token of the vocabulary.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        self.read_prompt(tokens)?;
        Ok(self.checked_logits(1, tokens.len() - 1)?.to_vec())
    }

    /// The losses of `tokens` where `loss_mask` says so; `loss_mask[i]` makes token i a target, the first never is one.
    pub fn losses(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<TokenLosses, ModelError> {
        self.cached.clear();
        self.losses_behind(tokens, loss_mask)
    }

    /// The same, without computing again what the tokens before the first target have in common with the text before:
    /// for the labels that one question may be answered with, whose prompt is computed once.
    pub fn losses_behind(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<TokenLosses, ModelError> {
        check_tokens(tokens, loss_mask, self.program.model.config())?;
        self.check_fits(tokens.len())?;
        let Some(last) = (1..tokens.len()).rev().find(|index| loss_mask[*index]) else {
            return Err(ModelError::NothingSupervised { tokens: tokens.len() });
        };
        let first = (1..=last).find(|index| loss_mask[*index]).unwrap_or(last);
        let common = self.cached.iter().zip(tokens).take_while(|(cached, token)| cached == token).count();
        // The row that predicts the first target runs again: its output was not kept.
        self.cached.truncate(common.min(first - 1));
        let mut losses = Vec::new();
        while self.cached.len() < last {
            let past = self.cached.len();
            let chunk = past..last.min(past + self.program.chunk_rows());
            let supervised = chunk.clone().filter(|row| loss_mask[row + 1]);
            self.batch.chunk(&tokens[chunk.clone()], past, supervised.clone());
            self.batch.targets.extend(supervised.map(|row| tokens[row + 1]));
            let counted = self.batch.selected_rows.len();
            if counted == 0 {
                // The keys and values of the chunk are needed all the same.
                self.batch.chunk(&tokens[chunk.clone()], past, std::iter::once(chunk.end - 1));
            }
            self.program.forward(&mut self.ops, &self.batch);
            if counted > 0 {
                losses.extend_from_slice(self.program.losses(&mut self.ops, &mut self.batch));
            }
            self.cached.extend_from_slice(&tokens[chunk]);
        }
        Ok(TokenLosses { loss_sum: losses.iter().map(|loss| f64::from(*loss)).sum(), losses })
    }

    /// Brings the cache to hold `prompt` and the logits behind its last token.
    fn read_prompt(&mut self, prompt: &[u32]) -> Result<(), ModelError> {
        check_vocabulary(prompt, self.program.model.config())?;
        self.check_fits(prompt.len())?;
        let Some(before_last) = prompt.len().checked_sub(1) else { return Err(ModelError::EmptyPrompt) };
        let common = self.cached.iter().zip(prompt).take_while(|(cached, token)| cached == token).count();
        // The last token runs again even when it is known: its logits were not kept.
        self.cached.truncate(common.min(before_last));
        while self.cached.len() < prompt.len() {
            let past = self.cached.len();
            let chunk = &prompt[past..prompt.len().min(past + self.program.chunk_rows())];
            self.batch.chunk(chunk, past, std::iter::once(past + chunk.len() - 1));
            self.program.forward(&mut self.ops, &self.batch);
            self.cached.extend_from_slice(chunk);
        }
        self.program.logits(&mut self.ops, 1);
        Ok(())
    }

    /// The first `rows` rows of logits, which stand behind the token at `position`.
    fn checked_logits(&mut self, rows: usize, position: usize) -> Result<&[f32], ModelError> {
        let logits = self.ops.read(self.program.places.logits.first_rows(rows));
        match logits.iter().any(|logit| logit.is_nan()) {
            true => Err(ModelError::NotANumber { position }),
            false => Ok(logits),
        }
    }

    fn check_fits(&self, tokens: usize) -> Result<(), ModelError> {
        let limit = self.program.options.context_tokens_max;
        match tokens <= limit {
            true => Ok(()),
            false => Err(ModelError::TooManyTokens { tokens, limit, of: "the generator's context" }),
        }
    }
}

/// A program, the batch that it runs on, and what its fullest chunk computes; no memory of the ops is taken.
fn laid_out(
    model: Arc<Model>,
    specs: Vec<AdapterSpec>,
    options: GeneratorOptions,
) -> Result<(Program, Batch, Counters), ModelError> {
    let mut program = Program::new(model, specs, options)?;
    let mut batch = Batch::new(program.batch_rows());
    let planned = program.dry_run(&mut batch);
    Ok((program, batch, planned))
}
