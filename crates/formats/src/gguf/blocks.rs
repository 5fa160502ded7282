//! GGUF's quantized block types, each turned into codes, scales and biases without requantizing.
//!
//! A block holds some neighbouring weights of a row. Layouts are those of the ggml library (ggml-common.h and the
//! dequantize_row functions of ggml-quants.c). Scale and bias of a group are products of at most 18 significant bits,
//! so float32 holds them exactly; the types of 32 weights keep their own float16 when the bias fits it too.

use crate::float_type::FloatType;
use half::f16;
use kernels::{AffineMatrix, ScaleType};

/// A quantized type: how its blocks look and how one is decoded.
pub(crate) struct BlockType {
    pub(crate) name: &'static str,
    pub(crate) type_id: u32,
    /// Weights of a block.
    pub(crate) block_len: usize,
    pub(crate) block_bytes: usize,
    pub(crate) bits: u32,
    pub(crate) group_size: usize,
    /// Fills `block_len` codes, and one scale and one bias a group: w = scale * code + bias.
    decode: DecodeBlock,
}

type DecodeBlock = fn(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]);

impl std::fmt::Debug for BlockType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

/// Every supported quantized type.
#[rustfmt::skip]
pub(crate) const BLOCK_TYPES: &[BlockType] = &[
    BlockType { name: "Q4_0", type_id: 2, block_len: 32, block_bytes: 18, bits: 4, group_size: 32, decode: decode_q4_0 },
    BlockType { name: "Q4_1", type_id: 3, block_len: 32, block_bytes: 20, bits: 4, group_size: 32, decode: decode_q4_1 },
    BlockType { name: "Q5_0", type_id: 6, block_len: 32, block_bytes: 22, bits: 5, group_size: 32, decode: decode_q5_0 },
    BlockType { name: "Q5_1", type_id: 7, block_len: 32, block_bytes: 24, bits: 5, group_size: 32, decode: decode_q5_1 },
    BlockType { name: "Q8_0", type_id: 8, block_len: 32, block_bytes: 34, bits: 8, group_size: 32, decode: decode_q8_0 },
    BlockType { name: "Q4_K", type_id: 12, block_len: 256, block_bytes: 144, bits: 4, group_size: 32, decode: decode_q4_k },
    BlockType { name: "Q5_K", type_id: 13, block_len: 256, block_bytes: 176, bits: 5, group_size: 32, decode: decode_q5_k },
    BlockType { name: "Q6_K", type_id: 14, block_len: 256, block_bytes: 210, bits: 6, group_size: 16, decode: decode_q6_k },
];

/// The float types of GGUF tensors.
pub(crate) const FLOAT_TYPES: &[(&str, u32, FloatType)] =
    &[("F32", 0, FloatType::Float32), ("F16", 1, FloatType::Float16), ("BF16", 30, FloatType::BFloat16)];

/// Types that exist and are not supported, so that an error can call them by name.
#[rustfmt::skip]
const OTHER_TYPES: &[(&str, u32)] = &[
    ("Q8_1", 9), ("Q2_K", 10), ("Q3_K", 11), ("Q8_K", 15), ("IQ2_XXS", 16), ("IQ2_XS", 17), ("IQ3_XXS", 18),
    ("IQ1_S", 19), ("IQ4_NL", 20), ("IQ3_S", 21), ("IQ2_S", 22), ("IQ4_XS", 23), ("I8", 24), ("I16", 25), ("I32", 26),
    ("I64", 27), ("F64", 28), ("IQ1_M", 29), ("TQ1_0", 34), ("TQ2_0", 35), ("MXFP4", 39),
];

/// The name of an unsupported type.
pub(crate) fn unsupported_name(type_id: u32) -> String {
    let known = OTHER_TYPES.iter().find(|(_, id)| *id == type_id);
    known.map_or_else(|| format!("type {type_id}"), |(name, _)| (*name).to_owned())
}

/// `F32, F16, BF16, Q4_0, ...`
pub(crate) fn supported_names() -> String {
    let floats = FLOAT_TYPES.iter().map(|(name, ..)| *name);
    floats.chain(BLOCK_TYPES.iter().map(|block_type| block_type.name)).collect::<Vec<_>>().join(", ")
}

impl BlockType {
    /// Bytes of `n_out` rows of `k_in` weights, or `None` when rows are no whole number of blocks or it overflows.
    pub(crate) fn byte_len(&self, n_out: usize, k_in: usize) -> Option<usize> {
        if !k_in.is_multiple_of(self.block_len) {
            return None;
        }
        (k_in / self.block_len).checked_mul(n_out)?.checked_mul(self.block_bytes)
    }

    /// The affine form of a matrix whose size has been checked with [`BlockType::byte_len`].
    pub(crate) fn to_affine(&self, data: &[u8], n_out: usize, k_in: usize) -> AffineMatrix {
        assert_eq!(self.byte_len(n_out, k_in), Some(data.len()));
        let block_groups = self.block_len / self.group_size;
        let groups = n_out * (k_in / self.group_size);
        let (mut codes, mut scales, mut biases) = (vec![0; n_out * k_in], vec![0.0; groups], vec![0.0; groups]);
        let blocks = data.chunks_exact(self.block_bytes).zip(codes.chunks_exact_mut(self.block_len));
        let factors = scales.chunks_exact_mut(block_groups).zip(biases.chunks_exact_mut(block_groups));
        for ((block, codes), (scales, biases)) in blocks.zip(factors) {
            (self.decode)(block, codes, scales, biases);
        }
        let fits_float16 = |values: &[f32]| values.iter().all(|value| ScaleType::Float16.represents(*value));
        let has_float16_scales = self.block_len == 32;
        let scale_type = if has_float16_scales && fits_float16(&scales) && fits_float16(&biases) {
            ScaleType::Float16
        } else {
            ScaleType::Float32
        };
        AffineMatrix { n_out, k_in, bits: self.bits, group_size: self.group_size, codes, scales, biases, scale_type }
    }
}

fn float16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Sixteen bytes: low halves are the first sixteen codes, high halves the last sixteen.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        codes[index] = byte & 15;
        codes[index + 16] = byte >> 4;
    }
}

/// Adds the fifth bit of 32 codes, bit i of the word belonging to code i.
fn add_fifth_bits(bits: &[u8], codes: &mut [u8]) {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    for (index, code) in codes.iter_mut().enumerate() {
        *code |= ((bits >> index & 1) as u8) << 4;
    }
}

/// d | 16 bytes of nibbles; w = d (q - 8).
fn decode_q4_0(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let scale = float16(block, 0);
    nibbles(&block[2..18], codes);
    (scales[0], biases[0]) = (scale, -8.0 * scale);
}

/// d | m | 16 bytes of nibbles; w = d q + m.
fn decode_q4_1(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    nibbles(&block[4..20], codes);
    (scales[0], biases[0]) = (float16(block, 0), float16(block, 2));
}

/// d | fifth bits | 16 bytes of nibbles; w = d (q - 16).
fn decode_q5_0(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let scale = float16(block, 0);
    nibbles(&block[6..22], codes);
    add_fifth_bits(&block[2..6], codes);
    (scales[0], biases[0]) = (scale, -16.0 * scale);
}

/// d | m | fifth bits | 16 bytes of nibbles; w = d q + m.
fn decode_q5_1(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    nibbles(&block[8..24], codes);
    add_fifth_bits(&block[4..8], codes);
    (scales[0], biases[0]) = (float16(block, 0), float16(block, 2));
}

/// d | 32 signed bytes; w = d q. Codes are q + 128.
fn decode_q8_0(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let scale = float16(block, 0);
    for (code, byte) in codes.iter_mut().zip(&block[2..34]) {
        *code = byte ^ 0x80;
    }
    (scales[0], biases[0]) = (scale, -128.0 * scale);
}

/// Scale and minimum of the eight groups of a Q4_K or Q5_K block: 6 bits each, packed in 12 bytes. Groups 0 to 3 have
/// their own bytes; groups 4 to 7 share the last four, and their upper two bits stand on top of the first eight.
fn scales_and_minima(packed: &[u8], d: f32, d_min: f32, scales: &mut [f32], biases: &mut [f32]) {
    for group in 0..8 {
        let (scale, minimum) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let shared = packed[group + 4];
            (shared & 15 | packed[group - 4] >> 6 << 4, shared >> 4 | packed[group] >> 6 << 4)
        };
        scales[group] = d * f32::from(scale);
        biases[group] = -(d_min * f32::from(minimum));
    }
}

/// d | dmin | 12 bytes of scales and minima | 128 bytes of nibbles, 64 weights in 32 bytes; w = d s q - dmin m.
fn decode_q4_k(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    scales_and_minima(&block[4..16], float16(block, 0), float16(block, 2), scales, biases);
    for (bytes, codes) in block[16..144].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        for (index, byte) in bytes.iter().enumerate() {
            codes[index] = byte & 15;
            codes[index + 32] = byte >> 4;
        }
    }
}

/// As Q4_K with 32 bytes of fifth bits before the nibbles: bit g of byte i belongs to weight i of group g.
fn decode_q5_k(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    scales_and_minima(&block[4..16], float16(block, 0), float16(block, 2), scales, biases);
    let fifth_bits = &block[16..48];
    for (pair, (bytes, codes)) in block[48..176].chunks_exact(32).zip(codes.chunks_exact_mut(64)).enumerate() {
        for (index, byte) in bytes.iter().enumerate() {
            let fifth = fifth_bits[index] >> (2 * pair);
            codes[index] = byte & 15 | (fifth & 1) << 4;
            codes[index + 32] = byte >> 4 | (fifth >> 1 & 1) << 4;
        }
    }
}

/// 128 bytes of low halves | 64 bytes of upper bit pairs | 16 signed scales | d; w = d s (q - 32). Each half block of
/// 128 weights is four runs of 32: byte i holds the low halves of weight i of runs 0 and 2 (byte 32 + i: 1 and 3), and
/// upper byte i the bit pairs of all four.
fn decode_q6_k(block: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let d = float16(block, 208);
    for (group, byte) in block[192..208].iter().enumerate() {
        let scale = d * f32::from(*byte as i8);
        (scales[group], biases[group]) = (scale, -32.0 * scale);
    }
    let halves = block[..128].chunks_exact(64).zip(block[128..192].chunks_exact(32)).zip(codes.chunks_exact_mut(128));
    for ((low, upper), codes) in halves {
        for index in 0..32 {
            let bits = upper[index];
            codes[index] = low[index] & 15 | (bits & 3) << 4;
            codes[index + 32] = low[index + 32] & 15 | (bits >> 2 & 3) << 4;
            codes[index + 64] = low[index] >> 4 | (bits >> 4 & 3) << 4;
            codes[index + 96] = low[index + 32] >> 4 | (bits >> 6) << 4;
        }
    }
}
