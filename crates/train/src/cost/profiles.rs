//! Devices that others have measured. To add one, add an entry to [`DEVICE_PROFILES`].
//!
//! A profile answers "what would this cost on that device?" from published numbers: nothing in it was measured by
//! selftune, and every prediction made from it says so.

use model::{ModelConfig, Projection};

use crate::config::TrainConfig;
use crate::cost::plateau::Plateau;
use crate::cost::prediction::{Basis, Estimate, Prediction};

/// A device's published costs of training, for one model and recipe.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProfile {
    pub name: &'static str,
    pub about: &'static str,
    /// Where the numbers stand.
    pub source: &'static str,
    /// The model that was measured, and what tells it apart.
    pub model: &'static str,
    pub shape: ModelShape,
    /// Seconds a token over whole runs, and seconds of any run.
    pub seconds_per_token: f64,
    pub start_s: f64,
    /// The largest residual of runs around that line, as a fraction.
    pub residual_max: f64,
    /// Net of what the idle device takes.
    pub energy_j_per_token: f64,
    /// The rated charge, and what of it training can use before the device shuts down.
    pub battery_j: f64,
    pub battery_usable_j: f64,
    /// How the rate falls. Contained in `seconds_per_token`.
    pub plateau: Plateau,
    /// (share of the blocks that is adapted, throughput beside all blocks), falling.
    pub depth: &'static [(f64, f64)],
    /// (most projections adapted, highest rank, throughput beside the recipe), the first that holds counts.
    pub adapter: &'static [(usize, usize, f64)],
}

/// The sizes that decide what a token costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    pub blocks: usize,
    pub width: usize,
    pub feed_forward: usize,
    pub query_width: usize,
    pub key_width: usize,
    pub vocabulary: usize,
}

impl ModelShape {
    pub fn of(config: &ModelConfig) -> Self {
        Self {
            blocks: config.blocks.len(),
            width: config.width,
            feed_forward: config.feed_forward,
            query_width: config.query_width(),
            key_width: config.key_width(),
            vocabulary: config.vocabulary,
        }
    }

    /// Multiply-adds of a token with frozen weights in a step as common runtimes make it: each block forward, again and
    /// backward, the head at every position in both directions.
    fn macs_per_token(&self) -> f64 {
        let attention = 2 * self.width * (self.query_width + self.key_width);
        let block = attention + 3 * self.width * self.feed_forward;
        (3 * self.blocks * block + 2 * self.width * self.vocabulary) as f64
    }
}

/// All known devices.
pub const DEVICE_PROFILES: [DeviceProfile; 1] = [PAPER_PHONE];

/// Sections 6.1 (time), 6.2 and Table 5 (depth, rank and projections: mean of the columns for 512 and 1024 tokens),
/// 6.3 (plateau: half the cold rate, half of the loss after about six minutes), 6.4 (energy).
const PAPER_PHONE: DeviceProfile = DeviceProfile {
    name: "paper-phone",
    about: "iPhone 17 Pro with MLX, plugged in, at its throttled plateau",
    source: "Geyko, Mosbach, Brinkmann: Fine-Tuning a 3B-Parameter LLM on a Smartphone, Sections 6.1 to 6.4",
    model: "SmolLM3-3B, 4-bit, rank 8 on query and value",
    shape: ModelShape {
        blocks: 36,
        width: 2048,
        feed_forward: 11008,
        query_width: 2048,
        key_width: 512,
        vocabulary: 128_256,
    },
    seconds_per_token: 0.0112,
    start_s: 13.0,
    residual_max: 0.06,
    energy_j_per_token: 0.04,
    battery_j: 55_600.0,
    battery_usable_j: 52_000.0,
    plateau: Plateau { level: 0.5, time_s: 520.0 },
    depth: &[
        (1.0, 1.0),
        (30.0 / 36.0, 1.165),
        (24.0 / 36.0, 1.395),
        (18.0 / 36.0, 1.72),
        (12.0 / 36.0, 2.20),
        (6.0 / 36.0, 3.07),
    ],
    adapter: &[(2, 8, 1.0), (2, 32, 0.91), (7, 8, 0.785), (7, 32, 0.775), (7, usize::MAX, 0.73)],
};

impl DeviceProfile {
    pub fn by_name(name: &str) -> Option<&'static DeviceProfile> {
        DEVICE_PROFILES.iter().find(|profile| profile.name == name)
    }

    /// What a run over `tokens` tokens would take there. `config` is resolved for the model. Exactly the published
    /// line for the model and recipe that were measured; scaled, and without an interval, for others.
    pub fn predict(&self, model: &ModelConfig, config: &TrainConfig, tokens: f64) -> Prediction {
        let shape = ModelShape::of(model);
        let model_factor = shape.macs_per_token() / self.shape.macs_per_token();
        let share = config.adapted_blocks as f64 / shape.blocks as f64;
        let depth_factor = self.depth_time(share);
        let throughput = |&&(targets, rank, _): &&(usize, usize, f64)| {
            let only_query_value =
                config.targets.iter().all(|target| [Projection::Query, Projection::Value].contains(target));
            (targets >= config.targets.len() && (targets > 2 || only_query_value)) && rank >= config.rank
        };
        let adapter_factor = self.adapter.iter().find(throughput).map_or(1.0, |row| 1.0 / row.2);
        let factor = model_factor * depth_factor * adapter_factor;

        let mut notes = vec![format!("the literature's numbers, not measured here: {}", self.source)];
        if shape != self.shape {
            notes.push(format!(
                "measured with {}; scaled by multiply-adds to this model (x {model_factor:.3}), which nobody has checked",
                self.model
            ));
        }
        if depth_factor != 1.0 {
            notes.push(format!("adapting {:.0} % of the blocks takes x {depth_factor:.2} (Table 5)", 100.0 * share));
        }
        if adapter_factor != 1.0 {
            notes.push(format!("rank and projections cost x {adapter_factor:.2} (Table 5)"));
        }
        let minutes = 4.0 * self.plateau.time_s / 60.0;
        notes.push(format!(
            "after about {minutes:.0} minutes it settles at {} of its first rate; a shorter run from cold is faster",
            self.plateau.level
        ));
        let time = self.start_s + self.seconds_per_token * tokens * factor;
        let energy = self.energy_j_per_token * tokens * factor;
        let is_measured = factor == 1.0;
        let estimate = |value: f64| Estimate {
            value,
            interval: is_measured.then_some([value * (1.0 - self.residual_max), value * (1.0 + self.residual_max)]),
        };
        if energy > self.battery_usable_j {
            notes.push(format!(
                "a full charge gives training about {:.0} kJ: it would shut down before the end",
                self.battery_usable_j / 1e3
            ));
        }
        Prediction {
            time_s: estimate(time),
            processor_s: None,
            energy_j: Some(estimate(energy)),
            basis: Basis::Literature { device: self.name.to_owned(), notes },
            plateau: Some(self.plateau),
        }
    }

    /// Time with so large a share of the blocks adapted beside all: on straight lines between the measured depths.
    fn depth_time(&self, share: f64) -> f64 {
        let time = |index: usize| 1.0 / self.depth[index].1;
        let below = self.depth.iter().position(|(measured, _)| *measured <= share);
        match below {
            Some(0) => time(0),
            Some(index) => {
                let (high, low) = (self.depth[index - 1].0, self.depth[index].0);
                let part = (share - low) / (high - low);
                time(index) + part * (time(index - 1) - time(index))
            }
            // Below the least measured depth nothing is promised.
            None => time(self.depth.len() - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SmolLM3-3B, from its configuration file.
    fn smollm3() -> ModelConfig {
        let config = serde_json::json!({
            "model_type": "smollm3", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
            "num_hidden_layers": 36, "intermediate_size": 11008, "vocab_size": 128_256, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 65536, "hidden_act": "silu", "rope_theta": 5e6, "tie_word_embeddings": true,
        });
        ModelConfig::from_json(&config).expect("a configuration")
    }

    fn paper(model: &ModelConfig, settings: &[&str]) -> TrainConfig {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        TrainConfig::load(Some("paper"), None, &settings).unwrap().resolved(model).unwrap()
    }

    #[test]
    fn the_study_s_own_runs_come_out() {
        let (model, phone) = (smollm3(), DeviceProfile::by_name("paper-phone").unwrap());
        // Table 4: tokens and seconds. Table 6: energy in kJ of the unplugged runs.
        for (tokens, seconds, energy) in
            [(0.64e6, 6812.0, Some(26.2e3)), (1.11e6, 12443.0, Some(44.4e3)), (2.35e6, 26099.0, None)]
        {
            let prediction = phone.predict(&model, &paper(&model, &[]), tokens);
            let [low, high] = prediction.time_s.interval.unwrap();
            assert!((low..=high).contains(&seconds), "{prediction:?}");
            if let Some(energy) = energy {
                assert!((prediction.energy_j.unwrap().value / energy - 1.0).abs() < 0.06, "{prediction:?}");
            }
        }
        let Basis::Literature { notes, .. } = phone.predict(&model, &paper(&model, &[]), 2.35e6).basis else {
            panic!()
        };
        assert!(notes.iter().any(|note| note.contains("shut down")) && notes[0].contains("not measured"), "{notes:?}");
    }

    #[test]
    fn depth_costs_what_table_5_says_and_other_models_are_scaled() {
        let (model, phone) = (smollm3(), DeviceProfile::by_name("paper-phone").unwrap());
        let time = |model: &ModelConfig, settings: &[&str]| {
            let prediction = phone.predict(model, &paper(model, settings), 1e6);
            (prediction.time_s.value - 13.0, prediction.time_s.interval)
        };
        let (whole, _) = time(&model, &[]);
        let (half, interval) = time(&model, &["adapted_blocks=18"]);
        assert!((half / whole - 1.0 / 1.72).abs() < 1e-9 && interval.is_none());
        let (between, _) = time(&model, &["adapted_blocks=21"]);
        assert!(between > half && between < time(&model, &["adapted_blocks=24"]).0);
        assert_eq!(time(&model, &["adapted_blocks=1"]).0, time(&model, &["adapted_blocks=6"]).0);
        assert!(time(&model, &["targets=all"]).0 > 1.2 * whole);
        let mut small = smollm3();
        small.blocks.truncate(18);
        let (scaled, interval) = time(&small, &[]);
        assert!(scaled < 0.6 * whole && scaled > 0.5 * whole && interval.is_none(), "{scaled} of {whole}");
    }
}
