//! The training step: forward, head, backward, each over the whole model, on memory planned beforehand.

mod counter;
mod phases;
mod program;
mod supervision;
mod work;

use std::sync::Arc;

use kernels::ops::Counters;
use kernels::qlinear::KernelName;
use kernels::{AdamWParameters, OpSeconds, Ops, OpsOptions};

use crate::adapter::{AdapterSpec, AdapterWeights};
use crate::error::ModelError;
use crate::lora::FrozenStack;
use crate::plan::{MemoryChoice, MemoryPlan, StepPlaces};
use crate::weights::Model;
pub use counter::WorkCounter;
pub use phases::{Phase, PhaseCost, StepPhases};
pub(crate) use program::{
    Planned, Program, Tables, attention_shape, check_options, check_tokens, check_vocabulary, rope_tables,
    sampled_lengths,
};
pub(crate) use supervision::Supervision;
pub use work::{NecessaryWork, SAVINGS, Saving, SelectRows};

/// How a session runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOptions {
    pub ops: OpsOptions,
    /// Tokens of the longest example.
    pub tokens_max: usize,
    pub memory: MemoryChoice,
    pub necessary_work: NecessaryWork,
}

impl StepOptions {
    /// The usual choices for examples of up to `tokens_max` tokens.
    pub fn new(tokens_max: usize) -> Self {
        let necessary_work = NecessaryWork::default();
        Self { ops: OpsOptions::default(), tokens_max, memory: MemoryChoice::default(), necessary_work }
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

/// Where the output of the blocks below the first adapted one comes from. No adapter changes it, so that it can be
/// kept between the visits of an example.
pub enum Prefix<'a> {
    /// From the tokens.
    Computed,
    /// From the tokens, and shown: [rows, D] of [`TrainingSession::prefix_values`] values.
    Observed(&'a mut dyn FnMut(&[f32])),
    /// As it was observed before.
    Given(&'a [f32]),
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
    phases: StepPhases,
}

impl TrainingSession {
    /// Plans all memory, then takes it. The adapter starts from `adapter`, the optimizer's moments from zero.
    pub fn new(model: Arc<Model>, adapter: &AdapterWeights, options: StepOptions) -> Result<Self, ModelError> {
        Self::stacked(model, &[], adapter, options)
    }

    /// As [`Self::new`], with `frozen` adapters under the one that learns, bottom first. They add their products in
    /// every pass and pass gradients on, have no dropout and never change; each has its own rank, targets and blocks.
    pub fn stacked(
        model: Arc<Model>,
        frozen: &[&AdapterWeights],
        adapter: &AdapterWeights,
        options: StepOptions,
    ) -> Result<Self, ModelError> {
        for adapter in frozen.iter().chain([&adapter]) {
            adapter.validate(model.config())?;
        }
        let stack = FrozenStack::new(frozen.iter().map(|adapter| &adapter.spec), model.config());
        let program = {
            check_options(&model, &options)?;
            let tables = Arc::new(Tables::new(model.config(), options.tokens_max));
            Program::new(model, &adapter.spec, &stack, options, tables)?
        };
        let mut supervision = Supervision::new(program.rows_max());
        let planned = program.dry_run(&mut supervision);
        let plan = program.memory_plan(&planned, supervision.bytes());
        let mut ops = Ops::new(options.ops, &program.places.arena, planned.scratch_bytes);
        if let Some(place) = program.places.frozen.parameters {
            ops.write(place, &stack.values(frozen, program.model.config()));
        }
        let mut session = Self { ops, program, supervision, plan, phases: StepPhases::default() };
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
        self.step_from(Prefix::Computed, tokens, loss_mask, gradient_scale, dropout_seed)
    }

    /// As [`Self::step`], from where `prefix` says.
    pub fn step_from(
        &mut self,
        mut prefix: Prefix,
        tokens: &[u32],
        loss_mask: &[bool],
        gradient_scale: f32,
        dropout_seed: u64,
    ) -> Result<StepLoss, ModelError> {
        let Self { ops, program, supervision, phases, .. } = self;
        let pass = program.pass(tokens, loss_mask, Some(dropout_seed), supervision)?;
        program.check_prefix(&prefix, &pass)?;
        let loss_sum;
        (loss_sum, *phases) = program.step(ops, &pass, supervision, gradient_scale, &mut prefix);
        Ok(StepLoss { loss_sum, supervised_tokens: supervision.rows.len() })
    }

    /// Only the products with frozen weights that [`Self::step`] makes for this text, on whatever values lie in their
    /// places: what a step would take if nothing else took time. Changes neither adapter nor gradients.
    pub fn step_products(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<StepPhases, ModelError> {
        let Self { ops, program, supervision, .. } = self;
        let pass = program.pass(tokens, loss_mask, Some(0), supervision)?;
        ops.set_products_only(true);
        let (_, phases) = program.step(ops, &pass, supervision, 1.0, &mut Prefix::Computed);
        ops.set_products_only(false);
        Ok(phases)
    }
    /// Where the time of all calls went since this was last asked.
    pub fn take_op_seconds(&mut self) -> OpSeconds {
        self.ops.take_op_seconds()
    }

    /// What the phases of the last step took.
    pub fn phases(&self) -> &StepPhases {
        &self.phases
    }

    /// The losses of `tokens` with the adapter as it is and without dropout, through the same forward as a step.
    pub fn loss(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<TokenLosses, ModelError> {
        self.loss_from(Prefix::Computed, tokens, loss_mask)
    }

    /// As [`Self::loss`], from where `prefix` says.
    pub fn loss_from(
        &mut self,
        mut prefix: Prefix,
        tokens: &[u32],
        loss_mask: &[bool],
    ) -> Result<TokenLosses, ModelError> {
        let Self { ops, program, supervision, .. } = self;
        let pass = program.pass(tokens, loss_mask, None, supervision)?;
        program.check_prefix(&prefix, &pass)?;
        program.forward(ops, &pass, supervision, &mut prefix);
        let loss_sum = program.head(ops, &pass, supervision, None);
        Ok(TokenLosses { loss_sum, losses: supervision.supervised_losses(&program.options).collect() })
    }

    /// Blocks below the first that backward reaches: the prefix.
    pub fn prefix_blocks(&self) -> usize {
        self.program.first_kept
    }
    /// Number of values of the prefix's output for this text.
    pub fn prefix_values(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<usize, ModelError> {
        let pass = self.program.pass(tokens, loss_mask, None, &mut self.supervision)?;
        Ok(self.program.prefix_values(&pass))
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
    pub fn optimizer_moments(&self) -> (&[f32], &[f32]) {
        let places = &self.program.places;
        (self.ops.read(places.first_moment), self.ops.read(places.second_moment))
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
