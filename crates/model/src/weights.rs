//! A model in memory: its configuration and its frozen weights, checked against each other.

use std::sync::Arc;

use kernels::{FloatVector, PackedMatrix};

use crate::config::ModelConfig;
use crate::projection::Projection;

/// A frozen base model, shared by everything that runs it.
pub struct Model {
    config: ModelConfig,
    content_hash: String,
    pub(crate) embedding: Arc<PackedMatrix>,
    /// The embedding again when the head is tied.
    pub(crate) head: Arc<PackedMatrix>,
    pub(crate) final_norm: FloatVector,
    pub(crate) blocks: Vec<BlockWeights>,
    parameter_count: usize,
    weights_bytes: usize,
}

/// The frozen weights of one block.
pub(crate) struct BlockWeights {
    linears: [Linear; 7],
    /// Before attention, [D].
    pub(crate) input_norm: FloatVector,
    /// Before the feed-forward, [D].
    pub(crate) middle_norm: FloatVector,
    /// Per query and key head, [head_dim].
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) output_norms: Option<OutputNorms>,
}

/// Norms of queries and keys.
pub(crate) struct HeadNorms {
    pub(crate) query: FloatVector,
    pub(crate) key: FloatVector,
}

/// Norms of what a block adds to the stream, [D] each.
pub(crate) struct OutputNorms {
    pub(crate) attention: FloatVector,
    pub(crate) feed_forward: FloatVector,
}

/// One linear map: packed weight and, in some families, a bias.
pub(crate) struct Linear {
    pub(crate) weight: Arc<PackedMatrix>,
    pub(crate) bias: Option<FloatVector>,
}

impl BlockWeights {
    pub(crate) fn linear(&self, projection: Projection) -> &Linear {
        &self.linears[projection.index()]
    }
}

impl Model {
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
    /// Hash of the file's content, which adapters are bound to.
    pub fn content_hash(&self) -> &str {
        &self.content_hash
    }
    /// Number of weights of the base model; a tied head counts once.
    pub fn parameter_count(&self) -> usize {
        self.parameter_count
    }
    /// Bytes of all weights as they lie in memory.
    pub fn weights_bytes(&self) -> usize {
        self.weights_bytes
    }
}
