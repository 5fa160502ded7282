//! What an input gradient prepares before its dot products: folded scales, unpacked codes, column sums, and the folded
//! integers of a row tile.

use super::{BLOCK_TILES, Buffers, FOLD_A8, FOLD_A16, Summand};
use crate::qlinear::activations::{BLOCK, ROWS};
use crate::qlinear::digits;
use crate::qlinear::layout::TILE;
use crate::qlinear::unpack::{self, ACROSS, GROUPS_MAX, PANEL_ROW, TileFormat, VECTOR};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};

/// The folded scales of one block and tile: `folds` [group][128] and, per group, the factor of the dot products.
pub(super) struct PrepareFolds<'a> {
    pub(super) summand: &'a Summand<'a>,
    pub(super) format: TileFormat,
    pub(super) tile: usize,
    pub(super) block: usize,
    pub(super) small: bool,
    pub(super) buffers: &'a Buffers,
    pub(super) factors: &'a mut [f32; GROUPS_MAX],
}

impl IntegerKernel for PrepareFolds<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let width = self.summand.input.block_width(self.block);
        let inverse_maxima =
            self.summand.matrix.row_maxima_inverse()[self.summand.first_tile * TILE + self.block * BLOCK..].as_ptr();
        let fold_max = if self.small { FOLD_A8 } else { FOLD_A16 };
        let header = &self.format.header;
        let value_bytes = header.scale_type.bytes();
        // SAFETY: scales follow the codes of each tile; width is at most 128.
        unsafe {
            for group in 0..self.format.groups {
                let mut ratios = [S::Float::zero(); BLOCK / LANES];
                let mut largest = S::zero();
                for (v, ratio) in ratios.iter_mut().enumerate().take(width / LANES) {
                    let tile = self.summand.tile(self.block * BLOCK_TILES + v / ACROSS, self.tile);
                    let place = (group * 2 * TILE + v % ACROSS * LANES) * value_bytes;
                    let scale = S::load_scales(header.scale_type, tile.add(header.code_bytes() + place));
                    *ratio = scale * S::Float::load(inverse_maxima.add(v * LANES));
                    largest = largest.max_magnitude(*ratio);
                }
                let largest = f32::from_bits(largest.reduce_max_u32());
                let (fold, factor) =
                    if largest > 0.0 { (fold_max / largest, largest * (32768.0 / fold_max)) } else { (0.0, 0.0) };
                self.factors[group] = factor;
                for (v, ratio) in ratios.iter().enumerate().take(width / LANES) {
                    let to = self.buffers.folds.add(group * BLOCK + v * LANES);
                    S::from_float(*ratio * S::Float::splat(fold)).store_as_i16(to.cast());
                }
            }
        }
    }
}

pub(super) struct UnpackInputGrad {
    pub(super) format: TileFormat,
    pub(super) tile: *const u8,
    /// Whether codes stay in bytes.
    pub(super) bytes: bool,
    pub(super) out: *mut u8,
}
impl IntegerKernel for UnpackInputGrad {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // SAFETY: passed on.
        unsafe {
            if self.bytes {
                unpack::input_grad_i8::<S>(&self.format, self.tile, self.out);
            } else {
                unpack::input_grad_i16::<S>(&self.format, self.tile, self.out);
            }
        }
    }
}

/// -128 times the sum of every panel column: folded bytes are raised by 128 to be unsigned.
pub(super) struct ColumnSums<'a> {
    pub(super) width: usize,
    pub(super) buffers: &'a Buffers,
}
impl IntegerKernel for ColumnSums<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let ones = S::splat_i8(1);
        // SAFETY: the panel has width / 4 rows.
        unsafe {
            for v in 0..ACROSS {
                let mut sum = S::zero();
                for step in 0..self.width / 4 {
                    let codes = S::load(self.buffers.panel.add(step * PANEL_ROW + v * VECTOR));
                    // One times any code fits 16 bits, so wide codes need no care here.
                    sum = sum.dot_u8::<false>(ones, codes);
                }
                let mut values = [0i32; LANES];
                sum.store(values.as_mut_ptr().cast());
                for (i, value) in values.iter().enumerate() {
                    *self.buffers.column_sums.add(v * LANES + i) = value.wrapping_mul(-128);
                }
            }
        }
    }
}

/// Folds the scales of every group into the integers of one row tile, a unit of 64 integers of one row after the other.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    pub(super) height: usize,
    pub(super) width: usize,
    /// [height, width]
    pub(super) integers: *const i16,
    /// [group][128]
    pub(super) folds: *const i16,
    /// Whether integers are parted into digits.
    pub(super) digits: bool,
    /// [group][row][128], i16, their digits, or u8
    pub(super) out: *mut u8,
}

impl Fold {
    /// Integers of a unit: i16 of two vectors.
    const UNIT: usize = 64;

    #[inline(always)]
    pub(super) fn units(&self) -> usize {
        self.height * self.width / Self::UNIT
    }

    /// Folds unit `unit` of [`Fold::units`].
    #[inline(always)]
    pub(super) unsafe fn unit<S: IntegerSimd, const G: usize, const SMALL: bool>(&self, unit: usize) {
        // A row has one unit or two; rows of the outcome have room for two.
        let two = self.width / Self::UNIT - 1;
        // SAFETY: the caller names a unit; width is 64 or 128.
        unsafe {
            let from = self.integers.add(unit * Self::UNIT).cast::<u8>();
            let (a, b) = (S::load(from), S::load(from.add(VECTOR)));
            let folds = self.folds.add((unit & two) * Self::UNIT);
            let place = (unit << (1 - two)) * Self::UNIT;
            for group in 0..G {
                let folds = folds.add(group * BLOCK).cast::<u8>();
                let (mut a, mut b) =
                    (a.multiply_round_i16(S::load(folds)), b.multiply_round_i16(S::load(folds.add(VECTOR))));
                if !SMALL && S::A16_IN_BYTES && self.digits {
                    (a, b) = (digits::split(a, &digits::INPUT_GRAD), digits::split(b, &digits::INPUT_GRAD));
                }
                let place = group * ROWS * BLOCK + place;
                if SMALL {
                    a.pack_i8(b).xor(S::splat_i8(-128)).store(self.out.add(place));
                } else {
                    a.store(self.out.add(2 * place));
                    b.store(self.out.add(2 * place + VECTOR));
                }
            }
        }
    }
}

/// All units of a row tile.
pub(super) struct FoldTile<const SMALL: bool> {
    pub(super) fold: Fold,
    pub(super) groups: usize,
}

impl<const SMALL: bool> IntegerKernel for FoldTile<SMALL> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // SAFETY: passed on.
        unsafe {
            for unit in 0..self.fold.units() {
                match self.groups {
                    1 => self.fold.unit::<S, 1, SMALL>(unit),
                    2 => self.fold.unit::<S, 2, SMALL>(unit),
                    _ => self.fold.unit::<S, 4, SMALL>(unit),
                }
            }
        }
    }
}
