//! The line `seconds = a·work + b` through measured runs, and how far the next run may lie from it.
//!
//! Runs scatter in proportion to their length (a throttled level, other programs), so the line is fitted to
//! `seconds/work` by weighted least squares. Two priors keep few runs honest: a start `b` of no more than seconds, and
//! a scatter that counts as `PRIOR_RUNS` runs. With them the 95 % prediction interval is the textbook one
//! (`s·sqrt(1 + x'(X'X)⁻¹x)` times Student's t), from one run on, laid out in the logarithm of time: relative scatter
//! is as likely to shorten a run as to lengthen it, and no end is ever negative. Runs that scatter more than the prior
//! says speak for themselves: mixed with it they would promise too much (91 instead of 95 of 100 in a simulation of
//! eight runs with twice its scatter).

/// How many runs the assumed scatter counts for.
const PRIOR_RUNS: f64 = 4.0;
/// The start of a run takes seconds, not minutes: the scatter of `b` around 0 before any run was seen.
pub const RUN_START_S: f64 = 10.0;
/// A run of this length scatters twice (in variance) as much as a long one: it sees only a moment of the machine.
const SHORT_S: f64 = 10.0;

/// One measured run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub work: f64,
    pub seconds: f64,
}

/// A line through runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Seconds for one unit of work.
    pub seconds_per_work: f64,
    /// Seconds that any run takes.
    pub start_s: f64,
    pub runs: usize,
    /// Pearson's correlation of seconds with work; none for fewer than three runs.
    pub r: Option<f64>,
    /// Scatter of a long run around the line, as a fraction of its time.
    scatter: f64,
    /// Degrees of freedom of the scatter.
    freedom: f64,
    /// (X'X)⁻¹ in units of `work_mean`.
    inverse: [[f64; 2]; 2],
    work_mean: f64,
}

/// A value and its 95 % prediction interval.
pub type Predicted = (f64, [f64; 2]);

impl Fit {
    /// Fits runs; `scatter` is what runs usually scatter by, as a fraction, and `start_s` what their starts do, in
    /// seconds around 0. `None` without a run of positive time and work.
    pub fn new(points: &[Point], scatter: f64, start_s: f64) -> Option<Fit> {
        let valid = |point: &&Point| {
            point.work > 0.0 && point.seconds > 0.0 && point.work.is_finite() && point.seconds.is_finite()
        };
        let points: Vec<Point> = points.iter().filter(valid).copied().collect();
        let count = points.len() as f64;
        if points.is_empty() {
            return None;
        }
        // In units of the mean work, so that both columns are of the order of 1.
        let work_mean = points.iter().map(|point| point.work).sum::<f64>() / count;
        let rows: Vec<[f64; 3]> = (points.iter())
            .map(|point| [1.0, work_mean / point.work, point.seconds * work_mean / point.work])
            .collect();
        let weights: Vec<f64> = points.iter().map(|point| 1.0 / short_variance(point.seconds)).collect();
        let level = rows.iter().map(|row| row[2]).sum::<f64>() / count;
        let ridge = (scatter * level / start_s).powi(2);

        let sum = |value: &dyn Fn(&[f64; 3]) -> f64| -> f64 {
            rows.iter().zip(&weights).map(|(row, w)| w * value(row)).sum()
        };
        let (s00, s01, s11) = (sum(&|_| 1.0), sum(&|row| row[1]), sum(&|row| row[1] * row[1]) + ridge);
        let (t0, t1) = (sum(&|row| row[2]), sum(&|row| row[1] * row[2]));
        let determinant = s00 * s11 - s01 * s01;
        let mut solution = [(s11 * t0 - s01 * t1) / determinant, (s00 * t1 - s01 * t0) / determinant];
        let mut inverse = [[s11 / determinant, -s01 / determinant], [-s01 / determinant, s00 / determinant]];
        // No run starts before it begins, and no line may predict that more work takes less time.
        let mut parameters = if points.len() > 2 { 2.0 } else { 1.0 };
        if solution[1] < 0.0 || solution[0] <= 0.0 {
            solution = [t0 / s00, 0.0];
            inverse = [[1.0 / s00, 0.0], [0.0, 0.0]];
            parameters = 1.0;
        }
        let [rate, start_s] = solution;
        let squares = sum(&|row| ((row[2] - rate - start_s * row[1]) / (rate + start_s * row[1])).powi(2));
        let freedom = PRIOR_RUNS + (count - parameters).max(0.0);
        let scatter = ((PRIOR_RUNS * scatter * scatter + squares) / freedom).sqrt();
        let (scatter, freedom) = wider((scatter, freedom), own_scatter(squares, count - parameters));
        Some(Fit {
            seconds_per_work: rate / work_mean,
            start_s,
            runs: points.len(),
            r: correlation(&points),
            scatter,
            freedom,
            inverse,
            work_mean,
        })
    }

    /// The seconds that `work` takes.
    pub fn predict(&self, work: f64) -> Predicted {
        let seconds = self.seconds_per_work * work + self.start_s;
        let x = [1.0, self.work_mean / work.max(f64::MIN_POSITIVE)];
        let [[m00, m01], [m10, m11]] = self.inverse;
        let leverage = x[0] * (m00 * x[0] + m01 * x[1]) + x[1] * (m10 * x[0] + m11 * x[1]);
        // The leverage is relative to the rate; the start makes a small run longer than its rate says.
        let rate_share = self.seconds_per_work * work / seconds;
        let deviation = self.scatter * (short_variance(seconds) + leverage * rate_share * rate_share).sqrt();
        let factor = log_factor(student_t_95(self.freedom) * deviation);
        (seconds, [seconds / factor, seconds * factor])
    }
}

/// The factor of a half width in logarithms: its exponential, and beyond 1, where nobody knows the law of the scatter
/// (moments of work), the straight line that touches it, which stays finite.
fn log_factor(half_width: f64) -> f64 {
    half_width.min(1.0).exp() * half_width.max(1.0)
}

/// Scatter and degrees of freedom of the runs alone; none where there are too few to tell.
fn own_scatter(squares: f64, freedom: f64) -> Option<(f64, f64)> {
    (freedom >= PRIOR_RUNS).then(|| ((squares / freedom).sqrt(), freedom))
}

/// Of two scatters with their degrees of freedom, the one that promises less.
fn wider(mixed: (f64, f64), own: Option<(f64, f64)>) -> (f64, f64) {
    let half = |(scatter, freedom): (f64, f64)| scatter * student_t_95(freedom);
    own.filter(|own| own.0 > mixed.0 && half(*own) > half(mixed)).unwrap_or(mixed)
}

/// Variance of a run of this length over that of a long one.
fn short_variance(seconds: f64) -> f64 {
    1.0 + SHORT_S / seconds
}

/// Pearson's r of seconds with work; none for fewer than three runs or runs that are all alike.
pub fn correlation(points: &[Point]) -> Option<f64> {
    let count = points.len() as f64;
    let (mut x, mut y) = (0.0, 0.0);
    for point in points {
        x += point.work / count;
        y += point.seconds / count;
    }
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for point in points {
        xx += (point.work - x).powi(2);
        yy += (point.seconds - y).powi(2);
        xy += (point.work - x) * (point.seconds - y);
    }
    let r = xy / (xx * yy).sqrt();
    (points.len() > 2 && r.is_finite()).then_some(r)
}

/// The 97.5 % quantile of Student's t distribution: its table up to 10 degrees of freedom, then
/// Cornish and Fisher's expansion around the normal quantile (Abramowitz and Stegun 26.7.5), exact to 1e-3 there.
fn student_t_95(freedom: f64) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    let whole = freedom.floor().max(1.0) as usize;
    if whole <= TABLE.len() {
        return TABLE[whole - 1];
    }
    let z = 1.959_964;
    let (v, z3, z5) = (freedom, z * z * z, z * z * z * z * z);
    z + (z3 + z) / (4.0 * v) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Random;

    /// Runs of 40 to 2000 s by the law, each off by a normal factor.
    fn runs(count: usize, a: f64, b: f64, noise: f64, random: &mut Random) -> Vec<Point> {
        (0..count)
            .map(|_| {
                let work = (40.0 + 1960.0 * uniform(random)) / a;
                let seconds = (a * work + b) * (1.0 + noise * normal(random));
                Point { work, seconds }
            })
            .collect()
    }
    fn uniform(random: &mut Random) -> f64 {
        (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Box and Muller 1958.
    fn normal(random: &mut Random) -> f64 {
        let (u, v) = (1.0 - uniform(random), uniform(random));
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    #[test]
    fn a_known_law_is_recovered() {
        for (a, b) in [(1e-11, 0.0), (1e-11, 3.0), (0.0112, 13.0)] {
            let points: Vec<Point> = [30.0, 60.0, 100.0, 200.0, 400.0, 700.0, 900.0, 1000.0]
                .map(|seconds| Point { work: seconds / a, seconds: seconds + b })
                .to_vec();
            let fit = Fit::new(&points, 0.05, RUN_START_S).unwrap();
            assert!((fit.seconds_per_work / a - 1.0).abs() < 0.01, "{fit:?}");
            assert!((fit.start_s - b).abs() < 0.05 * b + 1e-6, "{fit:?}");
            assert!(fit.r.unwrap() > 0.999_999);
        }
    }

    #[test]
    fn the_paper_s_table_4_gives_the_paper_s_line() {
        // Million tokens and seconds of the study's five complete runs; its fit: 0.0112 s a token, r 0.998, no
        // residual above 6 %.
        let table = [(0.64, 6812.0), (1.11, 12443.0), (1.16, 13080.0), (1.27, 14924.0), (2.35, 26099.0)];
        let points = table.map(|(tokens, seconds)| Point { work: tokens * 1e6, seconds });
        let fit = Fit::new(&points, 0.05, RUN_START_S).unwrap();
        assert!((fit.seconds_per_work - 0.0112).abs() < 0.0002, "{fit:?}");
        assert!((fit.r.unwrap() - 0.998).abs() < 0.001, "{fit:?}");
        for point in points {
            let (seconds, [low, high]) = fit.predict(point.work);
            assert!((point.seconds / seconds - 1.0).abs() < 0.06);
            assert!(low < point.seconds && point.seconds < high);
        }
    }

    #[test]
    fn intervals_hold_what_they_promise() {
        let mut random = Random::new(5);
        for (count, noise) in [(1, 0.04), (2, 0.05), (3, 0.05), (8, 0.02), (8, 0.05), (8, 0.1), (20, 0.08)] {
            let trials = 2000;
            let mut inside = 0;
            for _ in 0..trials {
                let mut points = runs(count + 1, 1e-11, 4.0, noise, &mut random);
                let next = points.pop().unwrap();
                let (_, [low, high]) = Fit::new(&points, 0.05, RUN_START_S).unwrap().predict(next.work);
                inside += usize::from((low..high).contains(&next.seconds));
            }
            let coverage = inside as f64 / f64::from(trials);
            assert!(coverage > 0.93, "{count} runs at {noise}: {coverage}");
            if count >= 8 && noise >= 0.05 {
                assert!(coverage < 0.985, "{count} runs at {noise}: {coverage} is wider than promised");
            }
        }
    }

    #[test]
    fn one_run_predicts_another_in_proportion() {
        let fit = Fit::new(&[Point { work: 1e12, seconds: 100.0 }], 0.05, RUN_START_S).unwrap();
        let (seconds, [low, high]) = fit.predict(3e12);
        assert!((seconds - 300.0).abs() < 3.0, "{seconds}");
        assert!(low < 270.0 && low > 220.0 && high > 330.0 && high < 400.0, "{low} to {high}");
        assert_eq!(fit.r, None);
        // A moment of work may take anything, but no number without an end.
        let (seconds, [low, high]) =
            Fit::new(&[Point { work: 1e3, seconds: 1e-7 }], 0.05, RUN_START_S).unwrap().predict(1e3);
        assert!(low > 0.0 && low < 0.01 * seconds && high > 100.0 * seconds && high.is_finite(), "{low} to {high}");
    }

    #[test]
    fn lines_that_make_no_sense_are_not_drawn() {
        // More work in less time, and a start before the beginning.
        for seconds in [[100.0, 50.0, 20.0], [1.0, 50.0, 200.0]] {
            let points: Vec<Point> =
                seconds.iter().enumerate().map(|(i, &seconds)| Point { work: (i + 1) as f64, seconds }).collect();
            let fit = Fit::new(&points, 0.05, RUN_START_S).unwrap();
            assert!(fit.seconds_per_work > 0.0 && fit.start_s >= 0.0, "{fit:?}");
            let (value, [low, high]) = fit.predict(2.0);
            assert!(low > 0.0 && low < value && value < high && high.is_finite());
        }
        let bad = [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 2.0)];
        assert_eq!(Fit::new(&bad.map(|(work, seconds)| Point { work, seconds }), 0.05, RUN_START_S), None);
    }

    #[test]
    fn quantiles_are_those_of_the_table() {
        for (freedom, expected) in
            [(1.0, 12.706), (4.0, 2.776), (10.0, 2.228), (12.0, 2.179), (30.0, 2.042), (120.0, 1.980)]
        {
            assert!((student_t_95(freedom) - expected).abs() < 2e-3, "{freedom}");
        }
    }
}
