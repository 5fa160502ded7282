//! Which examples make up which update: a pure function of the seed, the number of examples and the update's number.
//!
//! Every pass visits every example once, in its own shuffled order. A window is the run of `accumulation` examples
//! that one update sees; windows do not reach over the end of a pass, so the last window of a pass may be
//! shorter, and it is trained like the others. Nothing here is stored in a run's state: the update's number is enough.

use std::ops::Range;

/// The order of a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOrder {
    seed: u64,
    examples: usize,
    accumulation: usize,
}

/// The examples of one update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Passes over the data before this one.
    pub pass: u64,
    /// Places in the pass's order.
    pub places: Range<usize>,
}

impl DataOrder {
    /// `examples` and `accumulation` must be at least 1.
    pub fn new(seed: u64, examples: usize, accumulation: usize) -> Self {
        assert!(examples > 0 && accumulation > 0, "an order needs examples and a window");
        Self { seed, examples, accumulation }
    }

    pub fn updates_per_pass(&self) -> u64 {
        self.examples.div_ceil(self.accumulation) as u64
    }

    /// The window of the update that follows `updates_done` updates.
    pub fn window(&self, updates_done: u64) -> Window {
        let per_pass = self.updates_per_pass();
        let start = (updates_done % per_pass) as usize * self.accumulation;
        let end = start.saturating_add(self.accumulation).min(self.examples);
        Window { pass: updates_done / per_pass, places: start..end }
    }

    /// The indices of all examples in the order of pass `pass` (counted from 0): a Fisher-Yates shuffle.
    pub fn shuffled(&self, pass: u64) -> Vec<usize> {
        let mut random = Random::new(mix(self.seed, pass));
        let mut order: Vec<usize> = (0..self.examples).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        order
    }

    /// The seed of the dropout masks of one example of one update: another for every visit.
    pub fn dropout_seed(&self, updates_done: u64, place_in_window: usize) -> u64 {
        mix(mix(self.seed ^ DROPOUT_STREAM, updates_done), place_in_window as u64)
    }
}

/// Keeps dropout seeds apart from shuffle seeds.
const DROPOUT_STREAM: u64 = 0x6472_6f70_6f75_7421;

/// The generator SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self { state: seed }
    }
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `bound`: the high half of a 64 by 64 bit product, whose bias of `bound / 2^64` is nothing here.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// One seed from two numbers, so that neighbours in either share nothing.
fn mix(a: u64, b: u64) -> u64 {
    let mut random = Random::new(a);
    Random::new(random.next() ^ b.wrapping_mul(0xD6E8_FEB8_6659_FD93)).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn splitmix_gives_the_published_sequence() {
        // First values for seed 1234567 in the reference implementation's test.
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next(), random.next(), random.next()], expected);
    }

    #[test]
    fn every_pass_visits_every_example_once_whatever_the_window() {
        for examples in 1..20 {
            for accumulation in [1, 2, 3, 7, 25, usize::MAX] {
                let order = DataOrder::new(5, examples, accumulation);
                for pass in 0..3 {
                    let shuffled = order.shuffled(pass);
                    let mut visited = Vec::new();
                    for update in pass * order.updates_per_pass()..(pass + 1) * order.updates_per_pass() {
                        let window = order.window(update);
                        assert_eq!(window.pass, pass);
                        assert!(!window.places.is_empty() && window.places.len() <= accumulation);
                        visited.extend(shuffled[window.places].iter().copied());
                    }
                    visited.sort_unstable();
                    assert_eq!(visited, (0..examples).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn passes_and_seeds_have_their_own_orders() {
        let order = DataOrder::new(1, 50, 1);
        assert_eq!(order.shuffled(3), DataOrder::new(1, 50, 4).shuffled(3));
        let orders: HashSet<Vec<usize>> =
            (0..4).flat_map(|seed| (0..4).map(move |pass| DataOrder::new(seed, 50, 1).shuffled(pass))).collect();
        assert_eq!(orders.len(), 16);
    }

    #[test]
    fn a_shuffle_favours_no_place() {
        let mut first = [0usize; 5];
        for seed in 0..5000 {
            first[DataOrder::new(seed, 5, 1).shuffled(0)[0]] += 1;
        }
        // Expected 1000 each with a deviation of 28.
        assert!(first.iter().all(|&count| (860..1140).contains(&count)), "{first:?}");
    }

    #[test]
    fn dropout_seeds_differ_between_visits_and_from_shuffles() {
        let order = DataOrder::new(9, 10, 4);
        let seeds: HashSet<u64> =
            (0..100).flat_map(|update| (0..4).map(move |place| order.dropout_seed(update, place))).collect();
        assert_eq!(seeds.len(), 400);
    }
}
