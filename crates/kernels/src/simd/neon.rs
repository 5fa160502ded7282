//! Vectors in NEON: four registers of four lanes.

use super::{Kernel, LANES, Simd, operators};
use std::arch::aarch64::*;
use std::arch::asm;

/// An array of four values, without a closure: one that is not inlined would lose the caller's `target_feature`.
macro_rules! four {
    ($index:ident => $value:expr) => {
        [
            {
                let $index = 0;
                $value
            },
            {
                let $index = 1;
                $value
            },
            {
                let $index = 2;
                $value
            },
            {
                let $index = 3;
                $value
            },
        ]
    };
}
pub(super) use four;

#[derive(Clone, Copy)]
pub(crate) struct Neon(pub(super) [float32x4_t; 4]);

/// 2^exponent for whole exponents from -126 to 127 in integer lanes.
#[inline(always)]
fn power_of_two(exponent: int32x4_t) -> float32x4_t {
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(exponent, vdupq_n_s32(127)))) }
}

#[inline(always)]
fn times_power_of_two(x: float32x4_t, exponent: float32x4_t) -> float32x4_t {
    unsafe {
        // Comparisons and selections: the instructions for minimum and maximum keep a NaN.
        let (highest, lowest) = (vdupq_n_f32(254.0), vdupq_n_f32(-252.0));
        let limited = vbslq_f32(vcltq_f32(exponent, highest), exponent, highest);
        let limited = vbslq_f32(vcgtq_f32(limited, lowest), limited, lowest);
        let exponent = vcvtnq_s32_f32(limited);
        let half = vshrq_n_s32::<1>(exponent);
        vmulq_f32(vmulq_f32(x, power_of_two(half)), power_of_two(vsubq_s32(exponent, half)))
    }
}

/// Rows and columns of a 4 x 4 block exchanged.
#[inline(always)]
fn transpose_four([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    unsafe {
        let pair = |x, y| (vreinterpretq_f64_f32(vtrn1q_f32(x, y)), vreinterpretq_f64_f32(vtrn2q_f32(x, y)));
        let ((ab_even, ab_odd), (cd_even, cd_odd)) = (pair(a, b), pair(c, d));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even)),
            vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)),
            vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even)),
            vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)),
        ]
    }
}

/// The low, or the high, four of eight float16 values. The intrinsics of this instruction, part of every processor of
/// this architecture, need a type that is not stable.
#[inline(always)]
unsafe fn widened<const HIGH: bool>(halves: uint16x8_t) -> float32x4_t {
    let result: float32x4_t;
    unsafe {
        if HIGH {
            asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) result, in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags));
        } else {
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) result, in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags));
        }
    }
    result
}

// SAFETY (for every block of this file): NEON is part of every processor of this architecture; pointers are the
// callers' duty.
impl Neon {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(four!(i => unsafe { vaddq_f32(self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(four!(i => unsafe { vsubq_f32(self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(four!(i => unsafe { vmulq_f32(self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(four!(i => unsafe { vdivq_f32(self.0[i], other.0[i]) }))
    }
}
operators!(Neon);

impl Simd for Neon {
    #[cfg(test)]
    const NAME: &'static str = "neon";
    const MANY_REGISTERS: bool = false;

    #[inline(never)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe { kernel.run::<Self>() }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([unsafe { vdupq_n_f32(value) }; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(four!(i => unsafe { vld1q_f32(from.add(4 * i)) }))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, part) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(to.add(4 * i), part) }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            let (a, b) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            Self([widened::<false>(a), widened::<true>(a), widened::<false>(b), widened::<true>(b)])
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe {
            let bytes = vld1q_s8(from);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            Self([
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ])
        }
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(four!(i => unsafe { vfmaq_f32(addend.0[i], self.0[i], factor.0[i]) }))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(four!(i => unsafe { vsqrtq_f32(self.0[i]) }))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(four!(i => unsafe { vbslq_f32(vcgtq_f32(self.0[i], other.0[i]), self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(four!(i => unsafe { vbslq_f32(vcltq_f32(self.0[i], other.0[i]), self.0[i], other.0[i]) }))
    }
    #[inline(always)]
    fn select_less(self, limit: Self, if_less: Self, otherwise: Self) -> Self {
        Self(four!(i => unsafe { vbslq_f32(vcltq_f32(self.0[i], limit.0[i]), if_less.0[i], otherwise.0[i]) }))
    }
    #[inline(always)]
    fn any_above(self, limit: Self) -> bool {
        unsafe {
            let [a, b, c, d]: [uint32x4_t; 4] = four!(i => vcgtq_f32(self.0[i], limit.0[i]));
            vmaxvq_u32(vorrq_u32(vorrq_u32(a, b), vorrq_u32(c, d))) != 0
        }
    }
    #[inline(always)]
    fn times_power_of_two(self, exponent: Self) -> Self {
        Self(four!(i => times_power_of_two(self.0[i], exponent.0[i])))
    }
    #[inline(always)]
    fn transpose(rows: &mut [Self; LANES]) {
        let from = *rows;
        for i in 0..4 {
            for j in 0..4 {
                let block = transpose_four(four!(r => from[4 * i + r].0[j]));
                for (c, column) in block.into_iter().enumerate() {
                    rows[4 * j + c].0[i] = column;
                }
            }
        }
    }
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        unsafe { std::mem::transmute::<[float32x4_t; 4], [f32; LANES]>(self.0) }
    }
    #[inline(always)]
    fn reduce_add(self) -> f32 {
        unsafe {
            let [a, b, c, d] = self.0;
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}
