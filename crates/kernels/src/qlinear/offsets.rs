//! The offset term of the input gradient, `dX[:, k in g] += Σ_n dY·(bias + centre·scale)`: a thin float32 product.

use super::input_grad::tile_of;
use super::layout::TILE;
use super::packed::PackedMatrix;
use super::unpack::{ACROSS, TileFormat};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};

/// Offsets of the weights, `bias + centre·scale`, for tile `row_tile` of a part of n.
pub(super) struct GatherOffsets<'a> {
    pub matrix: &'a PackedMatrix,
    /// First tile of n in the part.
    pub first_tile: usize,
    pub row_tile: usize,
    /// [tiles of k · groups][columns]
    pub out: *mut f32,
    /// Columns of the part, in whole tiles.
    pub columns: usize,
}
impl IntegerKernel for GatherOffsets<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let format = TileFormat::new(self.matrix.header());
        let header = &format.header;
        let columns = self.columns;
        let step = LANES * header.scale_type.bytes();
        let centre = S::Float::splat(header.centre());
        // SAFETY: scales follow the codes of each tile; `out` has a row for each group.
        unsafe {
            for tile in 0..header.column_tiles() {
                let from = tile_of(self.matrix, self.first_tile + self.row_tile, tile).add(header.code_bytes());
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

/// `out[row, g] = Σ_n dY[row, n]·offset[g, n]` for some rows and a part of n.
pub(super) struct OffsetSums {
    /// First row and column of the part; rows `dy_stride` floats apart.
    pub dy: *const f32,
    pub dy_stride: usize,
    /// Columns of the part.
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
        // SAFETY: passed on; rows stay inside.
        unsafe {
            let mut row = 0;
            if S::Float::MANY_REGISTERS {
                while row + 6 <= self.height {
                    self.row_tile::<S, 6, 4>(row);
                    row += 6;
                }
                if row + 3 <= self.height {
                    self.row_tile::<S, 3, 4>(row);
                    row += 3;
                }
            } else {
                while row + 2 <= self.height {
                    self.row_tile::<S, 2, 2>(row);
                    row += 2;
                }
            }
            while row < self.height {
                self.row_tile::<S, 1, 4>(row);
                row += 1;
            }
        }
    }
}

impl OffsetSums {
    #[inline(always)]
    unsafe fn row_tile<S: IntegerSimd, const MR: usize, const NG: usize>(&self, row: usize) {
        let mut group = 0;
        // SAFETY: passed on; groups stay inside.
        unsafe {
            while group + NG <= self.groups {
                self.tile::<S, MR, NG>(row, group);
                group += NG;
            }
            if group + 2 <= self.groups {
                self.tile::<S, MR, 2>(row, group);
                group += 2;
            }
            if group < self.groups {
                self.tile::<S, MR, 1>(row, group);
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<S: IntegerSimd, const MR: usize, const NG: usize>(&self, row: usize, group: usize) {
        let mut sums = [[S::Float::zero(); NG]; MR];
        // SAFETY: rows of dY and of the offsets; the partial load stays inside the row.
        unsafe {
            let dy = self.dy.add((self.first_row + row) * self.dy_stride);
            let offsets = self.offsets.add(group * self.padded_n);
            let mut at = 0;
            while at + LANES <= self.n {
                let mut parts = [S::Float::zero(); NG];
                for (g, part) in parts.iter_mut().enumerate() {
                    *part = S::Float::load(offsets.add(g * self.padded_n + at));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let dy = S::Float::load(dy.add(r * self.dy_stride + at));
                    for (sum, part) in sums.iter_mut().zip(&parts) {
                        *sum = dy.mul_add(*part, *sum);
                    }
                }
                at += LANES;
            }
            if at < self.n {
                for (r, sums) in sums.iter_mut().enumerate() {
                    let dy = S::Float::load_partial(dy.add(r * self.dy_stride + at), self.n - at);
                    for (g, sum) in sums.iter_mut().enumerate() {
                        *sum = dy.mul_add(S::Float::load(offsets.add(g * self.padded_n + at)), *sum);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (g, sum) in sums.iter().enumerate() {
                    *self.out.add((self.first_row + row + r) * self.groups + group + g) = sum.reduce_add();
                }
            }
        }
    }
}
