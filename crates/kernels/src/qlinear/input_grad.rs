//! `dX = Σ dY·W`, from the same tiles. A task is one column tile of dX for one block of rows.
//!
//! The scale varies along the sum, so it is folded into an integer copy of dY ahead of the dot products: with
//! `q = dY·row_max` in 16-bit integers per (row, block of 128 n) and `s = scale / row_max / largest` in 15-bit
//! fixed point per (block, group), `z = (q·s + 2^14) >> 15` takes one instruction for 32 elements, and
//! `dX += (q_scale · largest) · Σ_n z·code` needs no floats inside the sum. dY is quantized once for all groups.
//! The offsets are a thin product of their own in float32, `dX[:, k in g] += Σ_n dY·(bias + centre·scale)`.

mod prepare;

use super::activations::{BLOCK, GradientInput, ROWS};
use super::forward::{FloatDots, UnpackExact};
use super::layout::TILE;
use super::packed::PackedMatrix;
use super::unpack::{self, ACROSS, GROUPS_MAX, PANEL_I8, PANEL_I16, PANEL_ROW, TileFormat, VECTOR};
use crate::ops::{Carver, Precision, scratch_size};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};
use prepare::{ColumnSums, Fold, FoldGroups, PrepareFolds, UnpackInputGrad};

/// Rows of a block at most.
pub(super) const BLOCK_ROWS: usize = 42 * ROWS;
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
        + scratch_size::<i16>(GROUPS_MAX * ROWS * BLOCK)
        + scratch_size::<i32>(TILE)
        + scratch_size::<f32>(BLOCK_ROWS * TILE)
}

/// One summand `dY·W` of the gradient.
#[derive(Clone, Copy)]
pub(super) struct Summand<'a> {
    pub matrix: &'a PackedMatrix,
    /// Quantized dY; unused when exact.
    pub input: GradientInput,
    /// [rows, n_out]
    pub dy: *const f32,
    /// [rows][tiles of k · groups], null when the matrix is symmetric; unused when exact.
    pub offsets: *const f32,
}

pub(super) struct InputGradTask<'a> {
    pub summands: &'a [Summand<'a>],
    pub precision: Precision,
    /// Tile of k.
    pub tile: usize,
    /// [rows, k]
    pub dx: *mut f32,
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
    /// [group][row][128], i16 or u8
    folded: *mut u8,
    /// [64]
    column_sums: *mut i32,
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
            folded: carver.take::<i16>(GROUPS_MAX * ROWS * BLOCK).cast(),
            column_sums: carver.take(TILE),
            block: carver.take(BLOCK_ROWS * TILE),
        };
        debug_assert!(self.rows <= BLOCK_ROWS);
        let k = self.summands[0].matrix.k_in();
        // SAFETY: the scratch holds these parts, the block as many rows as a task may have.
        unsafe {
            match self.precision {
                Precision::Exact => {
                    std::ptr::write_bytes(buffers.block, 0, self.rows * TILE);
                    for summand in self.summands {
                        self.exact::<S>(summand, &buffers);
                    }
                    self.copy_out::<S>(k, buffers.block);
                }
                Precision::A16 | Precision::A8 => {
                    let whole = (self.tile + 1) * TILE <= k;
                    for (index, summand) in self.summands.iter().enumerate() {
                        let last = index + 1 == self.summands.len();
                        if index > 0 {
                            self.add_offsets::<S>(summand, &buffers);
                        }
                        self.integer::<S>(summand, &buffers, index == 0, last && whole);
                    }
                    if !whole {
                        self.copy_out::<S>(k, buffers.block);
                    }
                }
            }
        }
    }
}

impl InputGradTask<'_> {
    #[inline(always)]
    unsafe fn add_offsets<S: IntegerSimd>(&self, summand: &Summand<'_>, buffers: &Buffers) {
        if summand.offsets.is_null() {
            return;
        }
        let header = summand.matrix.header();
        let (groups, tiles) = (header.groups_per_tile(), header.column_tiles());
        // SAFETY: row and tile lie inside the offsets.
        unsafe {
            for row in 0..self.rows {
                let from = summand.offsets.add(((self.first_row + row) * tiles + self.tile) * groups);
                for v in 0..ACROSS {
                    let out = buffers.block.add(row * TILE + v * LANES);
                    (S::Float::load(out) + S::Float::splat(*from.add(v * groups / ACROSS))).store(out);
                }
            }
        }
    }

    /// The sums of the `first` summand start from its offsets in the first block of n and lie in the block of
    /// rows in between; those of the last block of n go straight `to_dx`.
    #[inline(always)]
    unsafe fn integer<S: IntegerSimd>(&self, summand: &Summand<'_>, buffers: &Buffers, first: bool, to_dx: bool) {
        let format = TileFormat::new(summand.matrix.header());
        let input = &summand.input;
        let small = self.precision == Precision::A8;
        let panel_tile = if small { PANEL_I8 } else { PANEL_I16 };
        let blocks = (input.tiles * TILE).div_ceil(BLOCK);
        let k = format.header.k_in;
        let tile_bytes = format.header.tile_bytes();
        let lines = tile_bytes / VECTOR;
        let prefetch_lines = (lines * BLOCK_TILES).div_ceil(self.rows.div_ceil(ROWS));
        let offset_stride = format.header.column_tiles() * format.groups;
        let zeros = [0f32; GROUPS_MAX];
        // More integers than stay in a 2 MiB cache from one column tile to the next.
        let streams = self.rows * input.tiles * TILE * size_of::<i16>() > 1 << 20;
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
                    small,
                    buffers,
                    factors: &mut factors,
                });
                for t in 0..width / TILE {
                    let tile = tile_of(summand.matrix, block * BLOCK_TILES + t, self.tile);
                    S::call(UnpackInputGrad { format, tile, small, out: buffers.panel.add(t * panel_tile) });
                }
                if small {
                    S::call(ColumnSums { width, buffers });
                }
                // The tiles of the next block are fetched a few lines with each row tile of this one.
                let next_tile = ((block + 1) * BLOCK_TILES).min(input.tiles - 1);
                let (mut line, mut next) = (0, tile_of(summand.matrix, next_tile, self.tile));
                let mut row = 0;
                while row < self.rows {
                    let height = ROWS.min(self.rows - row);
                    let first_row = self.first_row + row;
                    let dx = self.dx.add(first_row * k + self.tile * TILE);
                    if to_dx && block == blocks.saturating_sub(2) {
                        for line in 0..height * ACROSS {
                            S::prefetch(dx.wrapping_add(line / ACROSS * k + line % ACROSS * LANES).cast());
                        }
                    }
                    for _ in 0..prefetch_lines {
                        if line == lines {
                            (line, next) = (0, next.wrapping_add((format.header.column_tiles() - 1) * tile_bytes));
                        }
                        S::prefetch(next);
                        (line, next) = (line + 1, next.wrapping_add(VECTOR));
                    }
                    let integers = input.integers.add(input.place(block, first_row));
                    if streams {
                        // The row tile after the next, which follows in memory.
                        let ahead = integers.wrapping_add(2 * ROWS * width).cast::<u8>();
                        for line in 0..ROWS * BLOCK * size_of::<i16>() / VECTOR {
                            S::prefetch(ahead.wrapping_add(line * VECTOR));
                        }
                    }
                    let fold = Fold { height, width, small, integers, buffers };
                    let start = match (first && block == 0, summand.offsets.is_null()) {
                        (false, _) => Start::Sums,
                        (true, true) => Start::Splat { offsets: zeros.as_ptr(), stride: 0 },
                        (true, false) => {
                            let place = first_row * offset_stride + self.tile * format.groups;
                            Start::Splat { offsets: summand.offsets.add(place), stride: offset_stride }
                        }
                    };
                    let end = match (to_dx && block + 1 == blocks, self.accumulate) {
                        (false, _) => End::Sums,
                        (true, false) => End::Write { to: dx, stride: k },
                        (true, true) => End::Add { to: dx, stride: k },
                    };
                    let dots = Dots {
                        groups: format.groups,
                        width,
                        folded: buffers.folded,
                        panel: buffers.panel,
                        column_sums: buffers.column_sums,
                        scales: input.scales.add(block * input.rows + first_row),
                        factors: factors.as_ptr(),
                        sums: buffers.block.add(row * TILE),
                        start,
                        end,
                    };
                    match format.groups {
                        1 => S::call(FoldGroups::<1>(fold)),
                        2 => S::call(FoldGroups::<2>(fold)),
                        _ => S::call(FoldGroups::<4>(fold)),
                    }
                    match (small, format.wide) {
                        (false, _) => dots.all::<S, false, false>(height),
                        (true, false) => dots.all::<S, true, false>(height),
                        (true, true) => dots.all::<S, true, true>(height),
                    }
                    row += height;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn exact<S: IntegerSimd>(&self, summand: &Summand<'_>, buffers: &Buffers) {
        let format = TileFormat::new(summand.matrix.header());
        let n = format.header.n_out;
        // SAFETY: as above; a panel takes no more columns than dY has.
        unsafe {
            for t in 0..n.div_ceil(TILE) {
                let tile = tile_of(summand.matrix, t, self.tile);
                unpack::scales::<S>(&format, tile, false, buffers.scales);
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

    /// Copies or adds the valid columns of the block to dX.
    #[inline(always)]
    unsafe fn copy_out<S: IntegerSimd>(&self, k: usize, block: *const f32) {
        let column = self.tile * TILE;
        // Groups are multiples of 16, so the width is a whole number of vectors.
        let width = TILE.min(k - column);
        // SAFETY: only rows and columns of dX are touched.
        unsafe {
            for row in 0..self.rows {
                let to = self.dx.add((self.first_row + row) * k + column);
                for at in (0..width).step_by(LANES) {
                    let mut value = S::Float::load(block.add(row * TILE + at));
                    if self.accumulate {
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

/// What the sums of a row tile start from.
#[derive(Clone, Copy)]
enum Start {
    /// The sums of the blocks of n before.
    Sums,
    /// [row][group], rows `stride` apart: one value for all columns of a group.
    Splat { offsets: *const f32, stride: usize },
}

/// Where the sums of a row tile go.
#[derive(Clone, Copy)]
enum End {
    /// To the sums, for the next block of n.
    Sums,
    /// To rows of dX, `stride` apart, overwritten.
    Write { to: *mut f32, stride: usize },
    /// To rows of dX, added.
    Add { to: *mut f32, stride: usize },
}

/// One folded row tile through one panel.
#[derive(Clone, Copy)]
struct Dots {
    groups: usize,
    width: usize,
    folded: *const u8,
    panel: *const u8,
    column_sums: *const i32,
    /// [row]
    scales: *const f32,
    /// [group]
    factors: *const f32,
    /// [rows, 64]
    sums: *mut f32,
    start: Start,
    end: End,
}

impl Dots {
    /// As one register tile where there are many registers, else three rows of one vector at a time.
    #[inline(always)]
    unsafe fn all<S: IntegerSimd, const SMALL: bool, const WIDE: bool>(self, height: usize) {
        // SAFETY: passed on; parts are inside the whole.
        unsafe {
            if S::Float::MANY_REGISTERS {
                match self.groups {
                    1 => self.rows_of::<S, SMALL, WIDE, 1>(height),
                    2 => self.rows_of::<S, SMALL, WIDE, 2>(height),
                    _ => self.rows_of::<S, SMALL, WIDE, 4>(height),
                }
                return;
            }
            let mut row = 0;
            while row < height {
                let rows = (height - row).min(3);
                for v in 0..ACROSS {
                    let part = self.part::<SMALL>(row, v);
                    match rows {
                        3 => S::call(DotTile::<3, 1, 1, SMALL, WIDE>(part)),
                        2 => S::call(DotTile::<2, 1, 1, SMALL, WIDE>(part)),
                        _ => S::call(DotTile::<1, 1, 1, SMALL, WIDE>(part)),
                    }
                }
                row += rows;
            }
        }
    }

    /// From row `row`, column vector `v` alone.
    #[inline(always)]
    unsafe fn part<const SMALL: bool>(self, row: usize, v: usize) -> Self {
        let row_bytes = if SMALL { BLOCK } else { 2 * BLOCK };
        let group = v * self.groups / ACROSS;
        let at = v * LANES;
        // SAFETY: rows and vectors of the whole.
        unsafe {
            Dots {
                folded: self.folded.add((group * ROWS + row) * row_bytes),
                panel: self.panel.add(v * VECTOR),
                column_sums: self.column_sums.add(at),
                scales: self.scales.add(row),
                factors: self.factors.add(group),
                sums: self.sums.add(row * TILE + at),
                start: match self.start {
                    Start::Sums => Start::Sums,
                    Start::Splat { offsets, stride } => {
                        Start::Splat { offsets: offsets.add(row * stride + group), stride }
                    }
                },
                end: match self.end {
                    End::Sums => End::Sums,
                    End::Write { to, stride } => End::Write { to: to.add(row * stride + at), stride },
                    End::Add { to, stride } => End::Add { to: to.add(row * stride + at), stride },
                },
                ..self
            }
        }
    }

    #[inline(always)]
    unsafe fn rows_of<S: IntegerSimd, const SMALL: bool, const WIDE: bool, const G: usize>(self, height: usize) {
        // SAFETY: passed on.
        unsafe {
            match height {
                6 => S::call(DotTile::<6, 4, G, SMALL, WIDE>(self)),
                5 => S::call(DotTile::<5, 4, G, SMALL, WIDE>(self)),
                4 => S::call(DotTile::<4, 4, G, SMALL, WIDE>(self)),
                3 => S::call(DotTile::<3, 4, G, SMALL, WIDE>(self)),
                2 => S::call(DotTile::<2, 4, G, SMALL, WIDE>(self)),
                _ => S::call(DotTile::<1, 4, G, SMALL, WIDE>(self)),
            }
        }
    }
}

/// `MR` rows and `NV` vectors of columns in registers; `G` groups share the vectors evenly.
struct DotTile<const MR: usize, const NV: usize, const G: usize, const SMALL: bool, const WIDE: bool>(Dots);

impl<const MR: usize, const NV: usize, const G: usize, const SMALL: bool, const WIDE: bool> IntegerKernel
    for DotTile<MR, NV, G, SMALL, WIDE>
{
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let d = self.0;
        let row_bytes = if SMALL { BLOCK } else { 2 * BLOCK };
        let steps = if SMALL { d.width / 4 } else { d.width / 2 };
        let mut sums = [[S::zero(); NV]; MR];
        // SAFETY: the panel and the folded rows have `steps` parts of four bytes.
        unsafe {
            if SMALL {
                for v in 0..NV {
                    let start = S::load(d.column_sums.add(v * LANES).cast());
                    for sums in &mut sums {
                        sums[v] = start;
                    }
                }
            }
            for step in 0..steps {
                let mut codes = [S::zero(); NV];
                for (v, codes) in codes.iter_mut().enumerate() {
                    *codes = S::load(d.panel.add(step * PANEL_ROW + v * VECTOR));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    for g in 0..G {
                        let from = d.folded.add((g * ROWS + r) * row_bytes + step * 4);
                        let z = S::splat_i32(from.cast::<i32>().read_unaligned());
                        for v in g * NV / G..(g + 1) * NV / G {
                            sums[v] =
                                if SMALL { sums[v].dot_u8::<WIDE>(z, codes[v]) } else { sums[v].dot_i16(codes[v], z) };
                        }
                    }
                }
            }
            // One pass that holds no second set of vectors, or the registers would not suffice: a start other than
            // the sums is put there first, an addition to dX is done from there afterwards.
            if let Start::Splat { offsets, stride } = d.start {
                for r in 0..MR {
                    for v in 0..NV {
                        let offset = S::Float::splat(*offsets.add(r * stride + v * G / NV));
                        offset.store(d.sums.add(r * TILE + v * LANES));
                    }
                }
            }
            let (to, stride) = match d.end {
                End::Write { to, stride } => (to, stride),
                End::Sums | End::Add { .. } => (d.sums, TILE),
            };
            for (r, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    let factor = S::Float::splat(*d.scales.add(r) * *d.factors.add(v * G / NV));
                    let before = S::Float::load(d.sums.add(r * TILE + v * LANES));
                    sum.to_float().mul_add(factor, before).store(to.add(r * stride + v * LANES));
                }
            }
            if let End::Add { to, stride } = d.end {
                for r in 0..MR {
                    for v in 0..NV {
                        let (to, from) = (to.add(r * stride + v * LANES), d.sums.add(r * TILE + v * LANES));
                        (S::Float::load(to) + S::Float::load(from)).store(to);
                    }
                }
            }
        }
    }
}
