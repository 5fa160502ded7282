//! 16-bit integers as two digits of a byte each, `x = 256·high + low`, both signed: where bytes are multiplied four at a
//! time and 16-bit integers slowly, two products of bytes take the place of one of integers. Sums are the same integers.
//!
//! A lane of eight integers, two quads, becomes the low digits of both quads and then their high digits.

use super::layout::QUAD_ORDER;
use super::unpack::{PANEL_ROW, VECTOR};
use crate::simd::integer::IntegerSimd;

/// The largest magnitude whose high digit is a signed byte: 127·256 + 127.
pub(super) const MAGNITUDE_MAX: f32 = 32639.0;

/// Bytes of a lane of integers, the digits of each quad in the order `quad`.
const fn table(quad: [usize; 4]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        let (high, second, place) = (i / 8, i / 4 % 2, quad[i % 4]);
        table[i] = (8 * second + 2 * place + high) as u8;
        i += 1;
    }
    table
}
/// Quads in the order in which forward panels have their codes.
pub(super) const FORWARD: [u8; 16] = table(QUAD_ORDER);
/// Quads in the order of input gradient panels.
pub(super) const INPUT_GRAD: [u8; 16] = table([0, 1, 2, 3]);
/// Bytes from a quad's low digits to its high ones.
pub(super) const TO_HIGH: usize = 8;

/// Whether 16-bit integers are multiplied with codes, `wide` ones of 8 bits, as digits.
#[inline(always)]
pub(super) fn in_bytes<S: IntegerSimd>(wide: bool) -> bool {
    S::A16_IN_BYTES && !wide
}

/// The digits of 32 integers of at most [`MAGNITUDE_MAX`], in the order of `table`.
#[inline(always)]
pub(super) fn split<S: IntegerSimd>(integers: S, table: &[u8; 16]) -> S {
    // 128 more carries into the high digit where the low one is negative; the low one is then 128 too large, and that
    // is its highest bit.
    const LANE: [u8; 16] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 0, 0, 0, 0, 0, 0, 0];
    let flip = [LANE; 4];
    // SAFETY: the array has 64 bytes.
    let flip = unsafe { S::load(flip.as_ptr().cast()) };
    integers.sub_i16(S::splat_i16(-128)).shuffle_bytes(table).xor(flip)
}

/// Sums of products of digits and codes: `MR` rows and `NV` vectors of columns.
pub(super) struct DigitSums<S, const MR: usize, const NV: usize> {
    low: [[S; NV]; MR],
    high: [[S; NV]; MR],
}

impl<S: IntegerSimd, const MR: usize, const NV: usize> DigitSums<S, MR, NV> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { low: [[S::zero(); NV]; MR], high: [[S::zero(); NV]; MR] }
    }

    /// Adds the products of four panel rows of four codes each: their digits lie at `quads` of every row of `x`, rows
    /// `row_bytes` apart.
    ///
    /// # Safety
    /// The digits and the panel rows are readable.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, x: *const u8, row_bytes: usize, quads: [usize; 4], panel: *const u8) {
        // SAFETY: passed on.
        unsafe {
            for (step, quad) in quads.into_iter().enumerate() {
                let mut codes = [S::zero(); NV];
                for (v, codes) in codes.iter_mut().enumerate() {
                    *codes = S::load(panel.add(step * PANEL_ROW + v * VECTOR));
                }
                for r in 0..MR {
                    let digits = x.add(r * row_bytes + quad);
                    let low = S::splat_i32(digits.cast::<i32>().read_unaligned());
                    let high = S::splat_i32(digits.add(TO_HIGH).cast::<i32>().read_unaligned());
                    for (v, codes) in codes.iter().enumerate() {
                        self.low[r][v] = self.low[r][v].dot_i8(*codes, low);
                        self.high[r][v] = self.high[r][v].dot_i8(*codes, high);
                    }
                }
            }
        }
    }

    /// The sums of products of integers and codes.
    #[inline(always)]
    pub(super) fn sums(&self) -> [[S; NV]; MR] {
        let mut sums = [[S::zero(); NV]; MR];
        for (sums, (low, high)) in sums.iter_mut().zip(self.low.iter().zip(&self.high)) {
            for (sum, (low, high)) in sums.iter_mut().zip(low.iter().zip(high)) {
                *sum = low.add_i32(high.shift_left_u32::<8>());
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::LANES;
    use crate::simd::integer::{IntegerKernel, dispatch};

    /// Products of 64 integers with 64 codes for each of 16 columns.
    struct Column<'a> {
        integers: &'a [i16; 64],
        /// [k][column]
        codes: &'a [[i8; LANES]; 64],
    }

    impl IntegerKernel for Column<'_> {
        type Output = [i32; LANES];
        #[inline(always)]
        unsafe fn run<S: IntegerSimd>(self) -> [i32; LANES] {
            // The panel has the codes of a column in fours, in the natural order.
            let mut panel = [0i8; 16 * PANEL_ROW];
            for (k, codes) in self.codes.iter().enumerate() {
                for (column, code) in codes.iter().enumerate() {
                    panel[k / 4 * PANEL_ROW + column * 4 + k % 4] = *code;
                }
            }
            let mut x = [0u8; 2 * VECTOR];
            let mut found = [0; LANES];
            // SAFETY: all arrays have what is read and written.
            unsafe {
                for half in 0..2 {
                    let integers = S::load(self.integers.as_ptr().add(32 * half).cast());
                    split(integers, &INPUT_GRAD).store(x.as_mut_ptr().add(VECTOR * half));
                }
                let mut sums = DigitSums::<S, 1, 1>::new();
                for four in 0..4 {
                    let panel = panel.as_ptr().add(4 * four * PANEL_ROW).cast();
                    sums.add(x.as_ptr().add(32 * four), 0, [0, 4, 16, 20], panel);
                }
                sums.sums()[0][0].store(found.as_mut_ptr().cast());
            }
            found
        }
    }

    #[test]
    fn digits_give_the_products_of_the_integers_on_every_instruction_set() {
        let mut state = 7u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i64
        };
        let extremes = [32639, -32639, 127, 128, -128, -129, 255, -256, 0, -1];
        for round in 0..200 {
            let integers: [i16; 64] = std::array::from_fn(|k| match round {
                0 => extremes[k % extremes.len()],
                _ => (next() % 65279 - 32639) as i16,
            });
            let codes: [[i8; LANES]; 64] = std::array::from_fn(|_| {
                std::array::from_fn(|column| match round {
                    0 => [-8, 15, 7, 0][column % 4],
                    _ => (next() % 24 - 8) as i8,
                })
            });
            let expected: [i32; LANES] = std::array::from_fn(|column| {
                integers.iter().zip(&codes).map(|(x, codes)| i32::from(*x) * i32::from(codes[column])).sum()
            });
            for isa in Isa::available() {
                // SAFETY: the kernel reads only what it borrows.
                let found = unsafe { dispatch(isa, Column { integers: &integers, codes: &codes }) };
                assert_eq!(found, expected, "{}", isa.name());
            }
        }
    }
}
