//! A seeded random generator of our own, so that a seed gives the same bytes on every machine and in every version.

/// SplitMix64 (Steele, Lea and Flood, 2014): one 64-bit state, statistically sound, and seeds need no warming up.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.state)
    }
    /// Uniform in [0, 1) with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Uniform in [-bound, bound).
    pub fn symmetric(&mut self, bound: f64) -> f32 {
        ((2.0 * self.unit() - 1.0) * bound) as f32
    }
}

/// A seed for part `index` of something seeded with `seed`.
pub(crate) fn seed_of_part(seed: u64, index: usize) -> u64 {
    mixed(seed ^ mixed((index as u64).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit of `x`.
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_published_sequence() {
        // First outputs of SplitMix64 for seed 1234567, as in Vigna's reference program.
        let mut random = Random::new(1_234_567);
        assert_eq!(
            [random.next_u64(), random.next_u64(), random.next_u64()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn is_uniform_within_its_bound() {
        let mut random = Random::new(7);
        let values: Vec<f32> = (0..20_000).map(|_| random.symmetric(0.25)).collect();
        assert!(values.iter().all(|value| value.abs() <= 0.25));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let square = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        // Five standard errors of the mean of 20,000 and of the second moment 0.25^2 / 3.
        assert!(mean.abs() < 5.0 * 0.25 / 3f32.sqrt() / 20_000f32.sqrt());
        assert!((square - 0.0625 / 3.0).abs() < 0.001);
    }
}
