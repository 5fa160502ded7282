//! `dX = Σ dY·W`, from the same tiles. A task is one column tile of dX for one block of rows and one part of n.
//!
//! The scale varies along the sum, so it is folded into an integer copy of dY ahead of the dot products: with
//! `q = dY·row_max` in 16-bit integers per (row, block of 128 n) and `s = scale / row_max / largest` in 15-bit
//! fixed point per (block, group), `z = (q·s + 2^14) >> 15` takes one instruction for 32 elements, and
//! `dX += (q_scale · largest) · Σ_n z·code` needs no floats inside the sum. dY is quantized once for all groups.
//! The offsets are a thin product of their own in float32, `dX[:, k in g] += Σ_n dY·(bias + centre·scale)`.

mod dots;
mod prepare;

use super::activations::{BLOCK, GradientInput, ROWS, row_tile_height, row_tiles_alike};
use super::digits::in_bytes;
use super::forward::{FloatDots, UnpackExact};
use super::layout::TILE;
use super::packed::PackedMatrix;
use super::unpack::{self, GROUPS_MAX, PANEL_I8, PANEL_I16, TileFormat, VECTOR};
use crate::ops::{Carver, Precision, scratch_size};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};
use dots::{Dots, Fetch, NextTile, Start, beside_the_products};
use prepare::{ColumnSums, Fold, FoldTile, PrepareFolds, UnpackInputGrad};

/// Rows of a block at most, besides the few that a last block takes on.
pub(super) const BLOCK_ROWS: usize = 44 * ROWS;
/// Rows that the block of a worker has room for.
const BLOCK_ROOM: usize = BLOCK_ROWS + 2 * ROWS;
/// Tiles of W in a block of n.
const BLOCK_TILES: usize = BLOCK / TILE;
const PANEL_BYTES: usize = BLOCK_TILES * PANEL_I16;
const _: () = assert!(PANEL_BYTES >= unpack::PANEL_F32);
/// Fixed point of the folded scale: full 15 bits, or such that 2047 times it, shifted, is 127.
const FOLD_A16: f32 = 32767.0;
const FOLD_A8: f32 = 2033.0;

/// Scratch of one worker.
pub(super) const fn worker_bytes() -> usize {
    scratch_size::<u8>(PANEL_BYTES)
        + scratch_size::<f32>(GROUPS_MAX * 2 * TILE)
        + scratch_size::<i16>(GROUPS_MAX * BLOCK)
        + 2 * scratch_size::<i16>(GROUPS_MAX * ROWS * BLOCK)
        + scratch_size::<i32>(TILE)
        + scratch_size::<i32>(ROWS * TILE)
        + scratch_size::<f32>(BLOCK_ROOM * TILE)
}

/// One part of n of one summand `dY·W` of the gradient.
#[derive(Clone, Copy)]
pub(super) struct Summand<'a> {
    pub matrix: &'a PackedMatrix,
    /// First tile of n in the part.
    pub first_tile: usize,
    /// Quantized dY; unused when exact.
    pub input: GradientInput,
    /// [rows, n_out], all columns; used when exact.
    pub dy: *const f32,
    /// [rows][tiles of k · groups], null when the matrix is symmetric; unused when exact.
    pub offsets: *const f32,
}

impl Summand<'_> {
    /// Start of the tile at (tile of n in the part, tile of k).
    #[inline(always)]
    unsafe fn tile(&self, row_tile: usize, column_tile: usize) -> *const u8 {
        // SAFETY: the caller names a tile of the part.
        unsafe { tile_of(self.matrix, self.first_tile + row_tile, column_tile) }
    }
}

pub(super) struct InputGradTask<'a> {
    pub summand: Summand<'a>,
    pub precision: Precision,
    /// Tile of k.
    pub tile: usize,
    /// [rows, k]
    pub dx: *mut f32,
    /// Added to dx rather than written over it.
    pub accumulate: bool,
    pub first_row: usize,
    pub rows: usize,
    /// [`worker_bytes`] bytes.
    pub scratch: *mut u8,
}

/// Buffers of one worker.
struct Buffers {
    panel: *mut u8,
    /// [group][scale, bias][64]
    scales: *mut f32,
    /// [group][128]
    folds: *mut i16,
    /// [group][row][128], i16, their digits, or u8: of the row tile at hand and of the next
    folded: [*mut u8; 2],
    /// [64]
    column_sums: *mut i32,
    /// [row, 64]: integer sums of a row tile
    products: *mut i32,
    /// [rows, 64]
    block: *mut f32,
}

impl IntegerKernel for InputGradTask<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let mut carver = Carver::new(self.scratch);
        let buffers = Buffers {
            panel: carver.take(PANEL_BYTES),
            scales: carver.take(GROUPS_MAX * 2 * TILE),
            folds: carver.take(GROUPS_MAX * BLOCK),
            folded: [(); 2].map(|()| carver.take::<i16>(GROUPS_MAX * ROWS * BLOCK).cast()),
            column_sums: carver.take(TILE),
            products: carver.take(ROWS * TILE),
            block: carver.take(BLOCK_ROOM * TILE),
        };
        debug_assert!(self.rows <= BLOCK_ROOM);
        let k = self.summand.matrix.k_in();
        // SAFETY: the scratch holds these parts, the block as many rows as a task may have.
        unsafe {
            match self.precision {
                Precision::Exact => {
                    std::ptr::write_bytes(buffers.block, 0, self.rows * TILE);
                    self.exact::<S>(&buffers);
                    self.copy_out::<S>(k, buffers.block, self.accumulate);
                }
                Precision::A16 | Precision::A8 => {
                    let whole = (self.tile + 1) * TILE <= k;
                    if !whole && self.accumulate {
                        self.copy_in::<S>(k, buffers.block);
                    }
                    if self.precision == Precision::A8 {
                        self.integer::<S, true>(&buffers, whole);
                    } else {
                        self.integer::<S, false>(&buffers, whole);
                    }
                    if !whole {
                        self.copy_out::<S>(k, buffers.block, false);
                    }
                }
            }
        }
    }
}

impl InputGradTask<'_> {
    /// The sums start from zero, or from dX when it is added to, and then the offsets; between blocks of n they lie
    /// in the block of the worker; those of the last go to dX. When the tile is not `whole`, the block stands for dX.
    #[inline(always)]
    unsafe fn integer<S: IntegerSimd, const SMALL: bool>(&self, buffers: &Buffers, whole: bool) {
        let summand = &self.summand;
        let format = TileFormat::new(summand.matrix.header());
        let input = &summand.input;
        let digits = !SMALL && in_bytes::<S>(format.wide);
        let panel_tile = if SMALL || digits { PANEL_I8 } else { PANEL_I16 };
        let blocks = input.blocks();
        let k = format.header.k_in;
        let tile_bytes = format.header.tile_bytes();
        let lines_each = (tile_bytes / VECTOR).div_ceil(self.rows.div_ceil(ROWS));
        let offset_stride = format.header.column_tiles() * format.groups;
        let zeros = [0f32; GROUPS_MAX];
        // SAFETY: tiles, integers and rows stay inside their buffers by the loops' bounds.
        unsafe {
            for block in 0..blocks {
                let width = input.block_width(block);
                let mut factors = [0f32; GROUPS_MAX];
                S::call(PrepareFolds {
                    summand,
                    format,
                    tile: self.tile,
                    block,
                    small: SMALL,
                    buffers,
                    factors: &mut factors,
                });
                for t in 0..width / TILE {
                    let tile = summand.tile(block * BLOCK_TILES + t, self.tile);
                    let out = buffers.panel.add(t * panel_tile);
                    S::call(UnpackInputGrad { format, tile, bytes: SMALL || digits, out });
                }
                if SMALL {
                    S::call(ColumnSums { width, buffers });
                }
                // The tiles of the next block are fetched a few lines with each row tile of this one.
                let mut next_tile = summand.tile(((block + 1) * BLOCK_TILES).min(input.tiles - 1), self.tile);
                let from_dx = whole && self.accumulate && block == 0;
                let to_dx = whole && block + 1 == blocks;
                let integers = input.integers.add(input.place(block, self.first_row));
                let fold = Fold {
                    height: row_tile_height(input.rows, self.first_row),
                    width,
                    integers,
                    folds: buffers.folds,
                    digits,
                    out: buffers.folded[0],
                };
                S::call(FoldTile::<SMALL> { fold, groups: format.groups });
                let (mut row, mut folded) = (0, buffers.folded);
                while row < self.rows {
                    let first_row = self.first_row + row;
                    let height = row_tile_height(input.rows, first_row);
                    let count = if beside_the_products::<S>(SMALL) {
                        row_tiles_alike(input.rows, first_row).min((self.rows - row) / height)
                    } else {
                        1
                    };
                    let end = row + count * height;
                    let dx = self.dx.add(first_row * k + self.tile * TILE);
                    // What is read here is that of the next row tile; to be written: not in the last block, which may
                    // be too narrow to hide it.
                    let fetch = match (whole, from_dx) {
                        (true, true) => Fetch { from: dx.wrapping_add(height * k), stride: k },
                        (true, false) if !self.accumulate && block == blocks.saturating_sub(2) => {
                            Fetch { from: dx, stride: k }
                        }
                        _ => Fetch { from: buffers.block, stride: 0 },
                    };
                    let (offsets, offset_stride) = if summand.offsets.is_null() {
                        (zeros.as_ptr(), 0)
                    } else {
                        let place = first_row * offset_stride + self.tile * format.groups;
                        (summand.offsets.add(place), offset_stride)
                    };
                    let sums = buffers.block.add(row * TILE);
                    let start = match (block, self.accumulate) {
                        (0, false) => Start::Offsets { offsets, offset_stride },
                        (0, true) if whole => Start::Sums { from: dx, stride: k, offsets, offset_stride },
                        (0, true) => Start::Sums { from: sums, stride: TILE, offsets, offset_stride },
                        _ => Start::Block,
                    };
                    let (to, to_stride) = if to_dx { (dx, k) } else { (sums, TILE) };
                    let dots = Dots {
                        count,
                        groups: format.groups,
                        width,
                        integers: integers.add(row * width),
                        folds: buffers.folds,
                        digits,
                        folded,
                        height_after: if end < self.rows {
                            row_tile_height(input.rows, self.first_row + end)
                        } else {
                            0
                        },
                        fetch,
                        next_tile: NextTile {
                            from: next_tile,
                            stride: format.header.column_tiles() * tile_bytes,
                            lines: lines_each,
                        },
                        panel: buffers.panel,
                        column_sums: buffers.column_sums,
                        products: buffers.products,
                        scales: input.scales.add(block * input.rows + first_row),
                        factors: factors.as_ptr(),
                        sums,
                        start,
                        to,
                        to_stride,
                    };
                    match format.wide && SMALL {
                        false => dots.all::<S, SMALL, false>(height),
                        true => dots.all::<S, SMALL, true>(height),
                    }
                    if count % 2 == 1 {
                        folded.swap(0, 1);
                    }
                    next_tile = next_tile.wrapping_add(count * lines_each * VECTOR);
                    row = end;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn exact<S: IntegerSimd>(&self, buffers: &Buffers) {
        let summand = &self.summand;
        let format = TileFormat::new(summand.matrix.header());
        let n = format.header.n_out;
        // SAFETY: as above; a panel takes no more columns than dY has.
        unsafe {
            for t in 0..n.div_ceil(TILE) {
                let tile = summand.tile(t, self.tile);
                unpack::scales::<S>(&format, tile, 0.0, buffers.scales);
                let (scales, out) = (buffers.scales, buffers.panel.cast());
                S::call(UnpackExact { format, tile, scales, out, transposed: true });
                FloatDots {
                    depth: TILE.min(n - t * TILE),
                    x: summand.dy.add(self.first_row * n + t * TILE),
                    x_stride: n,
                    panel: out,
                    out: buffers.block,
                }
                .all::<S>(self.rows);
            }
        }
    }

    /// Copies the valid columns of dX to the block.
    #[inline(always)]
    unsafe fn copy_in<S: IntegerSimd>(&self, k: usize, block: *mut f32) {
        let column = self.tile * TILE;
        // SAFETY: only rows and columns of dX are read; k is a multiple of 16.
        unsafe {
            for row in 0..self.rows {
                let from = self.dx.add((self.first_row + row) * k + column);
                for at in (0..TILE.min(k - column)).step_by(LANES) {
                    S::Float::load(from.add(at)).store(block.add(row * TILE + at));
                }
            }
        }
    }

    /// Copies or adds the valid columns of the block to dX.
    #[inline(always)]
    unsafe fn copy_out<S: IntegerSimd>(&self, k: usize, block: *const f32, add: bool) {
        let column = self.tile * TILE;
        // Groups are multiples of 16, so the width is a whole number of vectors.
        let width = TILE.min(k - column);
        // SAFETY: only rows and columns of dX are touched.
        unsafe {
            for row in 0..self.rows {
                let to = self.dx.add((self.first_row + row) * k + column);
                for at in (0..width).step_by(LANES) {
                    let mut value = S::Float::load(block.add(row * TILE + at));
                    if add {
                        value = S::Float::load(to.add(at)) + value;
                    }
                    value.store(to.add(at));
                }
            }
        }
    }
}

/// Start of the tile at (row of tiles, column of tiles).
#[inline(always)]
pub(super) unsafe fn tile_of(matrix: &PackedMatrix, row_tile: usize, column_tile: usize) -> *const u8 {
    let header = matrix.header();
    // SAFETY: the caller names a tile of the matrix.
    unsafe { matrix.tiles().as_ptr().add((row_tile * header.column_tiles() + column_tile) * header.tile_bytes()) }
}
