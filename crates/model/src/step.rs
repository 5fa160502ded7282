//! The training step: forward, head, backward, each over the whole model, on memory planned beforehand.

use std::sync::Arc;

use kernels::ops::Counters;
use kernels::qlinear::KernelName;
use kernels::{AdamWParameters, AttentionShape, Ops, OpsOptions, RopeTable};

use crate::adapter::{AdapterSpec, AdapterWeights};
use crate::block::{self, BlockGradients, BlockRun, BlockTensors, Extent, Needs};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::{self, BlockLora};
use crate::plan::{MemoryPlan, StepPlaces, first_kept_block};
use crate::random::seed_of_part;
use crate::weights::Model;

/// How a session runs.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    pub ops: OpsOptions,
    /// Tokens of the longest example.
    pub tokens_max: usize,
    pub recompute: Recompute,
    pub necessary_work: NecessaryWork,
}

impl StepOptions {
    /// The usual choices for examples of up to `tokens_max` tokens.
    pub fn new(tokens_max: usize) -> Self {
        let necessary_work = NecessaryWork::default();
        Self { ops: OpsOptions::default(), tokens_max, recompute: Recompute::PerBlock, necessary_work }
    }
}

/// What backward reads is kept or computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Each block's input is kept and its forward runs again before its backward.
    PerBlock,
    /// Everything that backward reads is kept.
    Never,
}

/// Switches for work that no result needs. On by default; tests switch each off to see the same results from more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NecessaryWork {
    pub select_rows: SelectRows,
    /// Backward ends inside the first adapted block; blocks before it keep nothing and are never run again.
    pub stop_at_first_adapted_block: bool,
    /// A block that runs again leaves out what its backward does not read.
    pub recompute_only_what_backward_reads: bool,
}

/// From where on only the rows that predict a supervised token go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectRows {
    /// From the last block's queries.
    InLastBlock,
    /// From the final norm.
    BeforeHead,
    /// Nowhere: logits are computed at every position.
    Never,
}

impl Default for NecessaryWork {
    fn default() -> Self {
        Self {
            select_rows: SelectRows::InLastBlock,
            stop_at_first_adapted_block: true,
            recompute_only_what_backward_reads: true,
        }
    }
}

/// The loss of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLoss {
    /// Sum of the losses of all supervised tokens, in nats.
    pub loss_sum: f64,
    pub supervised_tokens: usize,
}

/// The losses of one text.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLosses {
    pub loss_sum: f64,
    /// One loss in nats for each supervised token, in order.
    pub losses: Vec<f32>,
}

/// One matrix's gradient, for inspection.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedGradient {
    /// As in adapter files: `model.layers.3.self_attn.q_proj.lora_A`.
    pub name: String,
    /// [rank, k_in] for A, [n_out, rank] for B.
    pub shape: [usize; 2],
    pub values: Vec<f32>,
}

/// A model with an adapter in training.
pub struct TrainingSession {
    ops: Ops,
    program: Program,
    supervision: Supervision,
    plan: MemoryPlan,
}

impl TrainingSession {
    /// Plans all memory, then takes it. The adapter starts from `adapter`, the optimizer's moments from zero.
    pub fn new(model: Arc<Model>, adapter: &AdapterWeights, options: StepOptions) -> Result<Self, ModelError> {
        adapter.validate(model.config())?;
        let program = Program::new(model, &adapter.spec, options)?;
        let mut supervision = Supervision::new(program.rows_max());
        let planned = program.dry_run(&mut supervision);
        let plan = program.memory_plan(planned, supervision.bytes());
        let ops = Ops::new(options.ops, &program.places.arena, planned.scratch_bytes);
        let mut session = Self { ops, program, supervision, plan };
        session.set_adapter(adapter)?;
        Ok(session)
    }

    /// What the session takes and what a step computes at most.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// Runs `tokens` forward and backward and adds to the gradients `gradient_scale` times the gradient of the sum of
    /// losses. `loss_mask[i]` makes token i a target, predicted from those before it; the first never is one.
    /// `dropout_seed` should differ between steps.
    pub fn step(
        &mut self,
        tokens: &[u32],
        loss_mask: &[bool],
        gradient_scale: f32,
        dropout_seed: u64,
    ) -> Result<StepLoss, ModelError> {
        let Self { ops, program, supervision, .. } = self;
        let pass = program.pass(tokens, loss_mask, Some(dropout_seed), supervision)?;
        program.forward(ops, &pass, supervision);
        let loss_sum = program.head(ops, &pass, supervision, Some(gradient_scale));
        program.backward(ops, &pass, supervision);
        Ok(StepLoss { loss_sum, supervised_tokens: supervision.rows.len() })
    }

    /// The losses of `tokens` with the adapter as it is and without dropout, through the same forward as a step.
    pub fn loss(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<TokenLosses, ModelError> {
        let Self { ops, program, supervision, .. } = self;
        let pass = program.pass(tokens, loss_mask, None, supervision)?;
        program.forward(ops, &pass, supervision);
        let loss_sum = program.head(ops, &pass, supervision, None);
        Ok(TokenLosses { loss_sum, losses: supervision.supervised_losses(&program.options).collect() })
    }

    /// Euclidean norm of all gradients together.
    pub fn gradient_norm(&mut self) -> f64 {
        self.ops.sum_of_squares(self.program.places.gradients).sqrt()
    }
    /// One AdamW step on the adapter. Does not clear the gradients.
    pub fn update(&mut self, parameters: &AdamWParameters) {
        let StepPlaces { parameters: values, gradients, first_moment, second_moment, .. } = self.program.places;
        self.ops.adamw(values, gradients, first_moment, second_moment, parameters);
    }
    pub fn zero_gradients(&mut self) {
        self.ops.fill(self.program.places.gradients, 0.0);
    }

    pub fn adapter_spec(&self) -> &AdapterSpec {
        &self.program.spec
    }
    pub fn model(&self) -> &Arc<Model> {
        &self.program.model
    }
    /// A copy of the adapter as it is.
    pub fn adapter(&self) -> AdapterWeights {
        let config = self.program.model.config();
        AdapterWeights::from_flat(config, &self.program.spec, self.parameters())
            .expect("the session's parameters have the layout of its own spec")
    }
    /// Replaces the adapter's values; its spec must be the session's.
    pub fn set_adapter(&mut self, adapter: &AdapterWeights) -> Result<(), ModelError> {
        adapter.validate(self.program.model.config())?;
        self.program.check_same_spec(&adapter.spec)?;
        self.set_parameters(&adapter.flat())
    }
    /// All trained values, matrix by matrix, A before B.
    pub fn parameters(&self) -> &[f32] {
        self.ops.read(self.program.places.parameters)
    }
    pub fn set_parameters(&mut self, values: &[f32]) -> Result<(), ModelError> {
        self.check_length(values)?;
        self.ops.write(self.program.places.parameters, values);
        Ok(())
    }
    /// First and second moments, laid out as [`Self::parameters`].
    pub fn optimizer_moments(&self) -> (Vec<f32>, Vec<f32>) {
        let places = &self.program.places;
        (self.ops.read(places.first_moment).to_vec(), self.ops.read(places.second_moment).to_vec())
    }
    pub fn set_optimizer_moments(&mut self, first: &[f32], second: &[f32]) -> Result<(), ModelError> {
        self.check_length(first)?;
        self.check_length(second)?;
        self.ops.write(self.program.places.first_moment, first);
        self.ops.write(self.program.places.second_moment, second);
        Ok(())
    }
    /// All gradients, laid out as [`Self::parameters`].
    pub fn flat_gradients(&self) -> &[f32] {
        self.ops.read(self.program.places.gradients)
    }
    /// Replaces all gradients: an accumulation window that was interrupted goes on.
    pub fn set_flat_gradients(&mut self, values: &[f32]) -> Result<(), ModelError> {
        self.check_length(values)?;
        self.ops.write(self.program.places.gradients, values);
        Ok(())
    }
    /// Copies of all gradients by name.
    pub fn gradients(&self) -> Vec<NamedGradient> {
        let config = self.program.model.config();
        let gradients = AdapterWeights::from_flat(config, &self.program.spec, self.flat_gradients())
            .expect("gradients have the layout of the session's own spec");
        let rank = self.program.spec.rank;
        let named = gradients.matrices.into_iter().flat_map(|matrix| {
            let (n_out, k_in) = matrix.projection.shape(config);
            let path = matrix.projection.module_path(matrix.block);
            [
                NamedGradient { name: format!("{path}.lora_A"), shape: [rank, k_in], values: matrix.a },
                NamedGradient { name: format!("{path}.lora_B"), shape: [n_out, rank], values: matrix.b },
            ]
        });
        named.collect()
    }

    /// The kernels that the products with frozen weights run on.
    pub fn kernel_names(&self) -> Vec<KernelName> {
        self.ops.kernel_names()
    }
    /// Work done since the last reset.
    pub fn counters(&self) -> Counters {
        self.ops.counters()
    }
    pub fn reset_counters(&mut self) {
        self.ops.reset_counters();
    }

    fn check_length(&self, values: &[f32]) -> Result<(), ModelError> {
        let expected = self.program.places.parameters.len();
        match values.len() == expected {
            true => Ok(()),
            false => Err(ModelError::AdapterLength { count: values.len(), expected }),
        }
    }
}

/// One text on its way through the model.
struct Pass<'a> {
    /// The tokens that enter: those before the last supervised one. T of them.
    inputs: &'a [u32],
    /// `None` switches dropout off.
    dropout_seed: Option<u64>,
}

/// Which rows predict a supervised token, and how well. Room for the longest example is taken once.
struct Supervision {
    /// Rows that predict a supervised token, rising.
    rows: Vec<u32>,
    /// What each row of the head has to predict.
    targets: Vec<u32>,
    /// The loss of each row of the head.
    losses: Vec<f32>,
}

impl Supervision {
    fn new(rows_max: usize) -> Self {
        Self {
            rows: Vec::with_capacity(rows_max),
            targets: Vec::with_capacity(rows_max),
            losses: Vec::with_capacity(rows_max),
        }
    }
    fn bytes(&self) -> usize {
        (self.rows.capacity() + self.targets.capacity() + self.losses.capacity()) * size_of::<u32>()
    }

    fn set(&mut self, tokens: &[u32], loss_mask: &[bool], head_sees_all_rows: bool) -> Result<(), ModelError> {
        let supervised = || (1..tokens.len()).filter(|index| loss_mask[*index]);
        self.rows.clear();
        self.rows.extend(supervised().map(|index| index as u32 - 1));
        let Some(last) = self.rows.last() else {
            return Err(ModelError::NothingSupervised { tokens: tokens.len() });
        };
        self.targets.clear();
        match head_sees_all_rows {
            true => self.targets.extend_from_slice(&tokens[1..*last as usize + 2]),
            false => self.targets.extend(supervised().map(|index| tokens[index])),
        }
        self.losses.clear();
        self.losses.resize(self.targets.len(), 0.0);
        Ok(())
    }

    fn supervised_losses(&self, options: &StepOptions) -> impl Iterator<Item = f32> + '_ {
        let head_sees_all_rows = options.necessary_work.select_rows == SelectRows::Never;
        let loss =
            move |(index, row): (usize, &u32)| self.losses[if head_sees_all_rows { *row as usize } else { index }];
        self.rows.iter().enumerate().map(loss)
    }
}

/// The step as a sequence of op calls over planned places; runs alike on a planner, which only counts, and for real.
struct Program {
    model: Arc<Model>,
    spec: AdapterSpec,
    options: StepOptions,
    places: StepPlaces,
    ropes: Vec<RopeTable>,
    /// 0, 1, 2, ...
    positions: Vec<u32>,
    lora: Vec<BlockLora>,
    lora_gradients: Vec<BlockLora>,
    first_kept: usize,
}

impl Program {
    fn new(model: Arc<Model>, spec: &AdapterSpec, options: StepOptions) -> Result<Self, ModelError> {
        let config = model.config();
        if options.tokens_max < 2 {
            let found = options.tokens_max.to_string();
            return Err(ModelError::OptionInvalid { option: "tokens_max", found, expected: "at least 2" });
        }
        if options.tokens_max > config.context_tokens_max {
            let limit = config.context_tokens_max;
            return Err(ModelError::TooManyTokens { tokens: options.tokens_max, limit, of: "the model's context" });
        }
        let rows_max = options.tokens_max - 1;
        let places = StepPlaces::new(config, spec, &options, rows_max);
        Ok(Self {
            ropes: rope_tables(config, rows_max),
            positions: (0..rows_max as u32).collect(),
            lora: lora::lay_out(places.parameters, spec, config),
            lora_gradients: lora::lay_out(places.gradients, spec, config),
            first_kept: first_kept_block(spec, &options),
            spec: spec.clone(),
            options,
            places,
            model,
        })
    }

    fn rows_max(&self) -> usize {
        self.options.tokens_max - 1
    }
    fn select_rows(&self) -> SelectRows {
        self.options.necessary_work.select_rows
    }

    /// Checks a text and notes what is supervised in it.
    fn pass<'a>(
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

    /// From tokens to the last block's output.
    fn forward(&self, ops: &mut Ops, pass: &Pass, supervision: &Supervision) {
        let config = self.model.config();
        let first = self.block_tensors(0, pass, supervision);
        ops.embedding_forward(&self.model.embedding, pass.inputs, config.embedding_scale, first.input);
        for block in 0..config.blocks.len() {
            let run = self.block_run(block, pass, supervision);
            block::forward(ops, &run, &self.block_tensors(block, pass, supervision), Extent::Whole);
        }
    }

    /// From the last block's output to the sum of losses and, with a gradient scale, back to the output's gradient.
    fn head(&self, ops: &mut Ops, pass: &Pass, supervision: &mut Supervision, gradient_scale: Option<f32>) -> f64 {
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
    fn backward(&self, ops: &mut Ops, pass: &Pass, supervision: &Supervision) {
        let last = self.places.blocks.len() - 1;
        for block in (self.first_kept..=last).rev() {
            let run = self.block_run(block, pass, supervision);
            let t = self.block_tensors(block, pass, supervision);
            // The last block's values are still where its forward left them.
            if self.options.recompute == Recompute::PerBlock && block != last {
                block::forward(ops, &run, &t, self.recomputed_extent());
            }
            let d = self.block_gradients(block, pass, supervision);
            block::backward(ops, &run, &t, &d, &self.lora_gradients[block], self.needs(block));
        }
    }

    fn recomputed_extent(&self) -> Extent {
        match self.options.necessary_work.recompute_only_what_backward_reads {
            true => Extent::ForBackward,
            false => Extent::Whole,
        }
    }
    fn needs(&self, block: usize) -> Needs {
        let stops = self.options.necessary_work.stop_at_first_adapted_block;
        Needs::new(&self.lora[block], !stops || block > self.first_kept)
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
            rope: config.blocks[block].rope.map(|index| &self.ropes[index]),
            attention: attention_shape(config, block),
            positions: &self.positions[..pass.inputs.len()],
            selected_rows: self.selects(block).then_some(&supervision.rows),
            selected_positions: &supervision.rows,
            lora: &self.lora[block],
            lora_scale: self.spec.scale(),
            dropout_rate: if pass.dropout_seed.is_some() { self.spec.dropout } else { 0.0 },
            dropout_seed: seed_of_part(pass.dropout_seed.unwrap_or(0), block),
        }
    }

    fn check_same_spec(&self, spec: &AdapterSpec) -> Result<(), ModelError> {
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

    /// Runs everything that a session does on ops that only count. Returns the work of the longest step and the most
    /// scratch that any call at any length asked for.
    fn dry_run(&self, supervision: &mut Supervision) -> Counters {
        let mut ops = Ops::planner(self.options.ops);
        let tokens = vec![0; self.options.tokens_max];
        let mut step = |rows: usize, supervised: usize| {
            let mask: Vec<bool> = (0..=rows).map(|index| index > rows - supervised).collect();
            let pass = self.pass(&tokens[..=rows], &mask, Some(0), supervision);
            let pass = pass.expect("zeros of a planned length are a valid text");
            self.forward(&mut ops, &pass, supervision);
            self.head(&mut ops, &pass, supervision, Some(1.0));
            self.backward(&mut ops, &pass, supervision);
            let counters = ops.counters();
            ops.reset_counters();
            counters
        };
        let longest = step(self.rows_max(), self.rows_max());
        let mut scratch_bytes = longest.scratch_bytes;
        for rows in sampled_lengths(self.rows_max()) {
            scratch_bytes = scratch_bytes.max(step(rows, rows).scratch_bytes).max(step(rows, 1).scratch_bytes);
            scratch_bytes = scratch_bytes.max(step(self.rows_max(), rows).scratch_bytes);
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
        Counters { scratch_bytes: scratch_bytes.max(ops.counters().scratch_bytes), ..longest }
    }

    fn memory_plan(&self, planned: Counters, supervision_bytes: usize) -> MemoryPlan {
        let tables: usize = self.ropes.iter().map(RopeTable::byte_len).sum();
        let mut items = vec![("frozen weights", self.model.weights_bytes())];
        items.extend_from_slice(&self.places.items);
        items.push(("scratch of the ops", planned.scratch_bytes));
        items.push(("rotary tables, positions and targets", tables + self.positions.len() * 4 + supervision_bytes));
        MemoryPlan {
            items,
            arena_bytes: self.places.arena.peak_bytes(),
            scratch_bytes: planned.scratch_bytes,
            weights_bytes: self.model.weights_bytes(),
            macs: planned,
        }
    }
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
