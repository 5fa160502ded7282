//! Vectors in AVX2 and FMA: two registers of eight lanes.

use super::{Kernel, LANES, Simd, operators};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(super) __m256, pub(super) __m256);

/// Runs a kernel inside a function that may use the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: passed on.
    unsafe { kernel.run::<Avx2>() }
}

/// Sum of eight lanes in the order of [`Simd::reduce_add`].
#[inline(always)]
pub(super) unsafe fn reduce_add_eight(eight: __m256) -> f32 {
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// 2^exponent for whole exponents from -126 to 127 in integer lanes.
#[inline(always)]
unsafe fn power_of_two(exponent: __m256i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)))) }
}

#[inline(always)]
unsafe fn times_power_of_two(x: __m256, exponent: __m256) -> __m256 {
    unsafe {
        let limited = _mm256_max_ps(_mm256_min_ps(exponent, _mm256_set1_ps(254.0)), _mm256_set1_ps(-252.0));
        let exponent = _mm256_cvtps_epi32(limited);
        let half = _mm256_srai_epi32::<1>(exponent);
        _mm256_mul_ps(_mm256_mul_ps(x, power_of_two(half)), power_of_two(_mm256_sub_epi32(exponent, half)))
    }
}

/// Rows and columns of an 8 x 8 block exchanged.
#[inline(always)]
unsafe fn transpose_eight(rows: [__m256; 8]) -> [__m256; 8] {
    unsafe {
        let mut fours = [_mm256_setzero_ps(); 8];
        for g in 0..2 {
            let [a, b, c, d] = [rows[4 * g], rows[4 * g + 1], rows[4 * g + 2], rows[4 * g + 3]];
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            fours[4 * g] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
            fours[4 * g + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
            fours[4 * g + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
            fours[4 * g + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
        }
        let mut columns = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            columns[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]);
            columns[4 + i] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]);
        }
        columns
    }
}

// SAFETY (for every block of this file): values of this type exist only inside `call`, whose caller proved that
// the processor has these instructions; pointers are the callers' duty.
impl Avx2 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
    }
}
operators!(Avx2);

impl Simd for Avx2 {
    #[cfg(test)]
    const NAME: &'static str = "avx2";
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe { call(kernel) }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast()));
            Self(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let (low, high) = (_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, factor.0, addend.0), _mm256_fmadd_ps(self.1, factor.1, addend.1)) }
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        unsafe { Self(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)) }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        unsafe { Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
    }
    #[inline(always)]
    fn select_less(self, limit: Self, if_less: Self, otherwise: Self) -> Self {
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, limit.1);
            Self(_mm256_blendv_ps(otherwise.0, if_less.0, low), _mm256_blendv_ps(otherwise.1, if_less.1, high))
        }
    }
    #[inline(always)]
    fn any_above(self, limit: Self) -> bool {
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, limit.0);
            let high = _mm256_cmp_ps::<_CMP_GT_OQ>(self.1, limit.1);
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        }
    }
    #[inline(always)]
    fn times_power_of_two(self, exponent: Self) -> Self {
        unsafe { Self(times_power_of_two(self.0, exponent.0), times_power_of_two(self.1, exponent.1)) }
    }
    #[inline(always)]
    fn transpose(rows: &mut [Self; LANES]) {
        unsafe {
            let from = *rows;
            let a = transpose_eight(std::array::from_fn(|i| from[i].0));
            let b = transpose_eight(std::array::from_fn(|i| from[i].1));
            let c = transpose_eight(std::array::from_fn(|i| from[8 + i].0));
            let d = transpose_eight(std::array::from_fn(|i| from[8 + i].1));
            for i in 0..8 {
                rows[i] = Self(a[i], c[i]);
                rows[8 + i] = Self(b[i], d[i]);
            }
        }
    }
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        unsafe { std::mem::transmute::<[__m256; 2], [f32; LANES]>([self.0, self.1]) }
    }
    #[inline(always)]
    fn reduce_add(self) -> f32 {
        unsafe { reduce_add_eight(_mm256_add_ps(self.0, self.1)) }
    }
}
