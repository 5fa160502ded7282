//! What a step may leave out because no result needs it.

/// Switches for work that no result needs. On by default; tests switch each off to see the same results from more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NecessaryWork {
    pub select_rows: SelectRows,
    /// Backward ends inside the first adapted block; blocks before it keep nothing and are never run again.
    pub stop_at_first_adapted_block: bool,
    /// Inside the first adapted block backward computes only the gradients that an adapter is behind.
    pub only_gradients_that_adapters_need: bool,
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

impl NecessaryWork {
    /// All work that a step would do which knows nothing of what its results need.
    pub const ALL_WORK: Self = Self {
        select_rows: SelectRows::Never,
        stop_at_first_adapted_block: false,
        only_gradients_that_adapters_need: false,
        recompute_only_what_backward_reads: false,
    };
}

impl Default for NecessaryWork {
    fn default() -> Self {
        Self {
            select_rows: SelectRows::InLastBlock,
            stop_at_first_adapted_block: true,
            only_gradients_that_adapters_need: true,
            recompute_only_what_backward_reads: true,
        }
    }
}
