//! Random inputs for tests and benchmarks, from a seed.

use super::affine::{AffineMatrix, ScaleType};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Uniform in [0, 1).
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }
    /// Mean 0, variance 1, bell-shaped: a sum of four uniform values.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum = (0..4).map(|_| self.uniform()).sum::<f32>();
        (sum - 2.0) * 3f32.sqrt()
    }
    pub(crate) fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }
}

/// Weights about 0.02 in size, with scales of both signs and biases that are no multiple of the scale.
pub(crate) fn random_matrix(
    (n_out, k_in): (usize, usize),
    bits: u32,
    group_size: usize,
    scale_type: ScaleType,
    random: &mut Random,
) -> AffineMatrix {
    let groups = n_out * k_in / group_size;
    let mask = ((1u16 << bits) - 1) as u8;
    let round = |value: f32| {
        let mut bytes = [0; 4];
        scale_type.write(value, &mut bytes);
        scale_type.read(&bytes)
    };
    let codes = (0..n_out * k_in).map(|_| (random.bits() >> 32) as u8 & mask).collect();
    let mut scales = Vec::with_capacity(groups);
    let mut biases = Vec::with_capacity(groups);
    for _ in 0..groups {
        let sign = if random.bits() & 1 == 0 { -1.0 } else { 1.0 };
        let scale = round(sign * (0.5 + random.uniform()) * 0.06 / f32::from(mask));
        scales.push(scale);
        biases.push(round(-scale * f32::from(mask) * (0.4 + 0.2 * random.uniform())));
    }
    AffineMatrix { n_out, k_in, bits, group_size, codes, scales, biases, scale_type }
}
