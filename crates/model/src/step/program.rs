//! A step as a sequence of op calls over planned places.

use std::sync::Arc;

use kernels::{AdamWParameters, AttentionShape, Ops, PackedMatrix, RopeTable, Tensor};

use super::phases::{Meter, Phase, StepPhases};
use super::supervision::Supervision;
use super::{Prefix, SelectRows, StepOptions};
use crate::adapter::AdapterSpec;
use crate::block::{self, BlockGradients, BlockRun, BlockTensors, Extent, Needs};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::{self, BlockLora, FrozenStack};
use crate::plan::{KeptType, MemoryPlan, ResidentBytes, StepPlaces, WeightsPlace, first_kept_block};
use crate::random::seed_of_part;
use crate::weights::Model;

/// What depends on the model and the number of tokens only.
pub(crate) struct Tables {
    ropes: Vec<RopeTable>,
    /// 0, 1, 2, ...
    positions: Vec<u32>,
}

impl Tables {
    pub(crate) fn new(config: &ModelConfig, tokens_max: usize) -> Self {
        let rows = tokens_max.saturating_sub(1);
        Self { ropes: rope_tables(config, rows), positions: (0..rows as u32).collect() }
    }
    fn bytes(&self) -> usize {
        self.ropes.iter().map(RopeTable::byte_len).sum::<usize>() + size_of_val(&self.positions[..])
    }
}

/// One text on its way through the model.
pub(super) struct Pass<'a> {
    /// The tokens that enter: those before the last supervised one. T of them.
    inputs: &'a [u32],
    /// `None` switches dropout off.
    dropout_seed: Option<u64>,
}

/// The step as a sequence of op calls over planned places; runs alike on a planner, which only counts, and for real.
pub(crate) struct Program {
    pub(super) model: Arc<Model>,
    pub(super) spec: AdapterSpec,
    pub(crate) options: StepOptions,
    pub(super) places: StepPlaces,
    tables: Arc<Tables>,
    lora: Vec<BlockLora>,
    lora_gradients: Vec<BlockLora>,
    frozen: Vec<BlockLora>,
    pub(super) first_kept: usize,
}

impl Program {
    pub(crate) fn new(
        model: Arc<Model>,
        spec: &AdapterSpec,
        frozen: &FrozenStack,
        options: StepOptions,
        tables: Arc<Tables>,
    ) -> Result<Self, ModelError> {
        let config = model.config();
        check_options(&model, &options)?;
        let rows_max = options.tokens_max - 1;
        let backward_blocks = config.blocks.len() - first_kept_block(spec, &options);
        let options = StepOptions { memory: options.memory.resolved(backward_blocks)?, ..options };
        let places = StepPlaces::new(config, spec, frozen, &options, rows_max);
        Ok(Self {
            tables,
            lora: lora::lay_out(places.parameters, spec, config),
            lora_gradients: lora::lay_out(places.gradients, spec, config),
            frozen: frozen.lay_out(places.frozen.parameters, config),
            first_kept: first_kept_block(spec, &options),
            spec: spec.clone(),
            options,
            places,
            model,
        })
    }

    pub(super) fn rows_max(&self) -> usize {
        self.options.tokens_max - 1
    }
    fn select_rows(&self) -> SelectRows {
        self.options.necessary_work.select_rows
    }

    /// Checks a text and notes what is supervised in it.
    pub(super) fn pass<'a>(
        &self,
        tokens: &'a [u32],
        loss_mask: &[bool],
        dropout_seed: Option<u64>,
        supervision: &mut Supervision,
    ) -> Result<Pass<'a>, ModelError> {
        check_tokens(tokens, loss_mask, self.model.config())?;
        supervision.set(tokens, loss_mask, self.select_rows() == SelectRows::Never)?;
        // Nothing behind the last row that predicts a supervised token can change its loss.
        let rows = supervision.rows.last().map_or(0, |last| *last as usize + 1);
        if rows > self.rows_max() {
            let limit = self.options.tokens_max;
            return Err(ModelError::TooManyTokens { tokens: rows + 1, limit, of: "the session's plan" });
        }
        Ok(Pass { inputs: &tokens[..rows], dropout_seed })
    }

    /// From tokens, or from the prefix's output, to the last block's output.
    pub(super) fn forward(&self, ops: &mut Ops, pass: &Pass, supervision: &Supervision, prefix: &mut Prefix) {
        let first_input = self.block_tensors(self.first_kept, pass, supervision).input;
        match prefix {
            Prefix::Given(values) => ops.write(first_input, values),
            _ => self.prefix_forward(ops, pass, supervision),
        }
        if let Prefix::Observed(observer) = prefix {
            observer(ops.read(first_input));
        }
        for block in self.first_kept..self.model.config().blocks.len() {
            self.begin_block(ops, block, Some(block + 1));
            self.keep_input(ops, block, pass, supervision);
            self.block_forward(ops, block, Extent::Whole, pass, supervision);
            // The last one too, though backward begins with it: the head comes between, the largest of all.
            self.end_block(ops, block);
        }
    }

    /// From tokens to the input of the first block that backward runs through.
    pub(super) fn prefix_forward(&self, ops: &mut Ops, pass: &Pass, supervision: &Supervision) {
        let first = self.block_tensors(0, pass, supervision);
        ops.embedding_forward(&self.model.embedding, pass.inputs, self.model.config().embedding_scale, first.input);
        self.release(ops, &self.model.embedding);
        for block in 0..self.first_kept {
            self.begin_block(ops, block, Some(block + 1));
            self.block_forward(ops, block, Extent::Whole, pass, supervision);
            self.end_block(ops, block);
        }
    }

    /// Values of the prefix's output for the rows of `pass`.
    pub(super) fn prefix_values(&self, pass: &Pass) -> usize {
        pass.inputs.len() * self.model.config().width
    }

    /// Refuses a prefix of another text.
    pub(super) fn check_prefix(&self, prefix: &Prefix, pass: &Pass) -> Result<(), ModelError> {
        let expected = self.prefix_values(pass);
        match prefix {
            Prefix::Given(values) if values.len() != expected => {
                Err(ModelError::PrefixLength { count: values.len(), expected })
            }
            _ => Ok(()),
        }
    }

    fn streams(&self, ops: &Ops) -> bool {
        self.options.memory.weights == WeightsPlace::Streamed && !ops.is_planning()
    }
    /// With streamed weights, has those of `next` read while `block` runs; behind the last block comes the head.
    fn begin_block(&self, ops: &Ops, block: usize, next: Option<usize>) {
        if self.streams(ops) {
            self.model.blocks[block].matrices().for_each(PackedMatrix::read_ahead);
            match next.map(|next| self.model.blocks.get(next)) {
                Some(Some(next)) => next.matrices().for_each(PackedMatrix::read_ahead),
                Some(None) => self.model.head.read_ahead(),
                None => {}
            }
        }
    }
    fn end_block(&self, ops: &Ops, block: usize) {
        if self.streams(ops) {
            self.model.blocks[block].matrices().for_each(PackedMatrix::release);
        }
    }
    fn release(&self, ops: &Ops, matrix: &PackedMatrix) {
        if self.streams(ops) {
            matrix.release();
        }
    }

    fn block_forward(&self, ops: &mut Ops, block: usize, extent: Extent, pass: &Pass, supervision: &Supervision) {
        let run = self.block_run(block, pass, supervision);
        block::forward(ops, &run, &self.block_tensors(block, pass, supervision), extent);
    }

    /// From the last block's output to the sum of losses and, with a gradient scale, back to the output's gradient.
    pub(super) fn head(
        &self,
        ops: &mut Ops,
        pass: &Pass,
        supervision: &mut Supervision,
        gradient_scale: Option<f32>,
    ) -> f64 {
        let Model { final_norm, head, .. } = &*self.model;
        let epsilon = self.model.config().norm_epsilon;
        let last = self.places.blocks.len() - 1;
        let last_output = self.block_tensors(last, pass, supervision).output;
        let d_last_output = self.block_gradients(last, pass, supervision).output;
        let rows = supervision.targets.len();
        let t = &self.places.head;
        let (hidden, normed) = (t.hidden.first_rows(rows), t.normed.first_rows(rows));
        let (d_hidden, d_normed) = (t.d_hidden.first_rows(rows), t.d_normed.first_rows(rows));

        if self.select_rows() == SelectRows::BeforeHead {
            ops.gather_rows(last_output, &supervision.rows, hidden);
        }
        ops.rms_norm_forward(hidden, final_norm, epsilon, normed);
        let gradient = gradient_scale.map(|scale| (d_normed, scale));
        ops.head_cross_entropy(head, normed, &supervision.targets, &mut supervision.losses, gradient);
        self.release(ops, head);
        if gradient.is_some() {
            if self.select_rows() == SelectRows::Never {
                // Rows without a supervised target have no gradient. The normed values are not read again.
                let selected = normed.first_rows(supervision.rows.len());
                ops.gather_rows(d_normed, &supervision.rows, selected);
                ops.scatter_rows(selected, &supervision.rows, d_normed);
            }
            ops.rms_norm_backward(hidden, final_norm, epsilon, d_normed, d_hidden, false);
            if self.select_rows() == SelectRows::BeforeHead {
                ops.scatter_rows(d_hidden, &supervision.rows, d_last_output);
            }
        }
        supervision.supervised_losses(&self.options).map(f64::from).sum()
    }

    /// From the gradient of the last block's output to the adapters' gradients.
    pub(super) fn backward(&self, ops: &mut Ops, pass: &Pass, supervision: &Supervision, meter: &mut Meter) {
        for block in (self.first_kept..self.places.blocks.len()).rev() {
            self.begin_block(ops, block, (block > self.first_kept).then(|| block - 1));
            self.run_again(ops, block, pass, supervision);
            meter.lap(Phase::Recompute, ops);
            let run = self.block_run(block, pass, supervision);
            let t = self.block_tensors(block, pass, supervision);
            let d = self.block_gradients(block, pass, supervision);
            block::backward(ops, &run, &t, &d, &self.lora_gradients[block], self.needs(block));
            self.end_block(ops, block);
            meter.lap(Phase::Backward, ops);
        }
    }

    /// A whole step, forward and backward, measured phase by phase.
    pub(super) fn step(
        &self,
        ops: &mut Ops,
        pass: &Pass,
        supervision: &mut Supervision,
        gradient_scale: f32,
        prefix: &mut Prefix,
    ) -> (f64, StepPhases) {
        let mut meter = Meter::start(ops);
        self.forward(ops, pass, supervision, prefix);
        meter.lap(Phase::Forward, ops);
        let loss_sum = self.head(ops, pass, supervision, Some(gradient_scale));
        meter.lap(Phase::Head, ops);
        self.backward(ops, pass, supervision, &mut meter);
        (loss_sum, meter.phases)
    }

    /// Brings back what the backward of `block` reads.
    fn run_again(&self, ops: &mut Ops, block: usize, pass: &Pass, supervision: &Supervision) {
        let memory = self.options.memory;
        let (above, kept) = (self.places.blocks.len() - 1 - block, block - self.first_kept);
        if above == 0 {
            // The last block's values are still where its forward left them.
            return;
        }
        let every = memory.checkpoint_blocks;
        let last_group = (self.places.blocks.len() - 1 - self.first_kept) / every;
        if every > 1 && kept % every == every - 1 && kept / every < last_group {
            // Groups share the places of the inputs inside them: those of this one were overwritten by the next.
            let first = block + 1 - every;
            self.restore_input(ops, first, pass, supervision);
            for inner in first..block {
                self.begin_block(ops, inner, Some(inner + 1));
                self.block_forward(ops, inner, Extent::Whole, pass, supervision);
                self.keep_input(ops, inner + 1, pass, supervision);
                self.end_block(ops, inner);
            }
        }
        self.restore_input(ops, block, pass, supervision);
        if memory.runs_again(above) {
            let extent = self.recomputed_extent(above);
            self.block_forward(ops, block, extent, pass, supervision);
            if extent == Extent::Whole {
                // The output may have taken the input's place.
                self.restore_input(ops, block, pass, supervision);
            }
        }
    }

    /// Stores the input of `block` if inputs are stored apart from the stream.
    fn keep_input(&self, ops: &mut Ops, block: usize, pass: &Pass, supervision: &Supervision) {
        if let Some(stored) = self.stored_input(block, pass) {
            ops.store_bfloat16(self.block_tensors(block, pass, supervision).input, stored);
        }
    }
    fn restore_input(&self, ops: &mut Ops, block: usize, pass: &Pass, supervision: &Supervision) {
        if let Some(stored) = self.stored_input(block, pass) {
            ops.load_bfloat16(stored, self.block_tensors(block, pass, supervision).input);
        }
    }
    fn stored_input(&self, block: usize, pass: &Pass) -> Option<Tensor> {
        let stored = self.places.stored_inputs.get(block.checked_sub(self.first_kept)?)?;
        Some(stored.first_rows(pass.inputs.len()))
    }

    fn recomputed_extent(&self, above: usize) -> Extent {
        match self.options.necessary_work.recompute_only_what_backward_reads {
            true if self.options.memory.keeps_attention(above) => Extent::BesideKeptAttention,
            true => Extent::ForBackward,
            false => Extent::Whole,
        }
    }
    fn needs(&self, block: usize) -> Needs {
        let work = self.options.necessary_work;
        let stops = work.stop_at_first_adapted_block && work.only_gradients_that_adapters_need;
        let needs = Needs::new(&self.lora[block], !stops || block > self.first_kept);
        match work.train_adapters_only {
            true => needs,
            // Every frozen weight's gradient is made from that of its product.
            false => Needs { input: needs.input, ..Needs::new(&self.lora[block], true) },
        }
    }
    /// Whether only selected rows leave `block`.
    fn selects(&self, block: usize) -> bool {
        self.select_rows() == SelectRows::InLastBlock && block + 1 == self.places.blocks.len()
    }
    fn leaving_rows(&self, block: usize, pass: &Pass, supervision: &Supervision) -> usize {
        if self.selects(block) { supervision.rows.len() } else { pass.inputs.len() }
    }
    fn block_tensors(&self, block: usize, pass: &Pass, supervision: &Supervision) -> BlockTensors {
        self.places.blocks[block].first_rows(pass.inputs.len(), self.leaving_rows(block, pass, supervision))
    }
    fn block_gradients(&self, block: usize, pass: &Pass, supervision: &Supervision) -> BlockGradients {
        let places = if self.selects(block) { &self.places.selecting_gradients } else { &self.places.block_gradients };
        places.first_rows(pass.inputs.len(), self.leaving_rows(block, pass, supervision))
    }
    fn block_run<'a>(&'a self, block: usize, pass: &Pass, supervision: &'a Supervision) -> BlockRun<'a> {
        let config = self.model.config();
        BlockRun {
            config,
            weights: &self.model.blocks[block],
            rope: config.blocks[block].rope.map(|index| &self.tables.ropes[index]),
            attention: attention_shape(config, block),
            whole_attention: !self.options.necessary_work.tile_attention,
            positions: &self.tables.positions[..pass.inputs.len()],
            selected_rows: self.selects(block).then_some(&supervision.rows),
            selected_positions: &supervision.rows,
            cache: None,
            lora: &self.lora[block],
            lora_scale: self.spec.scale(),
            frozen: &self.frozen[block],
            frozen_hidden: self.places.frozen.hidden,
            frozen_gradient: self.places.frozen_gradient,
            rounds_gates: self.options.memory.kept_values == KeptType::Int16,
            dropout_rate: if pass.dropout_seed.is_some() { self.spec.dropout } else { 0.0 },
            dropout_seed: seed_of_part(pass.dropout_seed.unwrap_or(0), block),
        }
    }

    pub(super) fn check_same_spec(&self, spec: &AdapterSpec) -> Result<(), ModelError> {
        if spec.matrices().eq(self.spec.matrices()) && (spec.rank, spec.scale()) == (self.spec.rank, self.spec.scale())
        {
            return Ok(());
        }
        Err(ModelError::AdapterInvalid {
            field: "spec",
            found: format!("{spec:?}"),
            expected: format!("the session's own, {:?}", self.spec),
        })
    }

    /// Runs everything that a session does on ops that only count.
    pub(crate) fn dry_run(&self, supervision: &mut Supervision) -> Planned {
        let mut ops = Ops::planner(self.options.ops);
        let longest = self.dry_step(&mut ops, supervision, self.rows_max(), self.rows_max());
        for rows in sampled_lengths(self.rows_max()) {
            self.dry_step(&mut ops, supervision, rows, rows);
            self.dry_step(&mut ops, supervision, rows, 1);
            self.dry_step(&mut ops, supervision, self.rows_max(), rows);
        }
        let StepPlaces { parameters, gradients, first_moment, second_moment, .. } = self.places;
        let update = AdamWParameters {
            learning_rate: 0.0,
            beta1: 0.0,
            beta2: 0.0,
            epsilon: 1.0,
            weight_decay: 0.0,
            step: 1,
            gradient_factor: 1.0,
        };
        ops.adamw(parameters, gradients, first_moment, second_moment, &update);
        ops.sum_of_squares(gradients);
        ops.fill(gradients, 0.0);
        Planned { phases: longest, scratch_bytes: ops.counters().scratch_bytes }
    }

    /// Counts one step of `rows` rows of which the last `supervised` predict a supervised token.
    pub(crate) fn dry_step(
        &self,
        ops: &mut Ops,
        supervision: &mut Supervision,
        rows: usize,
        supervised: usize,
    ) -> StepPhases {
        let tokens = vec![0; rows + 1];
        let mask: Vec<bool> = (0..=rows).map(|index| index > rows - supervised).collect();
        let pass = self.pass(&tokens, &mask, Some(0), supervision);
        let pass = pass.expect("zeros of a planned length are a valid text");
        self.step(ops, &pass, supervision, 1.0, &mut Prefix::Computed).1
    }

    pub(crate) fn memory_plan(&self, planned: &Planned, supervision_bytes: usize) -> MemoryPlan {
        let weights = self.weights_in_memory();
        let name = match self.options.memory.weights {
            WeightsPlace::Resident => "frozen weights",
            WeightsPlace::Streamed => "frozen weights, the most at a time",
        };
        let mut items = vec![(name, (weights.anonymous_bytes + weights.mapped_bytes) as usize)];
        items.extend_from_slice(&self.places.items);
        items.push(("scratch of the ops", planned.scratch_bytes));
        items.push(("rotary tables, positions and targets", self.tables.bytes() + supervision_bytes));
        MemoryPlan {
            items,
            arena_bytes: self.places.arena.peak_bytes(),
            scratch_bytes: planned.scratch_bytes,
            weights_bytes: self.model.weights_bytes(),
            weights,
            macs: planned.phases.macs(),
            phases: planned.phases,
        }
    }

    fn weights_in_memory(&self) -> ResidentBytes {
        let all = self.model.resident_bytes();
        match self.options.memory.weights {
            WeightsPlace::Resident => all,
            WeightsPlace::Streamed => ResidentBytes { mapped_bytes: self.model.streamed_bytes_max() as u64, ..all },
        }
    }
}

/// What a dry run found.
pub(crate) struct Planned {
    /// The work of the longest step with every token supervised.
    pub(crate) phases: StepPhases,
    /// The most scratch that any call at any length asked for.
    pub(crate) scratch_bytes: usize,
}

/// More threads than this are a slip of the keyboard, and each takes memory.
const THREADS_MAX: usize = 1024;

/// Refuses what no session can run with.
pub(crate) fn check_options(model: &Model, options: &StepOptions) -> Result<(), ModelError> {
    let invalid =
        |option, found: usize, expected| Err(ModelError::OptionInvalid { option, found: found.to_string(), expected });
    if options.tokens_max < 2 {
        return invalid("tokens_max", options.tokens_max, "at least 2");
    }
    if !(1..=THREADS_MAX).contains(&options.ops.threads) {
        return invalid("threads", options.ops.threads, "1 to 1024");
    }
    let limit = model.config().context_tokens_max;
    if options.tokens_max > limit {
        return Err(ModelError::TooManyTokens { tokens: options.tokens_max, limit, of: "the model's context" });
    }
    if options.memory.weights == WeightsPlace::Streamed && model.mapped_bytes() == 0 {
        let expected = "weights that are mapped from a file: these are in memory, without a packed cache";
        return Err(ModelError::OptionInvalid { option: "weights", found: "streamed".into(), expected });
    }
    Ok(())
}

/// Lengths from 1 to `longest` at which ops may choose differently: around every power of two.
pub(crate) fn sampled_lengths(longest: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|bit| 1usize << bit).take_while(move |power| *power <= longest);
    powers.flat_map(|power| [power - 1, power, power + 1]).filter(move |length| (1..=longest).contains(length))
}

pub(crate) fn rope_tables(config: &ModelConfig, positions: usize) -> Vec<RopeTable> {
    config.ropes.iter().map(|rope| RopeTable::new(&rope.inverse_frequencies, positions, 1.0)).collect()
}

pub(crate) fn attention_shape(config: &ModelConfig, block: usize) -> AttentionShape {
    AttentionShape {
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        scale: config.attention_scale,
        window: config.blocks[block].window,
    }
}

/// Refuses texts that the model cannot read.
pub(crate) fn check_tokens(tokens: &[u32], loss_mask: &[bool], config: &ModelConfig) -> Result<(), ModelError> {
    if tokens.len() != loss_mask.len() {
        return Err(ModelError::MaskLength { mask: loss_mask.len(), tokens: tokens.len() });
    }
    check_vocabulary(tokens, config)
}

pub(crate) fn check_vocabulary(tokens: &[u32], config: &ModelConfig) -> Result<(), ModelError> {
    match tokens.iter().position(|token| *token as usize >= config.vocabulary) {
        Some(position) => {
            Err(ModelError::TokenOutsideVocabulary { token: tokens[position], position, vocabulary: config.vocabulary })
        }
        None => Ok(()),
    }
}
