//! Whether a timed step was right: its loss and its gradient against losses computed in float32.
//!
//! Losses of the same model at `exact` precision, a little to both sides of where the step stood along its own gradient:
//! their mean is the step's loss, their difference over the distance the norm of its gradient. Both come from forwards
//! alone, on other kernels.

use std::sync::Arc;

use kernels::Precision;
use model::{BoundaryType, Model, StepOptions, TrainingSession};
use serde_json::{Value, json};

use super::setting::Setting;
use super::subject::{Answer, adapter, tokens};
use crate::failure::Failure;

/// How far to each side, as the share of the loss that it should change by: far enough above the rounding of float32,
/// near enough for a straight line.
const LOSS_CHANGE: f64 = 1e-3;

#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// |loss of the step / exact loss - 1|, and the most that the step's precision explains.
    pub loss_error: f64,
    pub loss_error_max: f64,
    /// |norm of the step's gradient / slope of exact losses along it - 1|, and the most that precision explains.
    pub gradient_error: f64,
    pub gradient_error_max: f64,
}

impl Check {
    pub fn is_right(&self) -> bool {
        self.loss_error <= self.loss_error_max && self.gradient_error <= self.gradient_error_max
    }
    pub fn json(&self) -> Value {
        json!({
            "loss_error": self.loss_error,
            "loss_error_max": self.loss_error_max,
            "gradient_error": self.gradient_error,
            "gradient_error_max": self.gradient_error_max,
        })
    }
}

/// `options` are those that the step ran with.
pub fn check(model: &Arc<Model>, setting: &Setting, options: StepOptions, answer: &Answer) -> Result<Check, Failure> {
    let mut exact = options;
    exact.ops.precision = Precision::Exact;
    let mut session = TrainingSession::new(Arc::clone(model), &adapter(model, setting)?, exact)?;
    let norm = answer.gradients.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if norm == 0.0 || !norm.is_finite() {
        return Err(Failure::from(anyhow::anyhow!("the gradient of the timed step has norm {norm}")));
    }
    let distance = LOSS_CHANGE * answer.loss_sum / norm;
    let (tokens, mask) = (tokens(setting.tokens, model.config().vocabulary), setting.loss_mask());
    let mut loss_at = |side: f64| {
        let step = (side * distance / norm) as f32;
        let moved = answer.parameters.iter().zip(&answer.gradients).map(|(value, gradient)| value + step * gradient);
        session.set_parameters(&moved.collect::<Vec<f32>>())?;
        Ok::<f64, Failure>(session.loss(&tokens, &mask)?.loss_sum)
    };
    let (above, below) = (loss_at(1.0)?, loss_at(-1.0)?);
    let slope = (above - below) / (2.0 * distance);
    // Errors of the precisions as ops have them, times what some tens of blocks make of them.
    let (loss_error_max, of_precision) = match options.ops.precision {
        Precision::Exact => (1e-5, 5e-3),
        Precision::A16 => (1e-4, 1e-2),
        Precision::A8 => (1e-2, 0.2),
    };
    let of_boundaries = if options.memory.boundaries == BoundaryType::Bfloat16 { 5e-2 } else { 0.0 };
    Ok(Check {
        loss_error: (answer.loss_sum / ((above + below) / 2.0) - 1.0).abs(),
        loss_error_max,
        gradient_error: (norm / slope - 1.0).abs(),
        gradient_error_max: of_precision + of_boundaries,
    })
}
