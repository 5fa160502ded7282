//! Inverse frequencies of rotary embeddings and their scalings for longer contexts, as transformers defines them.

use crate::config_file::ConfigFile;
use crate::error::ModelError;

/// The angles of one kind of rotary embedding: at position p, pair i turns by `p * inverse_frequencies[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// [head_dim / 2].
    pub inverse_frequencies: Vec<f32>,
}

impl RopeConfig {
    /// Unscaled frequencies `base^(-2i / head_dim)`.
    pub fn new(base: f64, head_dim: usize) -> Self {
        let pairs = head_dim / 2;
        let frequency = |pair: usize| base.powf(-2.0 * pair as f64 / head_dim as f64) as f32;
        Self { inverse_frequencies: (0..pairs).map(frequency).collect() }
    }

    /// Frequencies of a model, from whichever spelling its file uses: `rope_theta` with `rope_scaling`, or
    /// `rope_parameters` holding all of it. `base_default` is for families whose old files leave the base out.
    pub(crate) fn from_file(file: &ConfigFile, head_dim: usize, base_default: Option<f64>) -> Result<Self, ModelError> {
        let parameters = file.value("rope_parameters").map(|value| ConfigFile::nested(value, "rope_parameters."));
        let parameters = parameters.transpose()?;
        let scaling = file.value("rope_scaling").map(|value| ConfigFile::nested(value, "rope_scaling.")).transpose()?;
        let nested = parameters.map(|p| p.optional_positive("rope_theta")).transpose()?.flatten();
        let base = match (file.optional_positive("rope_theta")?, nested) {
            (Some(outer), Some(inner)) if outer != inner => {
                return Err(file.invalid("rope_theta", format!("{inner}, as rope_parameters.rope_theta says")));
            }
            (Some(base), _) | (None, Some(base)) => base,
            (None, None) => base_default.ok_or(ModelError::ConfigMissing {
                key: "rope_theta".into(),
                expected: "the base of the rotary embedding, here or in rope_parameters",
            })?,
        };
        let mut rope = Self::new(base, head_dim).scaled(parameters.or(scaling))?;
        let positive = |divisor: &serde_json::Value| divisor.as_f64().filter(|divisor| *divisor > 0.0);
        let key = formats::ROPE_INV_FREQ_FACTORS_KEY;
        if let Some(divisors) = file.optional_list(key, head_dim / 2, "a positive number", positive)? {
            for (frequency, divisor) in rope.inverse_frequencies.iter_mut().zip(divisors) {
                *frequency /= divisor as f32;
            }
        }
        Ok(rope)
    }

    /// Frequencies from one object that holds `rope_theta`, `rope_type` and the type's own keys.
    pub(crate) fn from_parameters(parameters: ConfigFile, head_dim: usize) -> Result<Self, ModelError> {
        Self::new(parameters.positive("rope_theta")?, head_dim).scaled(Some(parameters))
    }

    pub(crate) fn scaled(mut self, scaling: Option<ConfigFile>) -> Result<Self, ModelError> {
        let Some(scaling) = scaling else { return Ok(self) };
        match scaling.optional_text("rope_type")?.or(scaling.optional_text("type")?) {
            // `dynamic` changes the base only beyond max_position_embeddings, and contexts end there.
            None | Some("default") | Some("dynamic") => {}
            Some("linear") => {
                let factor = scaling.positive("factor")? as f32;
                self.inverse_frequencies.iter_mut().for_each(|frequency| *frequency /= factor);
            }
            Some("llama3") => {
                let factor = scaling.positive("factor")?;
                let low = scaling.positive("low_freq_factor")?;
                let high = scaling.positive("high_freq_factor")?;
                let context = scaling.size("original_max_position_embeddings")? as f64;
                if high <= low {
                    return Err(scaling.invalid("high_freq_factor", format!("more than low_freq_factor ({low})")));
                }
                for frequency in &mut self.inverse_frequencies {
                    *frequency = llama3_frequency(f64::from(*frequency), factor, low, high, context) as f32;
                }
            }
            Some(_) => {
                let key = if scaling.value("rope_type").is_some() { "rope_type" } else { "type" };
                return Err(scaling.invalid(key, "one of default, linear, dynamic, llama3"));
            }
        }
        Ok(self)
    }
}

/// Llama 3.1: wavelengths longer than `context / low` are stretched by `factor`, shorter than `context / high` kept,
/// and those between blended.
fn llama3_frequency(frequency: f64, factor: f64, low: f64, high: f64, context: f64) -> f64 {
    let turns = context * frequency / std::f64::consts::TAU;
    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    kept * frequency + (1.0 - kept) * frequency / factor
}
