//! Integer vectors in NEON: four registers of 16 bytes, each a lane. `BYTES` says which instruction multiplies bytes.

use super::integer::{IntegerKernel, IntegerSimd};
use super::neon::{Neon, four};
use crate::qlinear::ScaleType;
use std::arch::aarch64::*;
use std::arch::asm;

/// How bytes are multiplied: widened to 16 bits, by the `dotprod` extension, or by the `i8mm` extension.
pub(super) const WIDENED: u8 = 0;
pub(super) const DOTPROD: u8 = 1;
pub(super) const I8MM: u8 = 2;

#[derive(Clone, Copy)]
pub(crate) struct NeonInteger<const BYTES: u8>([int32x4_t; 4]);

/// Runs a kernel inside a function that may use the instructions.
#[target_feature(enable = "neon,dotprod")]
#[inline(never)]
unsafe fn call_dotprod<K: IntegerKernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<NeonInteger<DOTPROD>>() }
}
#[target_feature(enable = "neon,dotprod,i8mm")]
#[inline(never)]
unsafe fn call_i8mm<K: IntegerKernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<NeonInteger<I8MM>>() }
}
#[inline(never)]
unsafe fn call_widened<K: IntegerKernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<NeonInteger<WIDENED>>() }
}

/// i32 `sum` + signed bytes times signed bytes in fours. The compiler's intrinsic is not stable yet.
#[inline(always)]
unsafe fn sdot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut result = sum;
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) result, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

/// i32 `sum` + unsigned bytes times signed bytes in fours.
#[inline(always)]
unsafe fn usdot(sum: int32x4_t, unsigned: uint8x16_t, signed: int8x16_t) -> int32x4_t {
    let mut result = sum;
    unsafe {
        asm!("usdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) result, in(vreg) unsigned, in(vreg) signed,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

#[inline(always)]
unsafe fn dot_u8<const BYTES: u8>(sum: int32x4_t, unsigned: int32x4_t, signed: int32x4_t) -> int32x4_t {
    unsafe {
        let (unsigned, signed) = (vreinterpretq_u8_s32(unsigned), vreinterpretq_s8_s32(signed));
        match BYTES {
            I8MM => usdot(sum, unsigned, signed),
            DOTPROD => {
                // u = (u - 128) + 128: the first part is signed, the second a sum of the signed bytes alone.
                let centred = vreinterpretq_s8_u8(veorq_u8(unsigned, vdupq_n_u8(0x80)));
                let minus_128 = sdot(vdupq_n_s32(0), vdupq_n_s8(-128), signed);
                vsubq_s32(sdot(sum, centred, signed), minus_128)
            }
            _ => {
                // 255 · -128 still fits 16 bits.
                let low =
                    vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(unsigned))), vmovl_s8(vget_low_s8(signed)));
                let high = vmulq_s16(vreinterpretq_s16_u16(vmovl_high_u8(unsigned)), vmovl_high_s8(signed));
                vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))
            }
        }
    }
}

/// The same for signed bytes.
#[inline(always)]
unsafe fn dot_i8<const BYTES: u8>(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    unsafe {
        let (a, b) = (vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
        if BYTES == WIDENED {
            let (low, high) = (vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
            return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
        }
        sdot(sum, a, b)
    }
}

/// i32 `sum` + products of 16-bit integers in pairs.
#[inline(always)]
unsafe fn dot_i16(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    unsafe {
        let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
        let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
        vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(a, b)))
    }
}

/// Four finite float16 values. Their magnitude bits, moved under a float32 exponent that is too small by 127 - 15,
/// are exact after a multiplication by 2^112, subnormal ones included.
#[inline(always)]
unsafe fn float_of_f16(bits: uint32x4_t) -> float32x4_t {
    unsafe {
        let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff)));
        let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
        let factor = vdupq_n_f32(f32::from_bits((127 + 112) << 23));
        let value = vmulq_f32(vreinterpretq_f32_u32(magnitude), factor);
        vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(value), sign))
    }
}

/// All four parts of two vectors, seen as 16-bit integers, through the same instruction.
macro_rules! zip_i16 {
    ($f:ident, $a:expr, $b:expr) => {
        Self(four!(i => unsafe {
            vreinterpretq_s32_s16($f(vreinterpretq_s16_s32($a.0[i]), vreinterpretq_s16_s32($b.0[i])))
        }))
    };
}

// SAFETY (for every block of this file): NEON is part of every processor of this architecture, the other extensions
// are used by types that exist only inside the `call` functions above, whose callers proved that the processor has
// them; pointers are the callers' duty.
impl<const BYTES: u8> IntegerSimd for NeonInteger<BYTES> {
    type Float = Neon;
    const NAME: &'static str = match BYTES {
        I8MM => "neon-i8mm",
        DOTPROD => "neon-dotprod",
        _ => "neon",
    };
    const DOT_I16: &'static str = if BYTES == WIDENED { "smull" } else { "sdot" };
    const A16_IN_BYTES: bool = BYTES != WIDENED;
    const DOT_U8_AT_ONCE: bool = BYTES == I8MM;
    const DOT_U8: &'static str = match BYTES {
        I8MM => "usdot",
        DOTPROD => "sdot",
        _ => "mul",
    };

    #[inline(always)]
    unsafe fn call<K: IntegerKernel>(kernel: K) -> K::Output {
        unsafe {
            match BYTES {
                I8MM => call_i8mm(kernel),
                DOTPROD => call_dotprod(kernel),
                _ => call_widened(kernel),
            }
        }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        Self(four!(i => unsafe { vreinterpretq_s32_u8(vld1q_u8(from.add(16 * i))) }))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        for (i, part) in self.0.into_iter().enumerate() {
            unsafe { vst1q_u8(to.add(16 * i), vreinterpretq_u8_s32(part)) }
        }
    }
    #[inline(always)]
    fn splat_i32(value: i32) -> Self {
        Self([unsafe { vdupq_n_s32(value) }; 4])
    }
    #[inline(always)]
    fn splat_i16(value: i16) -> Self {
        Self([unsafe { vreinterpretq_s32_s16(vdupq_n_s16(value)) }; 4])
    }
    #[inline(always)]
    fn splat_i8(value: i8) -> Self {
        Self([unsafe { vreinterpretq_s32_s8(vdupq_n_s8(value)) }; 4])
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(four!(i => unsafe { vandq_s32(self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(four!(i => unsafe { veorq_s32(self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        Self(four!(i => unsafe { vaddq_s32(self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn sub_i16(self, other: Self) -> Self {
        zip_i16!(vsubq_s16, self, other)
    }
    #[inline(always)]
    fn sub_i8(self, other: Self) -> Self {
        Self(four!(i => unsafe {
            vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(self.0[i]), vreinterpretq_s8_s32(other.0[i])))
        }))
    }
    // Shifts by a constant vector: the compiler makes the immediate form of it.
    #[inline(always)]
    fn shift_right_u32<const BITS: u32>(self) -> Self {
        Self(four!(i => unsafe {
            vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(self.0[i]), vdupq_n_s32(-(BITS as i32))))
        }))
    }
    #[inline(always)]
    fn shift_right_u16<const BITS: u32>(self) -> Self {
        Self(four!(i => unsafe {
            vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(self.0[i]), vdupq_n_s16(-(BITS as i16))))
        }))
    }
    #[inline(always)]
    fn shift_left_u32<const BITS: u32>(self) -> Self {
        Self(four!(i => unsafe { vshlq_s32(self.0[i], vdupq_n_s32(BITS as i32)) }))
    }
    #[inline(always)]
    fn multiply_round_i16(self, other: Self) -> Self {
        zip_i16!(vqrdmulhq_s16, self, other)
    }
    #[inline(always)]
    fn dot_i16(self, a: Self, b: Self) -> Self {
        Self(four!(i => unsafe { dot_i16(self.0[i], a.0[i], b.0[i]) }))
    }
    #[inline(always)]
    fn dot_u8<const WIDE: bool>(self, unsigned: Self, signed: Self) -> Self {
        Self(four!(i => unsafe { dot_u8::<BYTES>(self.0[i], unsigned.0[i], signed.0[i]) }))
    }
    #[inline(always)]
    fn dot_i8(self, codes: Self, signed: Self) -> Self {
        Self(four!(i => unsafe { dot_i8::<BYTES>(self.0[i], codes.0[i], signed.0[i]) }))
    }
    #[inline(always)]
    fn shuffle_bytes(self, table: &[u8; 16]) -> Self {
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            Self(four!(i => vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(self.0[i]), table))))
        }
    }
    #[inline(always)]
    fn interleave_32(self, other: Self) -> (Self, Self) {
        unsafe {
            let low = Self(four!(i => vzip1q_s32(self.0[i], other.0[i])));
            (low, Self(four!(i => vzip2q_s32(self.0[i], other.0[i]))))
        }
    }
    #[inline(always)]
    fn interleave_64(self, other: Self) -> (Self, Self) {
        unsafe {
            let (a, b) = (four!(i => vreinterpretq_s64_s32(self.0[i])), four!(i => vreinterpretq_s64_s32(other.0[i])));
            let low = Self(four!(i => vreinterpretq_s32_s64(vzip1q_s64(a[i], b[i]))));
            (low, Self(four!(i => vreinterpretq_s32_s64(vzip2q_s64(a[i], b[i])))))
        }
    }
    #[inline(always)]
    fn transpose_lanes(vectors: [Self; 4]) -> [Self; 4] {
        four!(i => Self(four!(j => vectors[j].0[i])))
    }
    #[inline(always)]
    fn pack_i8(self, other: Self) -> Self {
        Self(four!(i => unsafe {
            let low = vqmovn_s16(vreinterpretq_s16_s32(self.0[i]));
            vreinterpretq_s32_s8(vqmovn_high_s16(low, vreinterpretq_s16_s32(other.0[i])))
        }))
    }
    #[inline(always)]
    fn to_float(self) -> Neon {
        Neon(four!(i => unsafe { vcvtq_f32_s32(self.0[i]) }))
    }
    #[inline(always)]
    fn from_float(value: Neon) -> Self {
        Self(four!(i => unsafe { vcvtnq_s32_f32(value.0[i]) }))
    }
    #[inline(always)]
    fn bits_as_float(self) -> Neon {
        Neon(four!(i => unsafe { vreinterpretq_f32_s32(self.0[i]) }))
    }
    #[inline(always)]
    fn max_magnitude(self, value: Neon) -> Self {
        Self(four!(i => unsafe {
            let magnitude = vandq_u32(vreinterpretq_u32_f32(value.0[i]), vdupq_n_u32(i32::MAX as u32));
            vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(self.0[i]), magnitude))
        }))
    }
    #[inline(always)]
    fn reduce_max_u32(self) -> u32 {
        unsafe {
            let [a, b, c, d] = four!(i => vreinterpretq_u32_s32(self.0[i]));
            vmaxvq_u32(vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d)))
        }
    }
    #[inline(always)]
    fn pack_i16(self, other: Self) -> Self {
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
            Self([
                vreinterpretq_s32_s16(vqmovn_high_s32(vqmovn_s32(a), b)),
                vreinterpretq_s32_s16(vqmovn_high_s32(vqmovn_s32(c), d)),
                vreinterpretq_s32_s16(vqmovn_high_s32(vqmovn_s32(e), f)),
                vreinterpretq_s32_s16(vqmovn_high_s32(vqmovn_s32(g), h)),
            ])
        }
    }
    #[inline(always)]
    unsafe fn store_as_i16(self, to: *mut u8) {
        for i in 0..2 {
            unsafe {
                let words = vmovn_high_s32(vmovn_s32(self.0[2 * i]), self.0[2 * i + 1]);
                vst1q_u8(to.add(16 * i), vreinterpretq_u8_s16(words));
            }
        }
    }
    #[inline(always)]
    unsafe fn store_as_i8_quads(self, to: *mut u8) {
        const ORDER: [u8; 16] = [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15];
        unsafe {
            let [a, b, c, d] = self.0;
            let low = vmovn_s16(vmovn_high_s32(vmovn_s32(a), b));
            let bytes = vmovn_high_s16(low, vmovn_high_s32(vmovn_s32(c), d));
            vst1q_u8(to, vqtbl1q_u8(vreinterpretq_u8_s8(bytes), vld1q_u8(ORDER.as_ptr())));
        }
    }
    #[inline(always)]
    unsafe fn load_scales(scale_type: ScaleType, from: *const u8) -> Neon {
        unsafe {
            match scale_type {
                ScaleType::BFloat16 => Neon(four!(i => {
                    let bits = vreinterpret_u16_u8(vld1_u8(from.add(8 * i)));
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
                })),
                ScaleType::Float16 => {
                    Neon(four!(i => float_of_f16(vmovl_u16(vreinterpret_u16_u8(vld1_u8(from.add(8 * i)))))))
                }
                ScaleType::Float32 => Neon(four!(i => vreinterpretq_f32_u8(vld1q_u8(from.add(16 * i))))),
            }
        }
    }
    #[inline(always)]
    fn prefetch(address: *const u8) {
        unsafe {
            asm!("prfm pldl2keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    fn prefetch_near(address: *const u8) {
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
    }
}
