//! The forward direction: one task for each key/value head and block of queries.

use super::AttentionShape;
use super::tile::{Rows, TILE_KEYS};
use super::{AttentionInput, CacheFormat, Paged};
use crate::arena::Tensor;
use crate::ops::{Carver, Ops, scratch_size};
use crate::place::Place;
use crate::simd::product::{Product, TILE_ROWS};
use crate::simd::{self, Element, Kernel, LANES, Simd, exp_up_to_88, pack_rows, transpose_into};
use half::f16;

/// Rows of a task at least (if there are so many): packing a tile of keys and values costs about as much as
/// multiplying ten rows with it.
const BLOCK_ROWS: usize = 192;

/// The running maximum of a row moves when a score exceeds it by this. Exponentials then reach e^8 at most, which
/// costs no accuracy, and most tiles leave the sums as they are.
const SLACK: f32 = 8.0;

/// Queries in a block.
fn block_queries(shape: &AttentionShape) -> usize {
    BLOCK_ROWS.div_ceil(shape.group())
}

/// The scratch of one worker.
#[derive(Clone, Copy)]
struct Scratch {
    /// [rows, padded head_dim], times the scale
    queries: *mut f32,
    /// [head_dim, TILE_KEYS]
    keys_transposed: *mut f32,
    /// [TILE_KEYS, padded head_dim]
    values: *mut f32,
    /// [rows, padded head_dim], sums of exponentials times values
    sums: *mut f32,
    /// [rows]
    maxima: *mut f32,
    /// [rows, 16], sums of exponentials, lane by lane
    totals: *mut f32,
    /// [TILE_ROWS, TILE_KEYS]
    scores: *mut f32,
}

impl Scratch {
    /// Floats of each part for blocks of `rows` rows.
    fn lengths(shape: &AttentionShape, rows: usize) -> [usize; 7] {
        let (head_dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let row_floats = rows * padded;
        [row_floats, head_dim * TILE_KEYS, TILE_KEYS * padded, row_floats, rows, rows * LANES, TILE_ROWS * TILE_KEYS]
    }
    fn byte_len(shape: &AttentionShape, rows: usize) -> usize {
        Self::lengths(shape, rows).iter().map(|len| scratch_size::<f32>(*len)).sum()
    }
    /// Takes the parts from the `byte_len` bytes at `start`.
    fn carve(shape: &AttentionShape, rows: usize, start: *mut u8) -> Self {
        let mut carver = Carver::new(start);
        let [queries, keys_transposed, values, sums, maxima, totals, scores] =
            Self::lengths(shape, rows).map(|len| carver.take::<f32>(len));
        Self { queries, keys_transposed, values, sums, maxima, totals, scores }
    }
}

/// Where the keys and values of a block of queries come from.
pub(super) trait Source: Copy {
    type Element: Element;
    /// Whether products with keys and values are multiplied by a scale of their position.
    const SCALED: bool;
    /// Whether two queries of the block have the same keys in the tile at `start`.
    fn same_tile(&self, query: usize, other: usize, start: usize) -> bool;
    /// The first `keys` keys and values of the tile at `start`, as `query` sees them.
    ///
    /// # Safety
    /// The query sees one of them.
    unsafe fn tile<S: Simd>(&self, query: usize, start: usize, keys: usize) -> KeyTile<Self::Element>;
}

/// A tile of keys and values, ready to be multiplied.
pub(super) struct KeyTile<E> {
    /// [head_dim, TILE_KEYS]
    pub keys: *const E,
    /// [TILE_KEYS, padded head_dim]
    pub values: *const E,
    /// [TILE_KEYS] each; read if scaled.
    pub key_scales: *const f32,
    pub value_scales: *const f32,
}

/// Rows of two tensors, packed tile by tile.
#[derive(Clone, Copy)]
struct Tensors<'a> {
    shape: &'a AttentionShape,
    /// Key and value row 0 at the key/value head; rows of all key/value heads apart.
    k: *const f32,
    v: *const f32,
    scratch: Scratch,
}

impl Source for Tensors<'_> {
    type Element = f32;
    const SCALED: bool = false;
    #[inline(always)]
    fn same_tile(&self, _query: usize, _other: usize, _start: usize) -> bool {
        true
    }
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, _query: usize, start: usize, keys: usize) -> KeyTile<f32> {
        let Self { shape, scratch, .. } = *self;
        let (head_dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let keys_row = shape.kv_heads * head_dim;
        let keys_padded = keys.next_multiple_of(LANES);
        // SAFETY: the rows exist as some query sees the last of them; scratch has room for a tile.
        unsafe {
            let (k, v) = (self.k.add(start * keys_row), self.v.add(start * keys_row));
            transpose_into::<S>(k, keys_row, keys, head_dim, scratch.keys_transposed, TILE_KEYS, keys_padded);
            pack_rows::<S>(v, keys_row, keys, head_dim, 1.0, scratch.values, padded);
        }
        let none = std::ptr::null();
        KeyTile { keys: scratch.keys_transposed, values: scratch.values, key_scales: none, value_scales: none }
    }
}

/// One block: all rows of one key/value head and a range of queries.
struct Block<'a, K> {
    shape: &'a AttentionShape,
    rows: Rows<'a>,
    /// The block's first query row, at the first head of the group; rows of all heads apart.
    q: *const f32,
    source: K,
    /// As q.
    out: *mut f32,
    /// The block's first row at the first head of the group; rows of `heads` apart.
    log_sum_exp: *mut f32,
    scratch: Scratch,
}

impl<K: Source> Kernel for Block<'_, K> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (shape, rows, scratch) = (self.shape, self.rows, self.scratch);
        let (head_dim, padded, group) = (shape.head_dim, shape.padded_head_dim(), shape.group());
        let row_count = rows.len();
        let first_tile = rows.first_key(0) / TILE_KEYS * TILE_KEYS;
        let end_key = rows.end_key(row_count - 1);
        // SAFETY: scratch was carved for this many rows; keys below `end_key` exist, as `check` asserted.
        unsafe {
            for query in 0..rows.positions.len() {
                let from = self.q.add(query * shape.heads * head_dim);
                let to = scratch.queries.add(query * group * padded);
                pack_rows::<S>(from, head_dim, group, head_dim, shape.scale, to, padded);
            }
            for i in (0..row_count * padded).step_by(LANES) {
                S::zero().store(scratch.sums.add(i));
            }
            for row in 0..row_count {
                *scratch.maxima.add(row) = f32::NEG_INFINITY;
                S::zero().store(scratch.totals.add(row * LANES));
            }
            for start in (first_tile..end_key).step_by(TILE_KEYS) {
                let mut first = 0;
                while first < rows.positions.len() {
                    let same = |query: &usize| self.source.same_tile(first, *query, start);
                    let end =
                        (first + 1..rows.positions.len()).take_while(same).last().map_or(first + 1, |last| last + 1);
                    let run_rows = first * group..end * group;
                    // The last of them sees the furthest.
                    let keys = rows.end_key(run_rows.end - 1).saturating_sub(start).min(TILE_KEYS);
                    if keys > 0 {
                        let tile = self.source.tile::<S>(end - 1, start, keys);
                        for row in run_rows.clone().step_by(TILE_ROWS) {
                            self.row_tile::<S>(row..run_rows.end.min(row + TILE_ROWS), start, &tile);
                        }
                    }
                    first = end;
                }
            }
            self.finish::<S>();
        }
    }
}

impl<K: Source> Block<'_, K> {
    /// Joins the tile of keys at `start` into a tile of rows.
    #[inline(always)]
    unsafe fn row_tile<S: Simd>(&self, tile: std::ops::Range<usize>, start: usize, keys: &KeyTile<K::Element>) {
        let (shape, scratch) = (self.shape, self.scratch);
        let padded = shape.padded_head_dim();
        let seen = self.rows.seen(tile.clone(), start);
        if seen.is_empty() {
            return;
        }
        let first_vector = seen.start / LANES * LANES;
        let end_vector = seen.end.next_multiple_of(LANES);
        // SAFETY: rows and keys of the tile are inside the packed parts.
        unsafe {
            S::call(Product {
                a: scratch.queries.add(tile.start * padded),
                a_row: padded,
                a_step: 1,
                b: keys.keys.add(first_vector),
                b_row: TILE_KEYS,
                c: scratch.scores.add(first_vector),
                c_row: TILE_KEYS,
                m: tile.len(),
                k: shape.head_dim,
                n: end_vector - first_vector,
                accumulate: false,
            });
            let vectors = first_vector..end_vector;
            match vectors.len() / LANES {
                4 => self.softmax_rows::<S, 4>(tile.clone(), start, vectors, keys),
                3 => self.softmax_rows::<S, 3>(tile.clone(), start, vectors, keys),
                2 => self.softmax_rows::<S, 2>(tile.clone(), start, vectors, keys),
                _ => self.softmax_rows::<S, 1>(tile.clone(), start, vectors, keys),
            }
            S::call(Product {
                a: scratch.scores.add(seen.start),
                a_row: TILE_KEYS,
                a_step: 1,
                b: keys.values.add(seen.start * padded),
                b_row: padded,
                c: scratch.sums.add(tile.start * padded),
                c_row: padded,
                m: tile.len(),
                k: seen.len(),
                n: padded,
                accumulate: true,
            });
        }
    }

    /// Scores of a tile of rows, the `V` vectors at `vectors`, become exponentials. A fixed number of vectors, so that
    /// they run side by side.
    #[inline(always)]
    unsafe fn softmax_rows<S: Simd, const V: usize>(
        &self,
        tile: std::ops::Range<usize>,
        start: usize,
        vectors: std::ops::Range<usize>,
        keys: &KeyTile<K::Element>,
    ) {
        let unmasked = self.rows.see_all(tile.clone(), start);
        for row in tile.clone() {
            // SAFETY: the vectors lie in the row's TILE_KEYS scores and in the scales, the row in the block.
            unsafe {
                let scores = self.scratch.scores.add((row - tile.start) * TILE_KEYS + vectors.start);
                if K::SCALED {
                    multiply::<S, V>(scores, keys.key_scales.add(vectors.start));
                }
                let mut x: [S; V] = std::array::from_fn(|v| S::load(scores.add(v * LANES)));
                if !unmasked {
                    let own = self.rows.seen(row..row + 1, start);
                    if own.is_empty() {
                        // There may be no maximum yet, so -inf must not meet exp.
                        (0..V).for_each(|v| S::zero().store(scores.add(v * LANES)));
                        continue;
                    }
                    let relative = |key: usize| S::splat(key as f32 - vectors.start as f32);
                    let (first, end, unseen) = (relative(own.start), relative(own.end), S::splat(f32::NEG_INFINITY));
                    for (v, x) in x.iter_mut().enumerate() {
                        let key = S::lane_numbers() + S::splat((v * LANES) as f32);
                        *x = key.select_less(first, unseen, key.select_less(end, *x, unseen));
                    }
                }
                self.softmax_row::<S, V>(row, x, scores);
                if K::SCALED {
                    multiply::<S, V>(scores, keys.value_scales.add(vectors.start));
                }
            }
        }
    }

    /// Exponentials of a row's scores `x` under the running maximum; what is summed so far follows it.
    #[inline(always)]
    unsafe fn softmax_row<S: Simd, const V: usize>(&self, row: usize, x: [S; V], to: *mut f32) {
        let (scratch, padded) = (self.scratch, self.shape.padded_head_dim());
        // SAFETY: `to` has room for the vectors, the row lies in the block.
        unsafe {
            let largest = x.iter().fold(S::splat(f32::NEG_INFINITY), |largest, x| largest.max(*x));
            let maximum = scratch.maxima.add(row);
            let totals = scratch.totals.add(row * LANES);
            if largest.any_above(S::splat(*maximum + SLACK)) {
                let new = largest.reduce_max();
                if *maximum > f32::NEG_INFINITY {
                    let factor = exp_up_to_88(S::splat(*maximum - new));
                    let sums = scratch.sums.add(row * padded);
                    for i in (0..padded).step_by(LANES) {
                        (S::load(sums.add(i)) * factor).store(sums.add(i));
                    }
                    (S::load(totals) * factor).store(totals);
                }
                *maximum = new;
            }
            let (maximum, mut total) = (S::splat(*maximum), S::load(totals));
            for (v, x) in x.iter().enumerate() {
                let p = exp_up_to_88(*x - maximum);
                p.store(to.add(v * LANES));
                total = total + p;
            }
            total.store(totals);
        }
    }

    /// Writes the block's outputs.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self) {
        let (shape, scratch) = (self.shape, self.scratch);
        let (head_dim, padded, group) = (shape.head_dim, shape.padded_head_dim(), shape.group());
        for row in 0..self.rows.len() {
            let (query, head) = (row / group, row % group);
            // SAFETY: query and head are inside the block's outputs.
            unsafe {
                let max = *scratch.maxima.add(row);
                let total = S::load(scratch.totals.add(row * LANES)).reduce_add();
                let logarithm = f64::from(max) + f64::from(total).ln();
                *self.log_sum_exp.add(query * shape.heads + head) = logarithm as f32;
                let inverse = S::splat(1.0 / total);
                let sums = scratch.sums.add(row * padded);
                let out = self.out.add((query * shape.heads + head) * head_dim);
                for i in (0..head_dim).step_by(LANES) {
                    (S::load(sums.add(i)) * inverse).store_up_to(out.add(i), head_dim - i);
                }
            }
        }
    }
}

/// `x[i] *= factors[i]` over `V` vectors.
///
/// # Safety
/// Both have so many values.
#[inline(always)]
unsafe fn multiply<S: Simd, const V: usize>(x: *mut f32, factors: *const f32) {
    for i in (0..V).map(|v| v * LANES) {
        // SAFETY: as the caller promises.
        unsafe { (S::load(x.add(i)) * S::load(factors.add(i))).store(x.add(i)) }
    }
}

/// Bytes of scratch for all workers.
pub(super) fn scratch_bytes(shape: &AttentionShape, queries: usize, threads: usize) -> usize {
    Scratch::byte_len(shape, queries.min(block_queries(shape)) * shape.group()) * threads
}

/// Runs all blocks. Shapes were checked and scratch was asked for.
pub(super) fn run(
    ops: &mut Ops,
    shape: &AttentionShape,
    positions: &[u32],
    q: Tensor,
    input: AttentionInput,
    outputs: [Tensor; 2],
) {
    match input {
        AttentionInput::Tensors { k, v } => {
            let (k, v) = (ops.place(k), ops.place(v));
            run_blocks(ops, shape, positions, q, outputs, |_, kv_head, scratch| {
                // SAFETY: the head is inside the rows.
                let (k, v) = unsafe { (k.at(kv_head * shape.head_dim), v.at(kv_head * shape.head_dim)) };
                Tensors { shape, k, v, scratch }
            });
        }
        AttentionInput::Cache { cache, texts, tables } => {
            let pages = ops.place(cache.tensor());
            // Each head's pages as `Paged` reads them.
            macro_rules! paged {
                ($element:ty) => {
                    run_blocks(ops, shape, positions, q, outputs, |queries, kv_head, _| {
                        // SAFETY: the cache has this head, as was checked.
                        unsafe { Paged::<$element>::new(cache, pages.start(), kv_head, &texts[queries], tables) }
                    })
                };
            }
            match cache.format() {
                CacheFormat::Float32 => paged!(f32),
                CacheFormat::Float16 => paged!(f16),
                CacheFormat::Bits8 => paged!(i8),
            }
        }
    }
}

/// Runs all blocks over what `source` gives for a range of queries and a key/value head.
fn run_blocks<K: Source>(
    ops: &mut Ops,
    shape: &AttentionShape,
    positions: &[u32],
    q: Tensor,
    [out, log_sum_exp]: [Tensor; 2],
    source: impl Fn(std::ops::Range<usize>, usize, Scratch) -> K + Sync,
) {
    let block_queries = block_queries(shape);
    let blocks = positions.len().div_ceil(block_queries);
    let block_rows = positions.len().min(block_queries) * shape.group();
    let isa = ops.options.isa;
    let (q, out, log_sum_exp) = (ops.place(q), ops.place(out), ops.place(log_sum_exp));
    let scratch = Place::new(ops.scratch_start());
    ops.pool.run_in_order(blocks * shape.kv_heads, &|task, worker| {
        // The last blocks see the most keys: first, so that workers finish together.
        let first_query = (blocks - 1 - task / shape.kv_heads) * block_queries;
        let kv_head = task % shape.kv_heads;
        let queries = first_query..positions.len().min(first_query + block_queries);
        let rows = Rows {
            positions: &positions[queries.clone()],
            group: shape.group(),
            window: shape.window.unwrap_or(usize::MAX),
        };
        let first_head = first_query * shape.heads + kv_head * shape.group();
        // SAFETY: each task writes the rows of its own queries and heads; each worker has its own scratch.
        unsafe {
            let scratch = scratch.at(worker * Scratch::byte_len(shape, block_rows));
            let scratch = Scratch::carve(shape, block_rows, scratch);
            let block = Block {
                shape,
                rows,
                q: q.at(first_head * shape.head_dim),
                source: source(queries, kv_head, scratch),
                out: out.at(first_head * shape.head_dim),
                log_sum_exp: log_sum_exp.at(first_head),
                scratch,
            };
            simd::dispatch(isa, block);
        }
    });
}
