//! What GGUF's architectures mean in Hugging Face's terms: names of tensors, and the keys of `config.json`.
//!
//! An architecture is one entry of [`ARCHITECTURES`]. The scalar keys that all of them share are in [`translate`].

use super::container::Container;
use crate::FormatError;
use serde_json::{Map, Value, json};

/// One value of `general.architecture`.
pub(crate) struct Architecture {
    pub(crate) name: &'static str,
    /// `model_type` of the translated configuration, then others of the same architecture.
    model_types: &'static [&'static str],
    class_name: &'static str,
    /// Rows of q and k stand interleaved for ggml's rotary embedding and must be put back in half-split order.
    pub(crate) interleaved_heads: bool,
    /// Norm weights are stored as 1 + w.
    pub(crate) norms_hold_one_plus: bool,
    /// Tensors of a block whose Hugging Face name differs from [`BLOCK_NAMES`]'s.
    block_names: &'static [(&'static str, &'static str)],
    rope_base_default: f64,
    /// Keys that only this architecture has.
    add_keys: fn(&Container, &mut Map<String, Value>) -> Result<(), FormatError>,
}

/// Every supported architecture. Mistral's files say `llama`, Qwen 2.5's say `qwen2`.
#[rustfmt::skip]
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "llama", model_types: &["llama", "mistral"], class_name: "LlamaForCausalLM", interleaved_heads: true,
        norms_hold_one_plus: false, block_names: &[], rope_base_default: 1e4, add_keys: no_keys },
    Architecture { name: "smollm3", model_types: &["smollm3"], class_name: "SmolLM3ForCausalLM", interleaved_heads: true,
        norms_hold_one_plus: false, block_names: &[], rope_base_default: 1e4, add_keys: add_smollm3_keys },
    Architecture { name: "qwen2", model_types: &["qwen2"], class_name: "Qwen2ForCausalLM", interleaved_heads: false,
        norms_hold_one_plus: false, block_names: &[], rope_base_default: 1e4, add_keys: no_keys },
    Architecture { name: "qwen3", model_types: &["qwen3"], class_name: "Qwen3ForCausalLM", interleaved_heads: false,
        norms_hold_one_plus: false, block_names: &[], rope_base_default: 1e4, add_keys: no_keys },
    Architecture { name: "gemma3", model_types: &["gemma3_text", "gemma3"], class_name: "Gemma3ForCausalLM", interleaved_heads: false,
        norms_hold_one_plus: true, block_names: GEMMA_BLOCK_NAMES, rope_base_default: 1e6, add_keys: add_gemma3_keys },
];

/// Tensors outside the blocks, without `.weight`.
const MODEL_NAMES: &[(&str, &str)] =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Tensors of block N (`blk.N.` in GGUF, `model.layers.N.` here), without `.weight` or `.bias`.
const BLOCK_NAMES: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const GEMMA_BLOCK_NAMES: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Divisors of the rotary frequencies; becomes a key of the configuration instead of a tensor.
pub(super) const ROPE_DIVISORS_TENSOR: &str = "rope_freqs.weight";

/// The architecture that the file names.
pub(crate) fn find(container: &Container) -> Result<&'static Architecture, FormatError> {
    let Some(name) = container.text("general.architecture")? else {
        return Err(container.key_error("general.architecture", "missing; this is no language model"));
    };
    let known = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
    known.ok_or_else(|| FormatError::Unsupported {
        path: container.path().to_owned(),
        what: "GGUF architecture",
        found: name.to_owned(),
        supported: ARCHITECTURES.iter().map(|architecture| architecture.name).collect::<Vec<_>>().join(", "),
    })
}

/// The architecture of a Hugging Face `model_type`.
pub(crate) fn of_model_type(model_type: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|architecture| architecture.model_types.contains(&model_type))
}

/// Every `model_type` that has an architecture.
pub(crate) fn model_types() -> Vec<&'static str> {
    ARCHITECTURES.iter().flat_map(|architecture| architecture.model_types).copied().collect()
}

impl Architecture {
    /// The Hugging Face name of a tensor, or `None` for one that this architecture does not have.
    pub(crate) fn hugging_face_name(&self, stored: &str) -> Option<String> {
        let (stem, suffix) = stored.rsplit_once('.')?;
        if suffix != "weight" && suffix != "bias" {
            return None;
        }
        let lookup = |names: &[(&str, &str)], stem: &str| {
            names.iter().find(|(stored, _)| *stored == stem).map(|(_, name)| (*name).to_owned())
        };
        if let Some(name) = lookup(MODEL_NAMES, stem) {
            return Some(format!("{name}.{suffix}"));
        }
        let (block, stem) = stem.strip_prefix("blk.")?.split_once('.')?;
        block.parse::<u32>().ok()?;
        let name = lookup(self.block_names, stem).or_else(|| lookup(BLOCK_NAMES, stem))?;
        Some(format!("model.layers.{block}.{name}.{suffix}"))
    }

    /// The GGUF name of a module of a block (`self_attn.q_proj` to `attn_q`), for adapters going out.
    pub(crate) fn stored_block_name(&self, module: &str) -> Option<&'static str> {
        let mut names = self.block_names.iter().chain(BLOCK_NAMES);
        names.find(|(_, name)| *name == module).map(|(stored, _)| *stored)
    }

    /// The configuration in Hugging Face's form. `vocabulary` is the number of rows of the embedding, `tied` whether the
    /// file has no output matrix of its own.
    pub(crate) fn translate(
        &self,
        container: &Container,
        vocabulary: usize,
        tied: bool,
        rope_divisors: Option<Vec<f32>>,
    ) -> Result<Map<String, Value>, FormatError> {
        let keys = Keys { container, architecture: self.name };
        let heads = keys.required("attention.head_count")?;
        let hidden = keys.required("embedding_length")?;
        let head_dim = self.head_dim(&keys, hidden, heads)?;
        let mut config = Map::new();
        config.insert("architectures".into(), json!([self.class_name]));
        config.insert("model_type".into(), json!(self.model_types[0]));
        config.insert("hidden_size".into(), json!(hidden));
        config.insert("intermediate_size".into(), json!(keys.required("feed_forward_length")?));
        config.insert("num_hidden_layers".into(), json!(keys.required("block_count")?));
        config.insert("num_attention_heads".into(), json!(heads));
        config.insert("num_key_value_heads".into(), json!(keys.number("attention.head_count_kv")?.unwrap_or(heads)));
        config.insert("head_dim".into(), json!(head_dim));
        config.insert("hidden_act".into(), json!("silu"));
        config.insert("rms_norm_eps".into(), json!(keys.required_float("attention.layer_norm_rms_epsilon")?));
        config.insert("max_position_embeddings".into(), json!(keys.required("context_length")?));
        config.insert("vocab_size".into(), json!(vocabulary));
        config.insert("tie_word_embeddings".into(), json!(tied));
        let rope_base = keys.float("rope.freq_base")?.unwrap_or(self.rope_base_default);
        config.insert("rope_theta".into(), json!(rope_base));
        if let Some(scaling) = rope_scaling(&keys)? {
            config.insert("rope_scaling".into(), scaling);
        }
        if let Some(divisors) = rope_divisors {
            config.insert(crate::ROPE_INV_FREQ_FACTORS_KEY.into(), json!(divisors));
        }
        if let Some(window) = keys.number("attention.sliding_window")?.filter(|window| *window > 0) {
            config.insert("sliding_window".into(), json!(window));
        }
        for (key, stored) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
            if let Some(id) = container.unsigned(&format!("tokenizer.ggml.{stored}"))? {
                config.insert(key.into(), json!(id));
            }
        }
        (self.add_keys)(container, &mut config)?;
        Ok(config)
    }

    /// `attention.key_length`, which must agree with the rotated part: partial rotation is not supported.
    fn head_dim(&self, keys: &Keys, hidden: u64, heads: u64) -> Result<u64, FormatError> {
        if heads == 0 {
            return Err(keys.error("attention.head_count", "expected at least one head"));
        }
        if keys.number("expert_count")?.unwrap_or(0) > 0 {
            return Err(keys.error("expert_count", "models with experts are not supported"));
        }
        let head_dim = keys.number("attention.key_length")?.unwrap_or(hidden / heads);
        for key in ["rope.dimension_count", "attention.value_length"] {
            if let Some(other) = keys.number(key)?.filter(|other| *other != head_dim) {
                return Err(keys.error(key, format!("{other}, expected the head dimension {head_dim}")));
            }
        }
        Ok(head_dim)
    }
}

fn rope_scaling(keys: &Keys) -> Result<Option<Value>, FormatError> {
    let kind = match keys.container.text(&keys.full("rope.scaling.type"))? {
        None | Some("none") => return Ok(None),
        Some(kind) => kind,
    };
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), json!(kind));
    if let Some(factor) = keys.float("rope.scaling.factor")? {
        scaling.insert("factor".into(), json!(factor));
    }
    if let Some(length) = keys.number("rope.scaling.original_context_length")? {
        scaling.insert("original_max_position_embeddings".into(), json!(length));
    }
    Ok(Some(Value::Object(scaling)))
}

fn no_keys(_: &Container, _: &mut Map<String, Value>) -> Result<(), FormatError> {
    Ok(())
}

/// The file does not say which layers have no rotary embedding: every reader takes every fourth.
fn add_smollm3_keys(container: &Container, config: &mut Map<String, Value>) -> Result<(), FormatError> {
    let layers = Keys { container, architecture: "smollm3" }.layers()?;
    config.insert("no_rope_layer_interval".into(), json!(4));
    config.insert("no_rope_layers".into(), (0..layers).map(|layer| u8::from((layer + 1) % 4 != 0)).collect());
    Ok(())
}

/// Local layers' rope base and the pattern of window and full layers are constants of the architecture.
fn add_gemma3_keys(container: &Container, config: &mut Map<String, Value>) -> Result<(), FormatError> {
    let keys = Keys { container, architecture: "gemma3" };
    let layers = keys.layers()?;
    let pattern = match keys.number("attention.sliding_window_pattern")? {
        Some(0) => return Err(keys.error("attention.sliding_window_pattern", "expected at least 1")),
        pattern => pattern.unwrap_or(6),
    };
    let kind = |layer| if (layer + 1) % pattern == 0 { "full_attention" } else { "sliding_attention" };
    config.remove("hidden_act");
    config.insert("hidden_activation".into(), json!("gelu_pytorch_tanh"));
    config.insert("rope_local_base_freq".into(), json!(keys.float("rope.freq_base_swa")?.unwrap_or(1e4)));
    config.insert("sliding_window_pattern".into(), json!(pattern));
    config.insert("layer_types".into(), (0..layers).map(kind).collect());
    // The 27B model, the one of 62 layers, scales queries by the width of a head as if heads filled the model.
    let scalar = if layers == 62 {
        keys.required("embedding_length")? / keys.required("attention.head_count")?.max(1)
    } else {
        config["head_dim"].as_u64().unwrap_or_default()
    };
    config.insert("query_pre_attn_scalar".into(), json!(scalar));
    Ok(())
}

/// Metadata keys that begin with the architecture's name.
struct Keys<'a> {
    container: &'a Container,
    architecture: &'static str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }
    fn error(&self, key: &str, problem: impl Into<String>) -> FormatError {
        self.container.key_error(&self.full(key), problem)
    }
    fn number(&self, key: &str) -> Result<Option<u64>, FormatError> {
        self.container.unsigned(&self.full(key))
    }
    fn required(&self, key: &str) -> Result<u64, FormatError> {
        self.number(key)?.ok_or_else(|| self.error(key, "missing"))
    }
    fn float(&self, key: &str) -> Result<Option<f64>, FormatError> {
        self.container.float(&self.full(key))
    }
    fn required_float(&self, key: &str) -> Result<f64, FormatError> {
        self.float(key)?.ok_or_else(|| self.error(key, "missing"))
    }
    /// The number of blocks, which lists of one entry a layer are made from: bounded by the tensors there are.
    fn layers(&self) -> Result<u64, FormatError> {
        let layers = self.required("block_count")?;
        if layers > self.container.tensors.len() as u64 {
            let problem = format!("{layers} blocks in a file of {} tensors", self.container.tensors.len());
            return Err(self.error("block_count", problem));
        }
        Ok(layers)
    }
}
