//! The affine quantizer: the same codes, scales and biases as `mlx.quantize`, bit for bit.
//!
//! Per group of neighbouring weights of a row, in float32: the extreme of larger magnitude becomes the edge from which
//! codes count, and the scale is adjusted so that zero is hit exactly. Codes come from the unrounded scale; only then
//! are scale and bias rounded to the type of the weights. Checked against MLX 0.32 (`tools/reference/gguf_files.py` writes the goldens).

use crate::float_type::FloatType;
use kernels::{AffineMatrix, ScaleType};

/// Group sizes of the packed form, largest first.
pub const GROUP_SIZES: [usize; 4] = [128, 64, 32, 16];

/// Why a matrix cannot be quantized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantizeError {
    #[error("{bits} bits asked for; 4 and 8 are supported")]
    Bits { bits: u32 },
    #[error("group size {group_size} asked for; 16, 32, 64 and 128 are supported")]
    GroupSize { group_size: usize },
    #[error("rows of {k_in} weights are no multiple of any group size up to {group_size} (16, 32, 64, 128)")]
    Columns { k_in: usize, group_size: usize },
    #[error("weight [{row}, {column}] is not finite")]
    NotFinite { row: usize, column: usize },
}

/// Checks what a user may ask for: 4 or 8 bits, group 16, 32, 64 or 128.
pub fn check_options(bits: u32, group_size: usize) -> Result<(), QuantizeError> {
    if bits != 4 && bits != 8 {
        return Err(QuantizeError::Bits { bits });
    }
    if !GROUP_SIZES.contains(&group_size) {
        return Err(QuantizeError::GroupSize { group_size });
    }
    Ok(())
}

/// The largest group size, at most `wanted`, that divides rows of `k_in` weights.
pub fn fitting_group_size(k_in: usize, wanted: usize) -> Result<usize, QuantizeError> {
    let fits = |size: &usize| *size <= wanted && k_in > 0 && k_in.is_multiple_of(*size);
    GROUP_SIZES.into_iter().find(fits).ok_or(QuantizeError::Columns { k_in, group_size: wanted })
}

/// Quantizes a matrix [n_out, k_in], row-major. `scale_type` is the type in which the weights were stored: scales and
/// biases are rounded to it, as MLX does.
pub fn quantize(
    weights: &[f32],
    n_out: usize,
    k_in: usize,
    bits: u32,
    group_size: usize,
    scale_type: ScaleType,
) -> Result<AffineMatrix, QuantizeError> {
    assert_eq!(n_out.checked_mul(k_in), Some(weights.len()), "a matrix of [{n_out}, {k_in}]");
    quantize_rows(n_out, k_in, bits, group_size, scale_type, |row, values| {
        values.copy_from_slice(&weights[row * k_in..][..k_in]);
    })
}

/// As [`quantize`], with rows fetched one at a time, so that a large matrix never exists in float32.
pub(crate) fn quantize_rows(
    n_out: usize,
    k_in: usize,
    bits: u32,
    group_size: usize,
    scale_type: ScaleType,
    mut fetch_row: impl FnMut(usize, &mut [f32]),
) -> Result<AffineMatrix, QuantizeError> {
    check_options(bits, group_size)?;
    if fitting_group_size(k_in, group_size) != Ok(group_size) {
        return Err(QuantizeError::Columns { k_in, group_size });
    }
    let groups = k_in / group_size;
    let mut matrix = AffineMatrix {
        n_out,
        k_in,
        bits,
        group_size,
        codes: vec![0; n_out * k_in],
        scales: Vec::with_capacity(n_out * groups),
        biases: Vec::with_capacity(n_out * groups),
        scale_type,
    };
    let scale_float = float_type_of(scale_type);
    let mut values = vec![0.0; k_in];
    for (row, codes) in matrix.codes.chunks_exact_mut(k_in).enumerate() {
        fetch_row(row, &mut values);
        if let Some(column) = values.iter().position(|value| !value.is_finite()) {
            return Err(QuantizeError::NotFinite { row, column });
        }
        for (group, codes) in values.chunks_exact(group_size).zip(codes.chunks_exact_mut(group_size)) {
            let (scale, bias) = quantize_group(group, bits, codes);
            matrix.scales.push(scale_float.round(scale));
            matrix.biases.push(scale_float.round(bias));
        }
    }
    Ok(matrix)
}

fn float_type_of(scale_type: ScaleType) -> FloatType {
    match scale_type {
        ScaleType::BFloat16 => FloatType::BFloat16,
        ScaleType::Float16 => FloatType::Float16,
        ScaleType::Float32 => FloatType::Float32,
    }
}

/// Codes of one group, and its scale and bias before rounding.
fn quantize_group(weights: &[f32], bits: u32, codes: &mut [u8]) -> (f32, f32) {
    /// Keeps the scale of a constant group from being zero.
    const SCALE_MIN: f32 = 1e-7;
    let code_max = ((1u32 << bits) - 1) as f32;
    let smallest = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let from_below = smallest.abs() > largest.abs();
    let width = ((largest - smallest) / code_max).max(SCALE_MIN);
    let (mut scale, edge) = if from_below { (width, smallest) } else { (-width, largest) };
    let edge_code = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if edge_code != 0.0 {
        scale = edge / edge_code;
        bias = edge;
    }
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = ((weight - bias) / scale).round_ties_even().clamp(0.0, code_max) as u8;
    }
    (scale, bias)
}
