//! The exponential function over vectors.

use super::Simd;

/// Below this exp(x) is subnormal: flushed to zero (subnormal numbers slow the products down and change nothing).
const SMALLEST: f32 = -87.336_54;
/// Above this exp(x) exceeds the largest float.
const LARGEST: f32 = 88.722_84;

/// e^x per lane, relative error under 2e-7; 0 below about -87.3, infinity above about 88.7, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: S) -> S {
    S::splat(LARGEST).select_less(x, S::splat(f32::INFINITY), exp_up_to_88(x))
}

/// [`exp`] for arguments up to 88 (NaN for infinity), where softmax lives.
///
/// x = n ln 2 + r with whole n and |r| <= ln 2 / 2; e^r is its Taylor polynomial with coefficients adjusted to
/// the interval (degree 6, as in the Cephes library), and the result is e^r 2^n.
#[inline(always)]
pub(crate) fn exp_up_to_88<S: Simd>(x: S) -> S {
    // Adding 1.5 * 2^23 leaves no bits after the point: the sum is rounded to a whole number.
    let round = S::splat(12_582_912.0);
    let n = x.mul_add(S::splat(std::f32::consts::LOG2_E), round) - round;
    // ln 2 in two parts, the first with few bits: its product with n is exact.
    let r = n.mul_add(S::splat(-355.0 / 512.0), x);
    let r = n.mul_add(S::splat(2.121_944_4e-4), r);
    let mut p = S::splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, S::splat(coefficient));
    }
    let p = p.mul_add(r * r, r) + S::splat(1.0);
    let y = p.times_power_of_two(n);
    x.select_less(S::splat(SMALLEST), S::zero(), y)
}
