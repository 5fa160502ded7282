//! How a file stores one tensor, and how that becomes codes, scales and biases (matrices) or float32 (vectors).

use crate::FormatError;
use crate::float_type::FloatType;
use crate::gguf::BlockType;
use crate::mapped::FilePart;
use crate::quantize;
use kernels::AffineMatrix;
use std::path::PathBuf;

/// One tensor of a model file under its Hugging Face name.
#[derive(Debug)]
pub(crate) struct SourceTensor {
    /// Hugging Face name: `model.layers.0.self_attn.q_proj.weight`.
    pub(crate) name: String,
    /// The name in the file, for messages.
    pub(crate) stored_name: String,
    pub(crate) path: PathBuf,
    /// Outermost dimension first: [n_out, k_in] for a matrix.
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: Encoding,
    pub(crate) row_order: RowOrder,
    /// What was added to every element when the file was written (Gemma norms in GGUF hold 1 + w).
    pub(crate) added: f32,
}

/// The stored form. All sizes have been checked against the shape when the source was opened.
#[derive(Debug)]
pub(crate) enum Encoding {
    Float {
        float_type: FloatType,
        data: FilePart,
    },
    /// MLX: codes as one little-endian bit stream a row, scales and biases [n_out, k_in/group_size].
    Affine {
        bits: u32,
        group_size: usize,
        float_type: FloatType,
        codes: FilePart,
        scales: FilePart,
        biases: FilePart,
    },
    /// GGUF: rows of blocks.
    Blocks {
        block_type: &'static BlockType,
        data: FilePart,
    },
}

/// In which order the rows of a matrix (or the elements of a bias) are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    AsNamed,
    /// Each head's rows alternate between the halves that rotary embedding pairs up (GGUF, llama family).
    Interleaved {
        heads: usize,
    },
}

impl RowOrder {
    /// The stored row that holds row `row` of `rows` in half-split order.
    fn stored_row(self, row: usize, rows: usize) -> usize {
        match self {
            RowOrder::AsNamed => row,
            RowOrder::Interleaved { heads } => {
                let head_dim = rows / heads;
                let (head, within) = (row / head_dim, row % head_dim);
                let (half, index) = (within / (head_dim / 2), within % (head_dim / 2));
                head * head_dim + 2 * index + half
            }
        }
    }
}

/// A tensor ready to be packed or kept.
pub(crate) enum DecodedTensor {
    Matrix(AffineMatrix),
    Vector(Vec<f32>),
}

impl SourceTensor {
    /// Whether the tensor arrives quantized.
    pub(crate) fn is_quantized(&self) -> bool {
        match self.encoding {
            Encoding::Float { .. } => false,
            Encoding::Affine { .. } | Encoding::Blocks { .. } => true,
        }
    }

    /// `bf16`, `affine 4-bit group 64`, `Q4_K`.
    pub(crate) fn encoding_name(&self) -> String {
        match &self.encoding {
            Encoding::Float { float_type, .. } => float_type.name().into(),
            Encoding::Affine { bits, group_size, .. } => format!("affine {bits}-bit group {group_size}"),
            Encoding::Blocks { block_type, .. } => block_type.name.into(),
        }
    }

    /// The stored bytes, in one or more pieces.
    pub(crate) fn stored_bytes(&self) -> Vec<&[u8]> {
        match &self.encoding {
            Encoding::Float { data, .. } | Encoding::Blocks { data, .. } => vec![data.bytes()],
            Encoding::Affine { codes, scales, biases, .. } => vec![codes.bytes(), scales.bytes(), biases.bytes()],
        }
    }

    /// Number of stored bytes.
    pub(crate) fn stored_len(&self) -> u64 {
        self.stored_bytes().iter().map(|part| part.len() as u64).sum()
    }

    fn error(&self, problem: impl Into<String>) -> FormatError {
        FormatError::tensor(&self.path, &self.stored_name, problem)
    }

    /// Checks what decoding relies on and the formats have in common: one or two dimensions, none empty, whole heads.
    pub(crate) fn check_shape(&self) -> Result<(), FormatError> {
        if self.shape.is_empty() || self.shape.len() > 2 || self.shape.contains(&0) {
            return Err(self.error(format!("expected one or two dimensions without zeros, found {:?}", self.shape)));
        }
        if self.shape.len() == 1 && self.is_quantized() {
            return Err(self.error(format!("a vector stored as {}, expected a float type", self.encoding_name())));
        }
        if let RowOrder::Interleaved { heads } = self.row_order {
            let rows = self.shape[0];
            if heads == 0 || !rows.is_multiple_of(heads) || !(rows / heads).is_multiple_of(2) {
                return Err(self.error(format!("{rows} rows are no even number for each of {heads} heads")));
            }
        }
        Ok(())
    }

    /// Decodes the tensor: matrices to the affine form (float ones are quantized), vectors to float32.
    pub(crate) fn decode(&self, float_bits: u32, float_group_size: usize) -> Result<DecodedTensor, FormatError> {
        match (&self.encoding, self.shape.as_slice()) {
            (Encoding::Float { float_type, data }, &[n_out, k_in]) => self
                .quantize_float(*float_type, data, [n_out, k_in], float_bits, float_group_size)
                .map(DecodedTensor::Matrix),
            (Encoding::Float { float_type, data }, _) => self.vector(*float_type, data).map(DecodedTensor::Vector),
            (Encoding::Affine { .. } | Encoding::Blocks { .. }, &[n_out, k_in]) => {
                let matrix = self.affine_form(n_out, k_in)?;
                if let Some(index) = first_not_finite(&matrix.scales).or(first_not_finite(&matrix.biases)) {
                    let (row, group) = (index / (k_in / matrix.group_size), index % (k_in / matrix.group_size));
                    return Err(self.error(format!("scale or bias of row {row}, group {group} is not finite")));
                }
                Ok(DecodedTensor::Matrix(self.reorder(matrix)))
            }
            (Encoding::Affine { .. } | Encoding::Blocks { .. }, _) => Err(self.error("expected a matrix")),
        }
    }

    fn vector(&self, float_type: FloatType, data: &FilePart) -> Result<Vec<f32>, FormatError> {
        let mut stored = vec![0.0; self.shape[0]];
        float_type.widen(data.bytes(), &mut stored);
        if let Some(index) = first_not_finite(&stored) {
            return Err(self.error(format!("element {index} is not finite")));
        }
        let values = (0..stored.len()).map(|index| stored[self.row_order.stored_row(index, stored.len())] - self.added);
        Ok(values.collect())
    }

    fn quantize_float(
        &self,
        float_type: FloatType,
        data: &FilePart,
        [n_out, k_in]: [usize; 2],
        bits: u32,
        group_size: usize,
    ) -> Result<AffineMatrix, FormatError> {
        let problem = |error: quantize::QuantizeError| self.error(error.to_string());
        let group_size = quantize::fitting_group_size(k_in, group_size).map_err(problem)?;
        let row_bytes = k_in * float_type.bytes();
        quantize::quantize_rows(n_out, k_in, bits, group_size, float_type.scale_type(), |row, values| {
            let stored_row = self.row_order.stored_row(row, n_out);
            float_type.widen(&data.bytes()[stored_row * row_bytes..][..row_bytes], values);
        })
        .map_err(problem)
    }

    fn affine_form(&self, n_out: usize, k_in: usize) -> Result<AffineMatrix, FormatError> {
        match &self.encoding {
            Encoding::Affine { bits, group_size, float_type, codes, scales, biases } => {
                let count = n_out * (k_in / group_size);
                let widen = |part: &FilePart| {
                    let mut values = vec![0.0; count];
                    float_type.widen(part.bytes(), &mut values);
                    values
                };
                Ok(AffineMatrix {
                    n_out,
                    k_in,
                    bits: *bits,
                    group_size: *group_size,
                    codes: read_bit_stream(codes.bytes(), *bits, n_out * k_in),
                    scales: widen(scales),
                    biases: widen(biases),
                    scale_type: float_type.scale_type(),
                })
            }
            Encoding::Blocks { block_type, data } => Ok(block_type.to_affine(data.bytes(), n_out, k_in)),
            Encoding::Float { .. } => Err(self.error("expected a quantized matrix")),
        }
    }

    fn reorder(&self, mut matrix: AffineMatrix) -> AffineMatrix {
        if self.row_order == RowOrder::AsNamed {
            return matrix;
        }
        let (n_out, groups) = (matrix.n_out, matrix.k_in / matrix.group_size);
        let stored_rows = || (0..n_out).map(|row| self.row_order.stored_row(row, n_out));
        matrix.codes = gather_rows(&matrix.codes, matrix.k_in, stored_rows());
        matrix.scales = gather_rows(&matrix.scales, groups, stored_rows());
        matrix.biases = gather_rows(&matrix.biases, groups, stored_rows());
        matrix
    }
}

fn gather_rows<T: Copy>(values: &[T], columns: usize, rows: impl Iterator<Item = usize>) -> Vec<T> {
    let mut gathered = Vec::with_capacity(values.len());
    for row in rows {
        gathered.extend_from_slice(&values[row * columns..][..columns]);
    }
    gathered
}

fn first_not_finite(values: &[f32]) -> Option<usize> {
    values.iter().position(|value| !value.is_finite())
}

/// Reads `count` codes of `bits` (at most 8) each from a little-endian bit stream: code i starts at bit `i * bits`. A
/// row ends on a 32-bit word, so a matrix is one stream. `bytes` holds `count * bits / 8` bytes.
fn read_bit_stream(bytes: &[u8], bits: u32, count: usize) -> Vec<u8> {
    assert_eq!(bytes.len() * 8, count * bits as usize);
    let mask = (1u32 << bits) - 1;
    let mut codes = Vec::with_capacity(count);
    // Eight codes always end on a byte.
    for chunk in bytes.chunks_exact(bits as usize) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let word = u64::from_le_bytes(word);
        codes.extend((0..8).map(|index| (word >> (index * bits)) as u8 & mask as u8));
    }
    codes
}

/// The reverse of [`RowOrder::Interleaved`]: rows in half-split order to the order of GGUF's llama family.
pub(crate) fn interleave_rows(values: &[f32], columns: usize, heads: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let order = RowOrder::Interleaved { heads };
    let mut interleaved = vec![0.0; values.len()];
    for row in 0..rows {
        let stored = order.stored_row(row, rows);
        interleaved[stored * columns..][..columns].copy_from_slice(&values[row * columns..][..columns]);
    }
    interleaved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_streams_cross_byte_and_word_borders() {
        // 5-bit codes 0..8 by hand: 00000 00001 00010 ... from the least significant bit.
        let stream = (0..8u64).fold(0u64, |stream, code| stream | code << (5 * code));
        assert_eq!(read_bit_stream(&stream.to_le_bytes()[..5], 5, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(read_bit_stream(&[0b1110_0100, 0x1b], 2, 8), [0, 1, 2, 3, 3, 2, 1, 0]);
        assert_eq!(read_bit_stream(&[0x21, 0x43, 0x65, 0x87], 4, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(read_bit_stream(&[0, 255, 7, 9, 1, 2, 3, 4], 8, 8), [0, 255, 7, 9, 1, 2, 3, 4]);
    }

    #[test]
    fn interleaving_is_undone_head_by_head() {
        // Two heads of 6 rows. The file pairs rows i and i + 3 of a head: 0 3 1 4 2 5.
        let stored = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11];
        let order = RowOrder::Interleaved { heads: 2 };
        let split: Vec<usize> = (0..12).map(|row| stored[order.stored_row(row, 12)]).collect();
        assert_eq!(split, (0..12).collect::<Vec<_>>());
        let rows: Vec<f32> = (0..12).flat_map(|row| [row as f32, 0.5]).collect();
        let interleaved: Vec<usize> = interleave_rows(&rows, 2, 2).chunks(2).map(|row| row[0] as usize).collect();
        assert_eq!(interleaved, stored);
    }
}
