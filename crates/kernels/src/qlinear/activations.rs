//! Activations and gradients as integers, packed for the register kernels.
//!
//! Rows come in tiles of [`ROWS`]; a *cell* is one row of one 64-wide tile. Cells lie
//! `[panel][row tile][tile of the panel][row of the row tile]`, so that a register kernel, which takes one row
//! tile through one panel, reads one stream, and the next row tile continues it. Shorter last row tiles are
//! packed without gaps.
//!
//! Largest magnitudes and sums of 16 groups are found together, one a lane, so that one shuffle and one division
//! serve several of them.

use super::digits::{self, MAGNITUDE_MAX, in_bytes};
use super::layout::TILE;
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd, TINY};

/// Rows of a register tile on the widest instruction set: 6 x 4 accumulators and 5 operands fill 32 registers.
pub(super) const ROWS: usize = 6;
/// Tiles of a forward panel: 3 i16 panels of 8 KiB leave half of a 48 KiB first-level cache to the rest.
pub(super) const PANEL_TILES: usize = 3;
/// Groups whose scales are found together: enough independent sixteens to hide the latency of each.
const TOGETHER: usize = 4 * LANES;
/// Magnitudes from here on count as infinite: sums of products with their integers could become it.
const HUGE: f32 = 1e35;

/// Integers of the largest magnitude that an activation may get.
const FORWARD_A16_MAX: f32 = MAGNITUDE_MAX;
const FORWARD_A8_MAX: f32 = 127.0;

/// Number of row tiles of `rows` rows.
#[inline(always)]
pub(super) fn row_tile_count(rows: usize) -> usize {
    rows.div_ceil(ROWS)
}
/// Rows of the row tile at `first_row` of `rows`. The last seven to nine rows are halved: tiles of one to three
/// rows take nearly as long as one of six.
#[inline(always)]
pub(super) fn row_tile_height(rows: usize, first_row: usize) -> usize {
    match rows - first_row {
        left @ 7..=9 => left.div_ceil(2),
        left => left.min(ROWS),
    }
}
/// Row tiles from that at `first_row` of `rows` on that follow each other with the same height, at least.
#[inline(always)]
pub(super) fn row_tiles_alike(rows: usize, first_row: usize) -> usize {
    ((rows - first_row).saturating_sub(4) / ROWS).max(1)
}
/// First row of row tile `index` of `rows` rows.
#[inline(always)]
pub(super) fn row_tile_start(rows: usize, index: usize) -> usize {
    let start = index * ROWS;
    // A last tile of one to three rows would begin here: the tile before it gave it some.
    if index > 0 && rows - start <= 3 { rows - (rows - start + ROWS) / 2 } else { start }
}

/// Index of the first cell of the row tile at `first_row` in panel `panel`.
#[inline(always)]
pub(super) fn first_cell(rows: usize, tiles: usize, panel: usize, first_row: usize) -> usize {
    let in_panel = PANEL_TILES.min(tiles - panel * PANEL_TILES);
    panel * PANEL_TILES * rows + first_row * in_panel
}

/// What is found of each vector: an operation that may take its values in any order, as long as it is one order.
trait Combine {
    fn combine<S: IntegerSimd>(a: S, b: S) -> S;
}
/// The largest magnitude, as bits: a NaN is larger than all else.
struct Largest;
impl Combine for Largest {
    #[inline(always)]
    fn combine<S: IntegerSimd>(a: S, b: S) -> S {
        a.max_magnitude(b.bits_as_float())
    }
}
/// The sum of integers.
struct IntegerSum;
impl Combine for IntegerSum {
    #[inline(always)]
    fn combine<S: IntegerSimd>(a: S, b: S) -> S {
        a.add_i32(b)
    }
}

/// Combines the lanes of each of 16 vectors, results side by side: 32 shuffles for all, where one by one they
/// would take 64 and wait for each other.
///
/// # Safety
/// `vectors` points to 16 vectors.
#[inline(always)]
unsafe fn combine_each<S: IntegerSimd, C: Combine>(vectors: *const S) -> S {
    let mut quarters = [S::zero(); 4];
    for (i, quarter) in quarters.iter_mut().enumerate() {
        // SAFETY: four times four vectors.
        let [a, b, c, d] = unsafe { vectors.add(4 * i).cast::<[S; 4]>().read() };
        let (low, high) = a.interleave_32(b);
        let first = C::combine(low, high);
        let (low, high) = c.interleave_32(d);
        let second = C::combine(low, high);
        let (low, high) = first.interleave_64(second);
        // Lane by lane, what the four vectors have there.
        *quarter = C::combine(low, high);
    }
    let [a, b, c, d] = S::transpose_lanes(quarters);
    C::combine(C::combine(a, b), C::combine(c, d))
}

/// `scale` and its inverse where the largest magnitude is ordinary; zeros where it is tiny. A NaN, an infinity or
/// a huge magnitude gives a NaN scale, which reaches every output of the row and no other.
#[inline(always)]
fn scale_and_inverse<S: IntegerSimd>(largest: S::Float, scale: S::Float) -> (S::Float, S::Float) {
    let (tiny, huge, zero) = (S::Float::splat(TINY), S::Float::splat(HUGE), S::Float::zero());
    let inverse = S::Float::splat(1.0) / scale;
    let scale = largest.select_less(tiny, zero, scale);
    let inverse = largest.select_less(tiny, zero, inverse);
    (largest.select_less(huge, scale, S::Float::splat(f32::NAN)), largest.select_less(huge, inverse, zero))
}

/// What a register kernel must know of one row and group.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RowScale {
    pub scale: f32,
    /// scale · sum of the integers
    pub sum: f32,
}

/// Where a part of the quantized input of a forward product lies.
#[derive(Clone, Copy)]
pub(super) struct ForwardInput {
    pub rows: usize,
    /// 64-wide tiles of a row in this part.
    pub tiles: usize,
    /// Scale groups of a tile.
    pub groups: usize,
    /// Bytes of a cell: 128 for i16, 64 for i8.
    pub cell_bytes: usize,
    /// Whether the codes have 8 bits: then i16 are never parted into digits.
    pub wide: bool,
    /// Cells of integers, or of their digits where those are multiplied.
    pub integers: *mut u8,
    /// [panel][row tile][tile][group][row]
    pub scales: *mut RowScale,
}

/// Quantizes row tile `row_tile` of the part.
pub(super) struct QuantizeForward {
    /// First row and column of the part; rows `x_stride` floats apart.
    pub x: *const f32,
    pub x_stride: usize,
    /// Columns of x in the part, a multiple of 16.
    pub columns: usize,
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
        let first_row = row_tile_start(self.input.rows, self.row_tile);
        let height = row_tile_height(self.input.rows, first_row);
        let mut cell = Cell { row: 0, tile: 0 };
        // Cells in the order of memory: row by row.
        let mut left = height * self.input.tiles;
        while left > 0 {
            let count = (TOGETHER / G).min(left);
            // SAFETY: rows and tiles stay inside x and inside the cells sized for them.
            cell = unsafe { self.some_cells::<S, G, SMALL>(first_row, height, cell, count) };
            left -= count;
        }
    }

    /// `count` cells from `first` on, [`TOGETHER`] groups at most. Gives the cell after them.
    #[inline(always)]
    unsafe fn some_cells<S: IntegerSimd, const G: usize, const SMALL: bool>(
        &self,
        first_row: usize,
        height: usize,
        first: Cell,
        count: usize,
    ) -> Cell {
        let input = &self.input;
        // One vector a group; those beyond `count` cells give scales of zero.
        let mut largest = [S::zero(); TOGETHER];
        let sixteens = || (0..count * G).step_by(LANES);
        // SAFETY: the cells are inside the part, by the loop of `row_tile`; vectors come in sixteens.
        unsafe {
            let mut cell = first;
            for i in 0..count {
                let values = self.values::<S>(first_row + cell.row, cell.tile, 0);
                for group in 0..G {
                    let values = &values[group * 4 / G..(group + 1) * 4 / G];
                    largest[i * G + group] = values.iter().fold(S::zero(), |most, value| most.max_magnitude(*value));
                }
                cell = cell.next(input.tiles);
            }
            let (mut scales, mut inverses) = ([0f32; TOGETHER], [0f32; TOGETHER]);
            for at in sixteens() {
                let largest = combine_each::<S, Largest>(largest.as_ptr().add(at)).bits_as_float();
                let most = if SMALL { FORWARD_A8_MAX } else { FORWARD_A16_MAX };
                let scale = largest * S::Float::splat(1.0 / most);
                let (scale, inverse) = scale_and_inverse::<S>(largest, scale);
                scale.store(scales.as_mut_ptr().add(at));
                inverse.store(inverses.as_mut_ptr().add(at));
            }
            let mut sums = [S::zero(); TOGETHER];
            // Index of each cell and of its first scale: found anew only where a panel begins.
            let rows_ahead = (TOGETHER / G).div_ceil(input.tiles);
            let mut places = [0; TOGETHER];
            let mut cell = first;
            let (mut place, mut left_in_panel) = (0, 0);
            for i in 0..count {
                if left_in_panel == 0 {
                    place = self.place(first_row, height, cell);
                    left_in_panel = (PANEL_TILES - cell.tile % PANEL_TILES).min(input.tiles - cell.tile);
                }
                places[i] = if G == 1 { place } else { (place - cell.row) * G + cell.row };
                let values = self.values::<S>(first_row + cell.row, cell.tile, rows_ahead);
                let to = input.integers.add(place * input.cell_bytes);
                (place, left_in_panel) = (place + height, left_in_panel - 1);
                let mut integers = [S::zero(); 4];
                for group in 0..G {
                    let inverse = S::Float::splat(inverses[i * G + group]);
                    let mut sum = S::zero();
                    for v in group * 4 / G..(group + 1) * 4 / G {
                        integers[v] = S::from_float(values[v] * inverse);
                        sum = sum.add_i32(integers[v]);
                    }
                    sums[i * G + group] = sum;
                }
                if SMALL {
                    for (v, integers) in integers.into_iter().enumerate() {
                        integers.store_as_i8_quads(to.add(16 * v));
                    }
                } else {
                    let (mut a, mut b) = (integers[0].pack_i16(integers[1]), integers[2].pack_i16(integers[3]));
                    if in_bytes::<S>(input.wide) {
                        (a, b) = (digits::split(a, &digits::FORWARD), digits::split(b, &digits::FORWARD));
                    }
                    a.store(to);
                    b.store(to.add(64));
                }
                cell = cell.next(input.tiles);
            }
            let mut x_sums = [0f32; TOGETHER];
            for at in sixteens() {
                let sum = combine_each::<S, IntegerSum>(sums.as_ptr().add(at));
                (S::Float::load(scales.as_ptr().add(at)) * sum.to_float()).store(x_sums.as_mut_ptr().add(at));
            }
            for (i, place) in places[..count].iter().enumerate() {
                for group in 0..G {
                    let (scale, sum) = (scales[i * G + group], x_sums[i * G + group]);
                    *input.scales.add(place + group * height) = RowScale { scale, sum };
                }
            }
            cell
        }
    }

    /// Index of a cell.
    #[inline(always)]
    fn place(&self, first_row: usize, height: usize, cell: Cell) -> usize {
        let panel = cell.tile / PANEL_TILES;
        first_cell(self.input.rows, self.input.tiles, panel, first_row) + cell.tile % PANEL_TILES * height + cell.row
    }

    /// The floats of a cell, zeros beyond the columns; those `rows_ahead` rows further are fetched.
    #[inline(always)]
    unsafe fn values<S: IntegerSimd>(&self, row: usize, tile: usize, rows_ahead: usize) -> [S::Float; 4] {
        let mut values = [S::Float::zero(); 4];
        // SAFETY: passed on; the columns are a multiple of 16.
        unsafe {
            let from = self.x.add(row * self.x_stride + tile * TILE);
            let whole = (tile + 1) * TILE <= self.columns;
            for (v, value) in values.iter_mut().enumerate() {
                if rows_ahead > 0 {
                    // What is read after the cells at hand.
                    S::prefetch_near(from.wrapping_add(rows_ahead * self.x_stride + LANES * v).cast());
                }
                if whole || tile * TILE + LANES * v < self.columns {
                    *value = S::Float::load(from.add(LANES * v));
                }
            }
        }
        values
    }
}

/// A cell of a row tile: row in it, and tile of k or block of n.
#[derive(Clone, Copy)]
struct Cell {
    row: usize,
    tile: usize,
}

impl Cell {
    #[inline(always)]
    fn next(self, tiles: usize) -> Self {
        if self.tile + 1 == tiles { Cell { row: self.row + 1, tile: 0 } } else { Cell { tile: self.tile + 1, ..self } }
    }
}

/// Rows of W that share one scale of dY: wide enough that floats are rare, narrow enough for outliers.
pub(super) const BLOCK: usize = 128;
/// Integers of the largest magnitude for dY: 16 bits (folding leaves no larger ones), or 12 bits of which [`fold`] keeps 8.
///
/// [`fold`]: super::input_grad
pub(super) const GRADIENT_A16_MAX: f32 = MAGNITUDE_MAX;
pub(super) const GRADIENT_A8_MAX: f32 = 2047.0;

/// Where a part of the quantized gradient lies: i16 [block of 128][row tile][row][128, or 64 in a short last block].
#[derive(Clone, Copy)]
pub(super) struct GradientInput {
    pub rows: usize,
    /// Columns of dY in the part, rows of W.
    pub n: usize,
    /// 64-wide tiles of them.
    pub tiles: usize,
    pub integers: *mut i16,
    /// [block][row]
    pub scales: *mut f32,
    pub integer_max: f32,
}

impl GradientInput {
    pub(super) fn blocks(&self) -> usize {
        (self.tiles * TILE).div_ceil(BLOCK)
    }
    /// Columns of block `block`, with padding.
    #[inline(always)]
    pub(super) fn block_width(&self, block: usize) -> usize {
        BLOCK.min(self.tiles * TILE - block * BLOCK)
    }
    /// First integer of the row tile at `first_row` in block `block`.
    #[inline(always)]
    pub(super) fn place(&self, block: usize, first_row: usize) -> usize {
        block * BLOCK * self.rows + first_row * self.block_width(block)
    }
}

/// Quantizes row tile `row_tile` of dY times `row_maxima` of the weight's scales.
pub(super) struct QuantizeGradient {
    /// First row and column of the part; rows `dy_stride` floats apart.
    pub dy: *const f32,
    pub dy_stride: usize,
    /// [n], from the first column of the part on.
    pub row_maxima: *const f32,
    pub input: GradientInput,
    pub row_tile: usize,
}

impl IntegerKernel for QuantizeGradient {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let input = &self.input;
        let first_row = row_tile_start(input.rows, self.row_tile);
        let height = row_tile_height(input.rows, first_row);
        let blocks = input.blocks();
        let rows_ahead = TOGETHER.div_ceil(blocks);
        let mut first = Cell { row: 0, tile: 0 };
        let mut left = height * blocks;
        while left > 0 {
            let count = TOGETHER.min(left);
            let mut largest = [S::zero(); TOGETHER];
            let mut cell = first;
            for largest in &mut largest[..count] {
                for v in 0..input.block_width(cell.tile) / LANES {
                    // SAFETY: rows and blocks stay inside dy.
                    *largest =
                        largest.max_magnitude(unsafe { self.values::<S>(first_row + cell.row, cell.tile, v, 0) });
                }
                cell = cell.next(blocks);
            }
            let (mut scales, mut inverses) = ([0f32; TOGETHER], [0f32; TOGETHER]);
            for at in (0..count).step_by(LANES) {
                // SAFETY: vectors and floats come in sixteens.
                unsafe {
                    let largest = combine_each::<S, Largest>(largest.as_ptr().add(at)).bits_as_float();
                    let scale = largest * S::Float::splat(1.0 / input.integer_max);
                    let (scale, inverse) = scale_and_inverse::<S>(largest, scale);
                    scale.store(scales.as_mut_ptr().add(at));
                    inverse.store(inverses.as_mut_ptr().add(at));
                }
            }
            let mut cell = first;
            for i in 0..count {
                let width = input.block_width(cell.tile);
                let inverse = S::Float::splat(inverses[i]);
                // SAFETY: rows and blocks stay inside dy and inside the integers sized for them.
                unsafe {
                    let to = input.integers.add(input.place(cell.tile, first_row) + cell.row * width);
                    for v in (0..width / LANES).step_by(2) {
                        let row = first_row + cell.row;
                        let a = S::from_float(self.values::<S>(row, cell.tile, v, rows_ahead) * inverse);
                        let b = S::from_float(self.values::<S>(row, cell.tile, v + 1, rows_ahead) * inverse);
                        a.pack_i16(b).store(to.add(LANES * v).cast());
                    }
                    *input.scales.add(cell.tile * input.rows + first_row + cell.row) = scales[i];
                }
                cell = cell.next(blocks);
            }
            first = cell;
            left -= count;
        }
    }
}

impl QuantizeGradient {
    /// Vector `v` of a row in a block, zeros beyond the columns.
    #[inline(always)]
    unsafe fn values<S: IntegerSimd>(&self, row: usize, block: usize, v: usize, rows_ahead: usize) -> S::Float {
        let column = block * BLOCK + LANES * v;
        // SAFETY: passed on; the maxima are padded to whole tiles.
        unsafe {
            let from = self.dy.add(row * self.dy_stride + column);
            let dy = if column + LANES <= self.input.n {
                if rows_ahead > 0 {
                    // What is read after the cells at hand.
                    S::prefetch(from.wrapping_add(rows_ahead * self.dy_stride).cast());
                }
                S::Float::load(from)
            } else if column < self.input.n {
                S::Float::load_partial(from, self.input.n - column)
            } else {
                return S::Float::zero();
            };
            // Infinity times a zero maximum is NaN, so that it poisons its row all the same.
            dy * S::Float::load(self.row_maxima.add(column))
        }
    }
}
