//! Integer vectors in plain Rust.

use super::integer::{IntegerKernel, IntegerSimd};
use super::portable::Portable;
use crate::qlinear::ScaleType;
use half::f16;
use std::array::from_fn;

#[derive(Clone, Copy)]
pub(crate) struct PortableInteger([i32; 16]);

impl PortableInteger {
    #[inline(always)]
    fn halves(self) -> [i16; 32] {
        from_fn(|i| (self.0[i / 2] >> (16 * (i % 2))) as i16)
    }
    #[inline(always)]
    fn from_halves(halves: [i16; 32]) -> Self {
        Self(from_fn(|i| i32::from(halves[2 * i] as u16) | i32::from(halves[2 * i + 1]) << 16))
    }
    #[inline(always)]
    fn bytes(self) -> [u8; 64] {
        from_fn(|i| (self.0[i / 4] >> (8 * (i % 4))) as u8)
    }
    #[inline(always)]
    fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(from_fn(|i| i32::from_le_bytes(from_fn(|j| bytes[4 * i + j]))))
    }
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(i32, i32) -> i32) -> Self {
        Self(from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl IntegerSimd for PortableInteger {
    type Float = Portable;
    const NAME: &'static str = "portable";
    const DOT_I16: &'static str = "i16";
    const DOT_U8: &'static str = "i8";
    const DOT_U8_AT_ONCE: bool = false;

    #[inline(never)]
    unsafe fn call<K: IntegerKernel>(kernel: K) -> K::Output {
        // SAFETY: passed on.
        unsafe { kernel.run::<Self>() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller promises 64 bytes.
        let words = unsafe { from.cast::<[i32; 16]>().read_unaligned() };
        Self(words.map(i32::from_le))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises 64 bytes.
        unsafe { to.cast::<[i32; 16]>().write_unaligned(self.0.map(i32::to_le)) }
    }
    #[inline(always)]
    fn splat_i32(value: i32) -> Self {
        Self([value; 16])
    }
    #[inline(always)]
    fn splat_i16(value: i16) -> Self {
        Self::from_halves([value; 32])
    }
    #[inline(always)]
    fn splat_i8(value: i8) -> Self {
        Self::from_bytes([value as u8; 64])
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        self.zip(other, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i16(self, other: Self) -> Self {
        let (a, b) = (self.halves(), other.halves());
        Self::from_halves(from_fn(|i| a[i].wrapping_sub(b[i])))
    }
    #[inline(always)]
    fn sub_i8(self, other: Self) -> Self {
        let (a, b) = (self.bytes(), other.bytes());
        Self::from_bytes(from_fn(|i| a[i].wrapping_sub(b[i])))
    }
    #[inline(always)]
    fn shift_right_u32<const BITS: u32>(self) -> Self {
        Self(self.0.map(|x| (x as u32 >> BITS) as i32))
    }
    #[inline(always)]
    fn shift_right_u16<const BITS: u32>(self) -> Self {
        Self::from_halves(self.halves().map(|x| (x as u16 >> BITS) as i16))
    }
    #[inline(always)]
    fn shift_left_u32<const BITS: u32>(self) -> Self {
        Self(self.0.map(|x| x << BITS))
    }
    #[inline(always)]
    fn multiply_round_i16(self, other: Self) -> Self {
        let (a, b) = (self.halves(), other.halves());
        Self::from_halves(from_fn(|i| ((i32::from(a[i]) * i32::from(b[i]) + (1 << 14)) >> 15) as i16))
    }
    #[inline(always)]
    fn dot_i16(self, a: Self, b: Self) -> Self {
        Self(from_fn(|i| {
            let low = i32::from(a.0[i] as i16) * i32::from(b.0[i] as i16);
            let high = (a.0[i] >> 16) * (b.0[i] >> 16);
            self.0[i].wrapping_add(low).wrapping_add(high)
        }))
    }
    #[inline(always)]
    fn dot_u8<const WIDE: bool>(self, unsigned: Self, signed: Self) -> Self {
        let (a, b) = (unsigned.bytes(), signed.bytes());
        Self(from_fn(|i| {
            let products = (4 * i..4 * i + 4).map(|j| i32::from(a[j]) * i32::from(b[j] as i8));
            self.0[i].wrapping_add(products.sum())
        }))
    }
    #[inline(always)]
    fn shuffle_bytes(self, table: &[u8; 16]) -> Self {
        let bytes = self.bytes();
        Self::from_bytes(from_fn(|i| bytes[i / 16 * 16 + usize::from(table[i % 16])]))
    }
    #[inline(always)]
    fn interleave_32(self, other: Self) -> (Self, Self) {
        let part = |first: usize| {
            Self(from_fn(|i| {
                let from = i / 4 * 4 + first + i % 4 / 2;
                if i % 2 == 0 { self.0[from] } else { other.0[from] }
            }))
        };
        (part(0), part(2))
    }
    #[inline(always)]
    fn interleave_64(self, other: Self) -> (Self, Self) {
        let part = |first: usize| {
            Self(from_fn(|i| {
                let from = i / 4 * 4 + first + i % 2;
                if i % 4 < 2 { self.0[from] } else { other.0[from] }
            }))
        };
        (part(0), part(2))
    }
    #[inline(always)]
    fn transpose_lanes(vectors: [Self; 4]) -> [Self; 4] {
        from_fn(|i| Self(from_fn(|j| vectors[j / 4].0[4 * i + j % 4])))
    }
    #[inline(always)]
    fn pack_i8(self, other: Self) -> Self {
        let (a, b) = (self.halves(), other.halves());
        Self::from_bytes(from_fn(|i| {
            let from = if i % 16 < 8 { &a } else { &b };
            from[i / 16 * 8 + i % 8].clamp(-128, 127) as u8
        }))
    }
    #[inline(always)]
    fn to_float(self) -> Portable {
        Portable(self.0.map(|x| x as f32))
    }
    #[inline(always)]
    fn from_float(value: Portable) -> Self {
        Self(value.0.map(|x| x.round_ties_even() as i32))
    }
    #[inline(always)]
    fn bits_as_float(self) -> Portable {
        Portable(self.0.map(|x| f32::from_bits(x as u32)))
    }
    #[inline(always)]
    fn max_magnitude(self, value: Portable) -> Self {
        Self(from_fn(|i| (self.0[i] as u32).max(value.0[i].to_bits() & 0x7fff_ffff) as i32))
    }
    #[inline(always)]
    fn reduce_max_u32(self) -> u32 {
        self.0.iter().fold(0, |max, x| max.max(*x as u32))
    }
    #[inline(always)]
    fn pack_i16(self, other: Self) -> Self {
        Self::from_halves(from_fn(|i| {
            let value = if i < 16 { self.0[i] } else { other.0[i - 16] };
            value.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
        }))
    }
    #[inline(always)]
    unsafe fn store_as_i16(self, to: *mut u8) {
        // SAFETY: the caller promises 32 bytes.
        unsafe { to.cast::<[i16; 16]>().write_unaligned(self.0.map(|x| (x as i16).to_le())) }
    }
    #[inline(always)]
    unsafe fn store_as_i8_quads(self, to: *mut u8) {
        const ORDER: [usize; 4] = [0, 2, 1, 3];
        // SAFETY: the caller promises 16 bytes.
        unsafe { to.cast::<[i8; 16]>().write(from_fn(|i| self.0[i / 4 * 4 + ORDER[i % 4]] as i8)) }
    }
    #[inline(always)]
    unsafe fn load_scales(scale_type: ScaleType, from: *const u8) -> Portable {
        // SAFETY: the caller promises 16 values of the type.
        unsafe {
            Portable(match scale_type {
                ScaleType::BFloat16 => {
                    from.cast::<[u16; 16]>().read_unaligned().map(|x| f32::from_bits(u32::from(u16::from_le(x)) << 16))
                }
                ScaleType::Float16 => {
                    from.cast::<[u16; 16]>().read_unaligned().map(|x| f16::from_bits(u16::from_le(x)).to_f32())
                }
                ScaleType::Float32 => {
                    from.cast::<[u32; 16]>().read_unaligned().map(|x| f32::from_bits(u32::from_le(x)))
                }
            })
        }
    }
    #[inline(always)]
    fn prefetch(_address: *const u8) {}
    #[inline(always)]
    fn prefetch_near(_address: *const u8) {}
}
