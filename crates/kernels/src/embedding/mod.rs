//! Embedding rows, read from the packed tiles that a tied output head multiplies with too. The embedding is frozen:
//! there is no backward.

#[cfg(test)]
mod tests;

use crate::arena::Tensor;
use crate::ops::{Ops, Work};
use crate::qlinear::PackedMatrix;

impl Ops {
    /// `out[t] = scale * weight[tokens[t]]` (overwritten) for weight [V, D], out [T, D].
    pub fn embedding_forward(&mut self, weight: &PackedMatrix, tokens: &[u32], scale: f32, out: Tensor) {
        assert_eq!((out.rows(), out.columns()), (tokens.len(), weight.k_in()), "shape of the embeddings");
        let known = tokens.iter().all(|token| (*token as usize) < weight.n_out());
        assert!(known, "a token is not below the vocabulary size {}", weight.n_out());
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let columns = out.columns();
        let out = self.place(out);
        self.pool.run(tokens.len(), &|row, _| {
            // SAFETY: each task has its own row of `columns` floats.
            let out = unsafe { std::slice::from_raw_parts_mut(out.at(row * columns), columns) };
            weight.dequantize_row(tokens[row] as usize, out);
            if scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= scale);
            }
        });
    }
}
