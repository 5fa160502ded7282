//! Where an adapter's factors lie in one flat tensor. Parameters, gradients and both moments have the same layout,
//! so that the optimizer and the saved state treat each as one piece.

use kernels::Tensor;

use crate::adapter::AdapterSpec;
use crate::config::ModelConfig;
use crate::projection::Projection;

/// The factors of one adapted projection: A [rank, k_in] and B [n_out, rank].
#[derive(Clone, Copy)]
pub(crate) struct Lora {
    pub(crate) a: Tensor,
    pub(crate) b: Tensor,
}

/// The adapted projections of one block.
#[derive(Clone, Copy, Default)]
pub(crate) struct BlockLora([Option<Lora>; 7]);

impl BlockLora {
    pub(crate) fn of(&self, projection: Projection) -> Option<Lora> {
        self.0[projection.index()]
    }
}

/// The factors of every block of a model, laid out in `flat` [1, parameters] matrix by matrix, A before B.
pub(crate) fn lay_out(flat: Tensor, spec: &AdapterSpec, config: &ModelConfig) -> Vec<BlockLora> {
    let mut blocks = vec![BlockLora::default(); config.blocks.len()];
    let mut next = 0;
    let mut take = |rows: usize, columns: usize| {
        let range = next..next + rows * columns;
        next = range.end;
        flat.flat_range(range).reshaped(rows, columns)
    };
    for (block, projection) in spec.matrices() {
        let (n_out, k_in) = projection.shape(config);
        let lora = Lora { a: take(spec.rank, k_in), b: take(n_out, spec.rank) };
        blocks[block].0[projection.index()] = Some(lora);
    }
    blocks
}
