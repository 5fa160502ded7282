//! What an input gradient prepares before its dot products: folded scales, unpacked codes, column sums, and the folded
//! integers of a row tile.

use super::{BLOCK_TILES, Buffers, FOLD_A8, FOLD_A16, Summand};
use crate::qlinear::activations::{BLOCK, ROWS};
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
    pub(super) small: bool,
    pub(super) out: *mut u8,
}
impl IntegerKernel for UnpackInputGrad {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // SAFETY: passed on.
        unsafe {
            if self.small {
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

/// Folds the scales of every group into the integers of one row tile.
#[derive(Clone, Copy)]
pub(super) struct Fold<'a> {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) small: bool,
    pub(super) integers: *const i16,
    pub(super) buffers: &'a Buffers,
}

pub(super) struct FoldGroups<'a, const G: usize>(pub(super) Fold<'a>);

impl<const G: usize> IntegerKernel for FoldGroups<'_, G> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // i16 of two vectors.
        const STEP: usize = 64;
        let f = self.0;
        let raise = S::splat_i8(-128);
        // SAFETY: width is 64 or 128, a multiple of the step.
        unsafe {
            for at in (0..f.width).step_by(STEP) {
                let mut folds = [[S::zero(); 2]; G];
                for (group, folds) in folds.iter_mut().enumerate() {
                    let from = f.buffers.folds.add(group * BLOCK + at).cast::<u8>();
                    *folds = [S::load(from), S::load(from.add(VECTOR))];
                }
                for row in 0..f.height {
                    let from = f.integers.add(row * f.width + at).cast::<u8>();
                    let (a, b) = (S::load(from), S::load(from.add(VECTOR)));
                    for (group, folds) in folds.iter().enumerate() {
                        let (a, b) = (a.multiply_round_i16(folds[0]), b.multiply_round_i16(folds[1]));
                        let place = (group * ROWS + row) * BLOCK + at;
                        if f.small {
                            a.pack_i8(b).xor(raise).store(f.buffers.folded.add(place));
                        } else {
                            a.store(f.buffers.folded.add(2 * place));
                            b.store(f.buffers.folded.add(2 * place + VECTOR));
                        }
                    }
                }
            }
        }
    }
}
