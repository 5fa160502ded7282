//! A learner of a few numbers for tests: deterministic, instant, and faulty on demand.

use std::path::Path;

use data::Example;
use kernels::AdamWParameters;
use model::ModelError;

use crate::adapter_file::AdapterNotes;
use crate::error::TrainError;
use crate::files::Files;
use crate::learner::Learner;

/// Kinds of tokens.
pub(crate) const KINDS: usize = 8;

/// An example of `len` tokens whose last three are targets.
pub(crate) fn example(index: usize, len: usize) -> Example {
    Example {
        tokens: (0..len).map(|place| ((index * 31 + place * 7) % KINDS) as u32).collect(),
        loss_mask: (0..len).map(|place| place + 3 >= len).collect(),
        record_id: format!("record-{index}"),
        retrieved_ids: Vec::new(),
        truncation: data::Truncation::default(),
    }
}

/// Learns one value per token kind: the loss of a target is `(value - goal)^2 / 2` with a goal of its own.
/// AdamW is spelled out in float64 from its paper (Loshchilov and Hutter 2019, algorithm 2).
pub(crate) struct Fake {
    pub values: Vec<f32>,
    pub gradients: Vec<f32>,
    pub first: Vec<f32>,
    pub second: Vec<f32>,
    /// The loss of this record is not a number.
    pub poisoned_record: Option<String>,
    pub without_gradient: Vec<String>,
}

impl Default for Fake {
    fn default() -> Self {
        let zeros = || vec![0.0; KINDS];
        Self {
            values: (0..KINDS).map(|index| 1.0 - index as f32 / KINDS as f32).collect(),
            gradients: zeros(),
            first: zeros(),
            second: zeros(),
            poisoned_record: None,
            without_gradient: Vec::new(),
        }
    }
}

impl Fake {
    fn targets(example: &Example) -> impl Iterator<Item = usize> + '_ {
        example.tokens.iter().zip(&example.loss_mask).skip(1).filter(|(_, target)| **target).map(|(&t, _)| t as usize)
    }
    fn error(&self, token: usize) -> f32 {
        self.values[token] - (token as f32).sin()
    }
}

impl Learner for Fake {
    fn learn(&mut self, example: &Example, gradient_scale: f32, dropout_seed: u64) -> Result<f64, ModelError> {
        // Noise in the manner of dropout: a run that draws other seeds ends elsewhere.
        let noise = 1.0 + (dropout_seed >> 40) as f32 * 1e-9;
        for token in Self::targets(example) {
            self.gradients[token] += gradient_scale * noise * self.error(token);
        }
        self.loss(example)
    }
    fn loss(&mut self, example: &Example) -> Result<f64, ModelError> {
        if self.poisoned_record.as_ref() == Some(&example.record_id) {
            return Ok(f64::NAN);
        }
        Ok(Self::targets(example).map(|token| f64::from(self.error(token)).powi(2) / 2.0).sum())
    }
    fn gradient_norm(&mut self) -> f64 {
        self.gradients.iter().map(|&gradient| f64::from(gradient).powi(2)).sum::<f64>().sqrt()
    }
    fn matrices_without_gradient(&self) -> Vec<String> {
        self.without_gradient.clone()
    }
    fn update(&mut self, p: &AdamWParameters) {
        let step = p.step as i32;
        for index in 0..self.values.len() {
            let gradient = self.gradients[index] * p.gradient_factor;
            let (first, second) = (&mut self.first[index], &mut self.second[index]);
            *first = p.beta1 * *first + (1.0 - p.beta1) * gradient;
            *second = p.beta2 * *second + (1.0 - p.beta2) * gradient * gradient;
            let first = *first / (1.0 - p.beta1.powi(step));
            let second = *second / (1.0 - p.beta2.powi(step));
            let value = self.values[index];
            self.values[index] =
                value - p.learning_rate * (first / (second.sqrt() + p.epsilon) + p.weight_decay * value);
        }
    }
    fn zero_gradients(&mut self) {
        self.gradients.fill(0.0);
    }
    fn values(&self) -> [&[f32]; 3] {
        [&self.values, &self.first, &self.second]
    }
    fn restore(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<(), ModelError> {
        self.values.copy_from_slice(parameters);
        self.first.copy_from_slice(first);
        self.second.copy_from_slice(second);
        Ok(())
    }
    fn write_adapter(&self, files: &Files, folder: &Path, _notes: &AdapterNotes) -> Result<(), TrainError> {
        // Its place and its bytes are what the tests compare.
        let bytes: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        files.create_folder(folder)?;
        Ok(files.replace(&folder.join("values"), &bytes)?)
    }
}
