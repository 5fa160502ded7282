//! The offset term of the input gradient, `dX[:, k in g] += Σ_n dY·(bias + centre·scale)`: a thin float32 product.

use super::input_grad::tile_of;
use super::layout::TILE;
use super::packed::PackedMatrix;
use super::unpack::{ACROSS, TileFormat};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};

/// Offsets of the weights, `bias + centre·scale`, to `out` [tiles of k · groups][tiles of n · 64] for one row of tiles.
pub(super) struct GatherOffsets<'a> {
    pub matrix: &'a PackedMatrix,
    pub row_tile: usize,
    pub out: *mut f32,
}
impl IntegerKernel for GatherOffsets<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let format = TileFormat::new(self.matrix.header());
        let header = &format.header;
        let columns = header.row_tiles() * TILE;
        let step = LANES * header.scale_type.bytes();
        let centre = S::Float::splat(header.centre());
        // SAFETY: scales follow the codes of each tile; `out` has a row for each group.
        unsafe {
            for tile in 0..header.column_tiles() {
                let from = tile_of(self.matrix, self.row_tile, tile).add(header.code_bytes());
                for group in 0..format.groups {
                    let to = self.out.add((tile * format.groups + group) * columns + self.row_tile * TILE);
                    for v in 0..ACROSS {
                        let scale = S::load_scales(header.scale_type, from.add((group * 8 + v) * step));
                        let bias = S::load_scales(header.scale_type, from.add((group * 8 + 4 + v) * step));
                        scale.mul_add(centre, bias).store(to.add(v * LANES));
                    }
                }
            }
        }
    }
}

/// Columns of dY that [`OffsetSums`] takes at a time: the offsets of 32 groups for them (256 KiB) stay in the
/// second-level cache from one row tile to the next. Part of the numerical contract.
const OFFSET_CHUNK: usize = 2048;

/// `out[row, g] = Σ_n dY[row, n]·offset[g, n]` for some rows.
pub(super) struct OffsetSums {
    pub dy: *const f32,
    pub n: usize,
    /// [groups][padded_n]
    pub offsets: *const f32,
    pub padded_n: usize,
    pub groups: usize,
    pub first_row: usize,
    pub height: usize,
    /// [rows][groups]
    pub out: *mut f32,
}

impl IntegerKernel for OffsetSums {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        // SAFETY: passed on; rows and groups stay inside.
        unsafe {
            for start in (0..self.n).step_by(OFFSET_CHUNK) {
                if S::Float::MANY_REGISTERS {
                    self.chunk::<S, 6, 4>(start);
                } else {
                    self.chunk::<S, 2, 2>(start);
                }
            }
        }
    }
}

impl OffsetSums {
    #[inline(always)]
    unsafe fn chunk<S: IntegerSimd, const MR: usize, const NG: usize>(&self, start: usize) {
        // SAFETY: passed on.
        unsafe {
            let mut row = 0;
            while row < self.height {
                let rows = if row + MR <= self.height { MR } else { 1 };
                let mut group = 0;
                while group + NG <= self.groups {
                    if rows == MR {
                        self.tile::<S, MR, NG>(start, row, group);
                    } else {
                        self.tile::<S, 1, NG>(start, row, group);
                    }
                    group += NG;
                }
                for group in group..self.groups {
                    for row in row..row + rows {
                        self.tile::<S, 1, 1>(start, row, group);
                    }
                }
                row += rows;
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<S: IntegerSimd, const MR: usize, const NG: usize>(&self, start: usize, row: usize, group: usize) {
        let mut sums = [[S::Float::zero(); NG]; MR];
        let end = self.n.min(start + OFFSET_CHUNK);
        // SAFETY: rows of dY and of the offsets; the partial load stays inside the row.
        unsafe {
            let dy = self.dy.add((self.first_row + row) * self.n);
            let offsets = self.offsets.add(group * self.padded_n);
            let mut at = start;
            while at + LANES <= end {
                let mut parts = [S::Float::zero(); NG];
                for (g, part) in parts.iter_mut().enumerate() {
                    *part = S::Float::load(offsets.add(g * self.padded_n + at));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let dy = S::Float::load(dy.add(r * self.n + at));
                    for (sum, part) in sums.iter_mut().zip(&parts) {
                        *sum = dy.mul_add(*part, *sum);
                    }
                }
                at += LANES;
            }
            if at < end {
                for (r, sums) in sums.iter_mut().enumerate() {
                    let dy = S::Float::load_partial(dy.add(r * self.n + at), end - at);
                    for (g, sum) in sums.iter_mut().enumerate() {
                        *sum = dy.mul_add(S::Float::load(offsets.add(g * self.padded_n + at)), *sum);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (g, sum) in sums.iter().enumerate() {
                    let out = self.out.add((self.first_row + row + r) * self.groups + group + g);
                    let before = if start == 0 { 0.0 } else { *out };
                    *out = before + sum.reduce_add();
                }
            }
        }
    }
}
