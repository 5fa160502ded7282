//! All that a run needs to go on as if it had never stopped.
//!
//! The order of the data, the learning rate and the dropout masks are pure functions of the update's number, so the
//! state is the number, the adapter's values, both moments of the optimizer, and what the final report needs.
//! `state/file.rs` describes the bytes on disk.

pub(crate) mod file;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::KEYS_WITHOUT_EFFECT_ON_RESULTS;

pub use file::StateError;

/// What a state belongs to. A run only goes on with the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Hash of the base model's content.
    pub base: String,
    /// Hash of the training examples, in order, as the model sees them.
    pub examples: String,
    /// Hash of the validation examples.
    pub validation: String,
    /// The trained matrices with their shapes, as text.
    pub trained: String,
    /// Hash of the adapter that the run began from; empty for a fresh one.
    #[serde(default)]
    pub start: String,
    /// The resolved configuration.
    pub config: Map<String, Value>,
}

/// Something that is not as it was when a run was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub kind: DifferenceKind,
    /// In words.
    pub text: String,
}

/// What a run is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceKind {
    Base,
    Start,
    Data,
    Trained,
    Config,
}

impl Identity {
    /// Whether numbers depend on blocks that the run does not name: see `TrainConfig::lacks_kept_blocks`.
    pub(crate) fn lacks_kept_blocks(&self) -> bool {
        serde_json::from_value::<crate::TrainConfig>(Value::Object(self.config.clone()))
            .is_ok_and(|config| config.lacks_kept_blocks())
    }

    /// What differs between the run on disk (`self`) and the one that wants to go on, in words; empty if nothing does.
    pub fn differences(&self, now: &Identity) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut compare = |kind: DifferenceKind, what: &str, saved: &str, now: &str| {
            if saved != now {
                let text = format!("{what} changed: {} in the saved run, {} now", short(saved), short(now));
                differences.push(Difference { kind, text });
            }
        };
        use DifferenceKind::*;
        compare(Base, "the base model", &self.base, &now.base);
        compare(Start, "the adapter that it began from", &self.start, &now.start);
        compare(Data, "the training examples", &self.examples, &now.examples);
        compare(Data, "the validation examples", &self.validation, &now.validation);
        compare(Trained, "the trained matrices", &self.trained, &now.trained);
        let keys = self.config.keys().chain(now.config.keys().filter(|key| !self.config.contains_key(*key)));
        for key in keys.filter(|key| !KEYS_WITHOUT_EFFECT_ON_RESULTS.contains(&key.as_str())) {
            let (saved, now) = (self.config.get(key), now.config.get(key));
            if saved != now {
                let text = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
                let text = format!("`{key}` changed: {} in the saved run, {} now", text(saved), text(now));
                differences.push(Difference { kind: Config, text });
            }
        }
        differences
    }
}

/// Hashes are long; their beginnings are enough to see that two differ.
fn short(text: &str) -> &str {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text {
        "" => "none",
        text if is_hash => &text[..12],
        text => text,
    }
}

/// Loss added up over tokens; the one definition of loss everywhere is the mean over supervised tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossTotal {
    /// Sum of the negative log likelihoods, in nats.
    pub loss_sum: f64,
    pub supervised_tokens: u64,
}

impl LossTotal {
    pub fn add(&mut self, loss_sum: f64, supervised_tokens: u64) {
        self.loss_sum += loss_sum;
        self.supervised_tokens += supervised_tokens;
    }
    /// Nats per supervised token; none without tokens.
    pub fn mean(&self) -> Option<f64> {
        (self.supervised_tokens > 0).then(|| self.loss_sum / self.supervised_tokens as f64)
    }
}

/// One validation: the loss after `step` updates; step 0 is the untrained adapter, that is the base model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationPoint {
    pub step: u64,
    /// Nats per supervised token of the validation examples.
    pub loss: f64,
}

/// How far a run has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates done.
    pub step: u64,
    /// Tokens that went through the model in training, counted once a visit.
    pub tokens: u64,
    /// Training loss of each pass so far.
    pub passes: Vec<LossTotal>,
    /// The loss of the first update.
    pub first_loss: Option<f64>,
    pub validations: Vec<ValidationPoint>,
    /// The validation with the smallest loss after at least one update: the adapter in `adapter/best`.
    pub best: Option<ValidationPoint>,
    /// Seconds spent in training, all sessions together. Like the next two it differs between two equal runs.
    pub seconds: f64,
    /// Seconds spent on hold, all sessions together.
    #[serde(default)]
    pub held_seconds: f64,
    /// Joules used in training and validation, all sessions together, where they could be measured.
    #[serde(default)]
    pub energy_j: Option<f64>,
}

impl Progress {
    /// Notes a validation; whether it is the best after at least one update.
    pub fn add_validation(&mut self, point: ValidationPoint) -> bool {
        self.validations.push(point);
        let is_best = point.step > 0 && self.best.is_none_or(|best| point.loss < best.loss);
        if is_best {
            self.best = Some(point);
        }
        is_best
    }
    /// Validations since the best one.
    pub fn validations_since_best(&self) -> u64 {
        let best = self.best.map_or(0, |point| point.step);
        self.validations.iter().filter(|point| point.step > best).count() as u64
    }
    /// The loss of the base model on the validation examples.
    pub fn validation_before(&self) -> Option<f64> {
        self.validations.first().filter(|point| point.step == 0).map(|point| point.loss)
    }
}

/// A saved run.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub identity: Identity,
    pub progress: Progress,
    /// Values of the adapter and the two moments of the optimizer, each of the same length and order.
    pub parameters: Vec<f32>,
    pub first_moment: Vec<f32>,
    pub second_moment: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let config = serde_json::json!({"rank": 8, "learning_rate": 1e-3, "threads": 2});
        Identity {
            base: "a".repeat(64),
            examples: "b".repeat(64),
            validation: "c".repeat(64),
            trained: "2 matrices".into(),
            start: String::new(),
            config: config.as_object().unwrap().clone(),
        }
    }

    #[test]
    fn differences_name_everything_that_changed_and_nothing_else() {
        let differences = |now: &Identity| {
            identity().differences(now).into_iter().map(|difference| difference.text).collect::<Vec<_>>()
        };
        assert_eq!(differences(&identity()), Vec::<String>::new());
        let mut now = identity();
        now.config["threads"] = 7.into();
        assert_eq!(differences(&now), Vec::<String>::new(), "threads change no result");
        now.base = "d".repeat(64);
        now.start = "e".repeat(64);
        now.config["rank"] = 16.into();
        now.config.remove("learning_rate");
        now.config.insert("new".into(), true.into());
        assert_eq!(
            differences(&now),
            [
                "the base model changed: aaaaaaaaaaaa in the saved run, dddddddddddd now",
                "the adapter that it began from changed: none in the saved run, eeeeeeeeeeee now",
                "`rank` changed: 8 in the saved run, 16 now",
                "`learning_rate` changed: 0.001 in the saved run, absent now",
                "`new` changed: absent in the saved run, true now",
            ]
        );
    }

    #[test]
    fn the_best_is_the_first_smallest_after_an_update() {
        let progress = |losses: &[f64]| {
            let mut progress = Progress::default();
            for (step, &loss) in (0..).zip(losses) {
                progress.add_validation(ValidationPoint { step, loss });
            }
            progress
        };
        assert_eq!(progress(&[1.0]).best, None, "the base model is no adapter");
        assert_eq!(progress(&[1.0, 2.0, 1.5, 1.5, 1.6]).best, Some(ValidationPoint { step: 2, loss: 1.5 }));
        assert_eq!(progress(&[1.0, 2.0, 1.5, 1.5, 1.6]).validations_since_best(), 2);
        assert_eq!(progress(&[1.0, 0.9]).validations_since_best(), 0);
        assert_eq!(progress(&[1.0, 0.9]).validation_before(), Some(1.0));
    }
}
