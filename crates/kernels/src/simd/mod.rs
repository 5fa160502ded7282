//! Float vectors: kernels are written once, over [`Simd`], and compiled once per instruction set.
//!
//! A vector has 16 lanes on every instruction set (one AVX-512 register, two AVX2 registers, an array in plain
//! Rust), every operation rounds as IEEE 754 asks, and [`Simd::reduce_add`] adds in one fixed order. So a
//! kernel gives the same bits wherever it runs. (Only the sign and payload of a NaN may differ.)
//!
//! A kernel is a struct of its arguments that implements [`Kernel`]; [`dispatch`] runs it on an instruction set.
//! `run` must be `#[inline(always)]`, as everything generic over [`Simd`] that it calls: it has to become part
//! of the function that carries the `target_feature` attribute, or else each operation turns into a call.

mod element;
mod exp;
pub(crate) mod integer;
mod integer_portable;
pub(crate) mod portable;
pub(crate) mod product;
mod rows;
mod transpose;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod integer_avx2;
#[cfg(target_arch = "x86_64")]
mod integer_avx512;
#[cfg(target_arch = "aarch64")]
mod integer_neon;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(test)]
mod tests;

use crate::isa::{Isa, Kind};
use std::ops::{Add, Div, Mul, Sub};

pub(crate) use element::Element;
pub(crate) use exp::{exp, exp_up_to_88};
pub(crate) use rows::{add_rows, pack_rows};
pub(crate) use transpose::transpose_into;

/// Groups of numbers whose largest magnitude is below this become integers of zero: the inverse of their scale could overflow.
pub(crate) const TINY: f32 = 1e-30;

/// Lanes of every vector.
pub(crate) const LANES: usize = 16;

/// A vector of [`LANES`] floats on one instruction set.
///
/// Values exist only inside kernels started by [`dispatch`], whose [`Isa`] proves that the instructions are there.
pub(crate) trait Simd:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Name of the instruction set, equal to [`Isa::float_name`].
    #[cfg(test)]
    const NAME: &'static str;
    /// Whether 32 registers hold a vector each: register tiles may then have 24 accumulators instead of 6.
    const MANY_REGISTERS: bool;

    /// Runs `kernel` as a function of its own, not inlined into its caller.
    ///
    /// # Safety
    /// The processor has the instruction set, and the kernel's own conditions hold.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output;

    fn splat(value: f32) -> Self;
    /// # Safety
    /// `from` points to 16 readable floats.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `to` points to 16 writable floats.
    unsafe fn store(self, to: *mut f32);
    /// 16 float16 values, each exactly.
    ///
    /// # Safety
    /// `from` points to 16 readable values.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// 16 signed bytes, each as a float.
    ///
    /// # Safety
    /// `from` points to 16 readable bytes.
    unsafe fn load_i8(from: *const i8) -> Self;

    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    fn sqrt(self) -> Self;
    /// The larger of both; `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// The smaller of both; `other` where either is NaN.
    fn min(self, other: Self) -> Self;
    /// `if_less` in the lanes where `self < limit`, `otherwise` elsewhere and where either is NaN.
    fn select_less(self, limit: Self, if_less: Self, otherwise: Self) -> Self;
    /// Whether `self > limit` in any lane. NaN is not.
    fn any_above(self, limit: Self) -> bool;
    /// `self * 2^exponent` for whole exponents from -252 to 254, rounded once if `self` is in [0.5, 2].
    fn times_power_of_two(self, exponent: Self) -> Self;
    /// Rows and columns of a 16 x 16 block exchanged.
    fn transpose(rows: &mut [Self; LANES]);

    fn to_array(self) -> [f32; LANES];

    /// Sum of the lanes: lane i + lane i+8, then i + i+4, i + i+2, i + i+1.
    #[inline(always)]
    fn reduce_add(self) -> f32 {
        let lanes = self.to_array();
        let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
        let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    /// Largest lane, in the order of [`Simd::reduce_add`] (a NaN may be lost: never rely on it to keep one).
    #[inline(always)]
    fn reduce_max(self) -> f32 {
        let lanes = self.to_array();
        let mut best = lanes[0];
        for lane in &lanes[1..] {
            best = if best > *lane { best } else { *lane };
        }
        best
    }

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    /// 0, 1, 2 and so on.
    #[inline(always)]
    fn lane_numbers() -> Self {
        const NUMBERS: [f32; LANES] = {
            let mut numbers = [0.0; LANES];
            let mut lane = 0;
            while lane < LANES {
                numbers[lane] = lane as f32;
                lane += 1;
            }
            numbers
        };
        // SAFETY: the array has 16 floats.
        unsafe { Self::load(NUMBERS.as_ptr()) }
    }

    /// The first `count` floats at `from`, zeros after them.
    ///
    /// # Safety
    /// `from` points to `count` readable floats; `count <= 16`.
    #[inline(always)]
    unsafe fn load_partial(from: *const f32, count: usize) -> Self {
        let mut buffer = [0f32; LANES];
        // SAFETY: the buffer has room for `count <= 16` floats, which the caller vouches for.
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count);
            Self::load(buffer.as_ptr())
        }
    }

    /// Writes the first `count` lanes to `to`.
    ///
    /// # Safety
    /// `to` points to `count` writable floats; `count <= 16`.
    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, count: usize) {
        let buffer = self.to_array();
        // SAFETY: as the caller promises, and the buffer has 16 floats.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, count) }
    }

    /// The first `rest` floats at `from` and zeros, or 16 floats if `rest` is larger: for loops that end anywhere.
    ///
    /// # Safety
    /// `from` points to `min(rest, 16)` readable floats.
    #[inline(always)]
    unsafe fn load_up_to(from: *const f32, rest: usize) -> Self {
        // SAFETY: passed on.
        unsafe { if rest >= LANES { Self::load(from) } else { Self::load_partial(from, rest) } }
    }

    /// Writes the first `rest` lanes, or all if `rest` is larger.
    ///
    /// # Safety
    /// `to` points to `min(rest, 16)` writable floats.
    #[inline(always)]
    unsafe fn store_up_to(self, to: *mut f32, rest: usize) {
        // SAFETY: passed on.
        unsafe { if rest >= LANES { self.store(to) } else { self.store_partial(to, rest) } }
    }
}

/// A computation generic over the instruction set: the struct holds its arguments.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// Pointers among the arguments are valid as the kernel documents.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Runs `kernel` on `isa`.
///
/// # Safety
/// The kernel's own conditions hold.
pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: an `Isa` value proves that the processor has its instructions.
    unsafe {
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => run_recorded::<avx512::Avx512, K>(kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni | Kind::Avx2 => run_recorded::<avx2::Avx2, K>(kernel),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm | Kind::NeonDotprod | Kind::Neon => run_recorded::<neon::Neon, K>(kernel),
            Kind::Portable => run_recorded::<portable::Portable, K>(kernel),
        }
    }
}

#[inline(always)]
unsafe fn run_recorded<S: Simd, K: Kernel>(kernel: K) -> K::Output {
    #[cfg(test)]
    record::add(S::NAME);
    // SAFETY: passed on from `dispatch`.
    unsafe { S::call(kernel) }
}

/// The operators of a vector type, from functions of the same name.
macro_rules! operators {
    ($type:ty) => {
        operators!($type, Add add, Sub sub, Mul mul, Div div);
    };
    ($type:ty, $($trait:ident $method:ident),*) => {
        $(impl std::ops::$trait for $type {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                <$type>::$method(self, other)
            }
        })*
    };
}
pub(crate) use operators;

/// Which instruction sets kernels of this thread ran on, for tests that ask.
#[cfg(test)]
pub(crate) mod record {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static NAMES: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(crate) fn add(name: &'static str) {
        NAMES.with_borrow_mut(|names| {
            names.insert(name);
        });
    }

    /// The names recorded on this thread since the last call.
    pub(crate) fn take() -> Vec<&'static str> {
        NAMES.with_borrow_mut(|names| std::mem::take(names).into_iter().collect())
    }
}
