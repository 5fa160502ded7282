//! The backward direction: probabilities again from scores and `log_sum_exp`, then
//! `dv = P^T dout`, `dP = dout v^T`, `dS = P (dP - rowsum(dout out))`, `dq = scale dS k`, `dk = scale dS^T q`.
//!
//! The unit of work is a pair (block of queries, block of keys) of one key/value head. It adds to the block's dq
//! and to the keys' dk and dv. Pairs belong to rounds (`turns`), every block meets its partners in the order of the
//! rounds, and a pair waits for no more than its two blocks' last ones. So scores are computed once, nothing is stored
//! for all pairs, and threads never change a sum.

use super::AttentionShape;
use super::tile::{Rows, TILE_KEYS};
use super::turns::{Turns, TurnsShape};
use crate::arena::Tensor;
use crate::ops::{Carver, Ops, scratch_size};
use crate::place::Place;
use crate::simd::product::{Product, TILE_ROWS};
use crate::simd::{self, Kernel, LANES, Simd, add_rows, exp_up_to_88, pack_rows, transpose_into};

/// Rows of a pair at least (if there are so many). More of them share the packed keys; their scores must stay in the
/// second-level cache.
const BLOCK_ROWS: usize = 192;
/// Tiles of keys of a pair: they share the packed rows. More leave fewer pairs to work on at a time.
const BLOCK_TILES: usize = 2;
const BLOCK_KEYS: usize = BLOCK_TILES * TILE_KEYS;

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
    /// [rows, padded head_dim], the pair's part of dq before the scale
    dqueries: *mut f32,
    /// [TILE_ROWS, padded head_dim], a part of dk or dv
    part: *mut f32,
}

impl Scratch {
    /// Floats of each part for blocks of `rows` rows.
    fn lengths(shape: &AttentionShape, rows: usize) -> [usize; 9] {
        let (head_dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let (row_floats, key_floats, score_floats) = (rows * padded, head_dim * TILE_KEYS, rows * TILE_KEYS);
        let part = TILE_ROWS * padded;
        [
            row_floats,
            row_floats,
            TILE_KEYS * padded,
            key_floats,
            key_floats,
            score_floats,
            score_floats,
            row_floats,
            part,
        ]
    }
    fn byte_len(shape: &AttentionShape, rows: usize) -> usize {
        Self::lengths(shape, rows).iter().map(|len| scratch_size::<f32>(*len)).sum()
    }
    /// Takes the parts from the `byte_len` bytes at `start`.
    fn carve(shape: &AttentionShape, rows: usize, start: *mut u8) -> Self {
        let mut carver = Carver::new(start);
        let [queries, douts, keys, keys_transposed, values_transposed, probabilities, dscores, dqueries, part] =
            Self::lengths(shape, rows).map(|len| carver.take::<f32>(len));
        Self { queries, douts, keys, keys_transposed, values_transposed, probabilities, dscores, dqueries, part }
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
        // SAFETY: scratch was carved for the block; all pointers cover it.
        unsafe {
            if (0..self.keys).step_by(TILE_KEYS).all(|tile| self.seeing(tile).is_empty()) {
                return;
            }
            self.pack_rows::<S>();
            for start in (0..self.keys).step_by(TILE_KEYS) {
                let keys = TILE_KEYS.min(self.keys - start);
                let seeing = self.seeing(start);
                if !seeing.is_empty() {
                    self.key_tile::<S>(start, keys, seeing);
                }
            }
            self.add_dq::<S>();
        }
    }
}

impl Pair<'_> {
    /// Rows that see some key of the tile at `tile` (from the block's first): those that reach its start and whose
    /// window has not left it.
    #[inline(always)]
    fn seeing(&self, tile: usize) -> std::ops::Range<usize> {
        let (start, rows) = (self.start + tile, self.rows);
        let end_key = start + TILE_KEYS.min(self.keys - tile);
        let (mut first_row, mut end_row) = (0, rows.len());
        while first_row < end_row && rows.end_key(first_row) <= start {
            first_row += rows.group;
        }
        while end_row > first_row && rows.first_key(end_row - 1) >= end_key {
            end_row -= rows.group;
        }
        first_row..end_row
    }

    /// One tile of keys with the rows that see it.
    #[inline(always)]
    unsafe fn key_tile<S: Simd>(&self, tile: usize, keys: usize, seeing: std::ops::Range<usize>) {
        let keys_row = self.shape.kv_heads * self.shape.head_dim;
        // SAFETY: as in `run`.
        unsafe {
            self.pack_keys::<S>(tile, keys);
            for row in seeing.clone().step_by(TILE_ROWS) {
                self.row_tile::<S>(self.start + tile, row..seeing.end.min(row + TILE_ROWS));
            }
            let scratch = self.scratch;
            if let Some(dv) = self.dv {
                let dv = dv.add(tile * keys_row);
                self.key_gradient::<S>(tile, keys, seeing.clone(), scratch.probabilities, scratch.douts, dv);
            }
            if let Some(dk) = self.dk {
                let dk = dk.add(tile * keys_row);
                self.key_gradient::<S>(tile, keys, seeing, scratch.dscores, scratch.queries, dk);
            }
        }
    }

    fn wants_dscores(&self) -> bool {
        self.dq.is_some() || self.dk.is_some()
    }

    /// Packs the block's rows and clears its part of dq.
    #[inline(always)]
    unsafe fn pack_rows<S: Simd>(&self) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded, group) = (shape.head_dim, shape.padded_head_dim(), shape.group());
        // SAFETY: as in `run`.
        unsafe {
            for query in 0..self.rows.positions.len() {
                let (from, to) = (query * shape.heads * head_dim, query * group * padded);
                let queries = scratch.queries.add(to);
                pack_rows::<S>(self.q.add(from), head_dim, group, head_dim, shape.scale, queries, padded);
                pack_rows::<S>(self.dout.add(from), head_dim, group, head_dim, 1.0, scratch.douts.add(to), padded);
            }
            if self.dq.is_some() {
                for i in (0..self.rows.len() * padded).step_by(LANES) {
                    S::zero().store(scratch.dqueries.add(i));
                }
            }
        }
    }

    /// Packs a tile of keys and values.
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(&self, tile: usize, keys: usize) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let keys_row = shape.kv_heads * head_dim;
        let keys_padded = keys.next_multiple_of(LANES);
        // SAFETY: as in `run`.
        unsafe {
            let (k, v) = (self.k.add(tile * keys_row), self.v.add(tile * keys_row));
            let (k_t, v_t) = (scratch.keys_transposed, scratch.values_transposed);
            transpose_into::<S>(k, keys_row, keys, head_dim, k_t, TILE_KEYS, keys_padded);
            if self.wants_dscores() {
                transpose_into::<S>(v, keys_row, keys, head_dim, v_t, TILE_KEYS, keys_padded);
            }
            if self.dq.is_some() {
                pack_rows::<S>(k, keys_row, keys, head_dim, 1.0, scratch.keys, padded);
            }
        }
    }

    /// Adds the block's part of dq.
    #[inline(always)]
    unsafe fn add_dq<S: Simd>(&self) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded, group) = (shape.head_dim, shape.padded_head_dim(), shape.group());
        let Some(dq) = self.dq else { return };
        for query in 0..self.rows.positions.len() {
            // SAFETY: as in `run`.
            unsafe {
                let (part, to) = (scratch.dqueries.add(query * group * padded), dq.add(query * shape.heads * head_dim));
                add_rows::<S>(part, padded, group, head_dim, shape.scale, to, head_dim);
            }
        }
    }

    /// Probabilities and score gradients of a tile of rows for the tile of keys at `start`, and what they add to dq.
    #[inline(always)]
    unsafe fn row_tile<S: Simd>(&self, start: usize, tile: std::ops::Range<usize>) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded, group) = (shape.head_dim, shape.padded_head_dim(), shape.group());
        let seen = self.rows.seen(tile.clone(), start);
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
            let unmasked = self.rows.see_all(tile.clone(), start);
            let (mut query, mut head) = (tile.start / group, tile.start % group);
            for row in tile.clone() {
                let at = query * shape.heads + head;
                head += 1;
                if head == group {
                    (query, head) = (query + 1, 0);
                }
                match unmasked {
                    true => self.probabilities_row::<S, false>(row, at, 0..TILE_KEYS),
                    false => self.probabilities_row::<S, true>(row, at, self.rows.seen(row..row + 1, start)),
                }
            }
            if self.dq.is_some() {
                S::call(Product {
                    a: scratch.dscores.add(tile.start * TILE_KEYS + seen.start),
                    a_row: TILE_KEYS,
                    a_step: 1,
                    b: scratch.keys.add(seen.start * padded),
                    b_row: padded,
                    c: scratch.dqueries.add(tile.start * padded),
                    c_row: padded,
                    m: tile.len(),
                    k: seen.len(),
                    n: padded,
                    accumulate: true,
                });
            }
        }
    }

    /// A row's scores become probabilities, and dP becomes dS; zeros for keys outside `own`. `at` is the row in
    /// log_sum_exp.
    #[inline(always)]
    unsafe fn probabilities_row<S: Simd, const MASKED: bool>(
        &self,
        row: usize,
        at: usize,
        own: std::ops::Range<usize>,
    ) {
        // SAFETY: a row of scores has TILE_KEYS floats, the row lies in the block.
        unsafe {
            let p = self.scratch.probabilities.add(row * TILE_KEYS);
            let ds = self.scratch.dscores.add(row * TILE_KEYS);
            let lse = S::splat(*self.log_sum_exp.add(at));
            let dout_out = S::splat(*self.dout_out.add(at));
            let (first, end) = (S::splat(own.start as f32), S::splat(own.end as f32));
            // A fixed number of vectors, so that they run side by side; what no product wrote is outside `own`.
            for i in (0..TILE_KEYS).step_by(LANES) {
                let seen = |x: S| {
                    if !MASKED {
                        return x;
                    }
                    let key = S::lane_numbers() + S::splat(i as f32);
                    key.select_less(first, S::zero(), key.select_less(end, x, S::zero()))
                };
                let probability = seen(exp_up_to_88(S::load(p.add(i)) - lse));
                probability.store(p.add(i));
                if self.wants_dscores() {
                    seen(probability * (S::load(ds.add(i)) - dout_out)).store(ds.add(i));
                }
            }
        }
    }

    /// `to[key] += sum over rows of weights[row, key] * vectors[row]`: dk or dv of a tile of keys.
    #[inline(always)]
    unsafe fn key_gradient<S: Simd>(
        &self,
        tile: usize,
        keys: usize,
        seeing: std::ops::Range<usize>,
        weights: *const f32,
        vectors: *const f32,
        to: *mut f32,
    ) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let keys_row = shape.kv_heads * head_dim;
        let (mut first_row, end_row) = (seeing.start, seeing.end);
        for key in (0..keys).step_by(TILE_ROWS) {
            let keys = TILE_ROWS.min(keys - key);
            // Rows before the first that sees this key have zero weight.
            while first_row < end_row && self.rows.end_key(first_row) <= self.start + tile + key {
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

/// Queries of a task that makes row sums.
const SUM_QUERIES: usize = 16;

/// Keys that some query may see.
fn key_count(positions: &[u32]) -> usize {
    positions.last().map_or(0, |last| *last as usize + 1)
}

/// The blocks of a backward.
fn turns_shape(shape: &AttentionShape, positions: &[u32]) -> TurnsShape {
    TurnsShape {
        heads: shape.kv_heads,
        key_blocks: key_count(positions).div_ceil(BLOCK_KEYS),
        query_blocks: positions.len().div_ceil(block_queries(shape)),
    }
}

/// Bytes of scratch for all workers, the row sums and the order of pairs.
pub(super) fn scratch_bytes(shape: &AttentionShape, positions: &[u32], threads: usize) -> usize {
    let rows = positions.len().min(block_queries(shape)) * shape.group();
    scratch_size::<f32>(positions.len() * shape.heads)
        + scratch_size::<u32>(turns_shape(shape, positions).counters())
        + Scratch::byte_len(shape, rows) * threads
}

/// Runs all pairs. Shapes were checked, scratch was asked for, wanted gradients are zero.
pub(super) fn run(ops: &mut Ops, shape: &AttentionShape, positions: &[u32], tensors: &Tensors) {
    let (queries, row) = (positions.len(), shape.heads * shape.head_dim);
    let isa = ops.options.isa;
    let turns_shape = turns_shape(shape, positions);
    let mut carver = Carver::new(ops.scratch_start());
    let dout_out = Place::new(carver.take::<f32>(queries * shape.heads));
    // SAFETY: scratch for the counters was asked for, and nothing else uses it while `turns` lives.
    let turns = unsafe { Turns::new(turns_shape, carver.take::<u32>(turns_shape.counters()).cast()) };
    let scratch = Place::new(carver.take::<u8>(0));
    let [q, k, v, out, lse, dout] =
        [tensors.q, tensors.k, tensors.v, tensors.out, tensors.log_sum_exp, tensors.dout].map(|t| ops.place(t));
    let [dq, dk, dv] = [tensors.dq, tensors.dk, tensors.dv].map(|t| t.map(|t| ops.place(t)));
    ops.pool.run(queries.div_ceil(SUM_QUERIES), &|task, _| {
        let first = task * SUM_QUERIES;
        let heads = SUM_QUERIES.min(queries - first) * shape.heads;
        // SAFETY: each task has its own rows of inputs and sums.
        unsafe {
            let (dout, out, to) = (dout.at(first * row), out.at(first * row), dout_out.at(first * shape.heads));
            simd::dispatch(isa, DoutOut { dout, out, heads, head_dim: shape.head_dim, to });
        }
    });
    let query_block = block_queries(shape);
    let block_rows = queries.min(query_block) * shape.group();
    let key_count = key_count(positions);
    let window = shape.window.unwrap_or(usize::MAX);
    let block_positions =
        |block: usize| &positions[block * query_block..queries.min(block * query_block + query_block)];
    // Whether some query of a block may see some key of a block.
    let meet = |query_block: usize, key_block: usize| {
        let (positions, start) = (block_positions(query_block), key_block * BLOCK_KEYS);
        let end_key = |query: u32| query as usize + 1;
        end_key(positions[positions.len() - 1]) > start
            && end_key(positions[0]).saturating_sub(window) < start + BLOCK_KEYS
    };
    ops.pool.run_in_order(turns.tasks(), &|task, worker| {
        let Some(turn) = turns.take(task, &meet) else { return };
        let start = turn.key_block * BLOCK_KEYS;
        let rows = Rows { positions: block_positions(turn.query_block), group: shape.group(), window };
        let first_head = turn.query_block * query_block * shape.heads + turn.head * shape.group();
        let first_float = first_head * shape.head_dim;
        let key_float = (start * shape.kv_heads + turn.head) * shape.head_dim;
        // SAFETY: no other pair with these queries and heads or these keys runs before the turn ends; each worker has
        // its own scratch.
        unsafe {
            let scratch = scratch.at(worker * Scratch::byte_len(shape, block_rows));
            let pair = Pair {
                shape,
                rows,
                start,
                keys: BLOCK_KEYS.min(key_count - start),
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
