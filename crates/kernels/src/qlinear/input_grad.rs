//! `dX = Σ dY·W`, from the same tiles. A task is one column tile of dX for one block of rows and one part of n.
//!
//! The scale varies along the sum, so it is folded into an integer copy of dY ahead of the dot products: with
//! `q = dY·row_max` in 16-bit integers per (row, block of 128 n) and `s = scale / row_max / largest` in 15-bit
//! fixed point per (block, group), `z = (q·s + 2^14) >> 15` takes one instruction for 32 elements, and
//! `dX += (q_scale · largest) · Σ_n z·code` needs no floats inside the sum. dY is quantized once for all groups.
//! The offsets are a thin product of their own in float32, `dX[:, k in g] += Σ_n dY·(bias + centre·scale)`.

mod prepare;

use super::activations::{BLOCK, GradientInput, ROWS, row_tile_height};
use super::forward::{FloatDots, UNROLLED, UnpackExact};
use super::layout::TILE;
use super::packed::PackedMatrix;
use super::unpack::{self, ACROSS, GROUPS_MAX, PANEL_I8, PANEL_I16, PANEL_ROW, TileFormat, VECTOR};
use crate::ops::{Carver, Precision, scratch_size};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};
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
    /// [group][row][128], i16 or u8: of the row tile at hand and of the next
    folded: [*mut u8; 2],
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
            folded: [(); 2].map(|()| carver.take::<i16>(GROUPS_MAX * ROWS * BLOCK).cast()),
            column_sums: carver.take(TILE),
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
        let panel_tile = if SMALL { PANEL_I8 } else { PANEL_I16 };
        let blocks = input.blocks();
        let k = format.header.k_in;
        let tile_bytes = format.header.tile_bytes();
        let lines = tile_bytes / VECTOR;
        let prefetch_lines = (lines * BLOCK_TILES).div_ceil(self.rows.div_ceil(ROWS));
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
                    S::call(UnpackInputGrad { format, tile, small: SMALL, out: buffers.panel.add(t * panel_tile) });
                }
                if SMALL {
                    S::call(ColumnSums { width, buffers });
                }
                // The tiles of the next block are fetched a few lines with each row tile of this one.
                let next_tile = ((block + 1) * BLOCK_TILES).min(input.tiles - 1);
                let (mut line, mut next) = (0, summand.tile(next_tile, self.tile));
                let from_dx = whole && self.accumulate && block == 0;
                let to_dx = whole && block + 1 == blocks;
                let fold = |row: usize, tile: usize| Fold {
                    height: row_tile_height(input.rows, self.first_row + row),
                    width,
                    integers: input.integers.add(input.place(block, self.first_row + row)),
                    folds: buffers.folds,
                    out: buffers.folded[tile % 2],
                };
                let mut folded = fold(0, 0);
                S::call(FoldTile::<SMALL> { fold: folded, groups: format.groups });
                let (mut row, mut row_tile) = (0, 0);
                while row < self.rows {
                    let first_row = self.first_row + row;
                    let height = folded.height;
                    let next_fold = if row + height < self.rows {
                        fold(row + height, row_tile + 1)
                    } else {
                        Fold { height: 0, ..folded }
                    };
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
                    for _ in 0..prefetch_lines {
                        if line == lines {
                            (line, next) = (0, next.wrapping_add((format.header.column_tiles() - 1) * tile_bytes));
                        }
                        S::prefetch(next);
                        (line, next) = (line + 1, next.wrapping_add(VECTOR));
                    }
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
                        groups: format.groups,
                        width,
                        folded: folded.out,
                        next_fold,
                        fetch,
                        panel: buffers.panel,
                        column_sums: buffers.column_sums,
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
                    (row, row_tile, folded) = (row + height, row_tile + 1, next_fold);
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

/// What the sums of a row tile start from. Offsets are [row][group], rows `offset_stride` apart: one value for all
/// columns of a group.
#[derive(Clone, Copy)]
enum Start {
    /// The sums of the blocks of n before.
    Block,
    /// The offsets alone.
    Offsets { offsets: *const f32, offset_stride: usize },
    /// Other sums, rows `stride` apart, and the offsets.
    Sums { from: *const f32, stride: usize, offsets: *const f32, offset_stride: usize },
}

/// Rows of 64 floats that are fetched beside the products; any line when there is nothing to fetch.
#[derive(Clone, Copy)]
struct Fetch {
    from: *const f32,
    stride: usize,
}

impl Fetch {
    /// Half a row.
    #[inline(always)]
    fn half_row<S: IntegerSimd>(&self, half: usize) {
        let from = self.from.wrapping_add(half / 2 * self.stride + half % 2 * 2 * LANES);
        S::prefetch(from.cast());
        S::prefetch(from.wrapping_add(LANES).cast());
    }
}

/// One folded row tile through one panel. Beside its products the next row tile is folded and floats are fetched, a
/// little with each few steps: alone they would wait for the second-level cache.
#[derive(Clone, Copy)]
struct Dots {
    groups: usize,
    width: usize,
    folded: *const u8,
    next_fold: Fold,
    fetch: Fetch,
    panel: *const u8,
    column_sums: *const i32,
    /// [row]
    scales: *const f32,
    /// [group]
    factors: *const f32,
    /// [rows, 64]
    sums: *mut f32,
    start: Start,
    /// Where the sums go, rows `to_stride` apart: the sums, for the next block of n, or dX.
    to: *mut f32,
    to_stride: usize,
}

impl Dots {
    /// As one register tile where there are many registers, else three rows of one vector at a time.
    #[inline(always)]
    unsafe fn all<S: IntegerSimd, const SMALL: bool, const WIDE: bool>(self, height: usize) {
        // SAFETY: passed on; parts are inside the whole.
        unsafe {
            if !beside_the_products::<S>(SMALL) {
                S::call(FoldTile::<SMALL> { fold: self.next_fold, groups: self.groups });
                for half in 0..2 * height {
                    self.fetch.half_row::<S>(half);
                }
            }
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

    /// Fetches floats for the row tile at hand and the next, beside round `round` of the products.
    #[inline(always)]
    fn fetch_beside<S: IntegerSimd>(&self, round: usize) {
        self.fetch.half_row::<S>(round);
        let sums = self.sums.wrapping_add(round * 2 * LANES);
        S::prefetch_near(sums.cast());
        S::prefetch_near(sums.wrapping_add(LANES).cast());
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
                next_fold: Fold { height: 0, ..self.next_fold },
                panel: self.panel.add(v * VECTOR),
                column_sums: self.column_sums.add(at),
                scales: self.scales.add(row),
                factors: self.factors.add(group),
                sums: self.sums.add(row * TILE + at),
                start: match self.start {
                    Start::Block => Start::Block,
                    Start::Offsets { offsets, offset_stride } => {
                        Start::Offsets { offsets: offsets.add(row * offset_stride + group), offset_stride }
                    }
                    Start::Sums { from, stride, offsets, offset_stride } => Start::Sums {
                        from: from.add(row * stride + at),
                        stride,
                        offsets: offsets.add(row * offset_stride + group),
                        offset_stride,
                    },
                },
                to: self.to.add(row * self.to_stride + at),
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
            let (mut folded, mut panel) = (d.folded, d.panel);
            if beside_the_products::<S>(SMALL) {
                let rounds = steps / UNROLLED;
                let units = d.next_fold.units();
                debug_assert!(units <= rounds);
                for round in 0..rounds {
                    dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded, panel);
                    dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded.add(4), panel.add(PANEL_ROW));
                    dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded.add(8), panel.add(2 * PANEL_ROW));
                    dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded.add(12), panel.add(3 * PANEL_ROW));
                    (folded, panel) = (folded.add(4 * UNROLLED), panel.add(UNROLLED * PANEL_ROW));
                    if round < units {
                        d.next_fold.unit::<S, G, SMALL>(round);
                    }
                    d.fetch_beside::<S>(round);
                }
            } else {
                for _ in 0..steps {
                    dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded, panel);
                    (folded, panel) = (folded.add(4), panel.add(PANEL_ROW));
                }
            }
            // A start other than the sums is put there first: one pass that holds no second set of vectors, or the
            // registers would not suffice.
            match d.start {
                Start::Block => {}
                Start::Offsets { offsets, offset_stride } => {
                    for r in 0..MR {
                        for v in 0..NV {
                            let offset = S::Float::splat(*offsets.add(r * offset_stride + v * G / NV));
                            offset.store(d.sums.add(r * TILE + v * LANES));
                        }
                    }
                }
                Start::Sums { from, stride, offsets, offset_stride } => {
                    for r in 0..MR {
                        for v in 0..NV {
                            let offset = S::Float::splat(*offsets.add(r * offset_stride + v * G / NV));
                            let before = S::Float::load(from.add(r * stride + v * LANES));
                            (before + offset).store(d.sums.add(r * TILE + v * LANES));
                        }
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                let scale = *d.scales.add(r);
                for g in 0..G {
                    let factor = S::Float::splat(scale * *d.factors.add(g));
                    for v in g * NV / G..(g + 1) * NV / G {
                        let before = S::Float::load(d.sums.add(r * TILE + v * LANES));
                        sums[v].to_float().mul_add(factor, before).store(d.to.add(r * d.to_stride + v * LANES));
                    }
                }
            }
        }
    }
}

/// Whether the next row tile is folded between the products of this one: not where registers are few, nor where
/// folding takes several (bytes).
#[inline(always)]
fn beside_the_products<S: IntegerSimd>(small: bool) -> bool {
    S::Float::MANY_REGISTERS && !small
}

/// Adds the products of one panel row and four bytes of every folded row of each group.
#[inline(always)]
unsafe fn dot_step<
    S: IntegerSimd,
    const MR: usize,
    const NV: usize,
    const G: usize,
    const SMALL: bool,
    const WIDE: bool,
>(
    sums: &mut [[S; NV]; MR],
    folded: *const u8,
    panel: *const u8,
) {
    let row_bytes = if SMALL { BLOCK } else { 2 * BLOCK };
    // SAFETY: the caller names a step inside the panel and the rows.
    unsafe {
        let mut codes = [S::zero(); NV];
        for (v, codes) in codes.iter_mut().enumerate() {
            *codes = S::load(panel.add(v * VECTOR));
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            for g in 0..G {
                let z = S::splat_i32(folded.add((g * ROWS + r) * row_bytes).cast::<i32>().read_unaligned());
                for v in g * NV / G..(g + 1) * NV / G {
                    sums[v] = if SMALL { sums[v].dot_u8::<WIDE>(z, codes[v]) } else { sums[v].dot_i16(codes[v], z) };
                }
            }
        }
    }
}
