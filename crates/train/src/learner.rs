//! What the training loop needs of that which learns: a model's session, or a small deterministic stand-in with
//! faults on demand in tests.

use std::path::Path;

use data::Example;
use formats::FormatError;
use kernels::AdamWParameters;
use model::{ModelError, TrainingSession};

use crate::adapter_file::{AdapterNotes, write_adapter};

pub(crate) trait Learner {
    /// Forward and backward of one example; adds `gradient_scale` times the gradient of its summed loss to the
    /// gradients and returns the summed loss in nats.
    fn learn(&mut self, example: &Example, gradient_scale: f32, dropout_seed: u64) -> Result<f64, ModelError>;
    /// Summed loss in nats, without dropout and without touching gradients.
    fn loss(&mut self, example: &Example) -> Result<f64, ModelError>;
    fn gradient_norm(&mut self) -> f64;
    /// The trained matrices that the gradient does not reach, by name. A fresh adapter has B = 0, so that only the
    /// gradients of B are expected.
    fn matrices_without_gradient(&self) -> Vec<String>;
    fn update(&mut self, parameters: &AdamWParameters);
    fn zero_gradients(&mut self);

    fn parameters(&self) -> Vec<f32>;
    /// First and second moments, laid out as the parameters.
    fn moments(&self) -> (Vec<f32>, Vec<f32>);
    fn restore(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<(), ModelError>;
    /// Writes the adapter as it is into `folder`, replacing one that is there at once.
    fn write_adapter(&self, folder: &Path, notes: &AdapterNotes) -> Result<(), FormatError>;
}

impl Learner for TrainingSession {
    fn learn(&mut self, example: &Example, gradient_scale: f32, dropout_seed: u64) -> Result<f64, ModelError> {
        Ok(self.step(&example.tokens, &example.loss_mask, gradient_scale, dropout_seed)?.loss_sum)
    }
    fn loss(&mut self, example: &Example) -> Result<f64, ModelError> {
        Ok(TrainingSession::loss(self, &example.tokens, &example.loss_mask)?.loss_sum)
    }
    fn gradient_norm(&mut self) -> f64 {
        TrainingSession::gradient_norm(self)
    }
    fn matrices_without_gradient(&self) -> Vec<String> {
        let gradients = self.gradients();
        let outer = gradients.iter().filter(|gradient| gradient.name.ends_with("lora_B"));
        outer.filter(|b| b.values.iter().all(|&value| value == 0.0)).map(|b| b.name.clone()).collect()
    }
    fn update(&mut self, parameters: &AdamWParameters) {
        TrainingSession::update(self, parameters);
    }
    fn zero_gradients(&mut self) {
        TrainingSession::zero_gradients(self);
    }
    fn parameters(&self) -> Vec<f32> {
        TrainingSession::parameters(self).to_vec()
    }
    fn moments(&self) -> (Vec<f32>, Vec<f32>) {
        self.optimizer_moments()
    }
    fn restore(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<(), ModelError> {
        self.set_parameters(parameters)?;
        self.set_optimizer_moments(first, second)
    }
    fn write_adapter(&self, folder: &Path, notes: &AdapterNotes) -> Result<(), FormatError> {
        write_adapter(folder, self, notes)
    }
}
