//! Parts of the work of a text on their own, for benchmarks: what a prompt and a step take at least.

use super::Generator;
use crate::projection::Projection;

impl Generator {
    /// Makes only the products with frozen weights that a prompt of `tokens` tokens needs, with whatever lies in the
    /// places of their inputs. The text in the cache stays.
    pub fn prompt_products(&mut self, tokens: usize) {
        let zeros = vec![0; self.program.chunk_rows()];
        for past in (0..tokens).step_by(zeros.len()) {
            let rows = zeros.len().min(tokens - past);
            self.batch.chunk(&zeros[..rows], past, std::iter::once(past + rows - 1));
            self.program.products(&mut self.ops, &self.batch);
        }
        self.program.head_product(&mut self.ops, 1);
    }

    /// Only reads the packed weights that every step reads, shared among the workers. Returns their bytes.
    pub fn read_weights(&mut self) -> usize {
        let model = &self.program.model;
        let blocks = model.blocks.iter();
        let of_block = blocks.flat_map(|block| Projection::ALL.map(|projection| &block.linear(projection).weight));
        let mut bytes = 0;
        for matrix in of_block.chain([&model.head]) {
            self.ops.read_packed(matrix);
            bytes += matrix.bytes().len();
        }
        bytes
    }

    /// Bytes of keys and values that a step reads for a token at `position`.
    pub fn cache_bytes_read(&self, position: usize) -> usize {
        self.program.cache_bytes_read(position)
    }

    /// Bytes planned for keys and values of all texts.
    pub fn cache_bytes(&self) -> usize {
        self.program.cache_bytes()
    }
}
