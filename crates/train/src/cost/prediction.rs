//! From measurements to what the next run will take.

use serde::{Deserialize, Serialize};

use crate::cost::fit::{Fit, Point, Predicted, RUN_START_S};
use crate::cost::history::{CostHistory, Measurement, Setting};
use crate::cost::plateau::Plateau;

/// What runs of one model on one machine usually scatter by, as a fraction: the study's repeated run spread by 4.9 %,
/// its fit's residuals by up to 6 %.
const SCATTER_SAME_MODEL: f64 = 0.05;
/// The same for a few steps: they see only a moment of the machine.
const SCATTER_PROBE: f64 = 0.08;
/// The same for runs of another model, whose matrices suit the kernels better or worse.
const SCATTER_OTHER_MODEL: f64 = 0.25;
/// Timed steps have no start, give or take so many seconds.
const PROBE_START_S: f64 = 0.05;
/// More runs than this add nothing; the newest count.
const RUNS_MAX: usize = 32;

/// A value that is not known exactly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    /// Holds the truth in 95 of 100 cases; none where nobody has measured how far off it may be.
    pub interval: Option<[f64; 2]>,
}

impl Estimate {
    fn scaled(self, factor: f64) -> Estimate {
        let interval = self.interval.map(|ends| ends.map(|end| end * factor));
        Estimate { value: self.value * factor, interval }
    }
}

/// What a run will take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    pub time_s: Estimate,
    /// Processor time of all threads together.
    pub processor_s: Option<Estimate>,
    pub energy_j: Option<Estimate>,
    pub basis: Basis,
    /// How the machine slows down in long runs, where it does.
    pub plateau: Option<Plateau>,
}

/// Where a prediction comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Basis {
    /// Earlier runs of this model with these settings of the machine.
    Runs { runs: usize, r: Option<f64>, seconds_per_work: f64, start_s: f64 },
    /// Earlier runs of other models.
    OtherModels { runs: usize },
    /// A few steps, just now.
    Probe { steps: usize, seconds: f64 },
    /// What others have measured on a device.
    Literature { device: String, notes: Vec<String> },
}

/// A few steps that were timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeMeasurement {
    pub steps: usize,
    pub work: f64,
    pub seconds: f64,
    pub processor_seconds: Option<f64>,
    /// All that the probe took, the steps that warm up included.
    pub seconds_in_all: f64,
}

/// Everything that predictions for one model and setting are made from.
#[derive(Clone, Debug)]
pub struct Predictor {
    pub history: CostHistory,
    pub setting: Setting,
    pub probe: Option<ProbeMeasurement>,
}

impl Predictor {
    pub fn predict(&self, work: f64) -> Option<Prediction> {
        predict(&self.history, &self.setting, work, self.probe.as_ref())
    }
}

/// What `work` will take in this setting. From runs of the same model, else from the probe, else from runs of other
/// models; `None` without any of them.
pub fn predict(
    history: &CostHistory,
    setting: &Setting,
    work: f64,
    probe: Option<&ProbeMeasurement>,
) -> Option<Prediction> {
    let newest = |any_model: bool| -> Vec<&Measurement> {
        let mut runs: Vec<&Measurement> = history.of(setting, any_model).collect();
        runs.drain(..runs.len().saturating_sub(RUNS_MAX));
        runs
    };
    let all = newest(true);
    let plateau = Plateau::fit(all.iter().map(|run| run.pace.as_slice()));
    let same = newest(false);
    let seconds = |run: &&Measurement| Some(run.seconds);
    let processor = |run: &&Measurement| run.processor_seconds;
    let by_probe = probe.filter(|_| !history.is_enough(setting));
    let (time, processor, basis) = match (same.is_empty(), by_probe) {
        (false, None) => {
            let time = line(&same, seconds, plateau, SCATTER_SAME_MODEL)?;
            let basis = Basis::Runs {
                runs: time.runs,
                r: time.r,
                seconds_per_work: time.seconds_per_work,
                start_s: time.start_s,
            };
            (time, line(&same, processor, Plateau::NONE, SCATTER_SAME_MODEL), basis)
        }
        (_, Some(probe)) => {
            let point = |seconds: f64| [Point { work: probe.work, seconds }];
            let time = Fit::new(&point(plateau.settled_seconds(probe.seconds)), SCATTER_PROBE, PROBE_START_S)?;
            let processor =
                probe.processor_seconds.and_then(|seconds| Fit::new(&point(seconds), SCATTER_PROBE, PROBE_START_S));
            (time, processor, Basis::Probe { steps: probe.steps, seconds: probe.seconds_in_all })
        }
        (true, None) => {
            let time = line(&all, seconds, plateau, SCATTER_OTHER_MODEL)?;
            let basis = Basis::OtherModels { runs: time.runs };
            (time, line(&all, processor, Plateau::NONE, SCATTER_OTHER_MODEL), basis)
        }
    };
    let (settled, ends) = time.predict(work);
    let time_s = Estimate { value: plateau.seconds(settled), interval: Some(ends.map(|end| plateau.seconds(end))) };
    let processor_s = processor.map(|fit| estimate(fit.predict(work)));
    let energy_j = power(&all).map(|power| energy(time_s, power));
    let plateau = Some(plateau).filter(|plateau| *plateau != Plateau::NONE);
    Some(Prediction { time_s, processor_s, energy_j, basis, plateau })
}

fn estimate((value, interval): Predicted) -> Estimate {
    Estimate { value, interval: Some(interval) }
}

/// The line through what was measured of `runs`, in seconds at the settled rate.
fn line(
    runs: &[&Measurement],
    measured: impl Fn(&&Measurement) -> Option<f64>,
    plateau: Plateau,
    scatter: f64,
) -> Option<Fit> {
    let point = |run: &&Measurement| {
        let seconds = plateau.settled_seconds(measured(run)?);
        Some(Point { work: run.work, seconds })
    };
    let points: Vec<Point> = runs.iter().filter_map(point).collect();
    Fit::new(&points, scatter, RUN_START_S)
}

/// Watts over the runs that know their energy: mean and the scatter of single runs. Power hardly depends on what is
/// trained (the study's Table 6: 4.0 to 4.3 W in every run).
fn power(runs: &[&Measurement]) -> Option<(f64, f64)> {
    let watts = |run: &&Measurement| run.energy_j.filter(|energy| *energy > 0.0).map(|energy| energy / run.seconds);
    let watts: Vec<f64> = runs.iter().filter_map(watts).collect();
    let count = watts.len() as f64;
    if watts.is_empty() {
        return None;
    }
    let mean = watts.iter().sum::<f64>() / count;
    let squares: f64 = watts.iter().map(|watts| (watts / mean - 1.0).powi(2)).sum();
    // As with time: the assumed scatter counts for four runs.
    let scatter = ((4.0 * SCATTER_SAME_MODEL.powi(2) + squares) / (4.0 + (count - 1.0))).sqrt();
    Some((mean, scatter * (1.0 + 1.0 / count).sqrt()))
}

fn energy(time_s: Estimate, (watts, scatter): (f64, f64)) -> Estimate {
    let energy = time_s.scaled(watts);
    let interval = energy.interval.map(|[low, high]| {
        // Independent errors: relative widths add as squares.
        let widen = |end: f64| {
            let time = (end / energy.value).ln().abs();
            (time * time + (2.0 * scatter).powi(2)).sqrt().exp()
        };
        [energy.value / widen(low), energy.value * widen(high)]
    });
    Estimate { interval, ..energy }
}

/// A prediction beside what was measured, for a summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub planned: Estimate,
    pub measured: f64,
}

impl Comparison {
    /// Measured over planned; 1 is as predicted.
    pub fn ratio(&self) -> f64 {
        self.measured / self.planned.value
    }
    /// Whether the measured value lies in the interval; none without an interval.
    pub fn is_inside(&self) -> Option<bool> {
        self.planned.interval.map(|[low, high]| (low..=high).contains(&self.measured))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::history::tests::{measurement, setting};

    fn history(measurements: impl IntoIterator<Item = Measurement>) -> CostHistory {
        CostHistory { measurements: measurements.into_iter().collect() }
    }

    const PROBE: ProbeMeasurement =
        ProbeMeasurement { steps: 3, work: 3e9, seconds: 6.0, processor_seconds: Some(12.0), seconds_in_all: 8.0 };

    #[test]
    fn the_nearest_source_counts() {
        let work = 100e9;
        let value = |history: &CostHistory, probe| {
            predict(history, &setting("m"), work, probe).map(|p| (p.time_s.value, p.basis))
        };
        assert_eq!(value(&history([]), None), None);
        let (seconds, basis) = value(&history([]), Some(&PROBE)).unwrap();
        assert!((seconds - 200.0).abs() < 1.0 && matches!(basis, Basis::Probe { steps: 3, .. }), "{seconds}");
        let other = history([measurement("n", 50e9, 60.0)]);
        let (seconds, basis) = value(&other, None).unwrap();
        assert!((seconds - 120.0).abs() < 1.0 && matches!(basis, Basis::OtherModels { runs: 1 }), "{seconds}");
        let (_, basis) = value(&other, Some(&PROBE)).unwrap();
        assert!(matches!(basis, Basis::Probe { .. }), "a probe of this model says more than runs of another");
        let same = history([measurement("n", 50e9, 60.0), measurement("m", 50e9, 75.0)]);
        let (seconds, basis) = value(&same, Some(&PROBE)).unwrap();
        assert!((seconds - 150.0).abs() < 1.0 && matches!(basis, Basis::Runs { runs: 1, .. }), "{seconds}");
        let mut elsewhere = measurement("m", 50e9, 75.0);
        elsewhere.setting.machine = "another machine".into();
        assert_eq!(value(&history([elsewhere]), None), None);
        let width = |history: &CostHistory, probe| {
            let [low, high] = predict(history, &setting("m"), work, probe).unwrap().time_s.interval.unwrap();
            high / low
        };
        assert!(width(&same, None) < width(&other, Some(&PROBE)) && width(&other, Some(&PROBE)) < width(&other, None));
    }

    #[test]
    fn processor_time_is_predicted_beside() {
        let prediction = predict(&history([measurement("m", 50e9, 75.0)]), &setting("m"), 100e9, None).unwrap();
        assert!((prediction.processor_s.unwrap().value - 300.0).abs() < 1.0);
        assert_eq!((prediction.energy_j, prediction.plateau), (None, None));
    }

    #[test]
    fn energy_is_power_times_time_with_both_uncertainties() {
        let mut run = measurement("m", 50e9, 75.0);
        run.energy_j = Some(750.0);
        let prediction = predict(&history([run]), &setting("m"), 100e9, None).unwrap();
        let energy = prediction.energy_j.unwrap();
        assert!((energy.value - 1500.0).abs() < 10.0, "{energy:?}");
        let ([low, high], [time_low, time_high]) = (energy.interval.unwrap(), prediction.time_s.interval.unwrap());
        assert!(low < 10.0 * time_low && high > 10.0 * time_high && low > 1000.0 && high < 2200.0, "{energy:?}");
    }

    #[test]
    fn a_probe_of_a_cold_machine_is_corrected_by_the_plateau_of_earlier_runs() {
        // An earlier run of another model settled at half its first rate.
        let law = Plateau { level: 0.5, time_s: 500.0 };
        let mut run = measurement("n", 0.0, 6000.0);
        run.pace = (0..=30).map(|point| f64::from(point) * 200.0).map(|t| [t, 1e9 * law.settled_seconds(t)]).collect();
        run.work = run.pace[30][1];
        // Cold, the machine does twice its settled work.
        let cold =
            ProbeMeasurement { steps: 3, work: 12e9, seconds: 6.0, processor_seconds: None, seconds_in_all: 7.0 };
        let history = history([run]);
        let prediction = predict(&history, &setting("m"), 1e9 * law.settled_seconds(8000.0), Some(&cold)).unwrap();
        assert!((prediction.time_s.value / 8000.0 - 1.0).abs() < 0.05, "{prediction:?}");
        assert!((prediction.plateau.unwrap().level - 0.5).abs() < 0.05);
        // A run of a minute is not slowed yet.
        let short = predict(&history, &setting("m"), 1e9 * law.settled_seconds(60.0), Some(&cold)).unwrap();
        assert!((short.time_s.value / 60.0 - 1.0).abs() < 0.05, "{short:?}");
    }

    #[test]
    fn a_comparison_tells_whether_the_plan_held() {
        let planned = Estimate { value: 100.0, interval: Some([90.0, 115.0]) };
        let inside = |measured: f64| Comparison { planned, measured }.is_inside();
        assert_eq!((inside(90.0), inside(116.0)), (Some(true), Some(false)));
        assert_eq!(Comparison { planned, measured: 110.0 }.ratio(), 1.1);
    }
}
