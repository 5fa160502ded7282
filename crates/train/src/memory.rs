//! From a configuration to a plan that fits this machine.

use std::sync::Arc;

use device::ProcessMemory;
use kernels::OpsOptions;
use model::{AdapterSpec, Model, ModelError, PlanRequest, PlannedStep, ProgramBytes, ResidentBytes, plan_step};

use crate::config::TrainConfig;

/// Where the system does not say what the process takes: program, tokenizer and history of an ordinary run.
const PROGRAM_BYTES: ResidentBytes = ResidentBytes { anonymous_bytes: 60 << 20, mapped_bytes: 12 << 20 };
/// Code and libraries that training touches and nothing before it did.
const CODE_BYTES: u64 = 2 << 20;
/// Copies of the adapter's values besides the session's and the save buffer's: those in an adapter that is being written
/// (values, bytes, and a margin of one), or, before the buffer is filled, the three lists of a state that is resumed from.
const ADAPTER_COPIES: u64 = 3;
/// Where a state is laid out for the saving thread: parameter and both moments of every value.
const SAVE_BYTES_PER_VALUE: u64 = 3 * size_of::<f32>() as u64;

/// The same program, at the same point, has more or less in memory from one process to the next: pages of its file that
/// the system mapped together, arenas of the allocator (measured: docs/log.md).
pub(crate) const PROGRAM_VARIES_BYTES: u64 = 4 << 20;

/// What the process takes besides the session and the weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedProgram {
    /// Everything, the save buffer included.
    pub all: ResidentBytes,
    pub save_buffer: u64,
}

/// The fastest plan within the configuration's limit, and what the process takes besides the session and the weights.
/// `program` is what [`program_now`] measured.
pub(crate) fn planned_step(
    model: &Arc<Model>,
    frozen: &[&AdapterSpec],
    spec: &AdapterSpec,
    config: &TrainConfig,
    tokens_max: usize,
    program: ResidentBytes,
) -> Result<(PlannedStep, PlannedProgram), ModelError> {
    let mut ops = OpsOptions { precision: config.precision, ..OpsOptions::default() };
    if config.threads > 0 {
        ops.threads = config.threads;
    }
    let program = ProgramBytes {
        fixed: ResidentBytes { mapped_bytes: program.mapped_bytes + CODE_BYTES, ..program },
        per_adapter_value: ADAPTER_COPIES * size_of::<f32>() as u64 + SAVE_BYTES_PER_VALUE,
        per_token_above_frozen: if config.kept_prefix { (model.config().width * size_of::<f32>()) as u64 } else { 0 },
        varies: PROGRAM_VARIES_BYTES,
    };
    let all = program.with(spec, model.config(), tokens_max);
    let save_buffer = SAVE_BYTES_PER_VALUE * spec.parameter_count(model.config()) as u64;
    let TrainConfig { boundaries, kept_values, .. } = *config;
    let kept_blocks = config.kept_blocks();
    let new = PlanRequest::new(spec, tokens_max);
    let request = PlanRequest { frozen, ops, boundaries, kept_values, kept_blocks, program, ..new };
    let within = |budget_bytes| plan_step(model, &PlanRequest { budget_bytes, ..request.clone() });
    let free = device::available_memory_bytes();
    let all_there_is = free.map(|bytes| all.total() + bytes);
    let planned = match config.memory.0 {
        // A limit is no promise that there is as much.
        Some(bytes) => within(Some(all_there_is.map_or(bytes, |most| most.min(bytes))))?,
        // Half of what is free leaves a machine that can be worked on; a run that needs more may have it all.
        None => match within(free.map(|bytes| all.total() + bytes / 2)) {
            Err(ModelError::NothingFits { .. }) => within(all_there_is)?,
            planned => planned?,
        },
    };
    Ok((planned, PlannedProgram { all, save_buffer }))
}

/// What this process has in memory besides the model's packed weights, before a session is there.
pub(crate) fn program_now(model: &Model) -> ResidentBytes {
    // What loading has touched of the mapped weights is not the program's.
    model.release_mapped();
    let in_memory = (model.weights_bytes() - model.mapped_bytes()) as u64;
    let now = ProcessMemory::read();
    match (now.anonymous_bytes, now.file_mapped_bytes) {
        (Some(anonymous), Some(mapped_bytes)) => {
            ResidentBytes { anonymous_bytes: anonymous.saturating_sub(in_memory), mapped_bytes }
        }
        _ => PROGRAM_BYTES,
    }
}
