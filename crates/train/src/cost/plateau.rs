//! A machine that slows down as it heats up: its rate falls from a first to a settled one,
//! `rate(t) = settled·(1 + (1/level - 1)·exp(-t/time))`, the shape of the study's Figure 6.

use serde::{Deserialize, Serialize};

/// How a machine's rate falls over a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    /// The settled rate over the first one; 1 where nothing slows down.
    pub level: f64,
    /// The excess over the settled rate falls by 1/e in so many seconds.
    pub time_s: f64,
}

/// Runs shorter than this say nothing about a plateau.
pub const SECONDS_MIN: f64 = 300.0;
/// A fall must explain this share of how the rate varies within runs to be believed.
const EXPLAINED_MIN: f64 = 0.5;

impl Plateau {
    /// A machine that keeps its rate.
    pub const NONE: Plateau = Plateau { level: 1.0, time_s: 1.0 };

    /// Seconds at the settled rate that do as much as the first `seconds` of a run.
    pub fn settled_seconds(&self, seconds: f64) -> f64 {
        seconds + (1.0 / self.level - 1.0) * self.time_s * (1.0 - (-seconds / self.time_s).exp())
    }

    /// The inverse of [`Plateau::settled_seconds`].
    pub fn seconds(&self, settled_seconds: f64) -> f64 {
        // The function rises at least as fast as its argument, so the answer lies between 0 and the argument.
        let (mut low, mut high) = (0.0, settled_seconds.max(0.0));
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if self.settled_seconds(middle) < settled_seconds { low = middle } else { high = middle }
        }
        0.5 * (low + high)
    }

    /// Seconds that `work` more takes at `elapsed` seconds into a run which right now does `rate` a second.
    pub fn remaining_seconds(&self, work: f64, rate: f64, elapsed: f64) -> f64 {
        let now = 1.0 + (1.0 / self.level - 1.0) * (-elapsed / self.time_s).exp();
        let settled_rate = rate / now;
        self.seconds(self.settled_seconds(elapsed) + work / settled_rate) - elapsed
    }

    /// The fall that the curves of long runs show, (seconds, work done until then) each; none if they show none.
    pub fn fit<'a>(runs: impl Iterator<Item = &'a [[f64; 2]]>) -> Plateau {
        let long = |run: &&[[f64; 2]]| run.len() >= 6 && run[run.len() - 1][0] >= SECONDS_MIN;
        let runs: Vec<&[[f64; 2]]> = runs.filter(long).collect();
        if runs.is_empty() {
            return Plateau::NONE;
        }
        let error = |plateau: Plateau| runs.iter().map(|run| plateau.variance_within(run)).sum::<f64>();
        let flat = error(Plateau::NONE);
        let levels = (1..=19).map(|level| 1.0 - 0.04 * f64::from(level));
        let candidates = levels.flat_map(|level| {
            let times = (0..24).map(|step| 30.0 * 1.25f64.powi(step));
            times.map(move |time_s| Plateau { level, time_s })
        });
        let errors = candidates.map(|candidate| (error(candidate), candidate));
        match errors.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((least, best)) if least < (1.0 - EXPLAINED_MIN) * flat => best,
            _ => Plateau::NONE,
        }
    }

    /// How far the log of the settled rate is from constant over a run, each stretch weighted by its time.
    fn variance_within(&self, run: &[[f64; 2]]) -> f64 {
        let (mut weights, mut mean, mut square) = (0.0, 0.0, 0.0);
        for pair in run.windows(2) {
            let ([from, work_from], [to, work_to]) = (pair[0], pair[1]);
            let rate = (work_to - work_from) / (self.settled_seconds(to) - self.settled_seconds(from));
            let (weight, log) = (to - from, rate.ln());
            if weight > 0.0 && log.is_finite() {
                weights += weight;
                mean += weight * log;
                square += weight * log * log;
            }
        }
        if weights > 0.0 { square - mean * mean / weights } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work done by the law, integrated in small steps.
    fn curve(level: f64, time_s: f64, settled_rate: f64, seconds: f64) -> Vec<[f64; 2]> {
        let (mut points, mut work) = (vec![[0.0, 0.0]], 0.0);
        let steps = 30_000;
        let step = seconds / f64::from(steps);
        for index in 0..steps {
            let middle = (f64::from(index) + 0.5) * step;
            work += step * settled_rate * (1.0 + (1.0 / level - 1.0) * (-middle / time_s).exp());
            if index % 1000 == 999 {
                points.push([f64::from(index + 1) * step, work]);
            }
        }
        points
    }

    #[test]
    fn the_law_and_its_inverse() {
        let plateau = Plateau { level: 0.5, time_s: 520.0 };
        let [seconds, work] = *curve(0.5, 520.0, 7.0, 6000.0).last().unwrap();
        assert!((plateau.settled_seconds(seconds) - work / 7.0).abs() < 1e-3);
        for seconds in [0.0, 1.0, 100.0, 1e5] {
            assert!((plateau.seconds(plateau.settled_seconds(seconds)) - seconds).abs() < 1e-6 * (1.0 + seconds));
        }
        assert_eq!(Plateau::NONE.settled_seconds(77.0), 77.0);
    }

    #[test]
    fn what_remains_is_known_in_the_first_minute() {
        let plateau = Plateau { level: 0.5, time_s: 520.0 };
        let points = curve(0.5, 520.0, 7.0, 6000.0);
        let total = points.last().unwrap()[1];
        for point in &points[1..29] {
            let [elapsed, done] = *point;
            let rate = 7.0 * (1.0 + (-elapsed / 520.0f64).exp());
            let remaining = plateau.remaining_seconds(total - done, rate, elapsed);
            assert!((elapsed + remaining - 6000.0).abs() < 6.0, "{elapsed}: {remaining}");
        }
    }

    #[test]
    fn a_fall_is_found_and_steady_runs_have_none() {
        let runs = [curve(0.5, 520.0, 7.0, 6000.0), curve(0.5, 520.0, 9.0, 3000.0)];
        let found = Plateau::fit(runs.iter().map(Vec::as_slice));
        assert!((found.level - 0.5).abs() < 0.05 && (found.time_s / 520.0).ln().abs() < 0.25, "{found:?}");
        // A steady machine with noise that changes sign from stretch to stretch.
        let mut work = 0.0;
        let noisy: Vec<[f64; 2]> = (0..30)
            .map(|index| {
                work += 100.0 * (1.0 + if index % 2 == 0 { 0.05 } else { -0.05 });
                [f64::from(index) * 40.0, work]
            })
            .collect();
        assert_eq!(Plateau::fit([noisy.as_slice()].into_iter()), Plateau::NONE);
        assert_eq!(Plateau::fit([curve(0.5, 20.0, 7.0, 200.0)].iter().map(Vec::as_slice)), Plateau::NONE, "too short");
        assert_eq!(Plateau::fit(std::iter::empty()), Plateau::NONE);
    }
}
