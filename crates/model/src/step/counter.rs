//! Counts what steps would compute without computing anything: the base of a prediction of time.

use std::sync::Arc;

use kernels::Ops;
use kernels::ops::Counters;

use super::program::{Program, Tables, check_options};
use super::supervision::Supervision;
use super::{Prefix, StepOptions};
use crate::adapter::AdapterSpec;
use crate::error::ModelError;
use crate::lora::FrozenStack;
use crate::plan::MemoryPlan;
use crate::weights::Model;

/// The multiply-adds of a session's steps, from the very calls that a session makes, on ops that only count. Takes
/// no memory for tensors.
pub struct WorkCounter {
    program: Program,
    supervision: Supervision,
    ops: Ops,
}

impl WorkCounter {
    /// A counter for what [`super::TrainingSession::stacked`] would run with adapters of these shapes.
    pub fn new(
        model: Arc<Model>,
        frozen: &[&AdapterSpec],
        spec: &AdapterSpec,
        options: StepOptions,
    ) -> Result<Self, ModelError> {
        check_options(&model, &options)?;
        let stack = FrozenStack::new(frozen.iter().copied(), model.config());
        let tables = Arc::new(Tables::new(model.config(), options.tokens_max));
        let program = Program::new(model, spec, &stack, options, tables)?;
        let supervision = Supervision::new(program.rows_max());
        Ok(Self { program, supervision, ops: Ops::planner(options.ops) })
    }

    /// What [`super::TrainingSession::step`] would compute for this text.
    pub fn step(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<Counters, ModelError> {
        self.count(tokens, loss_mask, true)
    }
    /// What [`super::TrainingSession::loss`] would compute for this text.
    pub fn loss(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<Counters, ModelError> {
        self.count(tokens, loss_mask, false)
    }

    /// What of both is left out where the prefix of this text is given ([`Prefix::Given`]).
    pub fn prefix(&mut self, tokens: &[u32], loss_mask: &[bool]) -> Result<Counters, ModelError> {
        let Self { program, supervision, ops } = self;
        ops.reset_counters();
        let pass = program.pass(tokens, loss_mask, None, supervision)?;
        program.prefix_forward(ops, &pass, supervision);
        Ok(ops.counters())
    }

    /// The memory that the session would take.
    pub fn memory(&mut self) -> MemoryPlan {
        let planned = self.program.dry_run(&mut self.supervision);
        self.program.memory_plan(&planned, self.supervision.bytes())
    }

    fn count(&mut self, tokens: &[u32], loss_mask: &[bool], trains: bool) -> Result<Counters, ModelError> {
        let Self { program, supervision, ops } = self;
        ops.reset_counters();
        let pass = program.pass(tokens, loss_mask, trains.then_some(0), supervision)?;
        if trains {
            program.step(ops, &pass, supervision, 1.0, &mut Prefix::Computed);
        } else {
            program.forward(ops, &pass, supervision, &mut Prefix::Computed);
            program.head(ops, &pass, supervision, None);
        }
        Ok(ops.counters())
    }
}
