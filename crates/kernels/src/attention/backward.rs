//! The backward direction: probabilities again from scores and `log_sum_exp`, then
//! `dv = P^T dout`, `dP = dout v^T`, `dS = P (dP - rowsum(dout out))`, `dq = scale dS k`, `dk = scale dS^T q`.
//!
//! The unit of work is a pair (block of queries, block of keys) of one key/value head. It adds to the block's dq
//! and to the keys' dk and dv. Pairs run in rounds: round s holds the pairs whose block numbers differ by s (modulo
//! the number of blocks), so no two pairs of a round share a block, and every block meets its partners in one
//! fixed order. Scores are computed once, nothing is stored for all pairs, and threads never change a sum.

use super::AttentionShape;
use super::tile::{Rows, TILE_KEYS};
use crate::arena::Tensor;
use crate::ops::{Carver, Ops, scratch_size};
use crate::place::Place;
use crate::simd::product::{Product, TILE_ROWS};
use crate::simd::{self, Kernel, LANES, Simd, add_rows, exp_up_to_88, pack_rows, transpose_into};

/// Rows of a pair at least (if there are so many): their scores stay in the second-level cache.
const BLOCK_ROWS: usize = 128;

/// Queries in a block.
fn block_queries(shape: &AttentionShape) -> usize {
    BLOCK_ROWS.div_ceil(shape.group())
}

/// Tensors of an attention backward.
pub(super) struct Tensors {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub out: Tensor,
    pub log_sum_exp: Tensor,
    pub dout: Tensor,
    pub dq: Option<Tensor>,
    pub dk: Option<Tensor>,
    pub dv: Option<Tensor>,
}

/// The scratch of one worker.
#[derive(Clone, Copy)]
struct Scratch {
    /// [rows, padded head_dim], times the scale
    queries: *mut f32,
    /// [rows, padded head_dim]
    douts: *mut f32,
    /// [TILE_KEYS, padded head_dim]
    keys: *mut f32,
    /// [head_dim, TILE_KEYS]
    keys_transposed: *mut f32,
    /// [head_dim, TILE_KEYS]
    values_transposed: *mut f32,
    /// [rows, TILE_KEYS]
    probabilities: *mut f32,
    /// [rows, TILE_KEYS]
    dscores: *mut f32,
    /// [TILE_ROWS, padded head_dim], a part of dq, dk or dv
    part: *mut f32,
}

impl Scratch {
    /// Floats of each part for blocks of `rows` rows.
    fn lengths(shape: &AttentionShape, rows: usize) -> [usize; 8] {
        let (head_dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let (row_floats, key_floats, score_floats) = (rows * padded, head_dim * TILE_KEYS, rows * TILE_KEYS);
        let part = TILE_ROWS * padded;
        [row_floats, row_floats, TILE_KEYS * padded, key_floats, key_floats, score_floats, score_floats, part]
    }
    fn byte_len(shape: &AttentionShape, rows: usize) -> usize {
        Self::lengths(shape, rows).iter().map(|len| scratch_size::<f32>(*len)).sum()
    }
    /// Takes the parts from the `byte_len` bytes at `start`.
    fn carve(shape: &AttentionShape, rows: usize, start: *mut u8) -> Self {
        let mut carver = Carver::new(start);
        let [queries, douts, keys, keys_transposed, values_transposed, probabilities, dscores, part] =
            Self::lengths(shape, rows).map(|len| carver.take::<f32>(len));
        Self { queries, douts, keys, keys_transposed, values_transposed, probabilities, dscores, part }
    }
}

/// One pair of blocks. Row pointers as in the forward: queries at the first head of the group, keys at the head.
struct Pair<'a> {
    shape: &'a AttentionShape,
    rows: Rows<'a>,
    /// First key of the block and number of keys.
    start: usize,
    keys: usize,
    q: *const f32,
    dout: *const f32,
    k: *const f32,
    v: *const f32,
    /// Rows of `heads` apart, at the first head.
    log_sum_exp: *const f32,
    /// `rowsum(dout out)`, as log_sum_exp.
    dout_out: *const f32,
    dq: Option<*mut f32>,
    dk: Option<*mut f32>,
    dv: Option<*mut f32>,
    scratch: Scratch,
}

impl Kernel for Pair<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (rows, row_count) = (self.rows, self.rows.len());
        // Rows that see some key of the block: those that reach its start and whose window has not left it.
        let mut first_row = 0;
        while first_row < row_count && rows.end_key(first_row) <= self.start {
            first_row += rows.group;
        }
        let mut end_row = row_count;
        while end_row > first_row && rows.first_key(end_row - 1) >= self.start + self.keys {
            end_row -= rows.group;
        }
        if first_row >= end_row {
            return;
        }
        // SAFETY: scratch was carved for the block; all pointers cover it.
        unsafe {
            self.pack::<S>();
            for row in (first_row..end_row).step_by(TILE_ROWS) {
                self.row_tile::<S>(row..end_row.min(row + TILE_ROWS));
            }
            if let Some(dv) = self.dv {
                self.key_gradient::<S>(first_row, end_row, self.scratch.probabilities, self.scratch.douts, dv);
            }
            if let Some(dk) = self.dk {
                self.key_gradient::<S>(first_row, end_row, self.scratch.dscores, self.scratch.queries, dk);
            }
        }
    }
}

impl Pair<'_> {
    fn wants_dscores(&self) -> bool {
        self.dq.is_some() || self.dk.is_some()
    }

    /// Packs the block's rows and keys.
    #[inline(always)]
    unsafe fn pack<S: Simd>(&self) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded, group) = (shape.head_dim, shape.padded_head_dim(), shape.group());
        let keys_row = shape.kv_heads * head_dim;
        let keys_padded = self.keys.next_multiple_of(LANES);
        // SAFETY: as in `run`.
        unsafe {
            for query in 0..self.rows.positions.len() {
                let (from, to) = (query * shape.heads * head_dim, query * group * padded);
                let queries = scratch.queries.add(to);
                pack_rows::<S>(self.q.add(from), head_dim, group, head_dim, shape.scale, queries, padded);
                pack_rows::<S>(self.dout.add(from), head_dim, group, head_dim, 1.0, scratch.douts.add(to), padded);
            }
            let (keys, k_t, v_t) = (self.keys, scratch.keys_transposed, scratch.values_transposed);
            transpose_into::<S>(self.k, keys_row, keys, head_dim, k_t, TILE_KEYS, keys_padded);
            if self.wants_dscores() {
                transpose_into::<S>(self.v, keys_row, keys, head_dim, v_t, TILE_KEYS, keys_padded);
            }
            if self.dq.is_some() {
                pack_rows::<S>(self.k, keys_row, keys, head_dim, 1.0, scratch.keys, padded);
            }
        }
    }

    /// Probabilities and score gradients of a tile of rows, and what it adds to dq.
    #[inline(always)]
    unsafe fn row_tile<S: Simd>(&self, tile: std::ops::Range<usize>) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded, group) = (shape.head_dim, shape.padded_head_dim(), shape.group());
        let seen = self.rows.seen(tile.clone(), self.start);
        let (first_vector, end_vector) = (seen.start / LANES * LANES, seen.end.next_multiple_of(LANES));
        let scores = |from: *mut f32, with: *mut f32, to: *mut f32| Product {
            // SAFETY: the tile and the vectors are inside the packed parts.
            a: unsafe { from.add(tile.start * padded) },
            a_row: padded,
            a_step: 1,
            // SAFETY: as above.
            b: unsafe { with.add(first_vector) },
            b_row: TILE_KEYS,
            // SAFETY: as above.
            c: unsafe { to.add(tile.start * TILE_KEYS + first_vector) },
            c_row: TILE_KEYS,
            m: tile.len(),
            k: head_dim,
            n: end_vector - first_vector,
            accumulate: false,
        };
        // SAFETY: as in `run`.
        unsafe {
            S::call(scores(scratch.queries, scratch.keys_transposed, scratch.probabilities));
            if self.wants_dscores() {
                S::call(scores(scratch.douts, scratch.values_transposed, scratch.dscores));
            }
            for row in tile.clone() {
                let own = self.rows.seen(row..row + 1, self.start);
                let at = row / group * shape.heads + row % group;
                let p = scratch.probabilities.add(row * TILE_KEYS);
                let ds = scratch.dscores.add(row * TILE_KEYS);
                let lse = S::splat(*self.log_sum_exp.add(at));
                let dout_out = S::splat(*self.dout_out.add(at));
                for i in (own.start / LANES * LANES..own.end).step_by(LANES) {
                    let probability = exp_up_to_88(S::load(p.add(i)) - lse);
                    probability.store(p.add(i));
                    if self.wants_dscores() {
                        (probability * (S::load(ds.add(i)) - dout_out)).store(ds.add(i));
                    }
                }
                clear_outside(p, &own);
                clear_outside(ds, &own);
            }
            if let Some(dq) = self.dq {
                S::call(Product {
                    a: scratch.dscores.add(tile.start * TILE_KEYS + seen.start),
                    a_row: TILE_KEYS,
                    a_step: 1,
                    b: scratch.keys.add(seen.start * padded),
                    b_row: padded,
                    c: scratch.part,
                    c_row: padded,
                    m: tile.len(),
                    k: seen.len(),
                    n: padded,
                    accumulate: false,
                });
                for row in tile.clone() {
                    let part = scratch.part.add((row - tile.start) * padded);
                    let to = dq.add((row / group * shape.heads + row % group) * head_dim);
                    add_rows::<S>(part, padded, 1, head_dim, shape.scale, to, head_dim);
                }
            }
        }
    }

    /// `to[key] += sum over rows of weights[row, key] * vectors[row]`: dk or dv of the block's keys.
    #[inline(always)]
    unsafe fn key_gradient<S: Simd>(
        &self,
        first_row: usize,
        end_row: usize,
        weights: *const f32,
        vectors: *const f32,
        to: *mut f32,
    ) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let keys_row = shape.kv_heads * head_dim;
        let mut first_row = first_row;
        for key in (0..self.keys).step_by(TILE_ROWS) {
            let keys = TILE_ROWS.min(self.keys - key);
            // Rows before the first that sees this key have zero weight.
            while first_row < end_row && self.rows.end_key(first_row) <= self.start + key {
                first_row += self.rows.group;
            }
            if first_row >= end_row {
                return;
            }
            // SAFETY: as in `run`.
            unsafe {
                S::call(Product {
                    a: weights.add(first_row * TILE_KEYS + key),
                    a_row: 1,
                    a_step: TILE_KEYS,
                    b: vectors.add(first_row * padded),
                    b_row: padded,
                    c: scratch.part,
                    c_row: padded,
                    m: keys,
                    k: end_row - first_row,
                    n: padded,
                    accumulate: false,
                });
                add_rows::<S>(scratch.part, padded, keys, head_dim, 1.0, to.add(key * keys_row), keys_row);
            }
        }
    }
}

/// Zeros for the keys of a tile that a row does not see.
#[inline(always)]
unsafe fn clear_outside(row: *mut f32, seen: &std::ops::Range<usize>) {
    for i in (0..seen.start).chain(seen.end..TILE_KEYS) {
        // SAFETY: a row of scores has TILE_KEYS floats.
        unsafe { *row.add(i) = 0.0 }
    }
}

/// `rowsum(dout out)` for the heads of one query row.
struct DoutOut {
    dout: *const f32,
    out: *const f32,
    heads: usize,
    head_dim: usize,
    to: *mut f32,
}

impl Kernel for DoutOut {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for head in 0..self.heads {
            let mut sum = S::zero();
            for i in (0..self.head_dim).step_by(LANES) {
                let (at, rest) = (head * self.head_dim + i, self.head_dim - i);
                // SAFETY: the row has `heads * head_dim` floats.
                unsafe {
                    sum = S::load_up_to(self.dout.add(at), rest).mul_add(S::load_up_to(self.out.add(at), rest), sum);
                }
            }
            // SAFETY: there is one sum for each head.
            unsafe { *self.to.add(head) = sum.reduce_add() }
        }
    }
}

/// Bytes of scratch for all workers and the row sums.
pub(super) fn scratch_bytes(shape: &AttentionShape, queries: usize, threads: usize) -> usize {
    let rows = queries.min(block_queries(shape)) * shape.group();
    scratch_size::<f32>(queries * shape.heads) + Scratch::byte_len(shape, rows) * threads
}

/// Runs all pairs. Shapes were checked, scratch was asked for, wanted gradients are zero.
pub(super) fn run(ops: &mut Ops, shape: &AttentionShape, positions: &[u32], tensors: &Tensors) {
    let (queries, row) = (positions.len(), shape.heads * shape.head_dim);
    let isa = ops.options.isa;
    let mut carver = Carver::new(ops.scratch_start());
    let dout_out = Place::new(carver.take::<f32>(queries * shape.heads));
    let scratch = Place::new(carver.take::<u8>(0));
    let [q, k, v, out, lse, dout] =
        [tensors.q, tensors.k, tensors.v, tensors.out, tensors.log_sum_exp, tensors.dout].map(|t| ops.place(t));
    let [dq, dk, dv] = [tensors.dq, tensors.dk, tensors.dv].map(|t| t.map(|t| ops.place(t)));
    ops.pool.run(queries, &|query, _| {
        // SAFETY: each task has its own row of inputs and sums.
        unsafe {
            let (dout, out) = (dout.at(query * row), out.at(query * row));
            let (heads, head_dim) = (shape.heads, shape.head_dim);
            simd::dispatch(isa, DoutOut { dout, out, heads, head_dim, to: dout_out.at(query * heads) });
        }
    });
    let query_block = block_queries(shape);
    let block_rows = queries.min(query_block) * shape.group();
    let key_count = positions.last().map_or(0, |last| *last as usize + 1);
    let (key_blocks, query_blocks) = (key_count.div_ceil(TILE_KEYS), queries.div_ceil(query_block));
    let rounds = key_blocks.max(query_blocks);
    for round in 0..rounds {
        ops.pool.run(key_blocks * shape.kv_heads, &|task, worker| {
            let (key_block, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
            let first_query = (key_block + round) % rounds * query_block;
            if first_query >= queries {
                return;
            }
            let start = key_block * TILE_KEYS;
            let rows = Rows {
                positions: &positions[first_query..queries.min(first_query + query_block)],
                group: shape.group(),
                window: shape.window.unwrap_or(usize::MAX),
            };
            let first_head = first_query * shape.heads + kv_head * shape.group();
            let first_float = first_head * shape.head_dim;
            let key_float = (start * shape.kv_heads + kv_head) * shape.head_dim;
            // SAFETY: no other pair of this round has these queries and heads or these keys; each worker has its own
            // scratch.
            unsafe {
                let scratch = scratch.at(worker * Scratch::byte_len(shape, block_rows));
                let pair = Pair {
                    shape,
                    rows,
                    start,
                    keys: TILE_KEYS.min(key_count - start),
                    q: q.at(first_float),
                    dout: dout.at(first_float),
                    k: k.at(key_float),
                    v: v.at(key_float),
                    log_sum_exp: lse.at(first_head),
                    dout_out: dout_out.at(first_head),
                    dq: dq.map(|dq| dq.at(first_float)),
                    dk: dk.map(|dk| dk.at(key_float)),
                    dv: dv.map(|dv| dv.at(key_float)),
                    scratch: Scratch::carve(shape, block_rows, scratch),
                };
                simd::dispatch(isa, pair);
            }
        });
    }
}
