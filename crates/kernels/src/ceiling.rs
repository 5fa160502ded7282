//! What the processor could do at best: instruction rates from loops that touch only registers (or, where the
//! compiler would hoist a product out of such a loop, the first-level cache), and the rate of reading memory.

use crate::arena::AlignedBuffer;
use crate::isa::Isa;
use crate::ops::Ops;
use crate::pool::Pool;
use crate::qlinear::PackedMatrix;
use crate::simd::Simd;
use crate::simd::integer::{IntegerKernel, IntegerSimd, dispatch};
use std::hint::black_box;

/// Rates of one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// 16-bit integer multiply-adds, the instruction of `a16`, or two of 8-bit integers that take its place.
    pub i16_dot_gmac_per_s: f64,
    /// 8-bit integer multiply-adds, the instruction of `a8`.
    pub i8_dot_gmac_per_s: f64,
    /// float32 multiply-adds, the instruction of `exact`.
    pub f32_fma_gmac_per_s: f64,
    /// Bytes read from memory beyond the caches.
    pub read_gbyte_per_s: f64,
}

/// An instruction whose rate bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    DotI16,
    DotI8,
    FmaF32,
}

/// Measures all ceilings of one thread: medians of several short loops.
pub fn measure(isa: Isa) -> Ceilings {
    const REPETITIONS: usize = 15;
    let rate = |instruction| {
        let mut rates: Vec<f64> = (0..REPETITIONS).map(|_| probe(isa, instruction)).collect();
        median(&mut rates)
    };
    Ceilings {
        i16_dot_gmac_per_s: rate(Instruction::DotI16),
        i8_dot_gmac_per_s: rate(Instruction::DotI8),
        f32_fma_gmac_per_s: rate(Instruction::FmaF32),
        read_gbyte_per_s: read_rate(isa),
    }
}

/// One short measurement, some tenths of a millisecond, in 10^9 multiply-adds per second of this thread.
pub fn probe(isa: Isa, instruction: Instruction) -> f64 {
    // The first tens of microseconds after other work run slower (wide units wake up): they are not counted.
    const WARM_UP: usize = 1 << 14;
    const ITERATIONS: usize = 1 << 16;
    // SAFETY: the kernel has no conditions.
    unsafe {
        dispatch(isa, Loop { instruction, iterations: WARM_UP });
        let start = thread_seconds();
        let macs = dispatch(isa, Loop { instruction, iterations: ITERATIONS });
        macs as f64 / (thread_seconds() - start) / 1e9
    }
}

/// Runs `iterations` rounds over independent accumulators; gives the multiply-adds done.
struct Loop {
    instruction: Instruction,
    iterations: usize,
}

impl IntegerKernel for Loop {
    type Output = usize;
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) -> usize {
        // Small values: the rate does not depend on them, and sums stay finite.
        let operands = black_box(AlignedBuffer::<u8>::from_slice(&[1; 8 * 64]));
        // SAFETY: the buffer has eight vectors.
        unsafe {
            match (self.instruction, S::Float::MANY_REGISTERS) {
                (Instruction::DotI16, true) => integer_loop::<S, false>(self.iterations, operands.as_ptr()),
                (Instruction::DotI8, true) => integer_loop::<S, true>(self.iterations, operands.as_ptr()),
                (Instruction::FmaF32, true) => float_loop::<S, 24>(self.iterations, operands.as_ptr().cast()),
                (Instruction::DotI16, false) => cached_loop::<S, false>(self.iterations, operands.as_ptr()),
                (Instruction::DotI8, false) => cached_loop::<S, true>(self.iterations, operands.as_ptr()),
                (Instruction::FmaF32, false) => float_loop::<S, 6>(self.iterations, operands.as_ptr().cast()),
            }
        }
    }
}

/// `sum` plus the products of 8-bit or of 16-bit integers, whichever way the kernels multiply those.
#[inline(always)]
fn product<S: IntegerSimd, const SMALL: bool>(sum: S, a: S, b: S) -> S {
    if SMALL {
        sum.dot_u8::<false>(a, b)
    } else if S::A16_IN_BYTES {
        sum.dot_i8(a, b)
    } else {
        sum.dot_i16(a, b)
    }
}

/// 24 accumulators and 4 operands in registers, for an instruction that multiplies and adds at once.
#[inline(always)]
unsafe fn integer_loop<S: IntegerSimd, const SMALL: bool>(iterations: usize, operands: *const u8) -> usize {
    let mut sums = [[S::zero(); 4]; 6];
    // SAFETY: the operands are four vectors and the result one.
    unsafe {
        let a = [S::load(operands), S::load(operands.add(64))];
        let b = [S::load(operands.add(128)), S::load(operands.add(192))];
        for _ in 0..iterations {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    let (a, b) = (a[r % 2], b[v % 2]);
                    *sum = product::<S, SMALL>(*sum, a, b);
                }
            }
        }
        for sum in sums.iter().flatten() {
            let mut result = [0u8; 64];
            sum.store(result.as_mut_ptr());
            black_box(result);
        }
    }
    iterations * 24 * if SMALL { 64 } else { 32 }
}

/// Six logical accumulators; operands come from the cache, so that products cannot leave the loop.
#[inline(always)]
unsafe fn cached_loop<S: IntegerSimd, const SMALL: bool>(iterations: usize, operands: *const u8) -> usize {
    const SUMS: usize = 6;
    let mut sums = [S::zero(); SUMS];
    // SAFETY: offsets stay inside the eight vectors; the result is one.
    unsafe {
        for iteration in 0..iterations {
            let at = operands.add(iteration % 4 * 64);
            let a = S::load(at);
            for (i, sum) in sums.iter_mut().enumerate() {
                let b = S::splat_i32(at.add(64 + 4 * i).cast::<i32>().read_unaligned());
                *sum = product::<S, SMALL>(*sum, a, b);
            }
        }
        for sum in sums {
            let mut result = [0u8; 64];
            sum.store(result.as_mut_ptr());
            black_box(result);
        }
    }
    iterations * SUMS * if SMALL { 64 } else { 32 }
}

#[inline(always)]
unsafe fn float_loop<S: IntegerSimd, const SUMS: usize>(iterations: usize, operands: *const f32) -> usize {
    let mut sums = [S::Float::zero(); SUMS];
    // SAFETY: the operands are two vectors and the result one.
    unsafe {
        let (a, b) = (S::Float::load(operands), S::Float::load(operands.add(16)));
        for _ in 0..iterations {
            for sum in &mut sums {
                *sum = a.mul_add(b, *sum);
            }
        }
        for sum in sums {
            black_box(sum.to_array());
        }
    }
    iterations * SUMS * 16
}

/// Reads a buffer larger than most caches once and gives 10^9 bytes per second.
fn read_rate(isa: Isa) -> f64 {
    const BYTES: usize = 256 << 20;
    let mut buffer = AlignedBuffer::<u8>::zeroed(BYTES);
    // Pages exist once they are written.
    buffer.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let pool = Pool::new(1);
    let mut rates: Vec<f64> = (0..3)
        .map(|_| {
            let start = thread_seconds();
            read_bytes(isa, &pool, black_box(&buffer));
            BYTES as f64 / (thread_seconds() - start) / 1e9
        })
        .collect();
    median(&mut rates)
}

/// Reads all of `bytes` with the widest loads, piece by piece on the workers of `pool`.
pub(crate) fn read_bytes(isa: Isa, pool: &Pool, bytes: &[u8]) {
    const PIECE: usize = 1 << 17;
    pool.run(bytes.len().div_ceil(PIECE), &|piece, _| {
        let piece = &bytes[piece * PIECE..bytes.len().min((piece + 1) * PIECE)];
        // SAFETY: the kernel has no conditions besides its slice.
        unsafe { dispatch(isa, Read(piece)) }
    });
}

impl Ops {
    /// Only reads the packed bytes of `matrix`, shared among the workers: what a product of one row takes at least.
    pub fn read_packed(&mut self, matrix: &PackedMatrix) {
        if !self.is_planning() {
            read_bytes(self.options.isa, &self.pool, matrix.bytes());
        }
    }
}

/// Adds up the whole vectors of a slice.
struct Read<'a>(&'a [u8]);

impl IntegerKernel for Read<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        const AT_ONCE: usize = 8;
        let mut sums = [S::zero(); AT_ONCE];
        for part in self.0.chunks_exact(AT_ONCE * 64) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the part has eight vectors.
                unsafe {
                    S::prefetch(part.as_ptr().wrapping_add(2048 + i * 64));
                    *sum = sum.add_i32(S::load(part.as_ptr().add(i * 64)));
                }
            }
        }
        let mut result = [0u8; 64];
        for sum in sums {
            // SAFETY: the result is one vector.
            unsafe { sum.store(result.as_mut_ptr()) };
            black_box(result);
        }
    }
}

/// Seconds that this thread has been running: time given to other processes does not count.
pub(crate) fn thread_seconds() -> f64 {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
    #[cfg(not(unix))]
    wall_seconds()
}

/// Seconds on a clock that never goes back.
pub(crate) fn wall_seconds() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}

/// The middle of `values`, which are sorted; 0 when there are none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_rates_in_a_sane_range() {
        for isa in Isa::available() {
            for instruction in [Instruction::DotI16, Instruction::DotI8, Instruction::FmaF32] {
                let rate = probe(isa, instruction);
                // A loop that the compiler deleted would show thousands of GMAC/s.
                assert!(rate > 0.01 && rate < 3000.0, "{} {instruction:?}: {rate} GMAC/s", isa.name());
            }
        }
    }
}
