//! Activations and gradients as integers, packed for the register kernels.
//!
//! Rows come in tiles of [`ROWS`]; a *cell* is one row of one 64-wide tile. Cells lie
//! `[panel][row tile][tile of the panel][row of the row tile]`, so that a register kernel, which takes one row
//! tile through one panel, reads one stream, and the next row tile continues it. A short last row tile is
//! packed without gaps.

use super::layout::TILE;
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};

/// Rows of a register tile on the widest instruction set: 6 x 4 accumulators and 5 operands fill 32 registers.
pub(super) const ROWS: usize = 6;
/// Tiles of a forward panel: 4 i16 panels of 8 KiB leave a third of a 48 KiB first-level cache to the rest.
pub(super) const PANEL_TILES: usize = 4;
/// Groups whose largest magnitude is below this count as zero: the inverse of the scale could overflow.
const TINY: f32 = 1e-30;

/// Integers of the largest magnitude that an activation may get.
pub(super) const FORWARD_A16_MAX: f32 = 32639.0;
pub(super) const FORWARD_A8_MAX: f32 = 127.0;

/// (scale, inverse scale) for a group with these largest magnitude bits. A NaN or infinity gives a NaN scale,
/// which reaches every output of the row and no other.
#[inline(always)]
pub(super) fn scale_of(magnitude_bits: u32, integer_max: f32) -> (f32, f32) {
    let largest = f32::from_bits(magnitude_bits);
    if magnitude_bits >= f32::INFINITY.to_bits() {
        (f32::NAN, 0.0)
    } else if largest < TINY {
        (0.0, 0.0)
    } else {
        (largest / integer_max, integer_max / largest)
    }
}

/// Index of the first cell of row tile `first_row` in panel `panel`.
#[inline(always)]
pub(super) fn first_cell(rows: usize, tiles: usize, panel: usize, first_row: usize) -> usize {
    let in_panel = PANEL_TILES.min(tiles - panel * PANEL_TILES);
    panel * PANEL_TILES * rows + first_row * in_panel
}

/// Where the quantized input of a forward product lies.
#[derive(Clone, Copy)]
pub(super) struct ForwardInput {
    pub rows: usize,
    /// 64-wide tiles of a row.
    pub tiles: usize,
    /// Scale groups of a tile.
    pub groups: usize,
    /// Bytes of a cell: 128 for i16, 64 for i8.
    pub cell_bytes: usize,
    /// Cells of integers.
    pub integers: *mut u8,
    /// [panel][row tile][tile][group][row]
    pub scales: *mut f32,
    /// scale · sum of the integers, as `scales`
    pub sums: *mut f32,
    /// -8 · sum of the integers, as `scales`
    pub centres: *mut i32,
}

/// Quantizes row tile `row_tile` of x [rows, k].
pub(super) struct QuantizeForward {
    pub x: *const f32,
    pub k: usize,
    pub input: ForwardInput,
    pub row_tile: usize,
}

impl IntegerKernel for QuantizeForward {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // SAFETY: passed on.
        unsafe {
            match (self.input.groups, self.input.cell_bytes == TILE) {
                (1, false) => self.row_tile::<S, 1, false>(),
                (2, false) => self.row_tile::<S, 2, false>(),
                (_, false) => self.row_tile::<S, 4, false>(),
                (1, true) => self.row_tile::<S, 1, true>(),
                (2, true) => self.row_tile::<S, 2, true>(),
                (_, true) => self.row_tile::<S, 4, true>(),
            }
        }
    }
}

impl QuantizeForward {
    #[inline(always)]
    unsafe fn row_tile<S: IntegerSimd, const G: usize, const SMALL: bool>(&self) {
        let Self { x, k, input, row_tile } = self;
        let cell_bytes = if SMALL { TILE } else { 2 * TILE };
        let first_row = row_tile * ROWS;
        let height = ROWS.min(input.rows - first_row);
        // SAFETY: rows and tiles stay inside x and inside the cells sized for them; k is a multiple of 16.
        unsafe {
            for row in 0..height {
                let x = x.add((first_row + row) * k);
                for tile in 0..input.tiles {
                    let panel = tile / PANEL_TILES;
                    let in_panel = tile % PANEL_TILES;
                    let from = x.add(tile * TILE);
                    let mut values = [S::Float::zero(); 4];
                    if (tile + 1) * TILE <= *k {
                        for (v, value) in values.iter_mut().enumerate() {
                            // The same columns of the next row.
                            S::prefetch(from.wrapping_add(k + LANES * v).cast());
                            *value = S::Float::load(from.add(LANES * v));
                        }
                    } else {
                        for (v, value) in values.iter_mut().enumerate() {
                            if tile * TILE + LANES * v < *k {
                                *value = S::Float::load(from.add(LANES * v));
                            }
                        }
                    }
                    let cell = first_cell(input.rows, input.tiles, panel, first_row) + in_panel * height;
                    let to = input.integers.add((cell + row) * cell_bytes);
                    quantize_cell::<S, G, SMALL>(input, &values, to, cell * G + row, height);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn quantize_cell<S: IntegerSimd, const G: usize, const SMALL: bool>(
    input: &ForwardInput,
    values: &[S::Float; 4],
    to: *mut u8,
    place: usize,
    height: usize,
) {
    let integer_max = if SMALL { FORWARD_A8_MAX } else { FORWARD_A16_MAX };
    // SAFETY: passed on.
    unsafe {
        for group in 0..G {
            let vectors = group * 4 / G..(group + 1) * 4 / G;
            let mut largest = S::zero();
            for value in &values[vectors.clone()] {
                largest = largest.max_magnitude(*value);
            }
            let (scale, inverse) = scale_of(largest.reduce_max_u32(), integer_max);
            let mut sum = S::zero();
            for v in vectors {
                let integers = S::from_float(values[v] * S::Float::splat(inverse));
                sum = sum.add_i32(integers);
                if SMALL {
                    integers.store_as_i8_quads(to.add(16 * v));
                } else {
                    integers.store_as_i16(to.add(32 * v));
                }
            }
            let sum = sum.reduce_add_i32();
            *input.scales.add(place + group * height) = scale;
            *input.sums.add(place + group * height) = scale * sum as f32;
            *input.centres.add(place + group * height) = sum.wrapping_mul(-8);
        }
    }
}

/// Rows of W that share one scale of dY: wide enough that floats are rare, narrow enough for outliers.
pub(super) const BLOCK: usize = 128;
/// Integers of the largest magnitude for dY: full 16 bits, or 12 bits of which [`fold`] keeps 8.
///
/// [`fold`]: super::input_grad
pub(super) const GRADIENT_A16_MAX: f32 = 32767.0;
pub(super) const GRADIENT_A8_MAX: f32 = 2047.0;

/// Where the quantized gradient lies: i16 [block of 128][row tile][row][128, or 64 in a short last block].
#[derive(Clone, Copy)]
pub(super) struct GradientInput {
    pub rows: usize,
    /// Columns of dY, the rows of W.
    pub n: usize,
    /// 64-wide tiles of them.
    pub tiles: usize,
    pub integers: *mut i16,
    /// [block][row]
    pub scales: *mut f32,
    pub integer_max: f32,
}

impl GradientInput {
    /// Columns of block `block`, with padding.
    #[inline(always)]
    pub(super) fn block_width(&self, block: usize) -> usize {
        BLOCK.min(self.tiles * TILE - block * BLOCK)
    }
    /// First integer of row tile `first_row` in block `block`.
    #[inline(always)]
    pub(super) fn place(&self, block: usize, first_row: usize) -> usize {
        block * BLOCK * self.rows + first_row * self.block_width(block)
    }
}

/// Quantizes row tile `row_tile` of `dy` [rows, n], times `row_maxima` [n] of the weight's scales.
pub(super) struct QuantizeGradient {
    pub dy: *const f32,
    pub row_maxima: *const f32,
    pub input: GradientInput,
    pub row_tile: usize,
}

impl IntegerKernel for QuantizeGradient {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let Self { dy, row_maxima, input, row_tile } = self;
        let first_row = row_tile * ROWS;
        let height = ROWS.min(input.rows - first_row);
        // SAFETY: rows and blocks stay inside dy and inside the integers sized for them.
        unsafe {
            for block in 0..(input.tiles * TILE).div_ceil(BLOCK) {
                let width = input.block_width(block);
                for row in 0..height {
                    let from = dy.add((first_row + row) * input.n + block * BLOCK);
                    let to = input.integers.add(input.place(block, first_row) + row * width);
                    let mut values = [S::Float::zero(); BLOCK / LANES];
                    let mut largest = S::zero();
                    for (v, value) in values.iter_mut().enumerate().take(width / LANES) {
                        let column = block * BLOCK + LANES * v;
                        if column >= input.n {
                            break;
                        }
                        let dy = if column + LANES <= input.n {
                            // The same columns of the next row.
                            S::prefetch(from.wrapping_add(input.n + LANES * v).cast());
                            S::Float::load(from.add(LANES * v))
                        } else {
                            S::Float::load_partial(from.add(LANES * v), input.n - column)
                        };
                        // Infinity times a zero maximum is NaN, so that it poisons its row all the same.
                        *value = dy * S::Float::load(row_maxima.add(column));
                        largest = largest.max_magnitude(*value);
                    }
                    let (scale, inverse) = scale_of(largest.reduce_max_u32(), input.integer_max);
                    for (v, value) in values.iter().enumerate().take(width / LANES) {
                        S::from_float(*value * S::Float::splat(inverse)).store_as_i16(to.add(LANES * v).cast());
                    }
                    *input.scales.add(block * input.rows + first_row + row) = scale;
                }
            }
        }
    }
}
