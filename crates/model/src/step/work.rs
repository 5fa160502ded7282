//! What a step may leave out because no result needs it.

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
