//! The learning rate as a pure function of the update's number.
//!
//! The unit everywhere is the optimizer update, counted from 1: with `accumulation = 4` one update is four examples.
//! Nothing is remembered between updates, so a resumed run cannot start its warm-up again.

use serde::{Deserialize, Serialize};

use crate::config::TrainConfig;

/// The shape of the learning rate after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Constant,
    Linear,
    Cosine,
}

impl ScheduleKind {
    pub const ALL: [ScheduleKind; 3] = [ScheduleKind::Constant, ScheduleKind::Linear, ScheduleKind::Cosine];

    pub fn name(self) -> &'static str {
        match self {
            ScheduleKind::Constant => "constant",
            ScheduleKind::Linear => "linear",
            ScheduleKind::Cosine => "cosine",
        }
    }
}

/// Warm-up and decay of one run.
///
/// Updates `1..=warmup` rise in equal steps and update `warmup` has the full rate; decay begins with the update after
/// it, so that the two never overlap. Linear and cosine decay head for `final_ratio` times the full rate and would
/// reach it one update after the last, so that no update is made at a rate of zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    kind: ScheduleKind,
    learning_rate: f64,
    final_ratio: f64,
    warmup_updates: u64,
    updates: u64,
}

impl Schedule {
    /// The schedule of a run of `updates` updates.
    pub fn new(config: &TrainConfig, updates: u64) -> Self {
        let warmup_updates = match config.warmup_steps {
            0 => (config.warmup_ratio * updates as f64).ceil() as u64,
            steps => steps,
        };
        Self {
            kind: config.schedule,
            learning_rate: config.learning_rate,
            final_ratio: config.final_learning_rate_ratio,
            warmup_updates: warmup_updates.min(updates),
            updates,
        }
    }

    pub fn warmup_updates(&self) -> u64 {
        self.warmup_updates
    }

    /// The learning rate of update `update`, counted from 1. Updates past the last keep the final rate.
    pub fn learning_rate(&self, update: u64) -> f64 {
        if update < self.warmup_updates {
            return self.learning_rate * update as f64 / self.warmup_updates as f64;
        }
        // The update that has the full rate: the last of the warm-up, or the first of all.
        let peak = self.warmup_updates.max(1);
        let decay_updates = (self.updates + 1).saturating_sub(peak).max(1);
        let progress = (update.saturating_sub(peak) as f64 / decay_updates as f64).min(1.0);
        let remaining = match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Linear => 1.0 - progress,
            ScheduleKind::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        };
        self.learning_rate * (self.final_ratio + (1.0 - self.final_ratio) * remaining)
    }

    /// The rate of every update in order, for a plan's curve.
    pub fn curve(&self) -> impl Iterator<Item = f64> + '_ {
        (1..=self.updates).map(|update| self.learning_rate(update))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: ScheduleKind, warmup_steps: u64, updates: u64, final_ratio: f64) -> Schedule {
        Schedule { kind, learning_rate: 8.0, final_ratio, warmup_updates: warmup_steps.min(updates), updates }
    }

    fn assert_rates(schedule: Schedule, expected: &[f64]) {
        let rates: Vec<f64> = schedule.curve().collect();
        assert_eq!(rates.len(), expected.len());
        for (index, (rate, expected)) in rates.iter().zip(expected).enumerate() {
            assert!((rate - expected).abs() < 1e-12, "update {}: {rate}, expected {expected}", index + 1);
        }
    }

    #[test]
    fn rates_of_every_update() {
        use ScheduleKind::*;
        assert_rates(schedule(Constant, 0, 3, 0.0), &[8.0, 8.0, 8.0]);
        assert_rates(schedule(Constant, 4, 6, 0.0), &[2.0, 4.0, 6.0, 8.0, 8.0, 8.0]);
        assert_rates(schedule(Linear, 0, 4, 0.0), &[8.0, 6.0, 4.0, 2.0]);
        assert_rates(schedule(Linear, 2, 5, 0.0), &[4.0, 8.0, 6.0, 4.0, 2.0]);
        assert_rates(schedule(Linear, 2, 5, 0.5), &[4.0, 8.0, 7.0, 6.0, 5.0]);
        // cos(pi/3) = 1/2, cos(2 pi/3) = -1/2.
        assert_rates(schedule(Cosine, 1, 3, 0.0), &[8.0, 6.0, 2.0]);
        assert_rates(schedule(Cosine, 2, 4, 0.0), &[4.0, 8.0, 6.0, 2.0]);
        assert_rates(schedule(Linear, 0, 1, 0.0), &[8.0]);
        // A warm-up as long as the run, and one that was cut to it.
        assert_rates(schedule(Linear, 3, 3, 0.0), &[8.0 / 3.0, 16.0 / 3.0, 8.0]);
        assert_rates(schedule(Cosine, 9, 2, 0.0), &[4.0, 8.0]);
    }

    #[test]
    fn rates_never_fall_in_warm_up_nor_rise_after_it_and_are_never_zero() {
        for kind in ScheduleKind::ALL {
            for updates in 1..40 {
                for warmup in 0..=updates {
                    let schedule = schedule(kind, warmup, updates, 0.0);
                    let rates: Vec<f64> = schedule.curve().collect();
                    assert!(rates.iter().all(|&rate| rate > 0.0 && rate <= 8.0), "{schedule:?}: {rates:?}");
                    let peak = warmup.max(1) as usize;
                    assert_eq!(rates[peak - 1], 8.0, "{schedule:?}");
                    assert!(rates[..peak].is_sorted(), "{schedule:?}: {rates:?}");
                    assert!(rates[peak - 1..].is_sorted_by(|a, b| a >= b), "{schedule:?}: {rates:?}");
                }
            }
        }
    }

    #[test]
    fn the_ratio_counts_updates_and_steps_take_precedence() {
        let mut config = TrainConfig { warmup_ratio: 0.05, warmup_steps: 0, ..TrainConfig::default() };
        assert_eq!(Schedule::new(&config, 200).warmup_updates(), 10);
        assert_eq!(Schedule::new(&config, 3).warmup_updates(), 1);
        config.warmup_steps = 7;
        assert_eq!(Schedule::new(&config, 200).warmup_updates(), 7);
        assert_eq!(Schedule::new(&config, 3).warmup_updates(), 3);
    }
}
