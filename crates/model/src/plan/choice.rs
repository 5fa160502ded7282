//! What of a step stays in memory from the forward to the backward, and in which form.

use crate::error::ModelError;

/// How a session trades memory for time. Results depend on `kept_values`, on `boundaries`, and, where those are bfloat16,
/// on which blocks run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryChoice {
    /// The inputs of so many blocks share one kept input, from which those between are made again; 1 keeps each.
    pub checkpoint_blocks: usize,
    pub boundaries: BoundaryType,
    /// The last so many blocks keep all that their backward reads and are not run again. At least 1: backward finds the
    /// last block as its forward left it.
    pub blocks_kept: usize,
    /// So many blocks below those keep attention output and middle residual: attention and the output projection are
    /// not run again.
    pub attentions_kept: usize,
    pub kept_values: KeptType,
    pub weights: WeightsPlace,
}

/// How the inputs of blocks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryType {
    Float32,
    /// Half the memory. The forward is the same to the bit; what is run again starts from rounded inputs, which moves
    /// gradients by about a hundredth of their norm.
    Bfloat16,
}

/// How backward finds the feed-forward's gate and up, the largest of a block's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptType {
    Float32,
    /// As 16-bit integers with a scale per row and 64 columns: of blocks kept whole, half the memory of these values. The
    /// forward is the same to the bit. Backward reads them rounded in every block, so that nothing depends on which
    /// blocks are kept: gradients move by about 2e-5 of their norm.
    Int16,
}

/// How much of the blocks stays in memory, which with bfloat16 boundaries decides the bits of gradients: the fields of
/// [`MemoryChoice`] of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBlocks {
    pub checkpoint_blocks: usize,
    pub blocks_kept: usize,
}

impl KeptBlocks {
    /// The choice that keeps so much, all else as by default.
    pub fn choice(self) -> MemoryChoice {
        let Self { checkpoint_blocks, blocks_kept } = self;
        MemoryChoice { checkpoint_blocks, blocks_kept, ..MemoryChoice::default() }
    }
}

/// Where frozen weights are while a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsPlace {
    /// All in memory after the first step.
    Resident,
    /// One block at a time: the next is read ahead from the mapped file, the last is released.
    Streamed,
}

impl Default for MemoryChoice {
    /// Every block keeps its input and runs again.
    fn default() -> Self {
        Self {
            checkpoint_blocks: 1,
            boundaries: BoundaryType::Float32,
            blocks_kept: 1,
            attentions_kept: 0,
            kept_values: KeptType::Float32,
            weights: WeightsPlace::Resident,
        }
    }
}

impl MemoryChoice {
    /// Every block keeps all that its backward reads; none runs again.
    pub fn keep_everything() -> Self {
        Self { blocks_kept: usize::MAX, ..Self::default() }
    }

    /// The same for a backward through `blocks` blocks, or why that cannot be.
    pub(crate) fn resolved(self, blocks: usize) -> Result<Self, ModelError> {
        let invalid = |option, found: usize, expected| {
            Err(ModelError::OptionInvalid { option, found: found.to_string(), expected })
        };
        if self.checkpoint_blocks == 0 {
            return invalid("checkpoint_blocks", 0, "at least 1");
        }
        if self.blocks_kept == 0 {
            return invalid("blocks_kept", 0, "at least 1: the last block is never run again");
        }
        let blocks_kept = self.blocks_kept.min(blocks);
        let attentions_kept = self.attentions_kept.min(blocks - blocks_kept);
        let checkpoint_blocks = self.checkpoint_blocks.min(blocks);
        if checkpoint_blocks > 1 && (blocks_kept > 1 || attentions_kept > 0) {
            let expected =
                "1 where blocks or attentions are kept: they keep more than inputs, so keep all inputs first";
            return invalid("checkpoint_blocks", checkpoint_blocks, expected);
        }
        if self.boundaries == BoundaryType::Bfloat16 && attentions_kept > 0 {
            let expected = "0 with bfloat16 boundaries: scores from rounded inputs would not fit the kept sums";
            return invalid("attentions_kept", attentions_kept, expected);
        }
        Ok(Self { checkpoint_blocks, blocks_kept, attentions_kept, ..self })
    }

    /// Whether backward runs the block below which `above` blocks are run first again.
    pub(crate) fn runs_again(&self, above: usize) -> bool {
        above >= self.blocks_kept
    }
    pub(crate) fn keeps_attention(&self, above: usize) -> bool {
        above >= self.blocks_kept && above < self.blocks_kept + self.attentions_kept
    }
}

impl std::fmt::Display for MemoryChoice {
    /// `inputs of blocks kept in float32, 4 blocks kept whole, weights resident`.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.boundaries {
            BoundaryType::Float32 => "float32",
            BoundaryType::Bfloat16 => "bfloat16",
        };
        match self.checkpoint_blocks {
            1 => write!(out, "keeps each block's input ({kind})")?,
            every => write!(out, "keeps the input of every {every}th block ({kind})")?,
        }
        if self.blocks_kept > 1 {
            write!(out, ", all values of the last {} blocks", self.blocks_kept)?;
        }
        if self.attentions_kept > 0 {
            write!(out, ", attention of {} more", self.attentions_kept)?;
        }
        if self.kept_values == KeptType::Int16 {
            write!(out, ", gate and up as 16-bit integers")?;
        }
        match self.weights {
            WeightsPlace::Resident => write!(out, "; weights stay in memory"),
            WeightsPlace::Streamed => write!(out, "; weights are streamed block by block"),
        }
    }
}
