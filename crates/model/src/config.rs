//! What a model is: sizes and choices, resolved from its `config.json` by the family it belongs to.

use kernels::Activation;
use serde_json::Value;

use crate::config_file::ConfigFile;
use crate::error::ModelError;
use crate::families::{FAMILIES, Family};
use crate::rope::RopeConfig;

/// A model's shape and the choices in which families differ. Letters in shapes elsewhere: D width, H heads,
/// KV key/value heads, d head_dim, F feed_forward, V vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub family: &'static str,
    pub vocabulary: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    /// The most tokens that positions are defined for.
    pub context_tokens_max: usize,
    pub norm_epsilon: f32,
    /// Added to every norm weight of the file: 1 where the file stores the difference from one.
    pub norm_weight_offset: f32,
    pub activation: Activation,
    /// Factor on embedding rows.
    pub embedding_scale: f32,
    /// Factor on attention scores.
    pub attention_scale: f32,
    pub query_key_value_bias: bool,
    pub output_bias: bool,
    pub feed_forward_bias: bool,
    /// Queries and keys are normed per head before rotation.
    pub query_key_norm: bool,
    /// Attention and feed-forward outputs are normed before they are added to the stream.
    pub output_norms: bool,
    /// Whether the head is the embedding; `None` leaves it to whether the file has a head.
    pub tied_head: Option<bool>,
    pub ropes: Vec<RopeConfig>,
    /// One entry a block.
    pub blocks: Vec<BlockConfig>,
}

/// In what the attention of one block differs from another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    /// Attention sees only the last `window` positions, the own one included.
    pub window: Option<usize>,
    /// Index into [`ModelConfig::ropes`]; `None` for a block without position.
    pub rope: Option<usize>,
}

impl ModelConfig {
    /// The configuration in a `config.json`: what all families share, then the family's differences.
    pub fn from_json(config: &Value) -> Result<Self, ModelError> {
        let file = ConfigFile::new(config)?;
        let (family, file) = find_family(file)?;
        let mut config = common(&file, family)?;
        (family.differences)(&file, &mut config)?;
        config.validated(&file)
    }

    /// Values of one position in all query heads.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }
    /// Values of one position in all key (or value) heads.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn validated(self, file: &ConfigFile) -> Result<Self, ModelError> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(file.invalid("num_key_value_heads", format!("a divisor of {} heads", self.heads)));
        }
        Ok(self)
    }
}

/// The largest head whose rows attention holds in its tiles.
const HEAD_DIM_MAX: usize = 256;
/// Far more than any model has; a larger number is a corrupt file and would take memory before tensors are looked at.
const BLOCKS_MAX: usize = 4096;

/// The family of `file` and the object that describes its text model.
fn find_family<'a>(file: ConfigFile<'a>) -> Result<(&'static Family, ConfigFile<'a>), ModelError> {
    // Files of models that also see images nest the text model's configuration.
    let file = file.value("text_config").map(|text| ConfigFile::nested(text, "text_config.")).unwrap_or(Ok(file))?;
    let model_type = file.optional_text("model_type")?;
    let architecture = file.value("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    let known = |family: &&&Family| {
        model_type.map_or_else(
            || architecture.is_some_and(|name| family.architectures.contains(&name)),
            |name| family.model_types.contains(&name),
        )
    };
    match FAMILIES.iter().find(known) {
        Some(family) => Ok((family, file)),
        None => {
            let found = model_type.or(architecture).unwrap_or("none, neither model_type nor architectures is there");
            Err(ModelError::UnknownArchitecture { found: found.into() })
        }
    }
}

/// What every family states in the same words; the choices are Llama's.
fn common(file: &ConfigFile, family: &'static Family) -> Result<ModelConfig, ModelError> {
    let width = file.size("hidden_size")?;
    let heads = file.size("num_attention_heads")?;
    let blocks = file.size("num_hidden_layers")?;
    if blocks > BLOCKS_MAX {
        return Err(file.invalid("num_hidden_layers", format!("at most {BLOCKS_MAX}")));
    }
    let head_dim = match file.optional_size("head_dim")?.or(family.head_dim_default) {
        Some(head_dim) => head_dim,
        None if width.is_multiple_of(heads) => width / heads,
        None => return Err(file.invalid("num_attention_heads", format!("a divisor of hidden_size ({width})"))),
    };
    if !(head_dim.is_multiple_of(2) && head_dim <= HEAD_DIM_MAX) {
        let expected = format!("an even number up to {HEAD_DIM_MAX}");
        return Err(ModelError::ConfigInvalid { key: "head_dim".into(), found: head_dim.to_string(), expected });
    }
    if file.optional_positive("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(file.invalid("partial_rotary_factor", "1: rotation of part of a head is not built"));
    }
    Ok(ModelConfig {
        family: family.name,
        vocabulary: file.size("vocab_size")?,
        width,
        heads,
        kv_heads: file.optional_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        feed_forward: file.size("intermediate_size")?,
        context_tokens_max: file.size("max_position_embeddings")?,
        norm_epsilon: file.positive("rms_norm_eps")? as f32,
        norm_weight_offset: 0.0,
        activation: activation(file)?,
        embedding_scale: 1.0,
        attention_scale: (head_dim as f64).powf(-0.5) as f32,
        query_key_value_bias: false,
        output_bias: false,
        feed_forward_bias: false,
        query_key_norm: false,
        output_norms: false,
        tied_head: file.optional_bool("tie_word_embeddings")?,
        ropes: Vec::new(),
        blocks: vec![BlockConfig { window: None, rope: Some(0) }; blocks],
    })
}

fn activation(file: &ConfigFile) -> Result<Activation, ModelError> {
    let key = if file.value("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
    match file.optional_text(key)? {
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        None => Err(ModelError::ConfigMissing { key: key.into(), expected: "silu or gelu_pytorch_tanh" }),
        Some(_) => Err(file.invalid(key, "silu or gelu_pytorch_tanh")),
    }
}
