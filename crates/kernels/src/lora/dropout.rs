//! Dropout whose mask is a function of (seed, element index): nothing is stored, the backward computes it again.

use crate::simd::{LANES, Simd};

/// Dropout of the adapter's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that an element is dropped, in [0, 1). The others are multiplied by 1 / (1 - rate).
    pub rate: f32,
    /// Another mask for each: change it every step and every adapted matrix.
    pub seed: u64,
}

impl Dropout {
    pub const NONE: Dropout = Dropout { rate: 0.0, seed: 0 };

    /// The mask as kernels compute it; `None` when nothing is dropped.
    pub(super) fn mask(&self) -> Option<Mask> {
        // The finalizer of SplitMix64 spreads neighbouring seeds over all bits.
        let mut z = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (self.rate > 0.0).then_some(Mask {
            key: z as u32,
            index_key: (z >> 32) as u32,
            threshold: (f64::from(self.rate) * 4_294_967_296.0) as u32,
            kept_factor: 1.0 / (1.0 - self.rate),
        })
    }
}

/// Factors 0 or `kept_factor` by element index.
#[derive(Clone, Copy)]
pub(super) struct Mask {
    key: u32,
    index_key: u32,
    threshold: u32,
    kept_factor: f32,
}

impl Mask {
    /// Factor of the element with this index (modulo 2^32): dropped if its hash is below the threshold. The hash is
    /// two multiply-xorshift rounds with a key before each, so that other seeds give unrelated masks, not shifts.
    #[inline(always)]
    pub fn factor(&self, index: u32) -> f32 {
        let mut z = index ^ self.index_key;
        z = (z ^ (z >> 16)).wrapping_mul(0x21f0_aaad) ^ self.key;
        z = (z ^ (z >> 15)).wrapping_mul(0x735a_2d97);
        z ^= z >> 15;
        if z < self.threshold { 0.0 } else { self.kept_factor }
    }

    /// `to[i] = from[i] * factor(first + i)` for `count` floats. `to` may be `from`.
    ///
    /// # Safety
    /// Both hold `count` floats.
    #[inline(always)]
    pub unsafe fn apply<S: Simd>(&self, first: usize, from: *const f32, to: *mut f32, count: usize) {
        for start in (0..count).step_by(4 * LANES) {
            // The factors of four vectors at once, in a form that compiles to integer vectors.
            let mut factors = [0f32; 4 * LANES];
            for (i, factor) in factors.iter_mut().enumerate() {
                *factor = self.factor((first as u32).wrapping_add((start + i) as u32));
            }
            for i in (0..4 * LANES).step_by(LANES) {
                let at = start + i;
                if at < count {
                    // SAFETY: `at..count` is inside both; the factors have four vectors.
                    unsafe {
                        let x = S::load_up_to(from.add(at), count - at) * S::load(factors.as_ptr().add(i));
                        x.store_up_to(to.add(at), count - at);
                    }
                }
            }
        }
    }
}
