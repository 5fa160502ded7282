//! Where each code, scale and bias of a packed matrix lies. One copy serves both directions.
//!
//! ```text
//! matrix   tiles [n_tiles][k_tiles], then row_max f32 [n_tiles·64], 1/row_max f32 [n_tiles·64], trailer of 64 bytes
//! tile     64 rows (n) x 64 columns (k): codes, then per group of columns 64 scales and 64 biases
//! codes    byte vectors of 64: 4-bit codes [a 0..4][t 0..8], 8-bit codes [a 0..4][t 0..16]
//! vector   4 lanes of 16 bytes; lane l, byte 4i + p is row n = 16a + 4l + i, column k = 4t + QUAD_ORDER[p]
//! nibble   low: column quad t, high: column quad t + 8
//! code     stored as (code - 2^(bits-1)) + 2^(stored_bits-1): centred, then made unsigned
//! ```
//!
//! A row of tiles is contiguous, so a range of 64-row tiles is a window of the bytes. The 4x4 blocks of a lane
//! are what makes the transposed reading cheap: a transpose of lanes, then of bytes inside lanes. The two middle
//! columns of a quad are swapped so that the forward direction gets pairs (k, k+1) of 16-bit codes with masks
//! and shifts alone. Groups wider than a tile repeat their scale in each tile. Rows and columns beyond the
//! matrix have scale and bias zero.

/// Rows and columns of a tile.
pub const TILE: usize = 64;
/// Bytes of the trailer.
pub(super) const TRAILER_BYTES: usize = 64;
/// Column of a quad at each of its four bytes.
pub(super) const QUAD_ORDER: [usize; 4] = [0, 2, 1, 3];

/// Offset of the code of (row, column) in its tile, for 4-bit codes: byte, and shift of the nibble.
pub(super) fn nibble_place(row: usize, column: usize) -> (usize, u32) {
    let (quad, high) = ((column / 4) % 8, column / 32);
    ((row / 16 * 8 + quad) * 64 + byte_in_vector(row, column), 4 * high as u32)
}

/// Offset of the code of (row, column) in its tile, for 8-bit codes.
pub(super) fn byte_place(row: usize, column: usize) -> usize {
    (row / 16 * 16 + column / 4) * 64 + byte_in_vector(row, column)
}

fn byte_in_vector(row: usize, column: usize) -> usize {
    // QUAD_ORDER is its own inverse.
    (row % 16 / 4) * 16 + (row % 4) * 4 + QUAD_ORDER[column % 4]
}
