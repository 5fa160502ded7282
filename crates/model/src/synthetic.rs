//! Models of any shape with random weights and no file: for benchmarks and for tests of memory and work.

use std::path::Path;

use formats::LoadedTensor;
use kernels::{FloatVector, PackedHeader, PackedMatrix, ScaleType};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::projection::Projection;
use crate::weights::Model;

/// How the random weights are packed. The default is the usual 4-bit form: groups of 64, 16-bit scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticWeights {
    pub bits: u32,
    pub group_size: usize,
    pub scale_type: ScaleType,
    pub seed: u64,
}

impl Default for SyntheticWeights {
    fn default() -> Self {
        Self { bits: 4, group_size: 64, scale_type: ScaleType::Float16, seed: 1 }
    }
}

/// Where synthetic weights lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticPlace<'a> {
    /// Nowhere: the model can be planned for but not run.
    Planned,
    Memory,
    /// In a packed file without a name in this folder, from which they are mapped, as those of a real model. It is gone
    /// when the model is, however the program ends.
    File(&'a Path),
}

/// A model of `config` with random weights; the same arguments give the same weights.
pub fn synthetic_model(
    config: &ModelConfig,
    weights: &SyntheticWeights,
    place: SyntheticPlace,
) -> Result<Model, ModelError> {
    let names = tensor_shapes(config);
    let invalid = |error: kernels::PackedError| ModelError::OptionInvalid {
        option: "synthetic weights",
        found: error.to_string(),
        expected: "bits and groups that divide the model's shape",
    };
    let tensors = names.into_iter().zip(weights.seed..).map(|((name, shape), seed)| {
        let tensor = match shape {
            Shape::Matrix { n_out, k_in } => {
                let SyntheticWeights { bits, group_size, scale_type, .. } = *weights;
                let header = PackedHeader { n_out, k_in, bits, group_size, scale_type };
                let matrix = match place {
                    SyntheticPlace::Planned => PackedMatrix::planned(header),
                    _ => PackedMatrix::random(header, (seed << 8) + 1),
                };
                LoadedTensor::Packed(matrix.map_err(invalid)?.into())
            }
            Shape::Vector { len, value } => LoadedTensor::Float(FloatVector::from_slice(&vec![value; len])),
        };
        Ok((name, tensor))
    });
    let tensors = match place {
        SyntheticPlace::File(folder) => {
            let mut failed = None;
            let good = tensors.map_while(|tensor| tensor.map_err(|error| failed = Some(error)).ok());
            let mapped = formats::map_through_file(folder, good);
            if let Some(error) = failed {
                return Err(error);
            }
            mapped.map_err(|error| ModelError::SyntheticFile { problem: error.to_string() })?
        }
        _ => tensors.collect::<Result<_, ModelError>>()?,
    };
    Model::from_parts(config.clone(), tensors, format!("synthetic {}", weights.seed))
}

enum Shape {
    Matrix { n_out: usize, k_in: usize },
    Vector { len: usize, value: f32 },
}

/// Every tensor of a model of `config`. Norms multiply by one, biases add nothing.
fn tensor_shapes(config: &ModelConfig) -> Vec<(String, Shape)> {
    let norm = |name: String, len| (name, Shape::Vector { len, value: 1.0 - config.norm_weight_offset });
    let vocabulary = || Shape::Matrix { n_out: config.vocabulary, k_in: config.width };
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vocabulary())];
    if config.tied_head == Some(false) {
        tensors.push(("lm_head.weight".to_owned(), vocabulary()));
    }
    for block in 0..config.blocks.len() {
        for projection in Projection::ALL {
            let (n_out, k_in) = projection.shape(config);
            let path = projection.module_path(block);
            tensors.push((format!("{path}.weight"), Shape::Matrix { n_out, k_in }));
            if projection.has_bias(config) {
                tensors.push((format!("{path}.bias"), Shape::Vector { len: n_out, value: 0.0 }));
            }
        }
        let name = |part: &str| format!("model.layers.{block}.{part}.weight");
        tensors.extend(["input_layernorm", "post_attention_layernorm"].map(|part| norm(name(part), config.width)));
        if config.query_key_norm {
            tensors.extend(["self_attn.q_norm", "self_attn.k_norm"].map(|part| norm(name(part), config.head_dim)));
        }
        if config.output_norms {
            let parts = ["pre_feedforward_layernorm", "post_feedforward_layernorm"];
            tensors.extend(parts.map(|part| norm(name(part), config.width)));
        }
    }
    tensors.push(norm("model.norm.weight".to_owned(), config.width));
    tensors
}
