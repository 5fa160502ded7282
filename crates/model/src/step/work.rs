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
    /// Attention goes through tiles of scores that somebody sees, not through whole matrices of them.
    pub tile_attention: bool,
    /// Frozen weights have no gradients and no optimizer. Otherwise those of every matrix that backward passes are
    /// computed and stepped at a learning rate of zero, one matrix at a time.
    pub train_adapters_only: bool,
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

/// One switch of [`NecessaryWork`].
#[derive(Clone, Copy, Debug)]
pub struct Saving {
    /// As options name it.
    pub name: &'static str,
    /// As plans say it.
    pub item: &'static str,
    off: fn(NecessaryWork) -> NecessaryWork,
}

impl Saving {
    /// `work` without this saving.
    pub fn switched_off(&self, work: NecessaryWork) -> NecessaryWork {
        (self.off)(work)
    }
}

/// Every switch. The one list of them.
pub const SAVINGS: [Saving; 7] = [
    Saving {
        name: "logits",
        item: "logits only where a token is learned",
        off: |work| NecessaryWork { select_rows: SelectRows::Never, ..work },
    },
    Saving {
        name: "last-block",
        item: "only learned rows through the last block",
        off: |work| match work.select_rows {
            SelectRows::Never => work,
            _ => NecessaryWork { select_rows: SelectRows::BeforeHead, ..work },
        },
    },
    Saving {
        name: "stop",
        item: "backward stops at the first adapted block",
        off: |work| NecessaryWork { stop_at_first_adapted_block: false, ..work },
    },
    Saving {
        name: "gradients",
        item: "only gradients that an adapter is behind",
        off: |work| NecessaryWork { only_gradients_that_adapters_need: false, ..work },
    },
    Saving {
        name: "recompute",
        item: "only what backward reads runs again",
        off: |work| NecessaryWork { recompute_only_what_backward_reads: false, ..work },
    },
    Saving {
        name: "tiles",
        item: "no matrix of all tokens by all tokens in attention",
        off: |work| NecessaryWork { tile_attention: false, ..work },
    },
    Saving {
        name: "adapters-only",
        item: "gradients and optimizer for adapters only",
        off: |work| NecessaryWork { train_adapters_only: false, ..work },
    },
];

impl NecessaryWork {
    /// All work that a step would do which knows nothing of what its results need.
    pub const ALL_WORK: Self = Self {
        select_rows: SelectRows::Never,
        stop_at_first_adapted_block: false,
        only_gradients_that_adapters_need: false,
        recompute_only_what_backward_reads: false,
        tile_attention: false,
        train_adapters_only: false,
    };
}

impl Default for NecessaryWork {
    fn default() -> Self {
        Self {
            select_rows: SelectRows::InLastBlock,
            stop_at_first_adapted_block: true,
            only_gradients_that_adapters_need: true,
            recompute_only_what_backward_reads: true,
            tile_attention: true,
            train_adapters_only: true,
        }
    }
}
