//! `Y = X·Wᵀ` for one row, as in generation: codes go from the tile through registers into the dot products,
//! without a panel. Gives the bits of the general path: integer sums are exact, float steps come in its order.

use super::activations::{ForwardInput, PANEL_TILES, first_cell};
use super::digits;
use super::layout::TILE;
use super::packed::PackedMatrix;
use super::unpack::{self, ACROSS, GROUPS_MAX, TileFormat, VECTOR};
use crate::simd::integer::{IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd};

/// How far ahead tiles are fetched: a few microseconds of reading.
const PREFETCH_TILES: usize = 4;

/// One row of 16-bit integers through one row of tiles.
pub(super) struct Straight<'a> {
    pub matrix: &'a PackedMatrix,
    pub row_tile: usize,
    /// First tile of k in this part: Y is overwritten in the first part, added to in others.
    pub first_tile: usize,
    /// Of one row.
    pub input: ForwardInput,
    /// [n_out]
    pub y: *mut f32,
}

impl IntegerKernel for Straight<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let format = TileFormat::new(self.matrix.header());
        // SAFETY: passed on.
        unsafe {
            match (format.wide, format.groups) {
                (false, 1) => self.row_of_tiles::<S, false, 1>(&format),
                (false, 2) => self.row_of_tiles::<S, false, 2>(&format),
                (false, _) => self.row_of_tiles::<S, false, 4>(&format),
                (true, 1) => self.row_of_tiles::<S, true, 1>(&format),
                (true, 2) => self.row_of_tiles::<S, true, 2>(&format),
                (true, _) => self.row_of_tiles::<S, true, 4>(&format),
            }
        }
    }
}

impl Straight<'_> {
    #[inline(always)]
    unsafe fn row_of_tiles<S: IntegerSimd, const WIDE: bool, const G: usize>(&self, format: &TileFormat) {
        let input = &self.input;
        let tile_bytes = format.header.tile_bytes();
        let mut scales = [0f32; GROUPS_MAX * 2 * TILE];
        let mut y = [S::Float::zero(); ACROSS];
        // SAFETY: tiles and cells stay inside their buffers; a row has one cell a tile.
        unsafe {
            if self.first_tile > 0 {
                for (a, y) in y.iter_mut().enumerate() {
                    let first = self.row_tile * TILE + a * LANES;
                    if first < self.matrix.n_out() {
                        *y = S::Float::load_up_to(self.y.add(first), self.matrix.n_out() - first);
                    }
                }
            }
            let first_tile = self.row_tile * format.header.column_tiles() + self.first_tile;
            let mut tile = self.matrix.tiles().as_ptr().add(first_tile * tile_bytes);
            for t in 0..input.tiles {
                for line in 0..tile_bytes / VECTOR {
                    S::prefetch(tile.wrapping_add(PREFETCH_TILES * tile_bytes + line * VECTOR));
                }
                let cell = first_cell(1, input.tiles, t / PANEL_TILES, 0) + t % PANEL_TILES;
                let x = input.integers.add(cell * input.cell_bytes).cast_const();
                let rows = input.scales.add(cell * G).cast_const();
                let sums = if (S::DOT_U8_AT_ONCE || S::A16_IN_BYTES) && !WIDE {
                    dot_bytes::<S, G>(tile, x)
                } else {
                    dot::<S, WIDE, G>(tile, x)
                };
                unpack::scales::<S>(format, tile, format.raise(), scales.as_mut_ptr());
                for (group, sums) in sums.iter().enumerate() {
                    let row = *rows.add(group);
                    let (x_scale, x_sum) = (S::Float::splat(row.scale), S::Float::splat(row.sum));
                    let scales = scales.as_ptr().add(group * 2 * TILE);
                    for (a, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
                        let scale = S::Float::load(scales.add(a * LANES));
                        let bias = S::Float::load(scales.add(TILE + a * LANES));
                        *y = x_sum.mul_add(bias, (sum.to_float() * x_scale).mul_add(scale, *y));
                    }
                }
                tile = tile.add(tile_bytes);
            }
            for (a, y) in y.iter().enumerate() {
                let first = self.row_tile * TILE + a * LANES;
                let count = LANES.min(self.matrix.n_out().saturating_sub(first));
                if count == LANES {
                    y.store(self.y.add(first));
                } else if count > 0 {
                    y.store_partial(self.y.add(first), count);
                }
            }
        }
    }
}

/// Sums of one tile: [group][column vector].
#[inline(always)]
unsafe fn dot<S: IntegerSimd, const WIDE: bool, const G: usize>(tile: *const u8, x: *const u8) -> [[S; ACROSS]; G] {
    // Two chains of sums for each vector at least, or the latency of the instruction would show.
    let mut low = [[S::zero(); ACROSS]; G];
    let mut high = [S::zero(); ACROSS];
    // SAFETY: the caller names a tile and a cell of 32 pairs.
    unsafe {
        let quads = if WIDE { 16 } else { 8 };
        let mask = S::splat_i16(if WIDE { 0xff } else { 0xf });
        for quad in 0..quads {
            let group = quad * G / 16;
            let x0 = pair::<S>(x, 2 * quad);
            let x1 = pair::<S>(x, 2 * quad + 1);
            if WIDE {
                for a in 0..ACROSS {
                    let codes = S::load(tile.add((a * quads + quad) * VECTOR));
                    low[group][a] = low[group][a].dot_i16(codes.and(mask), x0);
                    if G == 1 {
                        high[a] = high[a].dot_i16(codes.shift_right_u16::<8>(), x1);
                    } else {
                        low[group][a] = low[group][a].dot_i16(codes.shift_right_u16::<8>(), x1);
                    }
                }
            } else {
                // The high nibbles hold the quads 8 further, half the groups away.
                let group_high = group + G / 2;
                let (x2, x3) = (pair::<S>(x, 2 * quad + 16), pair::<S>(x, 2 * quad + 17));
                for a in 0..ACROSS {
                    let codes = S::load(tile.add((a * quads + quad) * VECTOR));
                    low[group][a] = low[group][a].dot_i16(codes.and(mask), x0);
                    low[group][a] = low[group][a].dot_i16(codes.shift_right_u16::<8>().and(mask), x1);
                    let (c2, c3) = (codes.shift_right_u16::<4>().and(mask), codes.shift_right_u16::<12>());
                    if G == 1 {
                        high[a] = high[a].dot_i16(c2, x2).dot_i16(c3, x3);
                    } else {
                        low[group_high][a] = low[group_high][a].dot_i16(c2, x2).dot_i16(c3, x3);
                    }
                }
            }
        }
    }
    if G == 1 {
        for (low, high) in low[0].iter_mut().zip(high) {
            *low = low.add_i32(high);
        }
    }
    low
}

/// The same for 4-bit codes in bytes, without parting them into 16-bit integers: two thirds of the instructions of [`dot`].
/// Where products are made so for several rows, x has digits in place of integers already.
#[inline(always)]
unsafe fn dot_bytes<S: IntegerSimd, const G: usize>(tile: *const u8, x: *const u8) -> [[S; ACROSS]; G] {
    const QUADS: usize = 8;
    let mut halves = [0i32; 32];
    // One more set of sums for the high nibbles where all belong to one group, or latency would show.
    let mut low = [[[S::zero(); ACROSS]; 2]; G];
    let mut high = [[[S::zero(); ACROSS]; 2]; G];
    // SAFETY: the caller names a tile, and a cell of 64 integers.
    unsafe {
        for half in 0..2 {
            let mut bytes = S::load(x.add(half * VECTOR));
            if !S::A16_IN_BYTES {
                bytes = digits::split(bytes, &digits::FORWARD);
            }
            bytes.store(halves.as_mut_ptr().add(half * 16).cast());
        }
        let quad_of = |quad: usize| halves.as_ptr().add(quad / 2 * 4 + quad % 2);
        let mask = S::splat_i8(0xf);
        for quad in 0..QUADS {
            let group = quad * G / 16;
            // The high nibbles hold the quads 8 further, half the groups away.
            let (group_high, set_high) = if G == 1 { (0, 1) } else { (group + G / 2, 0) };
            let [x, x_high] = [quad, quad + QUADS].map(|quad| {
                let at = quad_of(quad);
                (S::splat_i32(*at), S::splat_i32(*at.add(2)))
            });
            for a in 0..ACROSS {
                let codes = S::load(tile.add((a * QUADS + quad) * VECTOR));
                let (first, second) = (codes.and(mask), codes.shift_right_u16::<4>().and(mask));
                let sums = &mut low[group][0][a];
                *sums = dot_code(*sums, first, x.0);
                let sums = &mut high[group][0][a];
                *sums = dot_code(*sums, first, x.1);
                let sums = &mut low[group_high][set_high][a];
                *sums = dot_code(*sums, second, x_high.0);
                let sums = &mut high[group_high][set_high][a];
                *sums = dot_code(*sums, second, x_high.1);
            }
        }
        let mut sums = [[S::zero(); ACROSS]; G];
        for (group, sums) in sums.iter_mut().enumerate() {
            for (a, sum) in sums.iter_mut().enumerate() {
                let ([low, more_low], [high, more_high]) = (low[group], high[group]);
                let (mut low, mut high) = (low[a], high[a]);
                if G == 1 {
                    (low, high) = (low.add_i32(more_low[a]), high.add_i32(more_high[a]));
                }
                *sum = low.add_i32(high.shift_left_u32::<8>());
            }
        }
        sums
    }
}

/// Adds codes of 4 bits, not centred, times digits: as unsigned or as signed bytes, whichever is one instruction.
#[inline(always)]
fn dot_code<S: IntegerSimd>(sum: S, codes: S, digits: S) -> S {
    if S::A16_IN_BYTES { sum.dot_i8(codes, digits) } else { sum.dot_u8::<false>(codes, digits) }
}

/// Integers 2p and 2p + 1 of a cell in every pair of lanes.
#[inline(always)]
unsafe fn pair<S: IntegerSimd>(x: *const u8, p: usize) -> S {
    // SAFETY: the caller names a pair of the cell.
    S::splat_i32(unsafe { x.add(4 * p).cast::<i32>().read_unaligned() })
}
