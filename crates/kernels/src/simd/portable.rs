//! Vectors in plain Rust.

use super::{Kernel, LANES, Simd, operators};

#[derive(Clone, Copy)]
pub(crate) struct Portable(pub(super) [f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
}
operators!(Portable);

/// 2^exponent for whole exponents from -126 to 127.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

impl Simd for Portable {
    #[cfg(test)]
    const NAME: &'static str = "portable";
    const MANY_REGISTERS: bool = false;

    #[inline(never)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: passed on.
        unsafe { kernel.run::<Self>() }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller promises 16 floats; an array of floats has the alignment of one.
        Self(unsafe { *from.cast::<[f32; LANES]>() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as for `load`.
        unsafe { *to.cast::<[f32; LANES]>() = self.0 }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller promises 16 values.
        let halves = unsafe { from.cast::<[u16; LANES]>().read() };
        Self(halves.map(|bits| half::f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller promises 16 bytes.
        Self(unsafe { from.cast::<[i8; LANES]>().read() }.map(f32::from))
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], addend.0[i])))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn select_less(self, limit: Self, if_less: Self, otherwise: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] < limit.0[i] { if_less.0[i] } else { otherwise.0[i] }))
    }
    #[inline(always)]
    fn any_above(self, limit: Self) -> bool {
        self.0.iter().zip(limit.0).any(|(x, limit)| *x > limit)
    }
    #[inline(always)]
    fn times_power_of_two(self, exponent: Self) -> Self {
        self.zip(exponent, |x, exponent| {
            let exponent = exponent.clamp(-252.0, 254.0) as i32;
            let half = exponent >> 1;
            x * power_of_two(half) * power_of_two(exponent - half)
        })
    }
    #[inline(always)]
    fn transpose(rows: &mut [Self; LANES]) {
        let from = *rows;
        for (c, row) in rows.iter_mut().enumerate() {
            *row = Self(std::array::from_fn(|r| from[r].0[c]));
        }
    }
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        self.0
    }
}
