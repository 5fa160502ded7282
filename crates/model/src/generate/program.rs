//! Generation as a sequence of op calls over planned places.

use std::sync::Arc;

use kernels::ops::Counters;
use kernels::{KeyValueCache, Ops, PAGE_POSITIONS, RopeTable, Tensor};

use super::GeneratorOptions;
use super::batch::Batch;
use super::pages::Pages;
use crate::adapter::AdapterSpec;
use crate::block::{self, BlockCache, BlockRun, BlockTensors, Extent};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::{self, BlockLora, FrozenStack};
use crate::plan::{Activations, FrozenPlaces, Itemized, MemoryPlan};
use crate::projection::Projection;
use crate::step::{StepPhases, attention_shape, rope_tables, sampled_lengths};
use crate::weights::Model;

/// The most rows of a prompt that go through the model at once: enough to fill the products, few enough to stay small.
const CHUNK_ROWS_MAX: usize = 256;

/// The places of everything that a generator needs.
pub(super) struct GeneratorPlaces {
    pub(super) arena: kernels::ArenaPlan,
    items: Vec<(&'static str, usize)>,
    /// The top adapter, [1, parameters].
    pub(super) parameters: Option<Tensor>,
    /// Those below it.
    pub(super) frozen: FrozenPlaces,
    /// Keys and values of each block.
    caches: Vec<KeyValueCache>,
    /// The same places for all blocks but the last, from which only selected rows leave.
    block: BlockTensors,
    last_block: BlockTensors,
    /// [chunk rows, D].
    normed: Tensor,
    /// [candidates, vocabulary].
    pub(super) logits: Tensor,
}

/// What runs, and on what.
pub(super) struct Program {
    pub(super) model: Arc<Model>,
    /// Of the adapters, bottom first.
    pub(super) specs: Vec<AdapterSpec>,
    pub(super) options: GeneratorOptions,
    pub(super) places: GeneratorPlaces,
    pub(super) pages: Pages,
    ropes: Vec<RopeTable>,
    lora: Vec<BlockLora>,
    frozen: Vec<BlockLora>,
}

/// The most rows of a batch.
fn rows_of(options: &GeneratorOptions) -> usize {
    CHUNK_ROWS_MAX.min(options.context_tokens_max).max(options.candidates_max)
}

/// All adapters of a generator but the top one.
pub(super) fn frozen_below_top(specs: &[AdapterSpec], config: &ModelConfig) -> FrozenStack {
    FrozenStack::new(&specs[..specs.len().saturating_sub(1)], config)
}

impl Program {
    pub(super) fn new(
        model: Arc<Model>,
        specs: Vec<AdapterSpec>,
        options: GeneratorOptions,
    ) -> Result<Self, ModelError> {
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
        let candidates = options.candidates_max;
        if !(1..=CHUNK_ROWS_MAX).contains(&candidates) {
            let found = candidates.to_string();
            return Err(ModelError::OptionInvalid { option: "candidates_max", found, expected: "1 to 256" });
        }
        let pages = Pages::new(context, candidates, options.candidate_tokens_max);
        let stack = frozen_below_top(&specs, config);
        let places = GeneratorPlaces::new(&model, specs.last(), &stack, &options, pages.count());
        let frozen = stack.lay_out(places.frozen.parameters, config);
        let lora = match (places.parameters, specs.last()) {
            (Some(flat), Some(spec)) => lora::lay_out(flat, spec, config),
            _ => vec![BlockLora::default(); config.blocks.len()],
        };
        let ropes = rope_tables(config, context);
        Ok(Self { specs, options, places, pages, ropes, lora, frozen, model })
    }

    pub(super) fn chunk_rows(&self) -> usize {
        CHUNK_ROWS_MAX.min(self.options.context_tokens_max)
    }
    /// The most rows of a batch.
    pub(super) fn batch_rows(&self) -> usize {
        rows_of(&self.options)
    }

    /// From the tokens of `batch` to the selected rows of the last block's output. The keys and values of the batch
    /// join the cache.
    pub(super) fn forward(&self, ops: &mut Ops, batch: &Batch) {
        let input = self.places.block.input.first_rows(batch.tokens.len());
        ops.embedding_forward(&self.model.embedding, &batch.tokens, self.model.config().embedding_scale, input);
        self.each_block(batch, |run, t| block::forward(ops, run, t, Extent::Whole));
    }

    /// The products with frozen weights of [`Self::forward`] alone.
    pub(super) fn products(&self, ops: &mut Ops, batch: &Batch) {
        self.each_block(batch, |run, t| block::products(ops, run, t));
    }

    fn each_block(&self, batch: &Batch, mut run: impl FnMut(&BlockRun, &BlockTensors)) {
        let blocks = self.model.config().blocks.len();
        for block in 0..blocks {
            let is_last = block + 1 == blocks;
            let (places, leaving) = match is_last {
                true => (&self.places.last_block, batch.selected_rows.len()),
                false => (&self.places.block, batch.tokens.len()),
            };
            run(&self.block_run(block, is_last, batch), &places.first_rows(batch.tokens.len(), leaving));
        }
    }

    /// Bytes of keys and values that a token at `position` sees.
    pub(super) fn cache_bytes_read(&self, position: usize) -> usize {
        let config = self.model.config();
        let page = KeyValueCache::page_bytes(self.options.cache, config.kv_heads, config.head_dim);
        let seen = |block| attention_shape(config, block).window.unwrap_or(usize::MAX).min(position + 1);
        (0..config.blocks.len()).map(|block| seen(block) * page / PAGE_POSITIONS).sum()
    }
    /// Bytes of all caches.
    pub(super) fn cache_bytes(&self) -> usize {
        let config = self.model.config();
        let page = KeyValueCache::page_bytes(self.options.cache, config.kv_heads, config.head_dim);
        self.places.caches.iter().map(|cache| cache.pages() * page).sum()
    }

    /// From the first `rows` selected rows to the logits of each.
    pub(super) fn logits(&self, ops: &mut Ops, rows: usize) {
        let final_norm = &self.model.final_norm;
        let (hidden, normed) = (self.places.last_block.output.first_rows(rows), self.places.normed.first_rows(rows));
        ops.rms_norm_forward(hidden, final_norm, self.model.config().norm_epsilon, normed);
        self.head_product(ops, rows);
    }

    /// The product of [`Self::logits`] alone.
    pub(super) fn head_product(&self, ops: &mut Ops, rows: usize) {
        let [normed, logits] = [self.places.normed, self.places.logits].map(|places| places.first_rows(rows));
        ops.qlinear_forward(normed, &[(&*self.model.head, logits)]);
    }

    /// From the selected rows to the loss of each.
    pub(super) fn losses<'a>(&self, ops: &mut Ops, batch: &'a mut Batch) -> &'a [f32] {
        let Model { final_norm, head, .. } = &*self.model;
        let rows = batch.selected_rows.len();
        let (hidden, normed) = (self.places.last_block.output.first_rows(rows), self.places.normed.first_rows(rows));
        batch.losses.clear();
        batch.losses.resize(rows, 0.0);
        ops.rms_norm_forward(hidden, final_norm, self.model.config().norm_epsilon, normed);
        ops.head_cross_entropy(head, normed, &batch.targets, &mut batch.losses, None);
        &batch.losses
    }

    /// Text `text` goes its own way behind the first `shared` tokens of text 0.
    pub(super) fn branch(&mut self, ops: &mut Ops, text: usize, shared: usize) {
        if let Some((from, to)) = self.pages.branch(text, shared) {
            for cache in &self.places.caches {
                ops.copy_cache_page(cache, from, to);
            }
        }
    }

    fn block_run<'a>(&'a self, block: usize, is_last: bool, batch: &'a Batch) -> BlockRun<'a> {
        let config = self.model.config();
        let stream_texts = if is_last { &batch.selected_texts } else { &batch.texts };
        BlockRun {
            config,
            weights: &self.model.blocks[block],
            rope: config.blocks[block].rope.map(|index| &self.ropes[index]),
            attention: attention_shape(config, block),
            whole_attention: false,
            positions: &batch.positions,
            selected_rows: is_last.then_some(&batch.selected_rows),
            selected_positions: &batch.selected_positions,
            cache: Some(BlockCache {
                cache: self.places.caches[block],
                tables: self.pages.tables(),
                texts: &batch.texts,
                stream_texts,
            }),
            lora: &self.lora[block],
            lora_scale: self.specs.last().map_or(0.0, AdapterSpec::scale),
            frozen: &self.frozen[block],
            frozen_hidden: self.places.frozen.hidden,
            frozen_gradient: None,
            rounds_gates: false,
            dropout_rate: 0.0,
            dropout_seed: 0,
        }
    }

    /// Runs batches of every kind on ops that only count. Returns the work of the fullest chunk and the most scratch
    /// that any batch asked for.
    pub(super) fn dry_run(&mut self, batch: &mut Batch) -> Counters {
        let mut ops = Ops::planner(self.options.ops);
        let context = self.options.context_tokens_max;
        let tokens = [0; CHUNK_ROWS_MAX];
        let chunk = |ops: &mut Ops, batch: &mut Batch, rows: usize, selected: usize| {
            batch.chunk(&tokens[..rows], context - rows, context - selected..context);
            batch.targets.resize(selected, 0);
            self.forward(ops, batch);
            self.losses(ops, batch);
            self.logits(ops, 1);
            let counters = ops.counters();
            ops.reset_counters();
            counters
        };
        let fullest = chunk(&mut ops, batch, self.chunk_rows(), self.chunk_rows());
        let mut scratch_bytes = fullest.scratch_bytes;
        for rows in sampled_lengths(self.chunk_rows()) {
            for (rows, selected) in [(rows, rows), (rows, 1), (self.chunk_rows(), rows)] {
                scratch_bytes = scratch_bytes.max(chunk(&mut ops, batch, rows, selected).scratch_bytes);
            }
        }
        let candidates = self.options.candidates_max;
        let shared = context.saturating_sub(self.options.candidate_tokens_max.max(1));
        for text in 1..candidates {
            self.branch(&mut ops, text, shared);
        }
        for rows in sampled_lengths(candidates) {
            batch.step((0..rows as u32).map(|text| (0, text)), shared);
            self.forward(&mut ops, batch);
            self.logits(&mut ops, rows);
            scratch_bytes = scratch_bytes.max(ops.counters().scratch_bytes);
        }
        Counters { scratch_bytes, ..fullest }
    }

    pub(super) fn memory_plan(&self, planned: Counters) -> MemoryPlan {
        let tables: usize = self.ropes.iter().map(RopeTable::byte_len).sum();
        let mut items = vec![("frozen weights", self.model.weights_bytes())];
        items.extend_from_slice(&self.places.items);
        items.push(("scratch of the ops", planned.scratch_bytes));
        items.push(("rotary tables and pages", tables + self.pages.byte_len()));
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
    fn new(
        model: &Model,
        spec: Option<&AdapterSpec>,
        stack: &FrozenStack,
        options: &GeneratorOptions,
        pages: usize,
    ) -> Self {
        let config = model.config();
        let rows = rows_of(options);
        let mut plan = Itemized::default();
        let parameters = plan.item("adapter", |arena| spec.map(|spec| arena.tensor(1, spec.parameter_count(config))));
        let frozen = FrozenPlaces::new(&mut plan, stack, config, rows);
        let caches = plan.item("keys and values", |arena| {
            let (kv_heads, head_dim) = (config.kv_heads, config.head_dim);
            let place = |_| KeyValueCache::new(arena, options.cache, pages, kv_heads, head_dim);
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
        let (normed, logits) = plan.item("output head", |arena| {
            (arena.tensor(rows, config.width), arena.tensor(options.candidates_max, config.vocabulary))
        });
        Self { arena: plan.arena, items: plan.items, parameters, frozen, caches, block, last_block, normed, logits }
    }
}
