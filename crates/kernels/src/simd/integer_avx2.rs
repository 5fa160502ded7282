//! Integer vectors in AVX2: two registers of 32 bytes, so lanes 0 and 1, then 2 and 3. With `VNNI`, products are
//! the instructions of the AVX-VNNI extension, which multiply and add at once.

use super::avx2::Avx2;
use super::integer::{IntegerKernel, IntegerSimd};
use crate::qlinear::ScaleType;
use std::arch::asm;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx2Integer<const VNNI: bool>(__m256i, __m256i);

/// Runs a kernel inside a function that may use the instructions.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
unsafe fn call<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: passed on.
    unsafe { kernel.run::<Avx2Integer<false>>() }
}
#[target_feature(enable = "avx2,fma,avxvnni")]
#[inline(never)]
unsafe fn call_vnni<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: passed on.
    unsafe { kernel.run::<Avx2Integer<true>>() }
}

/// `_mm256_dpwssd_avx_epi32`, kept from LLVM: of several that add to the same sum in one block it makes a multiplication
/// and an addition each, for a shorter chain and half the rate.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
unsafe fn dot_i16_vnni(mut sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the target has the instruction; it touches registers only.
    unsafe {
        asm!("{{vex}} vpdpwssd {sum}, {a}, {b}", sum = inout(ymm_reg) sum, a = in(ymm_reg) a, b = in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// i32 `sum` + unsigned bytes times signed bytes in fours; neighbouring products must sum to 16 bits.
#[inline(always)]
unsafe fn dot_u8_narrow(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    unsafe {
        let pairs = _mm256_maddubs_epi16(unsigned, signed);
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// The same for all bytes: 255·127·2 does not fit 16 bits, 127·128·2 does.
#[inline(always)]
unsafe fn dot_u8_wide(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    unsafe {
        let half = _mm256_and_si256(_mm256_srli_epi16::<1>(unsigned), _mm256_set1_epi8(0x7f));
        let rest = _mm256_and_si256(unsigned, _mm256_set1_epi8(1));
        let halves = _mm256_madd_epi16(_mm256_maddubs_epi16(half, signed), _mm256_set1_epi16(2));
        let rests = _mm256_madd_epi16(_mm256_maddubs_epi16(rest, signed), _mm256_set1_epi16(1));
        _mm256_add_epi32(sum, _mm256_add_epi32(halves, rests))
    }
}

/// Eight bfloat16 or float16 bit patterns as integers.
#[inline(always)]
unsafe fn load_eight(from: *const u8) -> __m256i {
    unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())) }
}

/// Eight finite float16 values. Their magnitude bits, moved under a float32 exponent that is too small by
/// 127 - 15, are exact after a multiplication by 2^112, subnormal ones included.
#[inline(always)]
unsafe fn load_eight_f16(from: *const u8) -> __m256 {
    unsafe {
        let bits = load_eight(from);
        let magnitude = _mm256_slli_epi32::<13>(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fff)));
        let sign = _mm256_slli_epi32::<16>(_mm256_and_si256(bits, _mm256_set1_epi32(0x8000)));
        let factor = _mm256_set1_ps(f32::from_bits((127 + 112) << 23));
        _mm256_or_ps(_mm256_mul_ps(_mm256_castsi256_ps(magnitude), factor), _mm256_castsi256_ps(sign))
    }
}

/// Both halves of one or two vectors through the same instruction.
macro_rules! halves {
    ($f:expr, $a:expr) => {
        unsafe { Self($f($a.0), $f($a.1)) }
    };
    ($f:expr, $a:expr, $b:expr) => {
        unsafe { Self($f($a.0, $b.0), $f($a.1, $b.1)) }
    };
}

// SAFETY (for every block of this file): values of this type exist only inside `call`, whose caller proved that
// the processor has these instructions; pointers are the callers' duty.
impl<const VNNI: bool> IntegerSimd for Avx2Integer<VNNI> {
    type Float = Avx2;
    const NAME: &'static str = if VNNI { "avxvnni" } else { "avx2" };
    const DOT_I16: &'static str = if VNNI { "vpdpwssd" } else { "vpmaddwd" };
    const DOT_U8: &'static str = if VNNI { "vpdpbusd" } else { "vpmaddubsw" };
    const DOT_U8_AT_ONCE: bool = VNNI;

    #[inline(always)]
    unsafe fn call<K: IntegerKernel>(kernel: K) -> K::Output {
        unsafe { if VNNI { call_vnni(kernel) } else { call(kernel) } }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Self(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe {
            _mm256_storeu_si256(to.cast(), self.0);
            _mm256_storeu_si256(to.add(32).cast(), self.1);
        }
    }
    #[inline(always)]
    fn splat_i32(value: i32) -> Self {
        unsafe { Self(_mm256_set1_epi32(value), _mm256_set1_epi32(value)) }
    }
    #[inline(always)]
    fn splat_i16(value: i16) -> Self {
        unsafe { Self(_mm256_set1_epi16(value), _mm256_set1_epi16(value)) }
    }
    #[inline(always)]
    fn splat_i8(value: i8) -> Self {
        unsafe { Self(_mm256_set1_epi8(value), _mm256_set1_epi8(value)) }
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        halves!(_mm256_and_si256, self, other)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        halves!(_mm256_xor_si256, self, other)
    }
    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        halves!(_mm256_add_epi32, self, other)
    }
    #[inline(always)]
    fn sub_i16(self, other: Self) -> Self {
        halves!(_mm256_sub_epi16, self, other)
    }
    #[inline(always)]
    fn sub_i8(self, other: Self) -> Self {
        halves!(_mm256_sub_epi8, self, other)
    }
    #[inline(always)]
    fn shift_right_u32<const BITS: u32>(self) -> Self {
        let count = unsafe { _mm_cvtsi32_si128(BITS as i32) };
        unsafe { Self(_mm256_srl_epi32(self.0, count), _mm256_srl_epi32(self.1, count)) }
    }
    #[inline(always)]
    fn shift_right_u16<const BITS: u32>(self) -> Self {
        let count = unsafe { _mm_cvtsi32_si128(BITS as i32) };
        unsafe { Self(_mm256_srl_epi16(self.0, count), _mm256_srl_epi16(self.1, count)) }
    }
    #[inline(always)]
    fn shift_left_u32<const BITS: u32>(self) -> Self {
        let count = unsafe { _mm_cvtsi32_si128(BITS as i32) };
        unsafe { Self(_mm256_sll_epi32(self.0, count), _mm256_sll_epi32(self.1, count)) }
    }
    #[inline(always)]
    fn multiply_round_i16(self, other: Self) -> Self {
        halves!(_mm256_mulhrs_epi16, self, other)
    }
    #[inline(always)]
    fn dot_i16(self, a: Self, b: Self) -> Self {
        unsafe {
            if VNNI {
                return Self(dot_i16_vnni(self.0, a.0, b.0), dot_i16_vnni(self.1, a.1, b.1));
            }
            Self(
                _mm256_add_epi32(self.0, _mm256_madd_epi16(a.0, b.0)),
                _mm256_add_epi32(self.1, _mm256_madd_epi16(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn dot_u8<const WIDE: bool>(self, unsigned: Self, signed: Self) -> Self {
        unsafe {
            if VNNI {
                Self(
                    _mm256_dpbusd_avx_epi32(self.0, unsigned.0, signed.0),
                    _mm256_dpbusd_avx_epi32(self.1, unsigned.1, signed.1),
                )
            } else if WIDE {
                Self(dot_u8_wide(self.0, unsigned.0, signed.0), dot_u8_wide(self.1, unsigned.1, signed.1))
            } else {
                Self(dot_u8_narrow(self.0, unsigned.0, signed.0), dot_u8_narrow(self.1, unsigned.1, signed.1))
            }
        }
    }
    #[inline(always)]
    fn shuffle_bytes(self, table: &[u8; 16]) -> Self {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            Self(_mm256_shuffle_epi8(self.0, table), _mm256_shuffle_epi8(self.1, table))
        }
    }
    #[inline(always)]
    fn interleave_32(self, other: Self) -> (Self, Self) {
        (halves!(_mm256_unpacklo_epi32, self, other), halves!(_mm256_unpackhi_epi32, self, other))
    }
    #[inline(always)]
    fn interleave_64(self, other: Self) -> (Self, Self) {
        (halves!(_mm256_unpacklo_epi64, self, other), halves!(_mm256_unpackhi_epi64, self, other))
    }
    #[inline(always)]
    fn transpose_lanes(vectors: [Self; 4]) -> [Self; 4] {
        unsafe {
            let [a, b, c, d] = vectors;
            [
                Self(_mm256_permute2x128_si256::<0x20>(a.0, b.0), _mm256_permute2x128_si256::<0x20>(c.0, d.0)),
                Self(_mm256_permute2x128_si256::<0x31>(a.0, b.0), _mm256_permute2x128_si256::<0x31>(c.0, d.0)),
                Self(_mm256_permute2x128_si256::<0x20>(a.1, b.1), _mm256_permute2x128_si256::<0x20>(c.1, d.1)),
                Self(_mm256_permute2x128_si256::<0x31>(a.1, b.1), _mm256_permute2x128_si256::<0x31>(c.1, d.1)),
            ]
        }
    }
    #[inline(always)]
    fn pack_i8(self, other: Self) -> Self {
        halves!(_mm256_packs_epi16, self, other)
    }
    #[inline(always)]
    fn to_float(self) -> Avx2 {
        unsafe { Avx2(_mm256_cvtepi32_ps(self.0), _mm256_cvtepi32_ps(self.1)) }
    }
    #[inline(always)]
    fn from_float(value: Avx2) -> Self {
        halves!(_mm256_cvtps_epi32, value)
    }
    #[inline(always)]
    fn bits_as_float(self) -> Avx2 {
        unsafe { Avx2(_mm256_castsi256_ps(self.0), _mm256_castsi256_ps(self.1)) }
    }
    #[inline(always)]
    fn max_magnitude(self, value: Avx2) -> Self {
        unsafe {
            let mask = _mm256_set1_epi32(i32::MAX);
            let low = _mm256_and_si256(_mm256_castps_si256(value.0), mask);
            let high = _mm256_and_si256(_mm256_castps_si256(value.1), mask);
            Self(_mm256_max_epu32(self.0, low), _mm256_max_epu32(self.1, high))
        }
    }
    #[inline(always)]
    fn reduce_max_u32(self) -> u32 {
        unsafe {
            let eight = _mm256_max_epu32(self.0, self.1);
            let four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two))) as u32
        }
    }
    #[inline(always)]
    fn pack_i16(self, other: Self) -> Self {
        let half = |a: Self| unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a.0, a.1)) };
        Self(half(self), half(other))
    }
    #[inline(always)]
    unsafe fn store_as_i16(self, to: *mut u8) {
        unsafe {
            let packed = _mm256_packs_epi32(self.0, self.1);
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    #[inline(always)]
    unsafe fn store_as_i8_quads(self, to: *mut u8) {
        unsafe {
            let low = _mm256_shuffle_epi32::<0b11_01_10_00>(self.0);
            let high = _mm256_shuffle_epi32::<0b11_01_10_00>(self.1);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn load_scales(scale_type: ScaleType, from: *const u8) -> Avx2 {
        unsafe {
            match scale_type {
                ScaleType::BFloat16 => Avx2(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(load_eight(from))),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(load_eight(from.add(16)))),
                ),
                ScaleType::Float16 => Avx2(load_eight_f16(from), load_eight_f16(from.add(16))),
                ScaleType::Float32 => Avx2(_mm256_loadu_ps(from.cast()), _mm256_loadu_ps(from.add(32).cast())),
            }
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
