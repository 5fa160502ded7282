//! Attention with whole matrices of scores, [queries, keys] for each head, masked pairs multiplied too: what the tiled
//! one saves. Only comparisons use it.

use super::AttentionShape;
use super::tile::Rows;
use crate::arena::Tensor;
use crate::ops::{Carver, Ops, Work, scratch_size};
use crate::place::Place;
use crate::simd::product::Product;
use crate::simd::{self, Kernel, LANES, Simd, exp_up_to_88, pack_rows, transpose_into};

/// The tensors of both directions; a forward has no gradients.
#[derive(Clone, Copy)]
pub struct WholeAttention {
    /// [Tq, H d]
    pub q: Tensor,
    /// [Tk, KV d]
    pub k: Tensor,
    /// [Tk, KV d]
    pub v: Tensor,
    /// [Tq, H d]
    pub out: Tensor,
    /// [Tq, H]
    pub log_sum_exp: Tensor,
}

/// The scratch of one worker.
#[derive(Clone, Copy)]
struct Scratch {
    /// [Tq, padded head_dim], times the scale
    queries: *mut f32,
    /// [Tq, padded head_dim]
    douts: *mut f32,
    /// [Tk, padded head_dim], keys or values
    packed: *mut f32,
    /// [head_dim, padded Tk], keys or values
    transposed: *mut f32,
    /// [Tq, padded Tk]
    probabilities: *mut f32,
    /// [Tq, padded Tk]
    dscores: *mut f32,
    /// [max(Tq, Tk), padded head_dim], an output of this head
    part: *mut f32,
}

impl Scratch {
    fn lengths(shape: &AttentionShape, queries: usize, keys: usize) -> [usize; 7] {
        let (padded, keys_padded) = (shape.padded_head_dim(), keys.next_multiple_of(LANES));
        let (rows, scores) = (queries * padded, queries * keys_padded);
        [rows, rows, keys * padded, shape.head_dim * keys_padded, scores, scores, queries.max(keys) * padded]
    }
    fn byte_len(shape: &AttentionShape, queries: usize, keys: usize) -> usize {
        Self::lengths(shape, queries, keys).iter().map(|len| scratch_size::<f32>(*len)).sum()
    }
    fn carve(shape: &AttentionShape, queries: usize, keys: usize, start: *mut u8) -> Self {
        let mut carver = Carver::new(start);
        let [queries, douts, packed, transposed, probabilities, dscores, part] =
            Self::lengths(shape, queries, keys).map(|len| carver.take::<f32>(len));
        Self { queries, douts, packed, transposed, probabilities, dscores, part }
    }
}

/// The gradients of one head's group: dout, and dq, dk, dv where wanted.
#[derive(Clone, Copy)]
struct Gradients {
    dout: *const f32,
    dq: Option<*mut f32>,
    dk: Option<*mut f32>,
    dv: Option<*mut f32>,
    /// The first head of its group overwrites dk and dv, the others add.
    adds: bool,
}

/// One query head. Pointers are at its first row; rows of all heads apart.
struct Head<'a> {
    shape: &'a AttentionShape,
    positions: &'a [u32],
    keys: usize,
    q: *const f32,
    k: *const f32,
    v: *const f32,
    out: *mut f32,
    log_sum_exp: *mut f32,
    gradients: Option<Gradients>,
    scratch: Scratch,
}

impl Kernel for Head<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (shape, scratch, head_dim) = (self.shape, self.scratch, self.shape.head_dim);
        let (padded, keys_padded) = (shape.padded_head_dim(), self.keys.next_multiple_of(LANES));
        let (q_row, k_row, queries) = (shape.heads * head_dim, shape.kv_heads * head_dim, self.positions.len());
        // SAFETY: scratch was carved for these queries and keys; all rows exist, as `check` asserted.
        unsafe {
            pack_rows::<S>(self.q, q_row, queries, head_dim, shape.scale, scratch.queries, padded);
            transpose_into::<S>(self.k, k_row, self.keys, head_dim, scratch.transposed, keys_padded, keys_padded);
            S::call(self.product(scratch.queries, scratch.transposed, scratch.probabilities));
            let Some(Gradients { dout, dq, dk, dv, adds }) = self.gradients else {
                self.softmax::<S>();
                pack_rows::<S>(self.v, k_row, self.keys, head_dim, 1.0, scratch.packed, padded);
                S::call(self.weighted(scratch.probabilities, scratch.packed));
                for query in 0..queries {
                    let (from, to) = (scratch.part.add(query * padded), self.out.add(query * q_row));
                    std::ptr::copy_nonoverlapping(from, to, head_dim);
                }
                return;
            };
            pack_rows::<S>(dout, q_row, queries, head_dim, 1.0, scratch.douts, padded);
            transpose_into::<S>(self.v, k_row, self.keys, head_dim, scratch.transposed, keys_padded, keys_padded);
            S::call(self.product(scratch.douts, scratch.transposed, scratch.dscores));
            self.score_gradients::<S>(dout);
            if let Some(dq) = dq {
                pack_rows::<S>(self.k, k_row, self.keys, head_dim, shape.scale, scratch.packed, padded);
                S::call(self.weighted(scratch.dscores, scratch.packed));
                for query in 0..queries {
                    let from = scratch.part.add(query * padded);
                    std::ptr::copy_nonoverlapping(from, dq.add(query * q_row), head_dim);
                }
            }
            for (to, weights, rows) in
                [(dk, scratch.dscores, scratch.queries), (dv, scratch.probabilities, scratch.douts)]
            {
                let Some(to) = to else { continue };
                S::call(Product {
                    a: weights,
                    a_row: 1,
                    a_step: keys_padded,
                    b: rows,
                    b_row: padded,
                    c: scratch.part,
                    c_row: padded,
                    m: self.keys,
                    k: queries,
                    n: padded,
                    accumulate: false,
                });
                for i in (0..self.keys).flat_map(|key| (0..head_dim).map(move |i| (key, i))) {
                    let (from, to) = (*scratch.part.add(i.0 * padded + i.1), to.add(i.0 * k_row + i.1));
                    *to = if adds { *to + from } else { from };
                }
            }
        }
    }
}

impl Head<'_> {
    /// `to [Tq, padded Tk] = rows [Tq, d] * transposed [d, padded Tk]`
    fn product(&self, rows: *const f32, transposed: *const f32, to: *mut f32) -> Product {
        let keys_padded = self.keys.next_multiple_of(LANES);
        Product {
            a: rows,
            a_row: self.shape.padded_head_dim(),
            a_step: 1,
            b: transposed,
            b_row: keys_padded,
            c: to,
            c_row: keys_padded,
            m: self.positions.len(),
            k: self.shape.head_dim,
            n: keys_padded,
            accumulate: false,
        }
    }

    /// `part [Tq, padded d] = weights [Tq, Tk] * rows [Tk, padded d]`
    fn weighted(&self, weights: *const f32, rows: *const f32) -> Product {
        let padded = self.shape.padded_head_dim();
        Product {
            a: weights,
            a_row: self.keys.next_multiple_of(LANES),
            a_step: 1,
            b: rows,
            b_row: padded,
            c: self.scratch.part,
            c_row: padded,
            m: self.positions.len(),
            k: self.keys,
            n: padded,
            accumulate: false,
        }
    }

    /// Keys that a query sees.
    fn seen(&self, query: usize) -> std::ops::Range<usize> {
        let window = self.shape.window.unwrap_or(usize::MAX);
        let rows = Rows { positions: self.positions, group: 1, window };
        rows.first_key(query)..rows.end_key(query)
    }

    /// Scores become probabilities, those of unseen keys zero.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self) {
        let keys_padded = self.keys.next_multiple_of(LANES);
        for query in 0..self.positions.len() {
            let seen = self.seen(query);
            // SAFETY: the query has a row of `keys_padded` scores.
            unsafe {
                let row =
                    std::slice::from_raw_parts_mut(self.scratch.probabilities.add(query * keys_padded), keys_padded);
                row[..seen.start].fill(f32::NEG_INFINITY);
                row[seen.end..].fill(f32::NEG_INFINITY);
                let mut largest = S::splat(f32::NEG_INFINITY);
                for i in (0..keys_padded).step_by(LANES) {
                    largest = largest.max(S::load(row.as_ptr().add(i)));
                }
                let maximum = largest.reduce_max();
                let mut total = S::zero();
                for i in (0..keys_padded).step_by(LANES) {
                    let p = exp_up_to_88(S::load(row.as_ptr().add(i)) - S::splat(maximum));
                    p.store(row.as_mut_ptr().add(i));
                    total = total + p;
                }
                let total = total.reduce_add();
                for i in (0..keys_padded).step_by(LANES) {
                    (S::load(row.as_ptr().add(i)) * S::splat(1.0 / total)).store(row.as_mut_ptr().add(i));
                }
                *self.log_sum_exp.add(query * self.shape.heads) = maximum + total.ln();
            }
        }
    }

    /// Scores become probabilities, dP becomes dS, both zero where a key is not seen.
    #[inline(always)]
    unsafe fn score_gradients<S: Simd>(&self, dout: *const f32) {
        let (keys_padded, row) = (self.keys.next_multiple_of(LANES), self.shape.heads * self.shape.head_dim);
        for query in 0..self.positions.len() {
            let seen = self.seen(query);
            // SAFETY: the query has rows of `keys_padded` scores and of `head_dim` in out and dout.
            unsafe {
                let p =
                    std::slice::from_raw_parts_mut(self.scratch.probabilities.add(query * keys_padded), keys_padded);
                let ds = std::slice::from_raw_parts_mut(self.scratch.dscores.add(query * keys_padded), keys_padded);
                p[..seen.start].fill(f32::NEG_INFINITY);
                p[seen.end..].fill(f32::NEG_INFINITY);
                let mean = (0..self.shape.head_dim)
                    .map(|i| *dout.add(query * row + i) * *self.out.add(query * row + i).cast_const())
                    .sum();
                let (mean, log_sum_exp) = (S::splat(mean), S::splat(*self.log_sum_exp.add(query * self.shape.heads)));
                for i in (0..keys_padded).step_by(LANES) {
                    let probability = exp_up_to_88(S::load(p.as_ptr().add(i)) - log_sum_exp);
                    probability.store(p.as_mut_ptr().add(i));
                    (probability * (S::load(ds.as_ptr().add(i)) - mean)).store(ds.as_mut_ptr().add(i));
                }
            }
        }
    }
}

impl Ops {
    /// As [`Ops::attention_forward`], through whole matrices of scores.
    pub fn whole_attention_forward(&mut self, shape: &AttentionShape, positions: &[u32], tensors: &WholeAttention) {
        self.whole_attention(shape, positions, tensors, None);
    }

    /// As [`Ops::attention_backward`], through whole matrices of scores.
    pub fn whole_attention_backward(
        &mut self,
        shape: &AttentionShape,
        positions: &[u32],
        tensors: &WholeAttention,
        dout: Tensor,
        [dq, dk, dv]: [Option<Tensor>; 3],
    ) {
        for gradient in [dk, dv].into_iter().flatten() {
            // Keys behind the last position are no query's.
            self.fill(gradient, 0.0);
        }
        self.whole_attention(shape, positions, tensors, Some((dout, [dq, dk, dv])));
    }

    fn whole_attention(
        &mut self,
        shape: &AttentionShape,
        positions: &[u32],
        tensors: &WholeAttention,
        gradients: Option<(Tensor, [Option<Tensor>; 3])>,
    ) {
        let WholeAttention { q, k, v, out, log_sum_exp } = *tensors;
        shape.check(positions, q, k, v);
        let (queries, keys) = (positions.len(), positions.last().map_or(0, |last| *last as usize + 1));
        let products = match &gradients {
            None => 2,
            Some((_, [dq, dk, dv])) => 2 + [dq, dk, dv].into_iter().flatten().count(),
        };
        let macs = (products * queries * keys * shape.heads * shape.head_dim) as u64;
        let worker_bytes = Scratch::byte_len(shape, queries, keys);
        if !self.begin(Work::Attention, macs, worker_bytes * self.options.threads.max(1)) {
            return;
        }
        let isa = self.options.isa;
        let scratch = Place::new(self.scratch_start());
        let [q, k, v, out, log_sum_exp] = [q, k, v, out, log_sum_exp].map(|tensor| self.place(tensor));
        let gradients = gradients.map(|(dout, gradients)| {
            (self.place(dout), gradients.map(|gradient| gradient.map(|gradient| self.place(gradient))))
        });
        self.pool.run(shape.kv_heads, &|kv_head, worker| {
            for member in 0..shape.group() {
                let head = kv_head * shape.group() + member;
                let (at, key_at) = (head * shape.head_dim, kv_head * shape.head_dim);
                // SAFETY: a task has all query heads of its key/value head to itself, a worker its own scratch.
                unsafe {
                    let gradients = gradients.map(|(dout, [dq, dk, dv])| Gradients {
                        dout: dout.at(at),
                        dq: dq.map(|dq| dq.at(at)),
                        dk: dk.map(|dk| dk.at(key_at)),
                        dv: dv.map(|dv| dv.at(key_at)),
                        adds: member > 0,
                    });
                    let head = Head {
                        shape,
                        positions,
                        keys,
                        q: q.at(at),
                        k: k.at(key_at),
                        v: v.at(key_at),
                        out: out.at(at),
                        log_sum_exp: log_sum_exp.at(head),
                        gradients,
                        scratch: Scratch::carve(shape, queries, keys, scratch.at(worker * worker_bytes)),
                    };
                    simd::dispatch(isa, head);
                }
            }
        });
    }
}
