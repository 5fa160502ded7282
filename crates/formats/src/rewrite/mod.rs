//! A model folder written anew with adapters added into its weights: in float, or quantized once from the sums.
//!
//! Tensor by tensor and row by row, so that memory holds one quantized tensor at most, whatever the size of the model.
//! What no adapter touches is copied as it is, and what arrives quantized is never quantized again, except matrices
//! that an adapter adds to: those are widened, added to and quantized anew. Nothing says that the sum survives that,
//! so callers measure it.

mod plan;
mod write;

pub use plan::{ModelRewrite, RewriteOptions, WrittenWeights};

use crate::float_type::FloatType;
use crate::tensor_encoding::{DecodedTensor, Encoding, SourceTensor};
use crate::{FormatError, adapter::AdapterFile};
use kernels::AffineMatrix;

/// What adapters add to one matrix.
struct Addition<'a> {
    rank: usize,
    scale: f32,
    /// [rank, k_in]
    a: &'a [f32],
    /// [n_out, rank]
    b: &'a [f32],
}

/// The additions of all `adapters` to the tensor `name`.
fn additions<'a>(adapters: &[&'a AdapterFile], name: &str) -> Vec<Addition<'a>> {
    let of_adapter = |adapter: &&'a AdapterFile| {
        let adapter: &'a AdapterFile = adapter;
        let matrix = adapter.matrices.iter().find(|matrix| name.strip_suffix(".weight") == Some(&matrix.module))?;
        let scale = adapter.config.scale() as f32;
        Some(Addition { rank: adapter.config.r, scale, a: &matrix.a, b: &matrix.b })
    };
    adapters.iter().filter_map(of_adapter).collect()
}

/// Rows of one matrix with what adapters add to them, as float32.
struct Rows<'a> {
    tensor: &'a SourceTensor,
    k_in: usize,
    stored: StoredRows<'a>,
    additions: Vec<Addition<'a>>,
    /// Sum of the additions to a row.
    sum: Vec<f32>,
}

enum StoredRows<'a> {
    Float { float_type: FloatType, bytes: &'a [u8] },
    Affine(Box<AffineMatrix>),
}

impl<'a> Rows<'a> {
    fn new(tensor: &'a SourceTensor, additions: Vec<Addition<'a>>) -> Result<Self, FormatError> {
        let stored = match &tensor.encoding {
            Encoding::Float { float_type, data } => StoredRows::Float { float_type: *float_type, bytes: data.bytes() },
            // The bits only matter to float matrices.
            Encoding::Affine { .. } | Encoding::Blocks { .. } => match tensor.decode(8, 64)? {
                DecodedTensor::Matrix(matrix) => StoredRows::Affine(Box::new(matrix)),
                DecodedTensor::Vector(_) => unreachable!("a quantized tensor is a matrix"),
            },
        };
        let k_in = tensor.shape[1];
        Ok(Self { tensor, k_in, stored, additions, sum: vec![0.0; k_in] })
    }

    fn read(&mut self, row: usize, values: &mut [f32]) {
        match &self.stored {
            StoredRows::Float { float_type, bytes } => {
                let row_bytes = self.k_in * float_type.bytes();
                float_type.widen(&bytes[row * row_bytes..][..row_bytes], values);
            }
            StoredRows::Affine(matrix) => {
                let groups = self.k_in / matrix.group_size;
                let codes = matrix.codes[row * self.k_in..][..self.k_in].chunks_exact(matrix.group_size);
                for (group, (codes, values)) in codes.zip(values.chunks_exact_mut(matrix.group_size)).enumerate() {
                    let (scale, bias) = (matrix.scales[row * groups + group], matrix.biases[row * groups + group]);
                    codes.iter().zip(values).for_each(|(code, value)| *value = scale * f32::from(*code) + bias);
                }
            }
        }
        if self.additions.is_empty() {
            return;
        }
        self.sum.fill(0.0);
        for Addition { rank, scale, a, b } in &self.additions {
            for (factor, a) in b[row * rank..][..*rank].iter().zip(a.chunks_exact(self.k_in)) {
                let factor = scale * factor;
                self.sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * a);
            }
        }
        values.iter_mut().zip(&self.sum).for_each(|(value, sum)| *value += sum);
    }

    fn not_finite(&self, row: usize, column: usize) -> FormatError {
        let problem = format!("the sum with the adapters is not finite in [{row}, {column}]");
        FormatError::tensor(&self.tensor.path, &self.tensor.stored_name, problem)
    }
}
