//! A model in memory: its configuration and its frozen weights, checked against each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use formats::{LoadedModel, LoadedTensor};
use kernels::{FloatVector, PackedMatrix};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::plan::ResidentBytes;
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
    /// Before attention, `[D]`.
    pub(crate) input_norm: FloatVector,
    /// Before the feed-forward, `[D]`.
    pub(crate) middle_norm: FloatVector,
    /// Per query and key head, `[head_dim]`.
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) output_norms: Option<OutputNorms>,
}

/// Norms of queries and keys.
pub(crate) struct HeadNorms {
    pub(crate) query: FloatVector,
    pub(crate) key: FloatVector,
}

/// Norms of what a block adds to the stream, `[D]` each.
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
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.linears.iter().map(|linear| &*linear.weight)
    }
}

impl Model {
    /// The model that `formats` has read from a file.
    pub fn from_loaded(loaded: LoadedModel) -> Result<Self, ModelError> {
        Self::from_tensors(&loaded.config, loaded.tensors, loaded.content_hash)
    }

    /// A model from a `config.json` and tensors by their Hugging Face names. Missing and left-over tensors and shapes
    /// other than the configuration's are errors: a model that is silently not the one in the file is worse than none.
    pub fn from_tensors(
        config: &serde_json::Value,
        tensors: BTreeMap<String, LoadedTensor>,
        content_hash: String,
    ) -> Result<Self, ModelError> {
        Self::from_parts(ModelConfig::from_json(config)?, tensors, content_hash)
    }

    pub(crate) fn from_parts(
        config: ModelConfig,
        tensors: BTreeMap<String, LoadedTensor>,
        content_hash: String,
    ) -> Result<Self, ModelError> {
        let mut source = Source::new(tensors, config.norm_weight_offset);
        let (vocabulary, width) = (config.vocabulary, config.width);

        let embedding = source.matrix("model.embed_tokens.weight", vocabulary, width)?;
        let tied = config.tied_head.unwrap_or(!source.has("lm_head.weight"));
        let head = match tied {
            true => Arc::clone(&embedding),
            false => source.matrix("lm_head.weight", vocabulary, width)?,
        };
        let blocks = (0..config.blocks.len()).map(|block| source.block(block, &config)).collect::<Result<_, _>>()?;
        let final_norm = source.norm("model.norm.weight", width)?;
        let (parameter_count, weights_bytes) = (source.parameter_count, source.bytes);
        source.finish(tied, config.family)?;
        Ok(Self { config, content_hash, embedding, head, final_norm, blocks, parameter_count, weights_bytes })
    }

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
    /// How much of [`Self::weights_bytes`] lies in mapped files. The system can drop it and read it again. Matrices
    /// that are only planned count as mapped.
    pub fn mapped_bytes(&self) -> usize {
        let is_mapped = |matrix: &&PackedMatrix| matrix.is_mapped() || matrix.bytes().is_empty();
        self.matrices().filter(is_mapped).map(matrix_bytes).sum()
    }
    /// All weights, in memory and mapped.
    pub fn resident_bytes(&self) -> ResidentBytes {
        let mapped_bytes = self.mapped_bytes() as u64;
        ResidentBytes { anonymous_bytes: self.weights_bytes as u64 - mapped_bytes, mapped_bytes }
    }
    /// Takes all mapped weights out of this process' memory; what is read again comes back.
    pub fn release_mapped(&self) {
        self.matrices().for_each(PackedMatrix::release);
    }
    /// The most mapped bytes that are in memory at a time when weights are streamed: a block, or embedding, or head.
    pub(crate) fn streamed_bytes_max(&self) -> usize {
        let of_block = |block: &BlockWeights| block.matrices().map(matrix_bytes).sum::<usize>();
        let blocks = self.blocks.iter().map(of_block);
        blocks.chain([matrix_bytes(&self.embedding), matrix_bytes(&self.head)]).max().unwrap_or(0)
    }
    /// Every packed matrix once.
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let own_head = (!Arc::ptr_eq(&self.embedding, &self.head)).then_some(&*self.head);
        let blocks = self.blocks.iter().flat_map(BlockWeights::matrices);
        std::iter::once(&*self.embedding).chain(own_head).chain(blocks)
    }
}

/// Bytes of a packed matrix, also of one that is only planned.
fn matrix_bytes(matrix: &PackedMatrix) -> usize {
    matrix.header().byte_len().unwrap_or(0)
}

/// The tensors of a file that nobody has taken yet.
struct Source {
    tensors: BTreeMap<String, LoadedTensor>,
    norm_weight_offset: f32,
    parameter_count: usize,
    bytes: usize,
}

impl Source {
    fn new(tensors: BTreeMap<String, LoadedTensor>, norm_weight_offset: f32) -> Self {
        Self { tensors, norm_weight_offset, parameter_count: 0, bytes: 0 }
    }
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn matrix(&mut self, name: &str, n_out: usize, k_in: usize) -> Result<Arc<PackedMatrix>, ModelError> {
        let expected = vec![n_out, k_in];
        let matrix = match self.tensors.remove(name) {
            None => return Err(ModelError::TensorMissing { name: name.into(), expected }),
            Some(LoadedTensor::Float(vector)) => {
                return Err(ModelError::TensorShape { name: name.into(), found: vec![vector.len()], expected });
            }
            Some(LoadedTensor::Packed(matrix)) => matrix,
        };
        if (matrix.n_out(), matrix.k_in()) != (n_out, k_in) {
            let found = vec![matrix.n_out(), matrix.k_in()];
            return Err(ModelError::TensorShape { name: name.into(), found, expected });
        }
        self.parameter_count += n_out * k_in;
        self.bytes += matrix_bytes(&matrix);
        Ok(matrix)
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<FloatVector, ModelError> {
        let expected = vec![len];
        let vector = match self.tensors.remove(name) {
            None => return Err(ModelError::TensorMissing { name: name.into(), expected }),
            Some(LoadedTensor::Packed(matrix)) => {
                let found = vec![matrix.n_out(), matrix.k_in()];
                return Err(ModelError::TensorShape { name: name.into(), found, expected });
            }
            Some(LoadedTensor::Float(vector)) => vector,
        };
        if vector.len() != len {
            return Err(ModelError::TensorShape { name: name.into(), found: vec![vector.len()], expected });
        }
        if let Some(index) = vector.as_slice().iter().position(|value| !value.is_finite()) {
            return Err(ModelError::TensorNotFinite { name: name.into(), index });
        }
        self.parameter_count += len;
        self.bytes += len * size_of::<f32>();
        Ok(vector)
    }

    /// A norm's weight with the family's offset already added.
    fn norm(&mut self, name: &str, len: usize) -> Result<FloatVector, ModelError> {
        let vector = self.vector(name, len)?;
        if self.norm_weight_offset == 0.0 {
            return Ok(vector);
        }
        let shifted: Vec<f32> = vector.as_slice().iter().map(|weight| weight + self.norm_weight_offset).collect();
        Ok(FloatVector::from_slice(&shifted))
    }

    fn block(&mut self, block: usize, config: &ModelConfig) -> Result<BlockWeights, ModelError> {
        let mut linears = Vec::with_capacity(Projection::ALL.len());
        for projection in Projection::ALL {
            let (n_out, k_in) = projection.shape(config);
            let path = projection.module_path(block);
            let weight = self.matrix(&format!("{path}.weight"), n_out, k_in)?;
            let bias = match projection.has_bias(config) {
                true => Some(self.vector(&format!("{path}.bias"), n_out)?),
                false => None,
            };
            linears.push(Linear { weight, bias });
        }
        let linears = linears.try_into().unwrap_or_else(|_| unreachable!("seven projections make seven linears"));

        let name = |part: &str| format!("model.layers.{block}.{part}.weight");
        let width = config.width;
        let head_norms = match config.query_key_norm {
            true => Some(HeadNorms {
                query: self.norm(&name("self_attn.q_norm"), config.head_dim)?,
                key: self.norm(&name("self_attn.k_norm"), config.head_dim)?,
            }),
            false => None,
        };
        let input_norm = self.norm(&name("input_layernorm"), width)?;
        // Files of families with output norms use the plain name for the norm behind attention.
        let (middle_norm, output_norms) = match config.output_norms {
            true => (
                self.norm(&name("pre_feedforward_layernorm"), width)?,
                Some(OutputNorms {
                    attention: self.norm(&name("post_attention_layernorm"), width)?,
                    feed_forward: self.norm(&name("post_feedforward_layernorm"), width)?,
                }),
            ),
            false => (self.norm(&name("post_attention_layernorm"), width)?, None),
        };
        Ok(BlockWeights { linears, input_norm, middle_norm, head_norms, output_norms })
    }

    /// Refuses tensors that nobody took, except those known to say nothing new.
    fn finish(self, tied: bool, family: &'static str) -> Result<(), ModelError> {
        let redundant = |name: &str| {
            // Old files store the rotary frequencies; files of tied models may repeat the embedding as head.
            name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
        };
        match self.tensors.into_keys().find(|name| !redundant(name)) {
            Some(name) => Err(ModelError::TensorUnexpected { name, family }),
            None => Ok(()),
        }
    }
}
