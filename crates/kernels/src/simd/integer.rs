//! Integer vectors for the products with packed weights: 64 bytes, seen as 16 x i32, 32 x i16 or 64 x 8 bits.
//!
//! Integer sums are exact in any order and wrap, so these kernels give the same bits on every instruction set
//! as long as their float steps do. "Lane" here is a part of 16 bytes, as in the shuffles of the processors.

use super::Simd;
#[cfg(target_arch = "aarch64")]
use super::integer_neon::{DOTPROD, I8MM, NeonInteger, WIDENED};
use crate::isa::{Isa, Kind};
use crate::qlinear::ScaleType;

/// A vector of 64 bytes on one instruction set; exists only inside kernels started by [`dispatch`].
pub(crate) trait IntegerSimd: Copy {
    type Float: Simd;
    /// Name of the instruction set, equal to [`Isa::name`].
    const NAME: &'static str;
    /// What the name of a kernel says about the instruction that multiplies 16-bit integers.
    const DOT_I16: &'static str;
    /// The same for unsigned times signed bytes.
    const DOT_U8: &'static str;
    /// Whether [`IntegerSimd::dot_u8`] is one instruction that multiplies twice as much as that of 16-bit integers.
    const DOT_U8_AT_ONCE: bool;
    /// Whether 16-bit integers are multiplied with 4-bit codes as two digits of a byte each, by
    /// [`IntegerSimd::dot_i8`]: where that is one instruction and [`IntegerSimd::dot_i16`] takes several.
    const A16_IN_BYTES: bool = false;

    /// Runs `kernel` as a function of its own, not inlined into its caller.
    ///
    /// # Safety
    /// The processor has the instruction set, and the kernel's own conditions hold.
    unsafe fn call<K: IntegerKernel>(kernel: K) -> K::Output;

    /// # Safety
    /// `from` points to 64 readable bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// `to` points to 64 writable bytes.
    unsafe fn store(self, to: *mut u8);
    fn splat_i32(value: i32) -> Self;
    fn splat_i16(value: i16) -> Self;
    fn splat_i8(value: i8) -> Self;

    fn and(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn add_i32(self, other: Self) -> Self;
    fn sub_i16(self, other: Self) -> Self;
    fn sub_i8(self, other: Self) -> Self;
    fn shift_right_u32<const BITS: u32>(self) -> Self;
    fn shift_right_u16<const BITS: u32>(self) -> Self;
    fn shift_left_u32<const BITS: u32>(self) -> Self;
    /// `(a·b + 2^14) >> 15` of 16-bit integers, not both -2^15.
    fn multiply_round_i16(self, other: Self) -> Self;
    /// i32 `self` + products of the two i16 pairs of each 32-bit part. Not all four may be -2^15.
    fn dot_i16(self, a: Self, b: Self) -> Self;
    /// i32 `self` + the four products of each 32-bit part. Unless `WIDE`, any two neighbouring products
    /// must sum to 16 bits.
    fn dot_u8<const WIDE: bool>(self, unsigned: Self, signed: Self) -> Self;

    /// i32 `self` + the four products of signed bytes of each 32-bit part; those of `codes` are -8 to 15.
    #[inline(always)]
    fn dot_i8(self, codes: Self, signed: Self) -> Self {
        // c = (c + 8) - 8: the first part is unsigned, the second a sum of the other bytes alone.
        let eights = Self::zero().dot_u8::<false>(Self::splat_i8(8), signed);
        let negative = eights.xor(Self::splat_i32(-1)).add_i32(Self::splat_i32(1));
        self.dot_u8::<false>(codes.sub_i8(Self::splat_i8(-8)), signed).add_i32(negative)
    }

    /// Byte i of each lane becomes byte `table[i]` of it.
    fn shuffle_bytes(self, table: &[u8; 16]) -> Self;
    /// Lane by lane, the 32-bit parts 0 and 1 of both vectors in turns, then the parts 2 and 3.
    fn interleave_32(self, other: Self) -> (Self, Self);
    /// Lane by lane, the first 64-bit parts of both vectors, then the second.
    fn interleave_64(self, other: Self) -> (Self, Self);
    /// Lane i of vector j becomes lane j of vector i.
    fn transpose_lanes(vectors: [Self; 4]) -> [Self; 4];
    /// Lane by lane: eight i16 of `self`, then eight of `other`, saturated to i8.
    fn pack_i8(self, other: Self) -> Self;

    fn to_float(self) -> Self::Float;
    /// Rounded to nearest, ties to even. Any value for NaN and beyond i32.
    fn from_float(value: Self::Float) -> Self;
    /// The same bits seen as floats.
    fn bits_as_float(self) -> Self::Float;
    /// Lane-wise maximum of `self` and the bits of `|value|`, as unsigned integers: unlike a float maximum
    /// it lets no NaN pass, as every NaN is larger than infinity, which is larger than every number.
    fn max_magnitude(self, value: Self::Float) -> Self;
    fn reduce_max_u32(self) -> u32;
    /// 16 x i32 of `self`, then of `other`, as i16, saturated.
    fn pack_i16(self, other: Self) -> Self;
    /// Stores 16 x i32 as i16.
    ///
    /// # Safety
    /// `to` points to 32 writable bytes.
    unsafe fn store_as_i16(self, to: *mut u8);
    /// Stores 16 x i32 as i8, the two middle ones of each four exchanged (`QUAD_ORDER` of the packed layout).
    ///
    /// # Safety
    /// `to` points to 16 writable bytes.
    unsafe fn store_as_i8_quads(self, to: *mut u8);
    /// 16 values of `scale_type`, finite.
    ///
    /// # Safety
    /// `from` points to 16 readable values.
    unsafe fn load_scales(scale_type: ScaleType, from: *const u8) -> Self::Float;

    /// Asks for the cache line at `address`, which need not be readable, to come to the second-level cache.
    fn prefetch(address: *const u8);
    /// The same, to the first-level cache.
    fn prefetch_near(address: *const u8);

    #[inline(always)]
    fn zero() -> Self {
        Self::splat_i32(0)
    }
}

/// A computation generic over the instruction set: the struct holds its arguments.
pub(crate) trait IntegerKernel {
    type Output;
    /// Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// Pointers among the arguments are valid as the kernel documents.
    unsafe fn run<S: IntegerSimd>(self) -> Self::Output;
}

/// Runs `kernel` on `isa`.
///
/// # Safety
/// The kernel's own conditions hold.
pub(crate) unsafe fn dispatch<K: IntegerKernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: an `Isa` value proves that the processor has its instructions.
    unsafe {
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => run_recorded::<super::integer_avx512::Avx512Integer, K>(kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => run_recorded::<super::integer_avx2::Avx2Integer<true>, K>(kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => run_recorded::<super::integer_avx2::Avx2Integer<false>, K>(kernel),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm => run_recorded::<NeonInteger<I8MM>, K>(kernel),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDotprod => run_recorded::<NeonInteger<DOTPROD>, K>(kernel),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => run_recorded::<NeonInteger<WIDENED>, K>(kernel),
            Kind::Portable => run_recorded::<super::integer_portable::PortableInteger, K>(kernel),
        }
    }
}

#[inline(always)]
unsafe fn run_recorded<S: IntegerSimd, K: IntegerKernel>(kernel: K) -> K::Output {
    #[cfg(test)]
    super::record::add(S::NAME);
    // SAFETY: passed on from `dispatch`.
    unsafe { S::call(kernel) }
}
