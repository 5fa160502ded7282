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
use crate::simd::Simd;
use crate::simd::integer::IntegerSimd;

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
}

/// Scales and biases of a tile to `out` [groups][2][64]; with `centred`, offsets `bias + centre·scale` for biases.
///
/// # Safety
/// `tile` points to a tile of this format, `out` to groups·128 writable floats.
#[inline(always)]
pub(super) unsafe fn scales<S: IntegerSimd>(format: &TileFormat, tile: *const u8, centred: bool, out: *mut f32) {
    let header = &format.header;
    let step = 16 * header.scale_type.bytes();
    let centre = S::Float::splat(header.centre());
    // SAFETY: the scales follow the codes, two times 64 values a group.
    unsafe {
        let from = tile.add(header.code_bytes());
        for group in 0..format.groups {
            for v in 0..ACROSS {
                let scale = S::load_scales(header.scale_type, from.add((group * 8 + v) * step));
                let bias = S::load_scales(header.scale_type, from.add((group * 8 + 4 + v) * step));
                scale.store(out.add(group * 2 * TILE + 16 * v));
                let offset = if centred { scale.mul_add(centre, bias) } else { bias };
                offset.store(out.add(group * 2 * TILE + TILE + 16 * v));
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
        let put = |pair: usize, a: usize, v: S| v.store(out.add(pair * PANEL_ROW + a * VECTOR));
        if format.wide {
            let mask = S::splat_i16(0xff);
            for a in 0..4 {
                for quad in 0..16 {
                    let codes = S::load(tile.add((a * 16 + quad) * VECTOR));
                    put(2 * quad, a, codes.and(mask));
                    put(2 * quad + 1, a, codes.shift_right_u16::<8>());
                }
            }
        } else {
            let mask = S::splat_i16(0xf);
            for a in 0..4 {
                for quad in 0..8 {
                    let codes = S::load(tile.add((a * 8 + quad) * VECTOR));
                    put(2 * quad, a, codes.and(mask));
                    put(2 * quad + 1, a, codes.shift_right_u16::<8>().and(mask));
                    put(2 * quad + 16, a, codes.shift_right_u16::<4>().and(mask));
                    put(2 * quad + 17, a, codes.shift_right_u16::<12>());
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
        let put = |quad: usize, a: usize, v: S| v.store(out.add(quad * PANEL_ROW + a * VECTOR));
        if format.wide {
            for a in 0..4 {
                for quad in 0..16 {
                    put(quad, a, S::load(tile.add((a * 16 + quad) * VECTOR)));
                }
            }
        } else {
            let mask = S::splat_i8(0xf);
            for a in 0..4 {
                for quad in 0..8 {
                    let codes = S::load(tile.add((a * 8 + quad) * VECTOR));
                    put(quad, a, codes.and(mask));
                    put(quad + 8, a, codes.shift_right_u16::<4>().and(mask));
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
    let vectors = if format.wide { 16 } else { 8 };
    // SAFETY: offsets stay inside tile, scales and panel.
    unsafe {
        for a in 0..4 {
            for quad in 0..vectors {
                let codes = S::load(tile.add((a * vectors + quad) * VECTOR));
                for (j, codes) in bytes_apart(codes).into_iter().enumerate() {
                    let k = 4 * quad + QUAD_ORDER[j];
                    let to = |k: usize| out.add(k * TILE + 16 * a);
                    let from = |k: usize| scales.add(k * format.groups / TILE * 2 * TILE + 16 * a);
                    let weight = |codes: S, k: usize| {
                        let (scale, bias) = (S::Float::load(from(k)), S::Float::load(from(k).add(TILE)));
                        unbiased(format, codes).mul_add(scale, bias)
                    };
                    if format.wide {
                        weight(codes, k).store(to(k));
                    } else {
                        weight(codes.and(S::splat_i32(15)), k).store(to(k));
                        weight(codes.shift_right_u32::<4>(), k + 32).store(to(k + 32));
                    }
                }
            }
        }
    }
}

/// Calls `put(n quad, column vector, bytes)` for every 64-byte part of the tile seen from the other side: lanes
/// of four columns, each with the codes of four rows in the order that `table` gives.
#[inline(always)]
unsafe fn transposed<S: IntegerSimd>(
    format: &TileFormat,
    tile: *const u8,
    table: &[u8; 16],
    mut put: impl FnMut(usize, usize, S),
) {
    let vectors = if format.wide { 16 } else { 8 };
    // SAFETY: offsets stay inside the tile.
    unsafe {
        for a in 0..4 {
            for c in 0..vectors / 4 {
                let from = tile.add((a * vectors + 4 * c) * VECTOR);
                let lanes = [
                    S::load(from),
                    S::load(from.add(VECTOR)),
                    S::load(from.add(2 * VECTOR)),
                    S::load(from.add(3 * VECTOR)),
                ];
                let lanes = S::transpose_lanes(lanes);
                put(4 * a, c, lanes[0].shuffle_bytes(table));
                put(4 * a + 1, c, lanes[1].shuffle_bytes(table));
                put(4 * a + 2, c, lanes[2].shuffle_bytes(table));
                put(4 * a + 3, c, lanes[3].shuffle_bytes(table));
            }
        }
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
        let put = |pair: usize, c: usize, v: S| v.store(out.add(pair * PANEL_ROW + c * VECTOR));
        if format.wide {
            let (mask, centre) = (S::splat_i16(0xff), S::splat_i16(128));
            transposed::<S>(format, tile, &PAIRS, |quad, c, codes| {
                put(2 * quad, c, codes.and(mask).sub_i16(centre));
                put(2 * quad + 1, c, codes.shift_right_u16::<8>().sub_i16(centre));
            });
        } else {
            let (mask, centre) = (S::splat_i16(0xf), S::splat_i16(8));
            transposed::<S>(format, tile, &PAIRS, |quad, c, codes| {
                put(2 * quad, c, codes.and(mask).sub_i16(centre));
                put(2 * quad + 1, c, codes.shift_right_u16::<8>().and(mask).sub_i16(centre));
                put(2 * quad, c + 2, codes.shift_right_u16::<4>().and(mask).sub_i16(centre));
                put(2 * quad + 1, c + 2, codes.shift_right_u16::<12>().sub_i16(centre));
            });
        }
    }
}

/// # Safety
/// `tile` points to a tile, `out` to [`PANEL_I8`] writable bytes.
#[inline(always)]
pub(super) unsafe fn input_grad_i8<S: IntegerSimd>(format: &TileFormat, tile: *const u8, out: *mut u8) {
    // `pack_i8` of n 0..32 and n 32..64 leaves quads 2l, 2l + 1 and 8 + 2l, 8 + 2l + 1 in lane l.
    let position = |quad: usize| quad % 8 / 2 * 4 + quad % 2 + quad / 8 * 2;
    // SAFETY: offsets stay inside tile and panel.
    unsafe {
        let put = |quad: usize, c: usize, v: S| v.store(out.add(position(quad) * PANEL_ROW + c * VECTOR));
        if format.wide {
            let centre = S::splat_i8(-128);
            transposed::<S>(format, tile, &NATURAL, |quad, c, codes| put(quad, c, codes.xor(centre)));
        } else {
            let (mask, centre) = (S::splat_i8(0xf), S::splat_i8(8));
            transposed::<S>(format, tile, &NATURAL, |quad, c, codes| {
                put(quad, c, codes.and(mask).sub_i8(centre));
                put(quad, c + 2, codes.shift_right_u16::<4>().and(mask).sub_i8(centre));
            });
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
        transposed::<S>(format, tile, &NATURAL, |quad, c, codes: S| {
            for (i, codes) in bytes_apart(codes).into_iter().enumerate() {
                let n = 4 * quad + i;
                let weight = |codes: S, c: usize| {
                    let from = scales.add(c * format.groups / ACROSS * 2 * TILE + n);
                    let (scale, bias) = (S::Float::splat(*from), S::Float::splat(*from.add(TILE)));
                    unbiased(format, codes).mul_add(scale, bias).store(out.add(n * TILE + 16 * c));
                };
                if format.wide {
                    weight(codes, c);
                } else {
                    weight(codes.and(S::splat_i32(15)), c);
                    weight(codes.shift_right_u32::<4>(), c + 2);
                }
            }
        });
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
