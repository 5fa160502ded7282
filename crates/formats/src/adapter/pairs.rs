//! Pairs of A and B matrices out of a tensor file.

use super::{AdapterMatrix, block_and_name};
use crate::FormatError;
use crate::hugging_face::hugging_face_name;
use crate::safetensors_file::{SafetensorsFile, StoredTensor};
use std::collections::BTreeMap;
use std::path::Path;

/// How a format names and lays out the pair of a module.
pub(super) struct Layout {
    pub(super) prefix: &'static str,
    pub(super) a_suffix: &'static str,
    pub(super) b_suffix: &'static str,
    /// A is stored as [k_in, r] and B as [r, n_out], the transpose of what [`AdapterMatrix`] holds.
    pub(super) transposed: bool,
}

/// A tensor and its key.
type Named<'a> = (&'a str, &'a StoredTensor);

/// All pairs of `file`, checked: every key belongs to a pair, every pair is complete, of rank `rank` and finite.
pub(super) fn read(
    path: &Path,
    file: &SafetensorsFile,
    layout: &Layout,
    rank: usize,
) -> Result<Vec<AdapterMatrix>, FormatError> {
    let mut found: BTreeMap<(usize, String), [Option<Named>; 2]> = BTreeMap::new();
    for (key, tensor) in &file.tensors {
        let Some((place, side)) = parse_key(key, layout) else {
            let expected = format!("{}MODULE{} or {}", layout.prefix, layout.a_suffix, layout.b_suffix);
            return Err(FormatError::tensor(path, key, format!("unexpected key; expected {expected}")));
        };
        let pair = found.entry(place).or_default();
        if let Some((first, _)) = pair[side] {
            return Err(FormatError::tensor(path, key, format!("names the same matrix as `{first}`")));
        }
        pair[side] = Some((key, tensor));
    }
    let mut matrices = Vec::with_capacity(found.len());
    for ((block, name), pair) in found {
        let module = format!("model.layers.{block}.{name}");
        match pair {
            [Some(a), Some(b)] => matrices.push(read_pair(path, module, a, b, layout, rank)?),
            [Some((key, _)), None] | [None, Some((key, _))] => {
                let stem = key.strip_suffix(layout.a_suffix).or(key.strip_suffix(layout.b_suffix)).unwrap_or(key);
                let is_a = key.ends_with(layout.a_suffix);
                let missing = if is_a { layout.b_suffix } else { layout.a_suffix };
                return Err(FormatError::tensor(path, format!("{stem}{missing}"), format!("missing beside `{key}`")));
            }
            [None, None] => {}
        }
    }
    Ok(matrices)
}

/// `((3, "self_attn.q_proj"), 0)` for A, side 1 for B.
fn parse_key(key: &str, layout: &Layout) -> Option<((usize, String), usize)> {
    let rest = key.strip_prefix(layout.prefix)?;
    let (stem, side) = match rest.strip_suffix(layout.a_suffix) {
        Some(stem) => (stem, 0),
        None => (rest.strip_suffix(layout.b_suffix)?, 1),
    };
    let module = hugging_face_name(stem)?;
    let (block, name) = block_and_name(&module)?;
    (!name.is_empty()).then(|| ((block, name.to_owned()), side))
}

fn read_pair(
    path: &Path,
    module: String,
    (a_key, a): Named,
    (b_key, b): Named,
    layout: &Layout,
    rank: usize,
) -> Result<AdapterMatrix, FormatError> {
    let (a_shape, b_shape) = (matrix_shape(path, a_key, a)?, matrix_shape(path, b_key, b)?);
    let ([a_rank, k_in], [n_out, b_rank]) =
        if layout.transposed { ([a_shape[1], a_shape[0]], [b_shape[1], b_shape[0]]) } else { (a_shape, b_shape) };
    for (key, found, shape) in [(a_key, a_rank, a_shape), (b_key, b_rank, b_shape)] {
        if found != rank {
            let problem = format!("shape {shape:?} is of rank {found}, the configuration says {rank}");
            return Err(FormatError::tensor(path, key, problem));
        }
    }
    let (mut a, mut b) = (values(path, a_key, a)?, values(path, b_key, b)?);
    if layout.transposed {
        (a, b) = (transpose(&a, rank), transpose(&b, n_out));
    }
    Ok(AdapterMatrix { module, n_out, k_in, a, b })
}

fn matrix_shape(path: &Path, key: &str, tensor: &StoredTensor) -> Result<[usize; 2], FormatError> {
    match tensor.shape.as_slice() {
        &[rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
        other => Err(FormatError::tensor(path, key, format!("shape {other:?}, expected a matrix"))),
    }
}

fn values(path: &Path, key: &str, tensor: &StoredTensor) -> Result<Vec<f32>, FormatError> {
    let Some(float_type) = tensor.float_type() else {
        let problem = format!("type {}, expected F32, F16 or BF16", tensor.type_name);
        return Err(FormatError::tensor(path, key, problem));
    };
    let bytes = tensor.data.bytes();
    let mut values = vec![0.0; bytes.len() / float_type.bytes()];
    float_type.widen(bytes, &mut values);
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(FormatError::tensor(path, key, format!("element {index} is not finite"))),
        None => Ok(values),
    }
}

/// The transpose of a row-major matrix with `columns` columns.
pub(super) fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    (0..values.len()).map(|index| values[index % rows * columns + index / rows]).collect()
}
