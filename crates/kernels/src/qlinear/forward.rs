//! `Y = X·Wᵀ`. A task is one column tile of one output for one block of rows and one part of k: it unpacks a panel
//! of tiles at a time and runs all its row tiles through it; between panels the sums lie in a contiguous block.
//!
//! For every scale group, in order: `y += (x_scale · Σ code·x) · scale`, then `y += x_sum · bias`, with codes as they
//! are stored and `x_sum` the sum of the *quantized* x (with the exact sum the error would be that of `scale·code`
//! instead of that of the weight, some three times larger). Sums of integers start from zero, the one value that costs
//! no register: from any other, the stores of the group before delay the first products by a tenth of the time.

use super::activations::{ForwardInput, PANEL_TILES, ROWS, RowScale, first_cell, row_tile_height};
use super::digits::{DigitSums, in_bytes};
use super::layout::TILE;
use super::packed::PackedMatrix;
use super::straight::Straight;
use super::unpack::{self, ACROSS, GROUPS_MAX, PANEL_F32, PANEL_I8, PANEL_I16, PANEL_ROW, TileFormat, VECTOR};
use crate::ops::{Precision, scratch_size};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};

/// Rows of a block at most, besides the few that a last block takes on: its outputs are 64 KiB.
pub(super) const BLOCK_ROWS: usize = 44 * ROWS;
/// Rows that the block of a worker has room for.
const BLOCK_ROOM: usize = BLOCK_ROWS + 2 * ROWS;
/// Panels in which the rows of Y are fetched ahead of their use.
const FETCHING_PANELS: usize = 4;
/// Steps of the inner loops that follow each other without a branch: every group has a multiple of it. The exit of a loop
/// that is left often is a jump that the processor may guess wrong.
pub(super) const UNROLLED: usize = 4;
/// Bytes of panel memory: the i16 panels of all tiles, or an f32 panel.
const PANEL_BYTES: usize = PANEL_TILES * PANEL_I16;
const _: () = assert!(PANEL_BYTES >= EXACT_TILES * PANEL_F32);
/// Tiles of an f32 panel.
const EXACT_TILES: usize = 1;

/// Scratch of one worker.
pub(super) const fn worker_bytes() -> usize {
    scratch_size::<u8>(PANEL_BYTES)
        + scratch_size::<f32>(PANEL_TILES * GROUPS_MAX * 2 * TILE)
        + scratch_size::<f32>(BLOCK_ROOM * TILE)
}

/// One task: column tile `row_tile` of `matrix` (a row of tiles of W), rows `first_row..first_row + rows`, and the
/// tiles of k that the input has. Overwrites Y in the first part of k, adds to it in the others.
pub(super) struct ForwardTask<'a> {
    pub matrix: &'a PackedMatrix,
    pub row_tile: usize,
    pub precision: Precision,
    /// First tile of k in this part.
    pub first_tile: usize,
    /// Quantized input of the part; unused when exact.
    pub input: ForwardInput,
    /// [rows, k]; used when exact.
    pub x: *const f32,
    /// [rows, n_out] with rows `y_stride` floats apart.
    pub y: *mut f32,
    pub y_stride: usize,
    pub first_row: usize,
    pub rows: usize,
    /// [`worker_bytes`] bytes.
    pub scratch: *mut u8,
}

impl IntegerKernel for ForwardTask<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        if self.input.rows == 1 && self.precision == Precision::A16 {
            let (matrix, row_tile, first_tile, input, y) =
                (self.matrix, self.row_tile, self.first_tile, self.input, self.y);
            // SAFETY: passed on.
            return unsafe { S::call(Straight { matrix, row_tile, first_tile, input, y }) };
        }
        let mut carver = crate::ops::Carver::new(self.scratch);
        let panel = carver.take::<u8>(PANEL_BYTES);
        let scales = carver.take::<f32>(PANEL_TILES * GROUPS_MAX * 2 * TILE);
        let block = carver.take::<f32>(BLOCK_ROOM * TILE);
        // SAFETY: the scratch holds the three parts, the block as many rows as a task may have.
        unsafe {
            debug_assert!(self.rows <= BLOCK_ROOM);
            match self.precision {
                Precision::Exact => {
                    std::ptr::write_bytes(block, 0, self.rows * TILE);
                    self.exact::<S>(panel, scales, block);
                    self.copy_out::<S>(block);
                }
                Precision::A16 | Precision::A8 => {
                    let whole = (self.row_tile + 1) * TILE <= self.matrix.n_out();
                    if !whole && self.first_tile > 0 {
                        self.copy_in::<S>(block);
                    }
                    self.integer::<S>(panel, scales, block, whole);
                    if !whole {
                        self.copy_out::<S>(block);
                    }
                }
            }
        }
    }
}

impl ForwardTask<'_> {
    /// The sums start from zero, or in later parts of k from Y, and lie in the block between panels; those of the
    /// last panel go straight to Y. When the tile is not `whole`, the block stands for Y.
    #[inline(always)]
    unsafe fn integer<S: IntegerSimd>(&self, panel: *mut u8, scales: *mut f32, block: *mut f32, whole: bool) {
        let format = TileFormat::new(self.matrix.header());
        let tiles = self.input.tiles;
        let tile_bytes = format.header.tile_bytes();
        let group_floats = format.groups * 2 * TILE;
        let small = self.precision == Precision::A8;
        let bytes = small || in_bytes::<S>(format.wide);
        let panel_tile = if bytes { PANEL_I8 } else { PANEL_I16 };
        // SAFETY: tiles, cells and rows stay inside their buffers by the loops' bounds.
        unsafe {
            let first_tile = self.row_tile * format.header.column_tiles() + self.first_tile;
            let row_of_tiles = self.matrix.tiles().as_ptr().add(first_tile * tile_bytes);
            let zeros = [0f32; TILE];
            let panels = tiles.div_ceil(PANEL_TILES);
            // Y is fetched in the panels before the last, which may be too narrow to hide it.
            let fetching = panels.saturating_sub(FETCHING_PANELS + 1)..(panels - 1).max(1);
            // The tiles of the next panel are fetched a few lines with each row tile of this one.
            let prefetch_lines = (PANEL_TILES * tile_bytes / VECTOR).div_ceil(self.rows.div_ceil(ROWS));
            for p in 0..panels {
                let in_panel = PANEL_TILES.min(tiles - p * PANEL_TILES);
                let mut next = row_of_tiles.wrapping_add((p + 1) * PANEL_TILES * tile_bytes);
                let to_y = whole && p + 1 == panels;
                let from_y = whole && p == 0 && self.first_tile > 0;
                for t in 0..in_panel {
                    let tile = row_of_tiles.add((p * PANEL_TILES + t) * tile_bytes);
                    S::call(UnpackForward { format, tile, bytes, out: panel.add(t * panel_tile) });
                    unpack::scales::<S>(&format, tile, format.raise(), scales.add(t * group_floats));
                }
                let mut row = 0;
                while row < self.rows {
                    let height = row_tile_height(self.input.rows, self.first_row + row);
                    let cell = first_cell(self.input.rows, tiles, p, self.first_row + row);
                    let y = self.y.add((self.first_row + row) * self.y_stride + self.row_tile * TILE);
                    if whole && fetching.contains(&p) {
                        // A few lines with each panel: more would wait for each other.
                        let lines = height * ACROSS;
                        let (part, parts) = (p - fetching.start, fetching.len());
                        for line in lines * part / parts..lines * (part + 1) / parts {
                            S::prefetch(y.wrapping_add(line / ACROSS * self.y_stride + line % ACROSS * LANES).cast());
                        }
                    }
                    if from_y {
                        let ahead = y.wrapping_add(height * self.y_stride);
                        for line in 0..height * ACROSS {
                            S::prefetch(
                                ahead.wrapping_add(line / ACROSS * self.y_stride + line % ACROSS * LANES).cast(),
                            );
                        }
                    }
                    for line in 0..prefetch_lines {
                        S::prefetch(next.wrapping_add(line * VECTOR));
                    }
                    next = next.wrapping_add(prefetch_lines * VECTOR);
                    let dots = Dots {
                        tiles: in_panel,
                        groups: format.groups,
                        integers: self.input.integers.add(cell * self.input.cell_bytes),
                        panel,
                        scales,
                        x_scales: self.input.scales.add(cell * format.groups),
                        height,
                        from: if from_y {
                            y
                        } else if p == 0 && self.first_tile == 0 {
                            zeros.as_ptr()
                        } else {
                            block.add(row * TILE)
                        },
                        from_stride: if from_y {
                            self.y_stride
                        } else if p == 0 && self.first_tile == 0 {
                            0
                        } else {
                            TILE
                        },
                        sums: block.add(row * TILE),
                        to: if to_y { y } else { block.add(row * TILE) },
                        to_stride: if to_y { self.y_stride } else { TILE },
                    };
                    match (small, format.wide) {
                        (false, false) => dots.all::<S, false, false>(),
                        (false, true) => dots.all::<S, false, true>(),
                        (true, false) => dots.all::<S, true, false>(),
                        (true, true) => dots.all::<S, true, true>(),
                    }
                    row += height;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn exact<S: IntegerSimd>(&self, panel: *mut u8, scales: *mut f32, block: *mut f32) {
        let format = TileFormat::new(self.matrix.header());
        let k = format.header.k_in;
        let tile_bytes = format.header.tile_bytes();
        // SAFETY: as above; a panel takes no more columns than x has.
        unsafe {
            let row_of_tiles = self.matrix.tiles().as_ptr().add(self.row_tile * k.div_ceil(TILE) * tile_bytes);
            for t in 0..k.div_ceil(TILE) {
                let tile = row_of_tiles.add(t * tile_bytes);
                unpack::scales::<S>(&format, tile, 0.0, scales);
                S::call(UnpackExact { format, tile, scales, out: panel.cast(), transposed: false });
                FloatDots {
                    depth: TILE.min(k - t * TILE),
                    x: self.x.add(self.first_row * k + t * TILE),
                    x_stride: k,
                    panel: panel.cast(),
                    out: block,
                }
                .all::<S>(self.rows);
            }
        }
    }

    /// Copies the valid columns of Y to the block.
    #[inline(always)]
    unsafe fn copy_in<S: IntegerSimd>(&self, block: *mut f32) {
        let column = self.row_tile * TILE;
        let width = TILE.min(self.matrix.n_out() - column);
        // SAFETY: only valid columns of Y are read.
        unsafe {
            for row in 0..self.rows {
                let from = self.y.add((self.first_row + row) * self.y_stride + column);
                for at in (0..width).step_by(LANES) {
                    S::Float::load_up_to(from.add(at), width - at).store(block.add(row * TILE + at));
                }
            }
        }
    }

    /// Copies the valid columns of the block to Y.
    #[inline(always)]
    unsafe fn copy_out<S: IntegerSimd>(&self, block: *const f32) {
        let column = self.row_tile * TILE;
        let width = TILE.min(self.matrix.n_out() - column);
        // SAFETY: only rows and columns of Y are written.
        unsafe {
            for row in 0..self.rows {
                let to = self.y.add((self.first_row + row) * self.y_stride + column);
                let mut at = 0;
                while at + LANES <= width {
                    S::Float::load(block.add(row * TILE + at)).store(to.add(at));
                    at += LANES;
                }
                if at < width {
                    S::Float::load(block.add(row * TILE + at)).store_partial(to.add(at), width - at);
                }
            }
        }
    }
}

struct UnpackForward {
    format: TileFormat,
    tile: *const u8,
    /// Whether codes stay in bytes.
    bytes: bool,
    out: *mut u8,
}
impl IntegerKernel for UnpackForward {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // SAFETY: passed on.
        unsafe {
            if self.bytes {
                unpack::forward_u8::<S>(&self.format, self.tile, self.out);
            } else {
                unpack::forward_i16::<S>(&self.format, self.tile, self.out);
            }
        }
    }
}

/// Dequantizes a tile; `transposed` for the input gradient.
pub(super) struct UnpackExact {
    pub format: TileFormat,
    pub tile: *const u8,
    pub scales: *const f32,
    pub out: *mut f32,
    pub transposed: bool,
}
impl IntegerKernel for UnpackExact {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // SAFETY: passed on.
        unsafe {
            if self.transposed {
                unpack::input_grad_f32::<S>(&self.format, self.tile, self.scales, self.out);
            } else {
                unpack::forward_f32::<S>(&self.format, self.tile, self.scales, self.out);
            }
        }
    }
}

/// One row tile through one panel, all 64 columns.
#[derive(Clone, Copy)]
struct Dots {
    tiles: usize,
    groups: usize,
    integers: *const u8,
    panel: *const u8,
    /// [tile][group][scale, bias][64]
    scales: *const f32,
    /// [tile][group][height]
    x_scales: *const RowScale,
    height: usize,
    /// What the sums of the first group are added to, rows `from_stride` floats apart.
    from: *const f32,
    from_stride: usize,
    /// [height, 64]: sums between the groups
    sums: *mut f32,
    /// Where the sums of the last group go, rows `to_stride` floats apart.
    to: *mut f32,
    to_stride: usize,
}

impl Dots {
    /// As one register tile where there are many registers, else three rows of one vector at a time.
    #[inline(always)]
    unsafe fn all<S: IntegerSimd, const SMALL: bool, const WIDE: bool>(self) {
        // SAFETY: passed on; parts are inside the whole.
        unsafe {
            if S::Float::MANY_REGISTERS {
                match self.height {
                    6 => S::call(DotTile::<6, 4, SMALL, WIDE>(self)),
                    5 => S::call(DotTile::<5, 4, SMALL, WIDE>(self)),
                    4 => S::call(DotTile::<4, 4, SMALL, WIDE>(self)),
                    3 => S::call(DotTile::<3, 4, SMALL, WIDE>(self)),
                    2 => S::call(DotTile::<2, 4, SMALL, WIDE>(self)),
                    _ => S::call(DotTile::<1, 4, SMALL, WIDE>(self)),
                }
                return;
            }
            let cell_bytes = if SMALL { TILE } else { 2 * TILE };
            let mut row = 0;
            while row < self.height {
                let rows = (self.height - row).min(3);
                for v in 0..ACROSS {
                    let part = Dots {
                        integers: self.integers.add(row * cell_bytes),
                        panel: self.panel.add(v * VECTOR),
                        scales: self.scales.add(v * LANES),
                        x_scales: self.x_scales.add(row),
                        from: self.from.add(row * self.from_stride + v * LANES),
                        sums: self.sums.add(row * TILE + v * LANES),
                        to: self.to.add(row * self.to_stride + v * LANES),
                        ..self
                    };
                    match rows {
                        3 => S::call(DotTile::<3, 1, SMALL, WIDE>(part)),
                        2 => S::call(DotTile::<2, 1, SMALL, WIDE>(part)),
                        _ => S::call(DotTile::<1, 1, SMALL, WIDE>(part)),
                    }
                }
                row += rows;
            }
        }
    }
}

/// `MR` rows and `NV` vectors of columns in registers.
struct DotTile<const MR: usize, const NV: usize, const SMALL: bool, const WIDE: bool>(Dots);

impl<const MR: usize, const NV: usize, const SMALL: bool, const WIDE: bool> IntegerKernel
    for DotTile<MR, NV, SMALL, WIDE>
{
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let d = self.0;
        let cell_bytes = if SMALL { TILE } else { 2 * TILE };
        let digits = !SMALL && in_bytes::<S>(WIDE);
        // Panel rows of a group, each of four bytes of every cell, or of the digits of four integers.
        let steps = if digits { TILE } else { cell_bytes } / 4 / d.groups;
        let (mut integers, mut panel, mut scales) = (d.integers, d.panel, d.scales);
        let mut x_scales = d.x_scales;
        let (mut from, mut from_stride) = (d.from, d.from_stride);
        // SAFETY: the pointers walk through the panel, the cells and their scales.
        unsafe {
            for tile in 0..d.tiles {
                for group in 0..d.groups {
                    let mut sums = [[S::zero(); NV]; MR];
                    let x = integers.add(group * cell_bytes / d.groups);
                    if digits {
                        let mut digit_sums = DigitSums::<S, MR, NV>::new();
                        for step in (0..steps).step_by(4) {
                            let (x, panel) = (x.add(step * 2 * size_of::<i32>()), panel.add(step * PANEL_ROW));
                            digit_sums.add(x, cell_bytes, [0, 4, 16, 20], panel);
                        }
                        sums = digit_sums.sums();
                    }
                    let unrolled = if S::Float::MANY_REGISTERS { UNROLLED } else { 1 };
                    for step in (0..if digits { 0 } else { steps }).step_by(unrolled) {
                        let (x, panel) = (x.add(4 * step), panel.add(step * PANEL_ROW));
                        dot_step::<S, MR, NV, SMALL, WIDE>(&mut sums, x, panel, cell_bytes);
                        if S::Float::MANY_REGISTERS {
                            dot_step::<S, MR, NV, SMALL, WIDE>(&mut sums, x.add(4), panel.add(PANEL_ROW), cell_bytes);
                            dot_step::<S, MR, NV, SMALL, WIDE>(
                                &mut sums,
                                x.add(8),
                                panel.add(2 * PANEL_ROW),
                                cell_bytes,
                            );
                            dot_step::<S, MR, NV, SMALL, WIDE>(
                                &mut sums,
                                x.add(12),
                                panel.add(3 * PANEL_ROW),
                                cell_bytes,
                            );
                        }
                    }
                    keep_out_of_registers();
                    let last = tile + 1 == d.tiles && group + 1 == d.groups;
                    let (to, to_stride) = if last { (d.to, d.to_stride) } else { (d.sums, TILE) };
                    // Loaded once: sums leave registers row by row, and reading is what this part waits for.
                    let mut w_scales = [S::Float::zero(); NV];
                    for (v, scale) in w_scales.iter_mut().enumerate() {
                        *scale = S::Float::load(scales.add(v * LANES));
                    }
                    for (r, sums) in sums.iter().enumerate() {
                        let row = *x_scales.add(r);
                        let (x_scale, x_sum) = (S::Float::splat(row.scale), S::Float::splat(row.sum));
                        for (v, sum) in sums.iter().enumerate() {
                            let y = S::Float::load(from.add(r * from_stride + v * LANES));
                            let y = (sum.to_float() * x_scale).mul_add(w_scales[v], y);
                            let y = x_sum.mul_add(S::Float::load(scales.add(TILE + v * LANES)), y);
                            y.store(to.add(r * to_stride + v * LANES));
                        }
                    }
                    (from, from_stride) = (d.sums, TILE);
                    panel = panel.add(steps * PANEL_ROW);
                    scales = scales.add(2 * TILE);
                    x_scales = x_scales.add(d.height);
                }
                integers = integers.add(d.height * cell_bytes);
            }
        }
    }
}

/// Adds the products of one panel row and four bytes of every row of x, rows `row_bytes` apart.
#[inline(always)]
unsafe fn dot_step<S: IntegerSimd, const MR: usize, const NV: usize, const SMALL: bool, const WIDE: bool>(
    sums: &mut [[S; NV]; MR],
    x: *const u8,
    panel: *const u8,
    row_bytes: usize,
) {
    // SAFETY: the caller names a step inside the panel and the rows.
    unsafe {
        let mut codes = [S::zero(); NV];
        for (v, codes) in codes.iter_mut().enumerate() {
            *codes = S::load(panel.add(v * VECTOR));
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = S::splat_i32(x.add(r * row_bytes).cast::<i32>().read_unaligned());
            for (sum, codes) in sums.iter_mut().zip(&codes) {
                *sum = if SMALL { sum.dot_u8::<WIDE>(*codes, x) } else { sum.dot_i16(*codes, x) };
            }
        }
    }
}

/// Keeps the compiler from holding the output tile in registers across groups, which would spill the sums.
#[inline(always)]
pub(super) fn keep_out_of_registers() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("", options(nostack, preserves_flags));
    }
}

/// float32 products of rows of `x` with one dequantized tile: `out[row, 0..64] += Σ_d x[row, d]·panel[d, 0..64]`.
/// The sum of a tile is formed first and then added: rounding errors grow with the tiles, not with k.
#[derive(Clone, Copy)]
pub(super) struct FloatDots {
    /// Rows of the panel to use.
    pub depth: usize,
    pub x: *const f32,
    pub x_stride: usize,
    /// [64][64]
    pub panel: *const f32,
    /// [rows, 64] (add)
    pub out: *mut f32,
}

impl FloatDots {
    #[inline(always)]
    pub(super) unsafe fn all<S: IntegerSimd>(self, rows: usize) {
        let step = if S::Float::MANY_REGISTERS { ROWS } else { 3 };
        let mut row = 0;
        // SAFETY: passed on; parts are inside the whole.
        unsafe {
            while row < rows {
                let height = step.min(rows - row);
                let part = Self { x: self.x.add(row * self.x_stride), out: self.out.add(row * TILE), ..self };
                if S::Float::MANY_REGISTERS {
                    match height {
                        6 => S::call(FloatTile::<6, 4>(part)),
                        5 => S::call(FloatTile::<5, 4>(part)),
                        4 => S::call(FloatTile::<4, 4>(part)),
                        3 => S::call(FloatTile::<3, 4>(part)),
                        2 => S::call(FloatTile::<2, 4>(part)),
                        _ => S::call(FloatTile::<1, 4>(part)),
                    }
                } else {
                    for v in 0..ACROSS {
                        let part = Self { panel: part.panel.add(v * LANES), out: part.out.add(v * LANES), ..part };
                        match height {
                            3 => S::call(FloatTile::<3, 1>(part)),
                            2 => S::call(FloatTile::<2, 1>(part)),
                            _ => S::call(FloatTile::<1, 1>(part)),
                        }
                    }
                }
                row += height;
            }
        }
    }
}

struct FloatTile<const MR: usize, const NV: usize>(FloatDots);

impl<const MR: usize, const NV: usize> IntegerKernel for FloatTile<MR, NV> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let d = self.0;
        let mut sums = [[S::Float::zero(); NV]; MR];
        // SAFETY: depth rows of the panel and depth columns of x.
        unsafe {
            for at in 0..d.depth {
                let mut weights = [S::Float::zero(); NV];
                for (v, weights) in weights.iter_mut().enumerate() {
                    *weights = S::Float::load(d.panel.add(at * TILE + v * LANES));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = S::Float::splat(*d.x.add(r * d.x_stride + at));
                    for (sum, weights) in sums.iter_mut().zip(&weights) {
                        *sum = x.mul_add(*weights, *sum);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    let out = d.out.add(r * TILE + v * LANES);
                    (S::Float::load(out) + *sum).store(out);
                }
            }
        }
    }
}
