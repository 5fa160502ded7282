//! Vectors in AVX-512: one register.

use super::{Kernel, LANES, Simd, operators};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(super) __m512);

/// Runs a kernel inside a function that may use the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
#[inline(never)]
unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: passed on.
    unsafe { kernel.run::<Avx512>() }
}

// SAFETY (for every block of this file): values of this type exist only inside `call`, whose caller proved that
// the processor has these instructions; pointers are the callers' duty.
impl Avx512 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
}
operators!(Avx512);

/// Mask of the first `count` lanes.
#[inline(always)]
fn first_lanes(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

impl Simd for Avx512 {
    #[cfg(test)]
    const NAME: &'static str = "avx512vnni";
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe { call(kernel) }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) })
    }
    #[inline(always)]
    unsafe fn load_partial(from: *const f32, count: usize) -> Self {
        Self(unsafe { _mm512_maskz_loadu_ps(first_lanes(count), from) })
    }
    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first_lanes(count), self.0) }
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(unsafe { _mm512_sqrt_ps(self.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn select_less(self, limit: Self, if_less: Self, otherwise: Self) -> Self {
        Self(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0), otherwise.0, if_less.0) })
    }
    #[inline(always)]
    fn any_above(self, limit: Self) -> bool {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, limit.0) != 0 }
    }
    #[inline(always)]
    fn times_power_of_two(self, exponent: Self) -> Self {
        Self(unsafe { _mm512_scalef_ps(self.0, exponent.0) })
    }
    #[inline(always)]
    fn transpose(rows: &mut [Self; LANES]) {
        unsafe {
            // 4 x 4 blocks inside the 128-bit lanes of each group of four rows ...
            let mut fours = [_mm512_setzero_ps(); LANES];
            for g in 0..4 {
                let [a, b, c, d] = [rows[4 * g].0, rows[4 * g + 1].0, rows[4 * g + 2].0, rows[4 * g + 3].0];
                let ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
                let cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
                fours[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low));
                fours[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low));
                fours[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high));
                fours[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high));
            }
            // ... then the 4 x 4 arrangement of those lanes.
            for i in 0..4 {
                let [a, b, c, d] = [fours[i], fours[4 + i], fours[8 + i], fours[12 + i]];
                let ab_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                let ab_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
                let cd_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d);
                let cd_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d);
                rows[i] = Self(_mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, cd_even));
                rows[8 + i] = Self(_mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, cd_even));
                rows[4 + i] = Self(_mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, cd_odd));
                rows[12 + i] = Self(_mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, cd_odd));
            }
        }
    }
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        unsafe { std::mem::transmute::<__m512, [f32; LANES]>(self.0) }
    }
    #[inline(always)]
    fn reduce_add(self) -> f32 {
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            super::avx2::reduce_add_eight(eight)
        }
    }
    #[inline(always)]
    fn reduce_max(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
