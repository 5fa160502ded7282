//! The cheapest settings that fit a limit, and what the paper measured that each costs in quality.

use serde::Serialize;

use crate::cost::prediction::Estimate;

/// What a run may take at most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    pub time_s: Option<f64>,
    pub energy_j: Option<f64>,
    pub peak_bytes: Option<f64>,
}

/// Settings with what they cost and what they keep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    pub adapted_blocks: usize,
    pub passes: u64,
    pub tokens_max: usize,
    pub tokens_total: u64,
    /// Examples that lose context to the shorter length.
    pub examples_cut: usize,
    /// Tokens of one pass, over those of the settings as asked.
    pub tokens_kept: f64,
    pub time_s: Option<Estimate>,
    pub energy_j: Option<Estimate>,
    pub peak_bytes: f64,
}

/// A way to make a run cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    Depth,
    Passes,
    Length,
}

/// (share of the blocks adapted, share of the gain that is kept, accuracy): Section 6.2 of the paper, per-user
/// movie-tagging adapters of 36 blocks, 100 users, 3,302 queries; 0.488 with all blocks.
const DEPTH_GAIN: [(f64, f64, f64); 3] = [(1.0, 1.0, 0.488), (24.0 / 36.0, 0.91, 0.476), (18.0 / 36.0, 0.88, 0.472)];

impl Candidate {
    /// In what this differs from the settings as asked.
    pub fn levers(&self, asked: &Candidate) -> Vec<Lever> {
        let differs = [
            (Lever::Depth, self.adapted_blocks != asked.adapted_blocks),
            (Lever::Passes, self.passes != asked.passes),
            (Lever::Length, self.tokens_max != asked.tokens_max),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(lever, _)| lever).collect()
    }

    /// The largest of value over limit; at most 1 when everything fits. Infinite where a limit is asked for what nobody
    /// knows.
    pub fn excess(&self, limits: &Limits) -> f64 {
        let over = |value: Option<f64>, limit: Option<f64>| match (value, limit) {
            (_, None) => 0.0,
            (Some(value), Some(limit)) => value / limit,
            (None, Some(_)) => f64::INFINITY,
        };
        let time = over(self.time_s.map(|time| time.value), limits.time_s);
        let energy = over(self.energy_j.map(|energy| energy.value), limits.energy_j);
        time.max(energy).max(over(Some(self.peak_bytes), limits.peak_bytes))
    }

    /// How much is given up: what nobody has measured first, then the measured loss, then what else goes.
    fn given_up(&self, asked: &Candidate, blocks: usize) -> [f64; 3] {
        let measured = gain_kept(self.adapted_blocks as f64 / blocks as f64);
        let levers = self.levers(asked);
        let unmeasured = levers.iter().filter(|lever| **lever != Lever::Depth || measured.is_none()).count();
        let passes = self.passes as f64 / asked.passes as f64;
        let depth = self.adapted_blocks as f64 / asked.adapted_blocks as f64;
        [unmeasured as f64, 1.0 - measured.unwrap_or(0.88), 1.0 - passes * depth * self.tokens_kept]
    }

    /// What each lever is known to cost, in words.
    pub fn quality(&self, asked: &Candidate, blocks: usize) -> Vec<String> {
        let sentence = |lever: &Lever| match lever {
            Lever::Depth => depth_sentence(self.adapted_blocks, blocks),
            Lever::Passes => format!(
                "{} of {} passes: the paper fixes 3 and did not measure fewer (Table 1)",
                self.passes, asked.passes
            ),
            Lever::Length => format!(
                "{} examples lose context, {:.0} % of the tokens are kept: answers stay whole; the paper kept 1024 tokens, \
                 enough for 92 % of its records, and did not measure less (Section 3)",
                self.examples_cut,
                100.0 * self.tokens_kept
            ),
        };
        self.levers(asked).iter().map(sentence).collect()
    }
}

fn depth_sentence(adapted: usize, blocks: usize) -> String {
    let share = adapted as f64 / blocks as f64;
    let measured = DEPTH_GAIN.iter().rev().find(|(depth, ..)| *depth >= share - 1e-9);
    match (gain_kept(share), measured) {
        (Some(gain), Some((depth, _, accuracy))) => format!(
            "the last {adapted} of {blocks} blocks: about {:.0} % of the adapter's gain is kept; the paper's last {:.0} of 36 \
             blocks reached {accuracy} against 0.488 (Section 6.2)",
            100.0 * gain,
            36.0 * depth
        ),
        _ => format!(
            "the last {adapted} of {blocks} blocks: quality below half of the blocks was not measured; half kept 88 % of the \
             gain (Section 6.2)"
        ),
    }
}

/// The share of an adapter's gain that is kept at this depth, on straight lines between measured depths; none below.
fn gain_kept(share: f64) -> Option<f64> {
    DEPTH_GAIN.windows(2).find_map(|pair| {
        let ((high, high_gain, _), (low, low_gain, _)) = (pair[0], pair[1]);
        let part = (share - low) / (high - low);
        (-1e-9..=1.0 + 1e-9).contains(&part).then_some(low_gain + part * (high_gain - low_gain))
    })
}

/// What fits, least given up first, and for each set of levers only the one that gives up least.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranked {
    pub fitting: Vec<Candidate>,
    /// What comes nearest, where nothing fits.
    pub nearest: Option<Candidate>,
}

/// Ranks `candidates` (the settings as asked among them) of a model of so many blocks.
pub fn rank(candidates: &[Candidate], asked: &Candidate, blocks: usize, limits: &Limits) -> Ranked {
    let mut order: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.excess(limits) <= 1.0).collect();
    let key = |candidate: &Candidate| candidate.given_up(asked, blocks);
    order.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.iter().zip(&b).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut seen: Vec<Vec<Lever>> = Vec::new();
    let mut fitting = Vec::new();
    for candidate in order {
        let levers = candidate.levers(asked);
        // More levers than another that fits give up more for nothing.
        if !seen.iter().any(|other| other.iter().all(|lever| levers.contains(lever))) {
            seen.push(levers);
            fitting.push(candidate.clone());
        }
    }
    let nearest = || candidates.iter().min_by(|a, b| a.excess(limits).total_cmp(&b.excess(limits))).cloned();
    let nearest = if fitting.is_empty() { nearest() } else { None };
    Ranked { fitting, nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 36;

    /// Time by a law of its own: a forward of all blocks, two more for each adapted one.
    fn candidate(adapted_blocks: usize, passes: u64, tokens_max: usize) -> Candidate {
        let tokens_kept = tokens_max as f64 / 1024.0;
        let time = passes as f64 * tokens_kept * (36 + 2 * adapted_blocks) as f64;
        let estimate = |value: f64| Some(Estimate { value, interval: None });
        Candidate {
            adapted_blocks,
            passes,
            tokens_max,
            tokens_total: (passes * tokens_max as u64) * 100,
            examples_cut: 0,
            tokens_kept,
            time_s: estimate(time),
            energy_j: estimate(4.0 * time),
            peak_bytes: 1e9 + 1e6 * tokens_max as f64,
        }
    }

    fn all() -> Vec<Candidate> {
        let mut all = Vec::new();
        for blocks in [36, 30, 24, 18, 12, 6] {
            for passes in [3, 2, 1] {
                all.extend([1024, 768, 512, 256].map(|length| candidate(blocks, passes, length)));
            }
        }
        all
    }

    #[test]
    fn the_best_of_each_set_of_levers_is_what_brute_force_finds() {
        let asked = candidate(36, 3, 1024);
        for limit in [330.0, 320.0, 250.0, 216.0, 150.0, 100.0, 60.0, 30.0, 12.0] {
            let limits = Limits { time_s: Some(limit), ..Limits::default() };
            let ranked = rank(&all(), &asked, BLOCKS, &limits);
            assert!(ranked.fitting.iter().all(|found| found.time_s.unwrap().value <= limit));
            // One lever alone: of all that fit, the one that changes least.
            let fits = |blocks, passes, length| candidate(blocks, passes, length).time_s.unwrap().value <= limit;
            if fits(36, 3, 1024) {
                assert_eq!(ranked.fitting, std::slice::from_ref(&asked));
                continue;
            }
            let found = |lever: Lever| ranked.fitting.iter().find(|found| found.levers(&asked) == [lever]);
            let depth = [30, 24, 18, 12, 6].into_iter().find(|&blocks| fits(blocks, 3, 1024));
            assert_eq!(found(Lever::Depth).map(|found| found.adapted_blocks), depth, "within {limit}");
            let passes = [2, 1].into_iter().find(|&passes| fits(36, passes, 1024));
            assert_eq!(found(Lever::Passes).map(|found| found.passes), passes, "within {limit}");
            let length = [768, 512, 256].into_iter().find(|&length| fits(36, 3, length));
            assert_eq!(found(Lever::Length).map(|found| found.tokens_max), length, "within {limit}");
            let any = all().iter().any(|one| one.time_s.unwrap().value <= limit);
            assert_eq!(ranked.fitting.is_empty(), !any, "within {limit}");
        }
    }

    #[test]
    fn what_was_measured_comes_first_and_nothing_fitting_names_the_nearest() {
        let asked = candidate(36, 3, 1024);
        let half = Limits { time_s: Some(0.7 * 324.0), ..Limits::default() };
        let ranked = rank(&all(), &asked, BLOCKS, &half);
        assert_eq!((ranked.fitting[0].adapted_blocks, ranked.fitting[0].passes), (18, 3));
        let quality = ranked.fitting[0].quality(&asked, BLOCKS);
        assert!(
            quality[0].contains("88 %") && quality[0].contains("Section 6.2") && quality[0].contains("0.472"),
            "{quality:?}"
        );
        let never = Limits { time_s: Some(1.0), ..Limits::default() };
        let ranked = rank(&all(), &asked, BLOCKS, &never);
        assert_eq!((ranked.fitting.len(), ranked.nearest), (0, Some(candidate(6, 1, 256))));
    }

    #[test]
    fn all_limits_hold_together_and_unknown_costs_fit_none() {
        let asked = candidate(36, 3, 1024);
        let limits = Limits { time_s: Some(200.0), energy_j: Some(500.0), peak_bytes: Some(1.6e9) };
        let ranked = rank(&all(), &asked, BLOCKS, &limits);
        assert!(!ranked.fitting.is_empty());
        for found in &ranked.fitting {
            assert!(found.time_s.unwrap().value <= 125.0 && found.tokens_max <= 512, "{found:?}");
        }
        let mut unknown = all();
        unknown.iter_mut().for_each(|one| one.energy_j = None);
        assert_eq!(rank(&unknown, &asked, BLOCKS, &limits).fitting, []);
    }

    #[test]
    fn gain_between_measured_depths_lies_between() {
        assert_eq!(gain_kept(1.0), Some(1.0));
        assert!((gain_kept(24.0 / 36.0).unwrap() - 0.91).abs() < 1e-9);
        assert!((gain_kept(21.0 / 36.0).unwrap() - 0.895).abs() < 1e-9);
        assert_eq!(gain_kept(0.4), None);
    }
}
