//! Causal attention with grouped key/value heads and an optional sliding window, forward and backward, without a
//! matrix of [queries, keys]: tiles of scores live in the caches, a running maximum and sum per row join them
//! (Dao et al., "FlashAttention").

mod backward;
mod cache;
#[cfg(test)]
mod cache_tests;
mod forward;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod tile;
mod turns;
mod whole;

use cache::Paged;
pub use cache::{CacheFormat, CachedRows, KeyValueCache, PAGE_POSITIONS, PageTables};

use crate::arena::Tensor;
use crate::ops::{Ops, Work};
use crate::place::{assert_apart, assert_same_shape};
use crate::simd::LANES;
pub use whole::WholeAttention;

/// What an attention op is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    /// Even, at most 256.
    pub head_dim: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A query sees the last `window` positions up to its own; all earlier ones without a window.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// Query heads for each key/value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
    /// Floats of a packed row.
    fn padded_head_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }
    /// Unmasked pairs of one head.
    fn pairs(&self, positions: &[u32]) -> u64 {
        let window = self.window.unwrap_or(usize::MAX);
        positions.iter().map(|position| (*position as usize + 1).min(window) as u64).sum()
    }

    fn check_queries(&self, positions: &[u32], q: Tensor) {
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "heads per key/value head");
        assert!((1..=256).contains(&self.head_dim) && self.head_dim.is_multiple_of(2), "head_dim {}", self.head_dim);
        assert!(self.window != Some(0), "a window holds at least the own position");
        assert_eq!((q.rows(), q.columns()), (positions.len(), self.heads * self.head_dim), "shape of q");
        assert!(positions.is_sorted(), "positions decrease");
    }
    fn check(&self, positions: &[u32], q: Tensor, k: Tensor, v: Tensor) {
        self.check_queries(positions, q);
        assert_eq!(k.columns(), self.kv_heads * self.head_dim, "columns of k");
        assert_same_shape(("k", k), ("v", v));
        assert!(positions.last().is_none_or(|last| (*last as usize) < k.rows()), "a position has no key");
    }
}

/// What the queries of a forward see.
#[derive(Clone, Copy)]
enum AttentionInput<'a> {
    Tensors { k: Tensor, v: Tensor },
    Cache { cache: &'a KeyValueCache, texts: &'a [u32], tables: PageTables<'a> },
}

impl Ops {
    /// `out`, `log_sum_exp` (overwritten) for query rows at `positions` (non-decreasing, below `k.rows()`) and keys
    /// at 0, 1, 2...: q, out [Tq, H d]; k, v [Tk, KV d]; log_sum_exp [Tq, H], needed by the backward.
    #[allow(clippy::too_many_arguments)]
    pub fn attention_forward(
        &mut self,
        shape: &AttentionShape,
        positions: &[u32],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        log_sum_exp: Tensor,
    ) {
        shape.check(positions, q, k, v);
        assert_apart(("out", out), &[("k", k), ("v", v)]);
        assert_apart(("log_sum_exp", log_sum_exp), &[("k", k), ("v", v)]);
        self.attend(shape, positions, q, AttentionInput::Tensors { k, v }, out, log_sum_exp);
    }

    /// The same over keys and values in `cache`: query row i sees its text up to its own position, which must be
    /// there already ([`Ops::cache_keys_values`]). A row's result is what it would be alone, and equals
    /// [`Ops::attention_forward`] over the values as they are stored, bit for bit in float32.
    pub fn attention_cached(
        &mut self,
        shape: &AttentionShape,
        cache: &KeyValueCache,
        rows: CachedRows,
        q: Tensor,
        out: Tensor,
        log_sum_exp: Tensor,
    ) {
        shape.check_queries(rows.positions, q);
        cache::check_shape(cache, shape);
        rows.check(cache);
        for (name, output) in [("out", out), ("log_sum_exp", log_sum_exp)] {
            assert_apart((name, output), &[("cache", cache.tensor())]);
        }
        let CachedRows { positions, texts, tables } = rows;
        self.attend(shape, positions, q, AttentionInput::Cache { cache, texts, tables }, out, log_sum_exp);
    }

    fn attend(
        &mut self,
        shape: &AttentionShape,
        positions: &[u32],
        q: Tensor,
        input: AttentionInput,
        out: Tensor,
        log_sum_exp: Tensor,
    ) {
        assert_same_shape(("q", q), ("out", out));
        assert_eq!((log_sum_exp.rows(), log_sum_exp.columns()), (q.rows(), shape.heads), "shape of log_sum_exp");
        assert_apart(("out", out), &[("q", q)]);
        assert_apart(("log_sum_exp", log_sum_exp), &[("q", q), ("out", out)]);
        let macs = 2 * shape.pairs(positions) * (shape.heads * shape.head_dim) as u64;
        let scratch = forward::scratch_bytes(shape, positions.len(), self.options.threads.max(1));
        if self.begin(Work::Attention, macs, scratch) {
            forward::run(self, shape, positions, q, input, [out, log_sum_exp]);
        }
    }

    /// Gradients of q, k and v (each overwritten; what is `None` is not computed) from `dout` and the tensors of
    /// the forward.
    #[allow(clippy::too_many_arguments)]
    pub fn attention_backward(
        &mut self,
        shape: &AttentionShape,
        positions: &[u32],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        log_sum_exp: Tensor,
        dout: Tensor,
        dq: Option<Tensor>,
        dk: Option<Tensor>,
        dv: Option<Tensor>,
    ) {
        shape.check(positions, q, k, v);
        assert_same_shape(("q", q), ("out", out));
        assert_same_shape(("q", q), ("dout", dout));
        assert_eq!((log_sum_exp.rows(), log_sum_exp.columns()), (q.rows(), shape.heads), "shape of log_sum_exp");
        let inputs = [("q", q), ("k", k), ("v", v), ("out", out), ("log_sum_exp", log_sum_exp), ("dout", dout)];
        let outputs = [("dq", dq, q), ("dk", dk, k), ("dv", dv, v)];
        for (name, output, like) in outputs {
            if let Some(output) = output {
                assert_same_shape((name, output), ("its input", like));
                assert_apart((name, output), &inputs);
            }
        }
        for (a, b) in [(dq, dk), (dq, dv), (dk, dv)] {
            assert!(a.zip(b).is_none_or(|(a, b)| !a.overlaps(&b)), "gradients overlap");
        }
        // Scores again, dP unless only dv is wanted, and one product per gradient.
        let scores_wanted = u64::from(dq.is_some() || dk.is_some() || dv.is_some());
        let dp_wanted = u64::from(dq.is_some() || dk.is_some());
        let products = scores_wanted + dp_wanted + [dq, dk, dv].iter().flatten().count() as u64;
        let macs = products * shape.pairs(positions) * (shape.heads * shape.head_dim) as u64;
        let scratch = backward::scratch_bytes(shape, positions, self.options.threads.max(1));
        for gradient in [dq, dk, dv].into_iter().flatten() {
            self.fill(gradient, 0.0);
        }
        if self.begin(Work::Attention, macs, scratch) && scores_wanted > 0 {
            let tensors = backward::Tensors { q, k, v, out, log_sum_exp, dout, dq, dk, dv };
            backward::run(self, shape, positions, &tensors);
        }
    }
}
