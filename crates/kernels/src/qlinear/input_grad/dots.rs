//! The register kernels of the input gradient: row tiles of folded integers through one panel of codes.

use super::BLOCK_TILES;
use super::prepare::{Fold, FoldTile};
use crate::qlinear::activations::{BLOCK, ROWS};
use crate::qlinear::digits::DigitSums;
use crate::qlinear::forward::UNROLLED;
use crate::qlinear::layout::TILE;
use crate::qlinear::unpack::{ACROSS, PANEL_ROW, VECTOR};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};

/// What the sums of a row tile start from. Offsets are [row][group], rows `offset_stride` apart: one value for all
/// columns of a group.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// The sums of the blocks of n before.
    Block,
    /// The offsets alone.
    Offsets { offsets: *const f32, offset_stride: usize },
    /// Other sums, rows `stride` apart, and the offsets.
    Sums { from: *const f32, stride: usize, offsets: *const f32, offset_stride: usize },
}

/// Rows of 64 floats that are fetched beside the products; any line when there is nothing to fetch.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    pub(super) from: *const f32,
    pub(super) stride: usize,
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

/// The tiles of W of the next block, `stride` bytes apart, of which each row tile fetches some lines.
#[derive(Clone, Copy)]
pub(super) struct NextTile {
    pub(super) from: *const u8,
    pub(super) stride: usize,
    pub(super) lines: usize,
}

impl NextTile {
    #[inline(always)]
    fn fetch<S: IntegerSimd>(&mut self) {
        for _ in 0..self.lines {
            for tile in 0..BLOCK_TILES {
                S::prefetch(self.from.wrapping_add(tile * self.stride));
            }
            self.from = self.from.wrapping_add(VECTOR);
        }
    }
}

/// Row tiles of one height through one panel, the first of them folded. Beside the products of each the next one is
/// folded and floats are fetched, a little with each few steps: alone they would wait for the second-level cache.
#[derive(Clone, Copy)]
pub(super) struct Dots {
    /// Row tiles; one where folding does not go beside the products.
    pub(super) count: usize,
    pub(super) groups: usize,
    pub(super) width: usize,
    /// [row, width]
    pub(super) integers: *const i16,
    /// [group][128]
    pub(super) folds: *const i16,
    /// Whether folded integers are parted into digits.
    pub(super) digits: bool,
    /// Of the row tile at hand and of the next; they change places with every row tile.
    pub(super) folded: [*mut u8; 2],
    /// Rows of the row tile after these, or none.
    pub(super) height_after: usize,
    pub(super) fetch: Fetch,
    pub(super) next_tile: NextTile,
    pub(super) panel: *const u8,
    pub(super) column_sums: *const i32,
    /// [row, 64]: integer sums of the row tile before the one at hand
    pub(super) products: *mut i32,
    /// [row]
    pub(super) scales: *const f32,
    /// [group]
    pub(super) factors: *const f32,
    /// [rows, 64]
    pub(super) sums: *mut f32,
    pub(super) start: Start,
    /// Where the sums go, rows `to_stride` apart: the sums, for the next block of n, or dX.
    pub(super) to: *mut f32,
    pub(super) to_stride: usize,
}

impl Dots {
    /// As one register tile where there are many registers, else three rows of one vector at a time.
    #[inline(always)]
    pub(super) unsafe fn all<S: IntegerSimd, const SMALL: bool, const WIDE: bool>(mut self, height: usize) {
        // SAFETY: passed on; parts are inside the whole.
        unsafe {
            if !beside_the_products::<S>(SMALL) {
                S::call(FoldTile::<SMALL> { fold: self.next_fold(height, self.height_after), groups: self.groups });
                self.next_tile.fetch::<S>();
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

    /// How the row tile after one of `height` rows is folded.
    #[inline(always)]
    unsafe fn next_fold(&self, height: usize, next_height: usize) -> Fold {
        // SAFETY: row tiles follow each other without gaps.
        let integers = unsafe { self.integers.add(height * self.width) };
        Fold {
            height: next_height,
            width: self.width,
            integers,
            folds: self.folds,
            digits: self.digits,
            out: self.folded[1],
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

    /// Scales the integer sums of row `row` and adds them to what they start from.
    #[inline(always)]
    unsafe fn finish_row<S: IntegerSimd, const NV: usize, const G: usize>(&self, row: usize) {
        // SAFETY: the caller names a row of the row tile.
        unsafe {
            let scale = *self.scales.add(row);
            for g in 0..G {
                let factor = S::Float::splat(scale * *self.factors.add(g));
                for v in g * NV / G..(g + 1) * NV / G {
                    let products = S::load(self.products.add(row * TILE + v * LANES).cast());
                    self.finish::<S, NV, G>(row, v, products, factor);
                }
            }
        }
    }

    /// The same for vector `v`.
    #[inline(always)]
    unsafe fn finish<S: IntegerSimd, const NV: usize, const G: usize>(
        &self,
        row: usize,
        v: usize,
        products: S,
        factor: S::Float,
    ) {
        let group = v * G / NV;
        // SAFETY: as above.
        unsafe {
            let before = match self.start {
                Start::Block => S::Float::load(self.sums.add(row * TILE + v * LANES)),
                Start::Offsets { offsets, offset_stride } => S::Float::splat(*offsets.add(row * offset_stride + group)),
                Start::Sums { from, stride, offsets, offset_stride } => {
                    let offset = S::Float::splat(*offsets.add(row * offset_stride + group));
                    S::Float::load(from.add(row * stride + v * LANES)) + offset
                }
            };
            products.to_float().mul_add(factor, before).store(self.to.add(row * self.to_stride + v * LANES));
        }
    }

    /// Moves on to the row tile after one of `height` rows.
    #[inline(always)]
    unsafe fn advance(&mut self, height: usize) {
        // SAFETY: there is another row tile.
        unsafe {
            self.integers = self.integers.add(height * self.width);
            self.folded.swap(0, 1);
            self.fetch.from = self.fetch.from.wrapping_add(height * self.fetch.stride);
            self.scales = self.scales.add(height);
            self.sums = self.sums.add(height * TILE);
            self.to = self.to.add(height * self.to_stride);
            match &mut self.start {
                Start::Block => {}
                Start::Offsets { offsets, offset_stride } => *offsets = offsets.add(height * *offset_stride),
                Start::Sums { from, stride, offsets, offset_stride } => {
                    *from = from.add(height * *stride);
                    *offsets = offsets.add(height * *offset_stride);
                }
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
                folded: [self.folded[0].add((group * ROWS + row) * row_bytes), self.folded[1]],
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
        let mut d = self.0;
        // SAFETY: as many row tiles as the caller says.
        unsafe {
            let mut before = d;
            for tile in 1..=d.count {
                let next_height = if tile == d.count { d.height_after } else { MR };
                Self::row_tile::<S>(&mut d, next_height, &before, if tile == 1 { 0 } else { MR });
                before = d;
                if tile < d.count {
                    d.advance(MR);
                }
            }
            if beside_the_products::<S>(SMALL) {
                for row in 0..MR {
                    before.finish_row::<S, NV, G>(row);
                }
            }
        }
    }
}

impl<const MR: usize, const NV: usize, const G: usize, const SMALL: bool, const WIDE: bool>
    DotTile<MR, NV, G, SMALL, WIDE>
{
    /// The first row tile of `d`; beside its products the next, of `next_height` rows, is folded, and `unfinished` rows
    /// of that `before` are scaled and added.
    #[inline(always)]
    unsafe fn row_tile<S: IntegerSimd>(d: &mut Dots, next_height: usize, before: &Dots, unfinished: usize) {
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
            let (mut folded, mut panel) = (d.folded[0].cast_const(), d.panel);
            if !beside_the_products::<S>(SMALL) {
                if S::A16_IN_BYTES && !SMALL && d.digits {
                    // Positions of the panel in fours: two quads of a lane of the first 32 integers, two of the others.
                    let mut digit_sums = DigitSums::<S, MR, NV>::new();
                    for lane in 0..d.width / LANES {
                        let folded = folded.add(lane / 4 * 2 * VECTOR + lane % 4 * LANES);
                        digit_sums.add(folded, 2 * BLOCK, [0, 4, VECTOR, VECTOR + 4], panel.add(lane * 4 * PANEL_ROW));
                    }
                    sums = digit_sums.sums();
                } else {
                    for _ in 0..steps {
                        dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded, panel);
                        (folded, panel) = (folded.add(4), panel.add(PANEL_ROW));
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    for (v, sum) in sums.iter().enumerate() {
                        let factor = S::Float::splat(*d.scales.add(r) * *d.factors.add(v * G / NV));
                        d.finish::<S, NV, G>(r, v, *sum, factor);
                    }
                }
                return;
            }
            d.next_tile.fetch::<S>();
            let rounds = steps / UNROLLED;
            let next_fold = d.next_fold(MR, next_height);
            let units = next_fold.units();
            debug_assert!(units <= rounds && unfinished <= rounds);
            for round in 0..rounds {
                dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded, panel);
                dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded.add(4), panel.add(PANEL_ROW));
                dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded.add(8), panel.add(2 * PANEL_ROW));
                dot_step::<S, MR, NV, G, SMALL, WIDE>(&mut sums, folded.add(12), panel.add(3 * PANEL_ROW));
                (folded, panel) = (folded.add(4 * UNROLLED), panel.add(UNROLLED * PANEL_ROW));
                if round < units {
                    next_fold.unit::<S, G, SMALL>(round);
                }
                if round < unfinished {
                    before.finish_row::<S, NV, G>(round);
                }
                d.fetch_beside::<S>(round);
            }
            for (r, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    sum.store(d.products.add(r * TILE + v * LANES).cast());
                }
            }
        }
    }
}

/// Whether the next row tile is folded between the products of this one: not where registers are few, nor where
/// folding takes several (bytes).
#[inline(always)]
pub(super) fn beside_the_products<S: IntegerSimd>(small: bool) -> bool {
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
