//! Dropout whose mask is a function of (seed, element index): nothing is stored, the backward computes it again.

/// Dropout of the adapter's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that an element is dropped, in [0, 1). The others are multiplied by 1 / (1 - rate).
    pub rate: f32,
    pub seed: u64,
}

impl Dropout {
    pub const NONE: Dropout = Dropout { rate: 0.0, seed: 0 };

    pub(crate) fn is_active(&self) -> bool {
        self.rate > 0.0
    }

    /// A hash of the seed with good low bits (the finalizer of SplitMix64).
    pub(crate) fn key(&self) -> u32 {
        let mut z = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u32
    }

    /// Elements whose hash is below this are dropped.
    pub(crate) fn threshold(&self) -> u32 {
        (f64::from(self.rate) * 4_294_967_296.0) as u32
    }

    pub(crate) fn kept_factor(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }
}

/// Hash of an element index under a key: two multiply-xorshift rounds on 32 bits, each a bijection.
#[inline(always)]
pub(crate) fn hash(key: u32, index: u32) -> u32 {
    let mut z = index.wrapping_mul(0x9e37_79b9) ^ key;
    z = (z ^ (z >> 16)).wrapping_mul(0x21f0_aaad);
    z = (z ^ (z >> 15)).wrapping_mul(0x735a_2d97);
    z ^ (z >> 15)
}

/// `to[i] = from[i] * mask(first_index + i)`.
#[inline(always)]
pub(crate) fn apply(dropout: &Dropout, first_index: usize, from: &[f32], to: &mut [f32]) {
    let (key, threshold, kept) = (dropout.key(), dropout.threshold(), dropout.kept_factor());
    for (i, (from, to)) in from.iter().zip(to).enumerate() {
        let dropped = hash(key, (first_index as u32).wrapping_add(i as u32)) < threshold;
        *to = if dropped { 0.0 } else { *from * kept };
    }
}
