//! Where an adapter's factors lie in one flat tensor. Parameters, gradients and both moments have the same layout,
//! so that the optimizer and the saved state treat each as one piece. The frozen adapters of a stack lie in another
//! flat tensor, as one adapter whose rank is the sum of theirs.

use kernels::Tensor;

use crate::adapter::{AdapterSpec, AdapterWeights};
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

/// The frozen adapters under a trainable one, as one: on each projection their factors stand side by side, so that
/// any number of them is two thin products. Each one's scale is part of its B.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrozenStack {
    /// Sum of the ranks on each projection of each block; empty without adapters.
    ranks: Vec<[usize; 7]>,
}

impl FrozenStack {
    pub(crate) fn new<'a>(specs: impl IntoIterator<Item = &'a AdapterSpec>, config: &ModelConfig) -> Self {
        let mut ranks = Vec::new();
        for spec in specs {
            ranks.resize(config.blocks.len(), [0; 7]);
            for (block, projection) in spec.matrices() {
                ranks[block][projection.index()] += spec.rank;
            }
        }
        Self { ranks }
    }

    /// The largest rank of a projection; 0 without adapters.
    pub(crate) fn rank_max(&self) -> usize {
        self.ranks.iter().flatten().copied().max().unwrap_or(0)
    }

    /// Values of all factors.
    pub(crate) fn parameter_count(&self, config: &ModelConfig) -> usize {
        let sides = |projection: Projection| projection.shape(config).0 + projection.shape(config).1;
        self.places().map(|(_, projection, rank)| rank * sides(projection)).sum()
    }

    /// (block, projection, rank) of every projection that has an adapter, in the order of the flat layout.
    fn places(&self) -> impl Iterator<Item = (usize, Projection, usize)> + '_ {
        let of_block = |(block, ranks): (usize, &[usize; 7])| {
            let ranks = *ranks;
            Projection::ALL.into_iter().map(move |projection| (block, projection, ranks[projection.index()]))
        };
        self.ranks.iter().enumerate().flat_map(of_block).filter(|(_, _, rank)| *rank > 0)
    }

    /// The factors of every block in `flat`, which [`Self::values`] fills; projections without adapter have none.
    pub(crate) fn lay_out(&self, flat: Option<Tensor>, config: &ModelConfig) -> Vec<BlockLora> {
        let mut blocks = vec![BlockLora::default(); config.blocks.len()];
        let Some(flat) = flat else { return blocks };
        let mut next = 0;
        let mut take = |rows: usize, columns: usize| {
            let range = next..next + rows * columns;
            next = range.end;
            flat.flat_range(range).reshaped(rows, columns)
        };
        for (block, projection, rank) in self.places() {
            let (n_out, k_in) = projection.shape(config);
            blocks[block].0[projection.index()] = Some(Lora { a: take(rank, k_in), b: take(n_out, rank) });
        }
        blocks
    }

    /// The factors of `adapters`, bottom first, whose specs this stack was made from.
    pub(crate) fn values<'a>(&self, adapters: &[&'a AdapterWeights], config: &ModelConfig) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.parameter_count(config));
        for (block, projection, _) in self.places() {
            let of_place = |adapter: &'a AdapterWeights| {
                let matrix = adapter.matrices.iter().find(|m| (m.block, m.projection) == (block, projection));
                matrix.map(|matrix| (matrix, adapter.spec.rank, adapter.spec.scale()))
            };
            let parts: Vec<_> = adapters.iter().copied().filter_map(of_place).collect();
            values.extend(parts.iter().flat_map(|(matrix, ..)| &matrix.a));
            for row in 0..projection.shape(config).0 {
                for (matrix, rank, scale) in &parts {
                    values.extend(matrix.b[row * rank..][..*rank].iter().map(|value| scale * value));
                }
            }
        }
        values
    }
}
