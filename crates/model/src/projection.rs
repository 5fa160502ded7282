//! The seven linear maps of a block, which are also what an adapter can target.

use crate::config::ModelConfig;

/// A linear map of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Projection {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

impl Projection {
    /// All seven, in the order in which the forward runs them.
    pub const ALL: [Projection; 7] = [
        Projection::Query,
        Projection::Key,
        Projection::Value,
        Projection::Output,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
    ];

    /// The name inside a block in Hugging Face files: `self_attn.q_proj`, `mlp.down_proj`.
    pub fn module_name(self) -> &'static str {
        match self {
            Projection::Query => "self_attn.q_proj",
            Projection::Key => "self_attn.k_proj",
            Projection::Value => "self_attn.v_proj",
            Projection::Output => "self_attn.o_proj",
            Projection::Gate => "mlp.gate_proj",
            Projection::Up => "mlp.up_proj",
            Projection::Down => "mlp.down_proj",
        }
    }
    /// The last part of [`Self::module_name`]: `q_proj`.
    pub fn short_name(self) -> &'static str {
        self.module_name().rsplit('.').next().unwrap_or_default()
    }
    /// The projection that a user calls `q`, `q_proj` or `self_attn.q_proj`.
    pub fn by_name(name: &str) -> Option<Projection> {
        Projection::ALL.into_iter().find(|projection| {
            let short = projection.short_name();
            name == short || name == projection.module_name() || Some(name) == short.strip_suffix("_proj")
        })
    }
    /// The name of this projection of block `block` in Hugging Face files, without `.weight`.
    pub fn module_path(self, block: usize) -> String {
        format!("model.layers.{block}.{}", self.module_name())
    }
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// (n_out, k_in) of the weight.
    pub fn shape(self, config: &ModelConfig) -> (usize, usize) {
        match self {
            Projection::Query => (config.query_width(), config.width),
            Projection::Key | Projection::Value => (config.key_width(), config.width),
            Projection::Output => (config.width, config.query_width()),
            Projection::Gate | Projection::Up => (config.feed_forward, config.width),
            Projection::Down => (config.width, config.feed_forward),
        }
    }
    /// Whether a model of `config` adds a bias to the product.
    pub(crate) fn has_bias(self, config: &ModelConfig) -> bool {
        match self {
            Projection::Query | Projection::Key | Projection::Value => config.query_key_value_bias,
            Projection::Output => config.output_bias,
            Projection::Gate | Projection::Up | Projection::Down => config.feed_forward_bias,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_finds_its_projection() {
        for projection in Projection::ALL {
            assert_eq!(Projection::by_name(projection.module_name()), Some(projection));
            assert_eq!(Projection::by_name(projection.short_name()), Some(projection));
        }
        assert_eq!(Projection::by_name("v"), Some(Projection::Value));
        assert_eq!(Projection::by_name("down"), Some(Projection::Down));
        assert_eq!(Projection::by_name("proj"), None);
        assert_eq!(Projection::by_name(""), None);
        assert_eq!(Projection::Gate.module_path(3), "model.layers.3.mlp.gate_proj");
    }
}
