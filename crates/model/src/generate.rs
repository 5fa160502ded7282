//! Text from a model: the block's forward over a cache of keys and values, in chunks for a prompt and row by row
//! for what follows.

use std::sync::Arc;

use kernels::ops::Counters;
use kernels::{Ops, OpsOptions, RopeTable, Tensor};

use crate::adapter::{AdapterSpec, AdapterWeights};
use crate::block::{self, BlockRun, BlockTensors, Extent};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::{self, BlockLora, FrozenStack};
use crate::plan::{Activations, FrozenPlaces, Itemized, MemoryPlan};
use crate::projection::Projection;
use crate::sampling::{Sampler, SamplingOptions};
use crate::step::{
    StepPhases, TokenLosses, attention_shape, check_tokens, check_vocabulary, rope_tables, sampled_lengths,
};
use crate::weights::Model;

/// The most rows that go through the model at once: enough to fill the products, few enough to stay small.
const CHUNK_ROWS_MAX: usize = 256;

/// How a generator runs.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorOptions {
    pub ops: OpsOptions,
    /// Tokens of the longest text, prompt and answer together.
    pub context_tokens_max: usize,
}

/// A model, with or without an adapter, that continues texts and measures them.
pub struct Generator {
    ops: Ops,
    program: Program,
    plan: MemoryPlan,
    /// The tokens whose keys and values are in the cache.
    cached: Vec<u32>,
    selection: Selection,
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
        let program = Program::new(model, adapters.iter().map(|adapter| adapter.spec.clone()).collect(), options)?;
        let mut selection = Selection::new(program.chunk_rows());
        let planned = program.dry_run(&mut selection);
        let plan = program.memory_plan(planned);
        let ops = Ops::new(options.ops, &program.places.arena, planned.scratch_bytes);
        let cached = Vec::with_capacity(options.context_tokens_max);
        let mut generator = Self { ops, program, plan, cached, selection };
        generator.write_adapters(adapters);
        Ok(generator)
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
        sampling.validate()?;
        self.check_fits(prompt.len().saturating_add(sampling.tokens_max))?;
        let mut sampler = Sampler::new(sampling);
        let mut generated = Vec::new();
        self.read_prompt(prompt)?;
        while generated.len() < sampling.tokens_max {
            let token = sampler.choose(self.checked_logits()?);
            if sampling.stop_tokens.contains(&token) {
                break;
            }
            generated.push(token);
            if !on_token(token) || generated.len() == sampling.tokens_max {
                break;
            }
            self.extend(&[token]);
        }
        Ok(generated)
    }

    /// The logits behind the last of `tokens`: one for each token of the vocabulary.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        self.read_prompt(tokens)?;
        Ok(self.checked_logits()?.to_vec())
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
            self.selection.set(past, supervised.clone());
            self.selection.targets.extend(supervised.map(|row| tokens[row + 1]));
            let counted = self.selection.rows.len();
            if counted == 0 {
                // The keys and values of the chunk are needed all the same.
                self.selection.set(past, std::iter::once(chunk.end - 1));
            }
            self.program.forward(&mut self.ops, &tokens[chunk.clone()], past, &self.selection);
            if counted > 0 {
                losses.extend_from_slice(self.program.chunk_losses(&mut self.ops, &mut self.selection));
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
        let known = self.cached.len();
        for chunk in prompt[known..].chunks(self.program.chunk_rows()) {
            self.extend(chunk);
        }
        Ok(())
    }

    /// Runs `tokens` behind what is in the cache and computes the logits behind the last one.
    fn extend(&mut self, tokens: &[u32]) {
        let past = self.cached.len();
        self.selection.set(past, std::iter::once(past + tokens.len() - 1));
        self.program.forward(&mut self.ops, tokens, past, &self.selection);
        self.program.last_logits(&mut self.ops);
        self.cached.extend_from_slice(tokens);
    }

    fn checked_logits(&mut self) -> Result<&[f32], ModelError> {
        let logits = self.ops.read(self.program.places.logits);
        match logits.iter().any(|logit| logit.is_nan()) {
            true => Err(ModelError::NotANumber { position: self.cached.len() - 1 }),
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

/// Which rows of a chunk leave the last block.
struct Selection {
    /// Counted from the start of the chunk, rising.
    rows: Vec<u32>,
    /// The same rows' places in the text.
    positions: Vec<u32>,
    /// What each row has to predict, when losses are wanted.
    targets: Vec<u32>,
    losses: Vec<f32>,
}

impl Selection {
    fn new(rows_max: usize) -> Self {
        let room = || Vec::with_capacity(rows_max);
        Self { rows: room(), positions: room(), targets: room(), losses: Vec::with_capacity(rows_max) }
    }
    /// Selects the rows at `positions` of a chunk that starts at `past`, with nothing to predict.
    fn set(&mut self, past: usize, positions: impl Iterator<Item = usize> + Clone) {
        self.rows.clear();
        self.rows.extend(positions.clone().map(|position| (position - past) as u32));
        self.positions.clear();
        self.positions.extend(positions.map(|position| position as u32));
        self.targets.clear();
    }
}

/// The places of everything that a generator needs.
struct GeneratorPlaces {
    arena: kernels::ArenaPlan,
    items: Vec<(&'static str, usize)>,
    /// The top adapter, [1, parameters].
    parameters: Option<Tensor>,
    /// Those below it.
    frozen: FrozenPlaces,
    /// Keys and values of each block, [context, KV·d] each.
    caches: Vec<(Tensor, Tensor)>,
    /// The same places for all blocks but the last, from which only selected rows leave.
    block: BlockTensors,
    last_block: BlockTensors,
    /// [chunk rows, D].
    normed: Tensor,
    /// [1, vocabulary].
    logits: Tensor,
}

/// Generation as a sequence of op calls over planned places.
struct Program {
    model: Arc<Model>,
    /// Of the adapters, bottom first.
    specs: Vec<AdapterSpec>,
    options: GeneratorOptions,
    places: GeneratorPlaces,
    ropes: Vec<RopeTable>,
    /// 0, 1, 2, ...
    positions: Vec<u32>,
    lora: Vec<BlockLora>,
    frozen: Vec<BlockLora>,
}

/// All adapters of a generator but the top one.
fn frozen_below_top(specs: &[AdapterSpec], config: &ModelConfig) -> FrozenStack {
    FrozenStack::new(&specs[..specs.len().saturating_sub(1)], config)
}

impl Program {
    fn new(model: Arc<Model>, specs: Vec<AdapterSpec>, options: GeneratorOptions) -> Result<Self, ModelError> {
        let config = model.config();
        let context = options.context_tokens_max;
        if context == 0 {
            let found = context.to_string();
            return Err(ModelError::OptionInvalid { option: "context_tokens_max", found, expected: "at least 1" });
        }
        if context > config.context_tokens_max {
            let limit = config.context_tokens_max;
            return Err(ModelError::TooManyTokens { tokens: context, limit, of: "the model's context" });
        }
        let stack = frozen_below_top(&specs, config);
        let places = GeneratorPlaces::new(&model, specs.last(), &stack, context);
        let frozen = stack.lay_out(places.frozen.parameters, config);
        let lora = match (places.parameters, specs.last()) {
            (Some(flat), Some(spec)) => lora::lay_out(flat, spec, config),
            _ => vec![BlockLora::default(); config.blocks.len()],
        };
        let ropes = rope_tables(config, context);
        let positions = (0..context as u32).collect();
        Ok(Self { specs, options, places, ropes, positions, lora, frozen, model })
    }

    fn chunk_rows(&self) -> usize {
        CHUNK_ROWS_MAX.min(self.options.context_tokens_max)
    }

    /// From tokens to the selected rows of the last block's output. The keys and values of `tokens` join the cache
    /// behind the `past` tokens that are there.
    fn forward(&self, ops: &mut Ops, tokens: &[u32], past: usize, selection: &Selection) {
        let config = self.model.config();
        let input = self.places.block.input.first_rows(tokens.len());
        ops.embedding_forward(&self.model.embedding, tokens, config.embedding_scale, input);
        for block in 0..config.blocks.len() {
            let run = self.block_run(block, past, tokens.len(), selection);
            let t = self.block_tensors(block, past, tokens.len(), selection);
            block::forward(ops, &run, &t, Extent::Whole);
        }
    }

    /// From the one selected row to logits.
    fn last_logits(&self, ops: &mut Ops) {
        let Model { final_norm, head, .. } = &*self.model;
        let (hidden, normed) = (self.places.last_block.output.first_rows(1), self.places.normed.first_rows(1));
        ops.rms_norm_forward(hidden, final_norm, self.model.config().norm_epsilon, normed);
        ops.qlinear_forward(normed, &[(&**head, self.places.logits)]);
    }

    /// From the selected rows to the loss of each.
    fn chunk_losses<'a>(&self, ops: &mut Ops, selection: &'a mut Selection) -> &'a [f32] {
        let Model { final_norm, head, .. } = &*self.model;
        let rows = selection.rows.len();
        let (hidden, normed) = (self.places.last_block.output.first_rows(rows), self.places.normed.first_rows(rows));
        selection.losses.clear();
        selection.losses.resize(rows, 0.0);
        ops.rms_norm_forward(hidden, final_norm, self.model.config().norm_epsilon, normed);
        ops.head_cross_entropy(head, normed, &selection.targets, &mut selection.losses, None);
        &selection.losses
    }

    fn block_tensors(&self, block: usize, past: usize, rows: usize, selection: &Selection) -> BlockTensors {
        let is_last = block + 1 == self.places.caches.len();
        let (places, leaving) =
            if is_last { (&self.places.last_block, selection.rows.len()) } else { (&self.places.block, rows) };
        let t = places.first_rows(rows, leaving);
        let (keys, values) = self.places.caches[block];
        let key = keys.row_range(past..past + rows);
        BlockTensors {
            key,
            key_product: if self.model.config().query_key_norm { t.key_product } else { key },
            value: values.row_range(past..past + rows),
            keys: keys.first_rows(past + rows),
            values: values.first_rows(past + rows),
            ..t
        }
    }

    fn block_run<'a>(&'a self, block: usize, past: usize, rows: usize, selection: &'a Selection) -> BlockRun<'a> {
        let config = self.model.config();
        let is_last = block + 1 == self.places.caches.len();
        BlockRun {
            config,
            weights: &self.model.blocks[block],
            rope: config.blocks[block].rope.map(|index| &self.ropes[index]),
            attention: attention_shape(config, block),
            positions: &self.positions[past..past + rows],
            selected_rows: is_last.then_some(&selection.rows),
            selected_positions: &selection.positions,
            lora: &self.lora[block],
            lora_scale: self.specs.last().map_or(0.0, AdapterSpec::scale),
            frozen: &self.frozen[block],
            frozen_hidden: self.places.frozen.hidden,
            dropout_rate: 0.0,
            dropout_seed: 0,
        }
    }

    /// Runs chunks of every kind on ops that only count. Returns the work of the fullest chunk and the most scratch
    /// that any chunk asked for.
    fn dry_run(&self, selection: &mut Selection) -> Counters {
        let mut ops = Ops::planner(self.options.ops);
        let context = self.options.context_tokens_max;
        let mut chunk = |rows: usize, selected: usize| {
            let past = context - rows;
            selection.set(past, context - selected..context);
            selection.targets.resize(selected, 0);
            let tokens = &[0; CHUNK_ROWS_MAX][..rows];
            self.forward(&mut ops, tokens, past, selection);
            self.chunk_losses(&mut ops, selection);
            self.last_logits(&mut ops);
            let counters = ops.counters();
            ops.reset_counters();
            counters
        };
        let fullest = chunk(self.chunk_rows(), self.chunk_rows());
        let mut scratch_bytes = fullest.scratch_bytes;
        for rows in sampled_lengths(self.chunk_rows()) {
            scratch_bytes = scratch_bytes.max(chunk(rows, rows).scratch_bytes).max(chunk(rows, 1).scratch_bytes);
            scratch_bytes = scratch_bytes.max(chunk(self.chunk_rows(), rows).scratch_bytes);
        }
        Counters { scratch_bytes, ..fullest }
    }

    fn memory_plan(&self, planned: Counters) -> MemoryPlan {
        let tables: usize = self.ropes.iter().map(RopeTable::byte_len).sum();
        let mut items = vec![("frozen weights", self.model.weights_bytes())];
        items.extend_from_slice(&self.places.items);
        items.push(("scratch of the ops", planned.scratch_bytes));
        items.push(("rotary tables and positions", tables + size_of_val(&self.positions[..])));
        MemoryPlan {
            items,
            arena_bytes: self.places.arena.peak_bytes(),
            scratch_bytes: planned.scratch_bytes,
            weights_bytes: self.model.weights_bytes(),
            weights: self.model.resident_bytes(),
            macs: planned,
            phases: StepPhases::default(),
        }
    }
}

impl GeneratorPlaces {
    fn new(model: &Model, spec: Option<&AdapterSpec>, stack: &FrozenStack, context: usize) -> Self {
        let config = model.config();
        let rows = CHUNK_ROWS_MAX.min(context);
        let mut plan = Itemized::default();
        let parameters = plan.item("adapter", |arena| spec.map(|spec| arena.tensor(1, spec.parameter_count(config))));
        let frozen = FrozenPlaces::new(&mut plan, stack, config, rows);
        let caches = plan.item("keys and values", |arena| {
            let place = |_| (arena.tensor(context, config.key_width()), arena.tensor(context, config.key_width()));
            (0..config.blocks.len()).map(place).collect()
        });
        let (block, last_block) = plan.item("one block's activations", |arena| {
            let stream = arena.tensor(rows, config.width);
            let last_output = arena.tensor(rows, config.width);
            let selected = (arena.tensor(rows, config.width), arena.tensor(rows, config.width));
            let activations = Activations::new(arena, config, spec, rows);
            let adapts_down = spec.filter(|spec| spec.targets.contains(&Projection::Down));
            let down_hidden = adapts_down.map(|spec| arena.tensor(rows, spec.rank));
            let block = activations.block_tensors(stream, stream, None, down_hidden);
            (block, activations.block_tensors(stream, last_output, Some(selected), down_hidden))
        });
        let (normed, logits) =
            plan.item("output head", |arena| (arena.tensor(rows, config.width), arena.tensor(1, config.vocabulary)));
        Self { arena: plan.arena, items: plan.items, parameters, frozen, caches, block, last_block, normed, logits }
    }
}
