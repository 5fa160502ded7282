//! The values that make sense.

use super::{ConfigError, TrainConfig};
use crate::governor::QuietHours;

/// Adapters larger than this are no longer low-rank for any model that fits a person's machine.
const RANK_MAX: usize = 1024;
/// Far above the context of any model, low enough that no product of sizes overflows.
const TOKENS_MAX: usize = 1 << 20;
/// Years of training on any machine, and few enough to list.
const UPDATES_MAX: u64 = 10_000_000;
/// Numbers in files are signed 64-bit.
const COUNT_MAX: u64 = i64::MAX as u64;

impl TrainConfig {
    /// Checks every value by itself and the few that hang together. What depends on the model is checked by
    /// [`TrainConfig::resolved`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        let require = |holds: bool, key: &'static str, value: &dyn std::fmt::Display, expected: &str| match holds {
            true => Ok(()),
            false => Err(ConfigError::range(key, value, expected)),
        };
        let real = |key, value: f64, holds: fn(f64) -> bool, expected: &str| {
            require(value.is_finite() && holds(value), key, &value, expected)
        };
        let count = |key, value: u64, range: std::ops::RangeInclusive<u64>| {
            let expected = match *range.end() {
                COUNT_MAX => format!("{} or more", range.start()),
                end => format!("{} to {end}", range.start()),
            };
            require(range.contains(&value), key, &value, &expected)
        };

        count("rank", self.rank as u64, 1..=RANK_MAX as u64)?;
        real("lora_alpha", self.lora_alpha, |x| x > 0.0 && x <= 1e6, "above 0, at most 1e6")?;
        real("dropout", self.dropout, |x| (0.0..1.0).contains(&x), "0 or more and below 1")?;
        require(!self.targets.is_empty(), "targets", &"[]", "at least one projection")?;
        require(
            self.adapted_blocks == -1 || self.adapted_blocks >= 1,
            "adapted_blocks",
            &self.adapted_blocks,
            "-1 (all) or 1 or more",
        )?;

        real("learning_rate", self.learning_rate, |x| x > 0.0 && x <= 1.0, "above 0, at most 1")?;
        real("warmup_ratio", self.warmup_ratio, |x| (0.0..=1.0).contains(&x), "0 to 1")?;
        count("warmup_steps", self.warmup_steps, 0..=COUNT_MAX)?;
        real("final_learning_rate_ratio", self.final_learning_rate_ratio, |x| (0.0..=1.0).contains(&x), "0 to 1")?;
        real("weight_decay", self.weight_decay, |x| (0.0..=1.0).contains(&x), "0 to 1")?;
        real("beta1", self.beta1, |x| (0.0..1.0).contains(&x), "0 or more and below 1")?;
        real("beta2", self.beta2, |x| (0.0..1.0).contains(&x), "0 or more and below 1")?;
        // Smaller than this vanishes in float32 and a gradient of zero would give 0/0.
        real("epsilon", self.epsilon, |x| (1e-30..=1.0).contains(&x), "1e-30 to 1")?;
        real("clip_norm", self.clip_norm, |x| x >= 0.0, "0 (no clipping) or more")?;

        require(
            self.steps > 0 || self.passes > 0,
            "passes",
            &self.passes,
            "1 or more, or `steps` set to the number of updates",
        )?;
        count("passes", self.passes, 0..=1_000_000)?;
        count("steps", self.steps, 0..=UPDATES_MAX)?;
        if self.steps > 0 {
            self.validate_warm_up(self.steps)?;
        }
        count("accumulation", self.accumulation as u64, 1..=1_000_000)?;
        count("seed", self.seed, 0..=COUNT_MAX)?;

        count("tokens_max", self.tokens_max as u64, 2..=TOKENS_MAX as u64)?;
        count("retrieved_records", self.retrieved_records as u64, 0..=data::RETRIEVED_RECORDS_MAX as u64)?;
        count("retrieved_tokens_max", self.retrieved_tokens_max as u64, 1..=TOKENS_MAX as u64)?;

        real("validation_fraction", self.validation_fraction, |x| (0.0..=0.5).contains(&x), "0 (none) to 0.5")?;
        require(
            self.validation_records_min <= self.validation_records_max,
            "validation_records_min",
            &self.validation_records_min,
            &format!("at most validation_records_max, which is {}", self.validation_records_max),
        )?;
        count("evaluate_every", self.evaluate_every, 0..=COUNT_MAX)?;
        count("early_stop_patience", self.early_stop_patience, 0..=COUNT_MAX)?;

        count("blocks_kept", self.blocks_kept as u64, 0..=1024)?;
        count("checkpoint_blocks", self.checkpoint_blocks as u64, 0..=1024)?;
        count("threads", self.threads as u64, 0..=1024)?;
        count("save_every_steps", self.save_every_steps, 0..=COUNT_MAX)?;
        count("save_bytes_per_hour", self.save_bytes_per_hour, 0..=COUNT_MAX)?;
        real("save_every_seconds", self.save_every_seconds, |x| x >= 0.0, "0 or more")?;
        self.validate_limits()
    }

    /// When to train.
    fn validate_limits(&self) -> Result<(), ConfigError> {
        let check = |holds: bool, key, value: f64, expected: &str| match holds {
            true => Ok(()),
            false => Err(ConfigError::range(key, value, expected)),
        };
        let (floor, pressure) = (self.battery_floor, self.memory_pressure_max);
        check((0.0..=0.95).contains(&floor), "battery_floor", floor, "0 (none) to 0.95 of a full charge")?;
        // Below 30 a warm room would hold the run for ever; above 110 every processor protects itself.
        let celsius = self.temperature_max_c;
        let is_sensible = celsius == 0.0 || (30.0..=110.0).contains(&celsius);
        check(is_sensible, "temperature_max_c", celsius, "0 (no limit), or 30 to 110 degrees Celsius")?;
        check((0.0..=1.0).contains(&pressure), "memory_pressure_max", pressure, "0 (no limit) to 1")?;
        let idle = self.idle_seconds_min;
        check((0.0..=86400.0).contains(&idle), "idle_seconds_min", idle, "0 (always) to 86400, a day")?;
        if !self.quiet_hours.is_empty() && QuietHours::parse(&self.quiet_hours).is_none() {
            let expected = "two different times of day such as 22:00-07:00, or nothing";
            return Err(ConfigError::range("quiet_hours", &self.quiet_hours, expected));
        }
        Ok(())
    }

    /// Checks what depends on the number of training examples.
    pub(crate) fn validate_for(&self, examples: usize) -> Result<(), ConfigError> {
        let updates = self.updates(examples);
        if updates > UPDATES_MAX {
            let expected = format!("so few passes that {examples} examples take at most {UPDATES_MAX} updates");
            return Err(ConfigError::range("passes", self.passes, expected));
        }
        self.validate_warm_up(updates)
    }

    fn validate_warm_up(&self, updates: u64) -> Result<(), ConfigError> {
        if self.warmup_steps == 0 || self.warmup_steps < updates {
            return Ok(());
        }
        let source = if self.steps > 0 { "steps" } else { "passes" };
        let expected = format!("less than the {updates} updates of the run, which `{source}` decides");
        Err(ConfigError::range("warmup_steps", self.warmup_steps, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_name_key_value_and_range() {
        for (text, expected) in [
            ("rank=0", "`rank = 0` is not possible: expected 1 to 1024"),
            ("rank=2000", "expected 1 to 1024"),
            ("dropout=1.0", "`dropout = 1` is not possible: expected 0 or more and below 1"),
            ("dropout=-0.1", "expected 0 or more and below 1"),
            ("learning_rate=0", "expected above 0, at most 1"),
            ("learning_rate=-1e-4", "expected above 0"),
            ("lora_alpha=0", "expected above 0"),
            ("targets=[]", "expected at least one projection"),
            ("adapted_blocks=0", "expected -1 (all) or 1 or more"),
            ("adapted_blocks=-2", "expected -1 (all) or 1 or more"),
            ("beta2=1.0", "expected 0 or more and below 1"),
            ("epsilon=0", "expected 1e-30 to 1"),
            ("clip_norm=-1", "expected 0 (no clipping) or more"),
            ("passes=0", "expected 1 or more"),
            ("accumulation=0", "expected 1 to 1000000"),
            ("tokens_max=1", "expected 2 to"),
            ("retrieved_records=5", "expected 0 to 4"),
            ("validation_fraction=0.9", "expected 0 (none) to 0.5"),
            ("validation_records_min=100", "at most validation_records_max"),
            ("warmup_ratio=1.5", "expected 0 to 1"),
            ("threads=5000", "expected 0 to 1024"),
            ("save_every_seconds=-1", "expected 0 or more"),
            ("battery_floor=30", "`battery_floor = 30` is not possible: expected 0 (none) to 0.95"),
            ("battery_floor=-0.1", "expected 0 (none) to 0.95"),
            ("temperature_max_c=20", "expected 0 (no limit), or 30 to 110"),
            ("memory_pressure_max=20", "expected 0 (no limit) to 1"),
            ("idle_seconds_min=-5", "expected 0 (always) to 86400"),
            ("quiet_hours=22-7", "`quiet_hours = 22-7` is not possible: expected two different times of day such as"),
            ("quiet_hours=22:00-22:00", "two different times"),
            ("quiet_hours=24:00-07:00", "two different times"),
            ("quiet_hours=22:60-07:00", "two different times"),
            ("quiet_hours=22:00", "two different times"),
            ("steps=10000001", "`steps = 10000001` is not possible: expected 0 to 10000000"),
        ] {
            let error = TrainConfig::load(None, None, &[text.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let hours = TrainConfig::load(None, None, &["quiet_hours=22:00-07:00".to_owned()]).unwrap().quiet_hours;
        assert_eq!(hours, "22:00-07:00");
        // A file's time of day, which TOML knows as a type of its own, is no range either; other keys take none at all.
        let file = |text: &str| TrainConfig::load(None, Some((text, "run.toml")), &[]).unwrap_err().to_string();
        let message = file("quiet_hours = 22:00:00");
        assert!(message.contains("quiet_hours") && message.contains("two different times of day"), "{message}");
        let message = file("rank = 2026-01-01");
        assert!(message.contains("rank") && message.contains("expected a whole number, 0 or more"), "{message}");
        // Values are judged together, after the last override.
        let both = TrainConfig::load(None, None, &["passes=0".to_owned(), "steps=3".to_owned()]).unwrap();
        assert_eq!(both.updates(100), 3);
    }

    #[test]
    fn a_warm_up_ends_before_the_run_does() {
        let load = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
            TrainConfig::load(None, None, &settings)
        };
        let error = load(&["warmup_steps=5", "steps=5"]).unwrap_err();
        assert!(matches!(error, ConfigError::Range { key: "warmup_steps", .. }));
        let message = error.to_string();
        assert!(message.contains("`warmup_steps = 5`") && message.contains("the 5 updates"), "{message}");
        assert!(message.contains("`steps`"), "{message}");
        load(&["warmup_steps=4", "steps=5"]).unwrap();

        // With passes the number of updates is known only with the examples.
        let passes = load(&["warmup_steps=6", "passes=3", "accumulation=2"]).unwrap();
        passes.validate_for(5).unwrap();
        let message = passes.validate_for(4).unwrap_err().to_string();
        assert!(message.contains("`warmup_steps = 6`") && message.contains("the 6 updates"), "{message}");
        assert!(message.contains("`passes`"), "{message}");
        let message = load(&["passes=1000000"]).unwrap().validate_for(100).unwrap_err().to_string();
        assert!(message.contains("`passes = 1000000`") && message.contains("at most 10000000 updates"), "{message}");
    }

    #[test]
    fn validation_takes_the_fraction_within_its_bounds() {
        let config = TrainConfig { validation_fraction: 0.1, ..TrainConfig::default() };
        assert_eq!(config.validation_records(0), 0);
        assert_eq!(config.validation_records(3), 0);
        assert_eq!(config.validation_records(8), 2, "a small history keeps three quarters to train on");
        assert_eq!(config.validation_records(100), 10);
        assert_eq!(config.validation_records(5000), 32);
        assert_eq!(TrainConfig { validation_fraction: 0.0, ..config }.validation_records(100), 0);
    }
}
