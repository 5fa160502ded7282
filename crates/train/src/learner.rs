//! What the training loop needs of that which learns: a model's session, or a small deterministic stand-in with
//! faults on demand in tests.

use std::path::Path;

use data::Example;
use kernels::AdamWParameters;
use model::{ModelError, Prefix, TrainingSession};

use crate::adapter_file::{AdapterNotes, write_adapter};
use crate::error::TrainError;
use crate::files::Files;
use crate::kept_prefix::{KeptPrefixes, PrefixKey};

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

    /// The parameters, their first and their second moments, all in the same order.
    fn values(&self) -> [&[f32]; 3];
    fn restore(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<(), ModelError>;
    /// From now on what does not change between the visits of an example may be kept in `folder`.
    fn keep_prefixes_in(&mut self, _files: &Files, _folder: &Path) {}
    /// What the user should know of what happened since the last call.
    fn take_notices(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// The run is over: nothing that was kept for its sake is needed again.
    fn forget_prefixes(&mut self) {}
    /// Writes the adapter as it is into `folder`, replacing one that is there at once.
    fn write_adapter(&self, files: &Files, folder: &Path, notes: &AdapterNotes) -> Result<(), TrainError>;
}

/// A model's session, with the outputs of its frozen prefix kept between visits where that was asked for.
pub(crate) struct SessionLearner {
    session: TrainingSession,
    key: Option<PrefixKey>,
    kept: Option<KeptPrefixes>,
}

impl SessionLearner {
    /// With a key prefixes are kept once a folder is named.
    pub(crate) fn new(session: TrainingSession, key: Option<PrefixKey>) -> Self {
        Self { session, key, kept: None }
    }

    /// Runs `pass` from the kept prefix of `example`, or from its tokens and keeps the prefix.
    fn with_prefix<T>(
        &mut self,
        example: &Example,
        pass: impl FnOnce(&mut TrainingSession, Prefix) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let Self { session, kept, .. } = self;
        let Some(kept) = kept else { return pass(session, Prefix::Computed) };
        let values = session.prefix_values(&example.tokens, &example.loss_mask)?;
        if kept.read(example, values) {
            return pass(session, Prefix::Given(kept.values()));
        }
        pass(session, Prefix::Observed(&mut |values| kept.write(example, values)))
    }
}

impl Learner for SessionLearner {
    fn learn(&mut self, example: &Example, gradient_scale: f32, dropout_seed: u64) -> Result<f64, ModelError> {
        let Example { tokens, loss_mask, .. } = example;
        self.with_prefix(example, |session, prefix| {
            Ok(session.step_from(prefix, tokens, loss_mask, gradient_scale, dropout_seed)?.loss_sum)
        })
    }
    fn loss(&mut self, example: &Example) -> Result<f64, ModelError> {
        self.with_prefix(example, |session, prefix| {
            Ok(session.loss_from(prefix, &example.tokens, &example.loss_mask)?.loss_sum)
        })
    }
    fn keep_prefixes_in(&mut self, files: &Files, folder: &Path) {
        self.kept = self.key.take().map(|key| KeptPrefixes::new(files, folder, key));
    }
    fn take_notices(&mut self) -> Vec<String> {
        self.kept.as_mut().map(KeptPrefixes::take_notices).unwrap_or_default()
    }
    fn forget_prefixes(&mut self) {
        if let Some(kept) = self.kept.take() {
            kept.remove();
        }
    }
    fn gradient_norm(&mut self) -> f64 {
        self.session.gradient_norm()
    }
    fn matrices_without_gradient(&self) -> Vec<String> {
        let gradients = self.session.gradients();
        let outer = gradients.iter().filter(|gradient| gradient.name.ends_with("lora_B"));
        outer.filter(|b| b.values.iter().all(|&value| value == 0.0)).map(|b| b.name.clone()).collect()
    }
    fn update(&mut self, parameters: &AdamWParameters) {
        self.session.update(parameters);
    }
    fn zero_gradients(&mut self) {
        self.session.zero_gradients();
    }
    fn values(&self) -> [&[f32]; 3] {
        let (first, second) = self.session.optimizer_moments();
        [self.session.parameters(), first, second]
    }
    fn restore(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<(), ModelError> {
        self.session.set_parameters(parameters)?;
        self.session.set_optimizer_moments(first, second)
    }
    fn write_adapter(&self, files: &Files, folder: &Path, notes: &AdapterNotes) -> Result<(), TrainError> {
        write_adapter(files, folder, &self.session, notes)
    }
}
