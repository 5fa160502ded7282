//! From packed tiles to the panels that the register kernels read, for both directions, and their scales.
//!
//! A panel row has four vectors side by side, 64 output columns:
//!
//! | panel | vectors | holds |
//! |---|---|---|
//! | forward i16 | [k pair 0..32][4] | column n: codes (k, k+1), unsigned |
//! | forward u8 | [k quad 0..16][4] | column n: four codes in `QUAD_ORDER`, unsigned |
//! | forward f32 | [k 0..64][4] | column n: weight |
//! | input_grad i16 | [n pair 0..32][4] | column k: codes (n, n+1), centred |
//! | input_grad i8 | [position 0..16][4] | column k: four codes, centred; positions as `pack_i8` leaves them |
//! | input_grad f32 | [n 0..64][4] | column k: weight |

use super::layout::{QUAD_ORDER, TILE};
use super::packed::PackedHeader;
use crate::simd::integer::IntegerSimd;
use crate::simd::{LANES, Simd};

/// Bytes of a vector.
pub(super) const VECTOR: usize = 64;
/// Vectors of a panel row.
pub(super) const ACROSS: usize = 4;
/// Bytes of a panel row.
pub(super) const PANEL_ROW: usize = ACROSS * VECTOR;
/// Most scale groups that a tile can have (groups of 16).
pub(super) const GROUPS_MAX: usize = 4;
/// Bytes of an i16 panel of one tile.
pub(super) const PANEL_I16: usize = 32 * PANEL_ROW;
/// Bytes of an 8-bit panel of one tile.
pub(super) const PANEL_I8: usize = 16 * PANEL_ROW;
/// Bytes of an f32 panel of one tile.
pub(super) const PANEL_F32: usize = 64 * PANEL_ROW;

/// Stores column vector `across` of panel row `row`.
///
/// These are functions and no closures: a closure that is not inlined would lose the instruction set.
#[inline(always)]
unsafe fn put<S: IntegerSimd>(out: *mut u8, row: usize, across: usize, vector: S) {
    // SAFETY: the caller names a place inside the panel.
    unsafe { vector.store(out.add(row * PANEL_ROW + across * VECTOR)) }
}

/// What unpacking must know about a matrix.
#[derive(Clone, Copy)]
pub(super) struct TileFormat {
    pub header: PackedHeader,
    pub wide: bool,
    pub groups: usize,
}

impl TileFormat {
    pub(super) fn new(header: PackedHeader) -> Self {
        Self { header, wide: header.code_bits() == 8, groups: header.groups_per_tile() }
    }

    /// What a bias misses, in scales, when codes stay as they are stored: nothing for codes of 4 and of 8 bits.
    pub(super) fn raise(&self) -> f32 {
        -self.header.stored_excess() as f32
    }
}

/// Scales of a tile and `bias + raise·scale` to `out` [groups][2][64].
///
/// # Safety
/// `tile` points to a tile of this format, `out` to groups·128 writable floats.
#[inline(always)]
pub(super) unsafe fn scales<S: IntegerSimd>(format: &TileFormat, tile: *const u8, raise: f32, out: *mut f32) {
    let header = &format.header;
    let step = 16 * header.scale_type.bytes();
    let raise = S::Float::splat(raise);
    // SAFETY: the scales follow the codes, two times 64 values a group.
    unsafe {
        let from = tile.add(header.code_bytes());
        for group in 0..format.groups {
            for v in 0..ACROSS {
                let scale = S::load_scales(header.scale_type, from.add((group * 8 + v) * step));
                let bias = S::load_scales(header.scale_type, from.add((group * 8 + 4 + v) * step));
                scale.store(out.add(group * 2 * TILE + 16 * v));
                scale.mul_add(raise, bias).store(out.add(group * 2 * TILE + TILE + 16 * v));
            }
        }
    }
}

/// # Safety
/// `tile` points to a tile, `out` to [`PANEL_I16`] writable bytes.
#[inline(always)]
pub(super) unsafe fn forward_i16<S: IntegerSimd>(format: &TileFormat, tile: *const u8, out: *mut u8) {
    // SAFETY: offsets stay inside tile and panel.
    unsafe {
        if format.wide {
            let mask = S::splat_i16(0xff);
            for a in 0..4 {
                for quad in 0..16 {
                    let codes = S::load(tile.add((a * 16 + quad) * VECTOR));
                    put(out, 2 * quad, a, codes.and(mask));
                    put(out, 2 * quad + 1, a, codes.shift_right_u16::<8>());
                }
            }
        } else {
            let mask = S::splat_i16(0xf);
            for a in 0..4 {
                for quad in 0..8 {
                    let codes = S::load(tile.add((a * 8 + quad) * VECTOR));
                    put(out, 2 * quad, a, codes.and(mask));
                    put(out, 2 * quad + 1, a, codes.shift_right_u16::<8>().and(mask));
                    put(out, 2 * quad + 16, a, codes.shift_right_u16::<4>().and(mask));
                    put(out, 2 * quad + 17, a, codes.shift_right_u16::<12>());
                }
            }
        }
    }
}

/// # Safety
/// `tile` points to a tile, `out` to [`PANEL_I8`] writable bytes.
#[inline(always)]
pub(super) unsafe fn forward_u8<S: IntegerSimd>(format: &TileFormat, tile: *const u8, out: *mut u8) {
    // SAFETY: offsets stay inside tile and panel.
    unsafe {
        if format.wide {
            for a in 0..4 {
                for quad in 0..16 {
                    put(out, quad, a, S::load(tile.add((a * 16 + quad) * VECTOR)));
                }
            }
        } else {
            let mask = S::splat_i8(0xf);
            for a in 0..4 {
                for quad in 0..8 {
                    let codes = S::load(tile.add((a * 8 + quad) * VECTOR));
                    put(out, quad, a, codes.and(mask));
                    put(out, quad + 8, a, codes.shift_right_u16::<4>().and(mask));
                }
            }
        }
    }
}

/// `scales` are those of the tile with plain biases.
///
/// # Safety
/// `tile` points to a tile, `scales` to [groups][2][64] floats, `out` to [`PANEL_F32`] writable bytes.
#[inline(always)]
pub(super) unsafe fn forward_f32<S: IntegerSimd>(
    format: &TileFormat,
    tile: *const u8,
    scales: *const f32,
    out: *mut f32,
) {
    let vectors = vectors(format);
    // SAFETY: offsets stay inside tile, scales and panel.
    unsafe {
        for a in 0..4 {
            for quad in 0..vectors {
                let codes = S::load(tile.add((a * vectors + quad) * VECTOR));
                for (j, codes) in bytes_apart(codes).into_iter().enumerate() {
                    let k = 4 * quad + QUAD_ORDER[j];
                    if format.wide {
                        forward_weight(format, codes, scales, k, a, out);
                    } else {
                        forward_weight(format, codes.and(S::splat_i32(15)), scales, k, a, out);
                        forward_weight(format, codes.shift_right_u32::<4>(), scales, k + 32, a, out);
                    }
                }
            }
        }
    }
}

/// Weights of column `k` and rows 16a.. from their stored codes.
#[inline(always)]
unsafe fn forward_weight<S: IntegerSimd>(
    format: &TileFormat,
    codes: S,
    scales: *const f32,
    k: usize,
    a: usize,
    out: *mut f32,
) {
    // SAFETY: passed on from `forward_f32`.
    unsafe {
        let from = scales.add(k * format.groups / TILE * 2 * TILE + LANES * a);
        let (scale, bias) = (S::Float::load(from), S::Float::load(from.add(TILE)));
        unbiased(format, codes).mul_add(scale, bias).store(out.add(k * TILE + LANES * a));
    }
}

/// Vectors of stored codes for a quarter of a tile's rows.
#[inline(always)]
fn vectors(format: &TileFormat) -> usize {
    if format.wide { 16 } else { 8 }
}

/// Rows 16a.. and columns 16c.. (and 32 + 16c.. in the high nibbles) seen from the other side: vector i has the
/// rows 16a + 4i.., lane by lane four columns, each with the codes of four rows in the order that `table` gives.
#[inline(always)]
unsafe fn transposed<S: IntegerSimd>(
    format: &TileFormat,
    tile: *const u8,
    a: usize,
    c: usize,
    table: &[u8; 16],
) -> [S; 4] {
    // SAFETY: the caller names a part of the tile.
    unsafe {
        let from = tile.add((a * vectors(format) + 4 * c) * VECTOR);
        let lanes =
            [S::load(from), S::load(from.add(VECTOR)), S::load(from.add(2 * VECTOR)), S::load(from.add(3 * VECTOR))];
        let [w, x, y, z] = S::transpose_lanes(lanes);
        [w.shuffle_bytes(table), x.shuffle_bytes(table), y.shuffle_bytes(table), z.shuffle_bytes(table)]
    }
}

/// Byte 4j + q of a transposed lane: column j of the quad, row `row_order[q]`.
const fn transpose_table(row_order: [usize; 4]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        // QUAD_ORDER is its own inverse: column j lies at byte QUAD_ORDER[j].
        table[i] = (4 * row_order[i % 4] + QUAD_ORDER[i / 4]) as u8;
        i += 1;
    }
    table
}
/// For pairs of 16-bit codes by masks and shifts.
const PAIRS: [u8; 16] = transpose_table(QUAD_ORDER);
const NATURAL: [u8; 16] = transpose_table([0, 1, 2, 3]);

/// # Safety
/// `tile` points to a tile, `out` to [`PANEL_I16`] writable bytes.
#[inline(always)]
pub(super) unsafe fn input_grad_i16<S: IntegerSimd>(format: &TileFormat, tile: *const u8, out: *mut u8) {
    // SAFETY: offsets stay inside tile and panel.
    unsafe {
        for a in 0..4 {
            for c in 0..vectors(format) / 4 {
                let parts = transposed::<S>(format, tile, a, c, &PAIRS);
                for (i, codes) in parts.into_iter().enumerate() {
                    let pair = 2 * (4 * a + i);
                    if format.wide {
                        let (mask, centre) = (S::splat_i16(0xff), S::splat_i16(128));
                        put(out, pair, c, codes.and(mask).sub_i16(centre));
                        put(out, pair + 1, c, codes.shift_right_u16::<8>().sub_i16(centre));
                    } else {
                        let (mask, centre) = (S::splat_i16(0xf), S::splat_i16(8));
                        put(out, pair, c, codes.and(mask).sub_i16(centre));
                        put(out, pair + 1, c, codes.shift_right_u16::<8>().and(mask).sub_i16(centre));
                        put(out, pair, c + 2, codes.shift_right_u16::<4>().and(mask).sub_i16(centre));
                        put(out, pair + 1, c + 2, codes.shift_right_u16::<12>().sub_i16(centre));
                    }
                }
            }
        }
    }
}

/// # Safety
/// `tile` points to a tile, `out` to [`PANEL_I8`] writable bytes.
#[inline(always)]
pub(super) unsafe fn input_grad_i8<S: IntegerSimd>(format: &TileFormat, tile: *const u8, out: *mut u8) {
    // SAFETY: offsets stay inside tile and panel.
    unsafe {
        for a in 0..4 {
            for c in 0..vectors(format) / 4 {
                let parts = transposed::<S>(format, tile, a, c, &NATURAL);
                for (i, codes) in parts.into_iter().enumerate() {
                    // `pack_i8` of n 0..32 and n 32..64 leaves quads 2l, 2l + 1 and 8 + 2l, 9 + 2l in lane l.
                    let quad = 4 * a + i;
                    let position = quad % 8 / 2 * 4 + quad % 2 + quad / 8 * 2;
                    if format.wide {
                        put(out, position, c, codes.xor(S::splat_i8(-128)));
                    } else {
                        let (mask, centre) = (S::splat_i8(0xf), S::splat_i8(8));
                        put(out, position, c, codes.and(mask).sub_i8(centre));
                        put(out, position, c + 2, codes.shift_right_u16::<4>().and(mask).sub_i8(centre));
                    }
                }
            }
        }
    }
}

/// `scales` are those of the tile with plain biases.
///
/// # Safety
/// `tile` points to a tile, `scales` to [groups][2][64] floats, `out` to [`PANEL_F32`] writable bytes.
#[inline(always)]
pub(super) unsafe fn input_grad_f32<S: IntegerSimd>(
    format: &TileFormat,
    tile: *const u8,
    scales: *const f32,
    out: *mut f32,
) {
    // SAFETY: offsets stay inside tile, scales and panel.
    unsafe {
        for a in 0..4 {
            for c in 0..vectors(format) / 4 {
                let parts = transposed::<S>(format, tile, a, c, &NATURAL);
                for (i, codes) in parts.into_iter().enumerate() {
                    for (j, codes) in bytes_apart(codes).into_iter().enumerate() {
                        let n = 4 * (4 * a + i) + j;
                        if format.wide {
                            input_grad_weight(format, codes, scales, n, c, out);
                        } else {
                            input_grad_weight(format, codes.and(S::splat_i32(15)), scales, n, c, out);
                            input_grad_weight(format, codes.shift_right_u32::<4>(), scales, n, c + 2, out);
                        }
                    }
                }
            }
        }
    }
}

/// Weights of row `n` and columns 16c.. from their stored codes.
#[inline(always)]
unsafe fn input_grad_weight<S: IntegerSimd>(
    format: &TileFormat,
    codes: S,
    scales: *const f32,
    n: usize,
    c: usize,
    out: *mut f32,
) {
    // SAFETY: passed on from `input_grad_f32`.
    unsafe {
        let from = scales.add(c * format.groups / ACROSS * 2 * TILE + n);
        let (scale, bias) = (S::Float::splat(*from), S::Float::splat(*from.add(TILE)));
        unbiased(format, codes).mul_add(scale, bias).store(out.add(n * TILE + LANES * c));
    }
}

/// The four bytes of each 32-bit part as integers.
#[inline(always)]
fn bytes_apart<S: IntegerSimd>(codes: S) -> [S; 4] {
    let mask = S::splat_i32(0xff);
    [
        codes.and(mask),
        codes.shift_right_u32::<8>().and(mask),
        codes.shift_right_u32::<16>().and(mask),
        codes.shift_right_u32::<24>(),
    ]
}

/// Stored codes as the source's codes.
#[inline(always)]
fn unbiased<S: IntegerSimd>(format: &TileFormat, codes: S) -> S::Float {
    codes.add_i32(S::splat_i32(-format.header.stored_excess())).to_float()
}
