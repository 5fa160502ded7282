//! A low-rank adapter: which matrices it adds to, with which factor, and its values.

use std::ops::Range;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::projection::Projection;
use crate::random::Random;

/// What an adapter adds to: `y += scale · B·A·x` for each target in each adapted block.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSpec {
    /// Rows of A and columns of B.
    pub rank: usize,
    pub lora_alpha: f32,
    /// Probability with which an element of the adapter's input is dropped in training.
    pub dropout: f32,
    pub targets: Vec<Projection>,
    /// The adapted blocks.
    pub blocks: Range<usize>,
    /// Scale by alpha / √rank (rank-stabilized) rather than alpha / rank.
    pub use_rslora: bool,
}

impl AdapterSpec {
    /// The factor on the adapter's product.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        if self.use_rslora { self.lora_alpha / rank.sqrt() } else { self.lora_alpha / rank }
    }
    /// Number of trained values.
    pub fn parameter_count(&self, config: &ModelConfig) -> usize {
        let of_block: usize = self.sorted_targets().map(|target| self.matrix_len(target, config)).sum();
        of_block * self.blocks.len()
    }
    /// Values of A and B of one target.
    fn matrix_len(&self, target: Projection, config: &ModelConfig) -> usize {
        let (n_out, k_in) = target.shape(config);
        self.rank * (n_out + k_in)
    }
    /// The targets in the order of [`Projection::ALL`], each once.
    pub(crate) fn sorted_targets(&self) -> impl Iterator<Item = Projection> + '_ {
        Projection::ALL.into_iter().filter(|projection| self.targets.contains(projection))
    }
    /// (block, target) of every adapted matrix, block by block: the order of all flat layouts.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = (usize, Projection)> + '_ {
        self.blocks.clone().flat_map(|block| self.sorted_targets().map(move |target| (block, target)))
    }

    /// Refuses what would train nothing or nothing sensible.
    pub fn validate(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let invalid =
            |field, found: String, expected: String| Err(ModelError::AdapterInvalid { field, found, expected });
        if self.targets.is_empty() {
            return Err(ModelError::AdapterTargetsNothing { reason: "it names no projection".into() });
        }
        if self.blocks.is_empty() {
            return Err(ModelError::AdapterTargetsNothing { reason: format!("it names no block ({:?})", self.blocks) });
        }
        if self.blocks.end > config.blocks.len() {
            let expected = format!("a range within the model's {} blocks", config.blocks.len());
            return invalid("blocks", format!("{:?}", self.blocks), expected);
        }
        let rank_max = self.sorted_targets().map(|target| target.shape(config)).map(|(n, k)| n.min(k)).min();
        let rank_max = rank_max.unwrap_or(1);
        if !(1..=rank_max).contains(&self.rank) {
            return invalid("rank", self.rank.to_string(), format!("1 to {rank_max}, the smallest side of a target"));
        }
        if !(self.lora_alpha.is_finite() && self.lora_alpha > 0.0) {
            return invalid("lora_alpha", self.lora_alpha.to_string(), "a positive number".into());
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return invalid("dropout", self.dropout.to_string(), "at least 0 and below 1".into());
        }
        Ok(())
    }
}

/// The two factors of one adapted matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterMatrix {
    pub block: usize,
    pub projection: Projection,
    /// [rank, k_in].
    pub a: Vec<f32>,
    /// [n_out, rank].
    pub b: Vec<f32>,
}

/// An adapter with its values, one [`AdapterMatrix`] for each target of each adapted block, block by block.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterWeights {
    pub spec: AdapterSpec,
    pub matrices: Vec<AdapterMatrix>,
}

impl AdapterWeights {
    /// A fresh adapter that changes nothing yet, as PEFT makes it: B zero, A uniform within ±1/√k_in (Kaiming with
    /// a = √5). The same seed gives the same bytes.
    pub fn initialized(config: &ModelConfig, spec: AdapterSpec, seed: u64) -> Result<Self, ModelError> {
        spec.validate(config)?;
        let mut random = Random::new(seed);
        let matrices = spec.matrices().map(|(block, projection)| {
            let (n_out, k_in) = projection.shape(config);
            let bound = 1.0 / (k_in as f64).sqrt();
            let a = (0..spec.rank * k_in).map(|_| random.symmetric(bound)).collect();
            AdapterMatrix { block, projection, a, b: vec![0.0; n_out * spec.rank] }
        });
        let matrices = matrices.collect();
        Ok(Self { spec, matrices })
    }

    /// The values in the order of all flat layouts: matrix by matrix, A before B.
    pub fn flat(&self) -> Vec<f32> {
        self.matrices.iter().flat_map(|matrix| matrix.a.iter().chain(&matrix.b)).copied().collect()
    }

    /// The adapter whose [`Self::flat`] is `values`.
    pub fn from_flat(config: &ModelConfig, spec: &AdapterSpec, values: &[f32]) -> Result<Self, ModelError> {
        spec.validate(config)?;
        let expected = spec.parameter_count(config);
        if values.len() != expected {
            return Err(ModelError::AdapterLength { count: values.len(), expected });
        }
        let mut rest = values;
        let matrices = spec.matrices().map(|(block, projection)| {
            let (n_out, k_in) = projection.shape(config);
            let (a, after_a) = rest.split_at(spec.rank * k_in);
            let (b, after_b) = after_a.split_at(n_out * spec.rank);
            rest = after_b;
            AdapterMatrix { block, projection, a: a.to_vec(), b: b.to_vec() }
        });
        let matrices = matrices.collect();
        Ok(Self { spec: spec.clone(), matrices })
    }

    /// Refuses an adapter whose matrices are not those that its spec names, or whose values are not numbers.
    pub fn validate(&self, config: &ModelConfig) -> Result<(), ModelError> {
        self.spec.validate(config)?;
        let expected: Vec<_> = self.spec.matrices().collect();
        let found: Vec<_> = self.matrices.iter().map(|matrix| (matrix.block, matrix.projection)).collect();
        if found != expected {
            return Err(ModelError::AdapterInvalid {
                field: "matrices",
                found: format!("{} matrices", found.len()),
                expected: format!("the {} that its targets and blocks name, block by block", expected.len()),
            });
        }
        for matrix in &self.matrices {
            let (n_out, k_in) = matrix.projection.shape(config);
            let path = matrix.projection.module_path(matrix.block);
            let sides = [
                ("lora_A", &matrix.a, self.spec.rank * k_in, [self.spec.rank, k_in]),
                ("lora_B", &matrix.b, n_out * self.spec.rank, [n_out, self.spec.rank]),
            ];
            for (side, values, len, shape) in sides {
                let name = format!("{path}.{side}");
                if values.len() != len {
                    return Err(ModelError::TensorShape { name, found: vec![values.len()], expected: shape.to_vec() });
                }
                if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                    return Err(ModelError::TensorNotFinite { name, index });
                }
            }
        }
        Ok(())
    }
}
