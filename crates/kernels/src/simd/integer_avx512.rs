//! Integer vectors in AVX-512 with VNNI: one register.

use super::avx512::Avx512;
use super::integer::{IntegerKernel, IntegerSimd};
use crate::qlinear::ScaleType;
use std::arch::asm;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx512Integer(__m512i);

/// Runs a kernel inside a function that may use the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
#[inline(never)]
unsafe fn call<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: passed on.
    unsafe { kernel.run::<Avx512Integer>() }
}

/// `_mm512_dpwssd_epi32`, kept from LLVM: of several that add to the same sum in one block it makes a multiplication and
/// an addition each, for a shorter chain and half the rate.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn dot_i16(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the target has the instruction; it touches registers only.
    unsafe {
        asm!("vpdpwssd {sum}, {a}, {b}", sum = inout(zmm_reg) sum, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

// SAFETY (for every block of this file): values of this type exist only inside `call`, whose caller proved that
// the processor has these instructions; pointers are the callers' duty.
impl IntegerSimd for Avx512Integer {
    type Float = Avx512;
    const NAME: &'static str = "avx512vnni";
    const DOT_I16: &'static str = "vpdpwssd";
    const DOT_U8: &'static str = "vpdpbusd";
    const DOT_U8_AT_ONCE: bool = true;

    #[inline(always)]
    unsafe fn call<K: IntegerKernel>(kernel: K) -> K::Output {
        unsafe { call(kernel) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
    #[inline(always)]
    fn splat_i32(value: i32) -> Self {
        Self(unsafe { _mm512_set1_epi32(value) })
    }
    #[inline(always)]
    fn splat_i16(value: i16) -> Self {
        Self(unsafe { _mm512_set1_epi16(value) })
    }
    #[inline(always)]
    fn splat_i8(value: i8) -> Self {
        Self(unsafe { _mm512_set1_epi8(value) })
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(unsafe { _mm512_and_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }
    #[inline(always)]
    fn sub_i16(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_epi16(self.0, other.0) })
    }
    #[inline(always)]
    fn sub_i8(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_epi8(self.0, other.0) })
    }
    #[inline(always)]
    fn shift_right_u32<const BITS: u32>(self) -> Self {
        Self(unsafe { _mm512_srli_epi32::<BITS>(self.0) })
    }
    #[inline(always)]
    fn shift_right_u16<const BITS: u32>(self) -> Self {
        Self(unsafe { _mm512_srli_epi16::<BITS>(self.0) })
    }
    #[inline(always)]
    fn shift_left_u32<const BITS: u32>(self) -> Self {
        Self(unsafe { _mm512_slli_epi32::<BITS>(self.0) })
    }
    #[inline(always)]
    fn multiply_round_i16(self, other: Self) -> Self {
        Self(unsafe { _mm512_mulhrs_epi16(self.0, other.0) })
    }
    #[inline(always)]
    fn dot_i16(self, a: Self, b: Self) -> Self {
        Self(unsafe { dot_i16(self.0, a.0, b.0) })
    }
    #[inline(always)]
    fn dot_u8<const WIDE: bool>(self, unsigned: Self, signed: Self) -> Self {
        Self(unsafe { _mm512_dpbusd_epi32(self.0, unsigned.0, signed.0) })
    }
    #[inline(always)]
    fn shuffle_bytes(self, table: &[u8; 16]) -> Self {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            Self(_mm512_shuffle_epi8(self.0, table))
        }
    }
    #[inline(always)]
    fn interleave_32(self, other: Self) -> (Self, Self) {
        unsafe { (Self(_mm512_unpacklo_epi32(self.0, other.0)), Self(_mm512_unpackhi_epi32(self.0, other.0))) }
    }
    #[inline(always)]
    fn interleave_64(self, other: Self) -> (Self, Self) {
        unsafe { (Self(_mm512_unpacklo_epi64(self.0, other.0)), Self(_mm512_unpackhi_epi64(self.0, other.0))) }
    }
    #[inline(always)]
    fn transpose_lanes(vectors: [Self; 4]) -> [Self; 4] {
        unsafe {
            let [a, b, c, d] = vectors;
            let ab_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(a.0, b.0);
            let ab_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(a.0, b.0);
            let cd_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(c.0, d.0);
            let cd_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(c.0, d.0);
            [
                Self(_mm512_shuffle_i32x4::<0b10_00_10_00>(ab_low, cd_low)),
                Self(_mm512_shuffle_i32x4::<0b11_01_11_01>(ab_low, cd_low)),
                Self(_mm512_shuffle_i32x4::<0b10_00_10_00>(ab_high, cd_high)),
                Self(_mm512_shuffle_i32x4::<0b11_01_11_01>(ab_high, cd_high)),
            ]
        }
    }
    #[inline(always)]
    fn pack_i8(self, other: Self) -> Self {
        Self(unsafe { _mm512_packs_epi16(self.0, other.0) })
    }
    #[inline(always)]
    fn to_float(self) -> Avx512 {
        Avx512(unsafe { _mm512_cvtepi32_ps(self.0) })
    }
    #[inline(always)]
    fn from_float(value: Avx512) -> Self {
        Self(unsafe { _mm512_cvtps_epi32(value.0) })
    }
    #[inline(always)]
    fn bits_as_float(self) -> Avx512 {
        Avx512(unsafe { _mm512_castsi512_ps(self.0) })
    }
    #[inline(always)]
    fn max_magnitude(self, value: Avx512) -> Self {
        unsafe {
            let magnitude = _mm512_and_si512(_mm512_castps_si512(value.0), _mm512_set1_epi32(i32::MAX));
            Self(_mm512_max_epu32(self.0, magnitude))
        }
    }
    #[inline(always)]
    fn reduce_max_u32(self) -> u32 {
        unsafe { _mm512_reduce_max_epu32(self.0) }
    }
    #[inline(always)]
    fn pack_i16(self, other: Self) -> Self {
        unsafe {
            let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            Self(_mm512_permutexvar_epi64(order, _mm512_packs_epi32(self.0, other.0)))
        }
    }
    #[inline(always)]
    unsafe fn store_as_i16(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(self.0)) }
    }
    #[inline(always)]
    unsafe fn store_as_i8_quads(self, to: *mut u8) {
        unsafe {
            let order = _mm512_shuffle_epi32::<0b11_01_10_00>(self.0);
            _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(order));
        }
    }
    #[inline(always)]
    unsafe fn load_scales(scale_type: ScaleType, from: *const u8) -> Avx512 {
        unsafe {
            Avx512(match scale_type {
                ScaleType::BFloat16 => {
                    let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                }
                ScaleType::Float16 => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
                ScaleType::Float32 => _mm512_loadu_ps(from.cast()),
            })
        }
    }
    #[inline(always)]
    fn prefetch(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_near(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}
