//! Measures a session while it runs: for its time to the end, and for the predictions of later runs.

use crate::cost::history::PACE_POINTS_MAX;
use crate::cost::plateau::Plateau;

/// What a session has done and taken so far. Only what is told counts, so that waiting is left out.
#[derive(Clone, Debug)]
pub struct Meter {
    plateau: Plateau,
    pub updates: u64,
    pub tokens: u64,
    pub work: f64,
    pub seconds: f64,
    /// Recent work, tokens, seconds, and seconds of updates alone. Older ones fade, so that a machine that heats up shows.
    recent: [f64; 4],
    pace: Vec<[f64; 2]>,
    /// Every so many updates become a point of the pace.
    stride: u64,
}

/// An update's share in what counts as recent falls by this with every later one.
const FADE: f64 = 0.95;

impl Meter {
    /// A meter at the beginning of a session on a machine that slows down like this.
    pub fn new(plateau: Plateau) -> Self {
        let pace = vec![[0.0, 0.0]];
        Self { plateau, updates: 0, tokens: 0, work: 0.0, seconds: 0.0, recent: [0.0; 4], pace, stride: 1 }
    }

    pub fn add_update(&mut self, work: f64, tokens: u64, seconds: f64) {
        self.updates += 1;
        self.tokens += tokens;
        self.recent = self.recent.map(|value| value * FADE);
        self.recent[1] += tokens as f64;
        self.recent[3] += seconds;
        self.add(work, seconds);
        if self.updates.is_multiple_of(self.stride) && self.seconds > self.pace[self.pace.len() - 1][0] {
            self.pace.push([self.seconds, self.work]);
        }
        if self.pace.len() == PACE_POINTS_MAX {
            // Every second point goes, the first stays.
            let mut index = 0;
            self.pace.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
    }

    pub fn add_validation(&mut self, work: f64, seconds: f64) {
        self.add(work, seconds);
    }

    /// Time that belongs to the run but to no work: a save.
    pub fn add_overhead(&mut self, seconds: f64) {
        self.add(0.0, seconds);
    }

    fn add(&mut self, work: f64, seconds: f64) {
        self.work += work;
        self.seconds += seconds;
        self.recent[0] += work;
        self.recent[2] += seconds;
    }

    /// Tokens per second of the last updates; validations and saves between them do not count.
    pub fn tokens_per_second(&self) -> f64 {
        self.recent[1] / self.recent[3].max(1e-9)
    }

    /// Seconds that `work` more will take: at the rate of the last updates, which falls as it did in earlier runs. A
    /// long example counts for its work, so it moves the estimate little.
    pub fn remaining_seconds(&self, work: f64) -> f64 {
        let rate = self.recent[0] / self.recent[2].max(1e-9);
        if work <= 0.0 || rate <= 0.0 {
            return 0.0;
        }
        self.plateau.remaining_seconds(work, rate, self.seconds)
    }

    /// (seconds, work done until then), from the beginning to now.
    pub fn pace(&self) -> Vec<[f64; 2]> {
        let mut pace = self.pace.clone();
        if self.seconds > pace[pace.len() - 1][0] {
            pace.push([self.seconds, self.work]);
        }
        pace.truncate(PACE_POINTS_MAX);
        pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_example_does_not_move_the_estimate() {
        let mut meter = Meter::new(Plateau::NONE);
        let works = [1.0, 2.0, 1.5, 1.0, 40.0, 1.0];
        let mut left: f64 = works.iter().sum();
        for work in works {
            meter.add_update(work, work as u64, 0.25 * work);
            left -= work;
            assert!((meter.remaining_seconds(left) - 0.25 * left).abs() < 1e-9);
        }
        assert_eq!(meter.remaining_seconds(0.0), 0.0);
    }

    #[test]
    fn the_estimate_follows_a_machine_that_becomes_slower() {
        let mut meter = Meter::new(Plateau::NONE);
        (0..50).for_each(|_| meter.add_update(1.0, 10, 1.0));
        (0..60).for_each(|_| meter.add_update(1.0, 10, 2.0));
        let estimate = meter.remaining_seconds(100.0);
        assert!((190.0..200.0).contains(&estimate), "{estimate}");
        assert!((meter.tokens_per_second() - 5.0).abs() < 0.3);
        let before = meter.tokens_per_second();
        meter.add_validation(3.0, 60.0);
        assert_eq!(meter.tokens_per_second(), before, "a validation is no slower training");
    }

    #[test]
    fn the_pace_stays_short_and_spans_the_run() {
        let mut meter = Meter::new(Plateau::NONE);
        for count in 1..3000 {
            meter.add_update(1.0, 10, 0.5);
            let pace = meter.pace();
            assert!(pace.len() <= PACE_POINTS_MAX && (count < 10 || pace.len() >= 10), "{count}: {}", pace.len());
            assert_eq!(pace[0], [0.0, 0.0]);
            assert_eq!(*pace.last().unwrap(), [0.5 * f64::from(count), f64::from(count)]);
            assert!(pace.is_sorted_by(|a, b| a[0] < b[0]));
        }
    }
}
