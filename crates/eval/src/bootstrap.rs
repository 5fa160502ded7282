//! 95 % intervals by resampling queries (Efron's percentile bootstrap), seeded: the same rows give the same bits.
//!
//! The unit that is drawn is the query, because the tokens of one answer are not independent of each other. A
//! paired difference draws the same queries for both arms, which removes what makes a query easy or hard.

use crate::metrics::Score;

/// How often to resample, and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    pub resamples: usize,
    pub seed: u64,
}

impl Default for Bootstrap {
    /// 2,000 resamples put the ends of a 95 % interval within a few percent of its width of their limit.
    fn default() -> Self {
        Self { resamples: 2000, seed: 0x5e1f_7a2e }
    }
}

/// A 95 % interval, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Whether the interval lies wholly on one side of zero.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Sum of values by weight over sum of weights. `None` for no scores, or only weights of zero.
pub fn weighted_mean(scores: &[Score]) -> Option<f64> {
    mean_of(scores.iter())
}

fn mean_of<'a>(scores: impl Iterator<Item = &'a Score>) -> Option<f64> {
    let (sum, weight) =
        scores.fold((0.0, 0.0), |(sum, weight), score| (sum + score.value * score.weight, weight + score.weight));
    (weight > 0.0).then(|| sum / weight)
}

impl Bootstrap {
    /// The interval of the weighted mean. `None` for fewer than two scores, of which nothing can be said.
    pub fn mean_interval(&self, scores: &[Score]) -> Option<Interval> {
        self.interval(scores.len(), |drawn| mean_of(drawn.iter().map(|&index| &scores[index])))
    }

    /// The interval of `mean(left) - mean(right)`, where `left[i]` and `right[i]` belong to the same query.
    pub fn difference_interval(&self, left: &[Score], right: &[Score]) -> Option<Interval> {
        assert_eq!(left.len(), right.len(), "paired scores belong to the same queries");
        self.interval(left.len(), |drawn| {
            let left = mean_of(drawn.iter().map(|&index| &left[index]))?;
            let right = mean_of(drawn.iter().map(|&index| &right[index]))?;
            Some(left - right)
        })
    }

    /// The interval of any statistic of `count` queries, given as the indices that were drawn.
    ///
    /// `None` for fewer than two queries, or if a resample in twenty or more has no value.
    pub fn interval(&self, count: usize, statistic: impl Fn(&[usize]) -> Option<f64>) -> Option<Interval> {
        if count < 2 || self.resamples == 0 {
            return None;
        }
        let mut random = SplitMix64(self.seed);
        let mut drawn = vec![0; count];
        let mut values: Vec<f64> = (0..self.resamples)
            .filter_map(|_| {
                drawn.iter_mut().for_each(|index| *index = random.below(count));
                statistic(&drawn).filter(|value| value.is_finite())
            })
            .collect();
        if values.len() * 20 < self.resamples * 19 {
            return None;
        }
        values.sort_by(f64::total_cmp);
        Some(Interval { low: quantile(&values, 0.025), high: quantile(&values, 0.975) })
    }
}

/// Linear interpolation between the two nearest of the sorted values (numpy's default).
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// Steele, Lea and Flood's SplitMix64: small, and equal on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, by the high half of a product: the bias is below `bound / 2^64`.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(values: &[f64]) -> Vec<Score> {
        values.iter().map(|&value| Score { value, weight: 1.0 }).collect()
    }

    #[test]
    fn the_interval_of_a_mean_has_the_width_that_theory_gives() {
        // Of n values 0 and 1 in equal numbers the standard error is 0.5 / sqrt(n); 95 % is 1.96 of it each side.
        let values: Vec<f64> = (0..400).map(|index| f64::from(index % 2)).collect();
        let interval = Bootstrap::default().mean_interval(&scores(&values)).unwrap();
        let half_width = (interval.high - interval.low) / 2.0;
        assert!((half_width - 1.96 * 0.5 / 20.0).abs() < 0.004, "{interval:?}");
        assert!(((interval.high + interval.low) / 2.0 - 0.5).abs() < 0.005, "{interval:?}");
    }

    #[test]
    fn pairing_removes_what_queries_have_in_common() {
        let right = scores(&(0..50).map(f64::from).collect::<Vec<_>>());
        let left: Vec<Score> = right
            .iter()
            .enumerate()
            .map(|(index, score)| Score { value: score.value - 1.0 - 0.1 * (index % 3) as f64, ..*score })
            .collect();
        let bootstrap = Bootstrap::default();
        let difference = bootstrap.difference_interval(&left, &right).unwrap();
        assert!(difference.excludes_zero() && difference.high < -1.0 && difference.low > -1.2, "{difference:?}");
        // The means themselves are uncertain by several units.
        let mean = bootstrap.mean_interval(&left).unwrap();
        assert!(mean.high - mean.low > 5.0, "{mean:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_bits_and_another_seed_others() {
        let values = scores(&[0.3, 1.7, -2.0, 5.5, 0.1]);
        let first = Bootstrap::default().mean_interval(&values);
        assert_eq!(first, Bootstrap::default().mean_interval(&values));
        assert_ne!(first, Bootstrap { seed: 7, ..Bootstrap::default() }.mean_interval(&values));
    }

    #[test]
    fn weights_count_and_too_few_queries_have_no_interval() {
        let weighted = [Score { value: 1.0, weight: 3.0 }, Score { value: 5.0, weight: 1.0 }];
        assert_eq!(weighted_mean(&weighted), Some(2.0));
        assert_eq!(weighted_mean(&[]), None);
        assert_eq!(weighted_mean(&[Score { value: 1.0, weight: 0.0 }]), None);
        assert_eq!(Bootstrap::default().mean_interval(&weighted[..1]), None);
        assert_eq!(Bootstrap::default().mean_interval(&[]), None);
        assert_eq!(Bootstrap { resamples: 0, seed: 1 }.mean_interval(&weighted), None);
    }
}
