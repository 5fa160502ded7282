//! Blocking and kernels of the adapter products.
//!
//! Each output element belongs to one task: hidden rows, y and dx to blocks of tokens. The common dimension is walked
//! in fixed pieces, so no sum depends on the number of threads.

use super::backward::Parts;
use super::dropout::{Dropout, Mask};
use crate::arena::Tensor;
use crate::isa::Isa;
use crate::ops::{Carver, Ops, scratch_size};
use crate::place::Place;
use crate::simd::product::{DotProduct, Product, TILE_ROWS};
use crate::simd::{self, Kernel, LANES, Simd, add_rows, pack_rows, transpose_into};

/// Tokens in a task of the forward, and the most at a time in the backward: their rows of x and of one y stay in the
/// second-level cache.
pub(super) const BLOCK_TOKENS: usize = 32;
/// Columns of x (or dy) in a piece of a row product: six rows of it and four of the adapter stay in the
/// first-level cache.
const PIECE_COLUMNS: usize = 1024;
/// Columns of y (or dx) that are computed aside when they cannot be added to directly.
pub(super) const PART_COLUMNS: usize = 512;

/// Rows of b in a task that turns them.
const TURNED_ROWS: usize = 1024;

/// The scratch of one worker.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// [TILE_ROWS, PIECE_COLUMNS], x under the dropout mask
    masked: *mut f32,
    /// [BLOCK_TOKENS, PART_COLUMNS], a part of y or dx, or of x under the mask
    pub part: *mut f32,
    /// [BLOCK_TOKENS, rank]
    pub dhidden: *mut f32,
    /// [rank, PART_COLUMNS], a part of da or db
    pub sums: *mut f32,
    /// [PART_COLUMNS, padded rank]
    pub sums_transposed: *mut f32,
}

impl Scratch {
    fn lengths(rank: usize) -> [usize; 5] {
        [
            TILE_ROWS * PIECE_COLUMNS,
            BLOCK_TOKENS * PART_COLUMNS,
            BLOCK_TOKENS * rank,
            rank * PART_COLUMNS,
            PART_COLUMNS * rank.next_multiple_of(LANES),
        ]
    }
    fn byte_len(rank: usize) -> usize {
        Self::lengths(rank).iter().map(|len| scratch_size::<f32>(*len)).sum()
    }
    fn carve(rank: usize, start: *mut u8) -> Self {
        let mut carver = Carver::new(start);
        let [masked, part, dhidden, sums, sums_transposed] = Self::lengths(rank).map(|len| carver.take::<f32>(len));
        Self { masked, part, dhidden, sums, sums_transposed }
    }
}

/// `to [rank, columns padded] = factor * b^T` for rows `first..first + count` of b [N, rank].
struct TransposeColumns {
    b: *const f32,
    rank: usize,
    first: usize,
    count: usize,
    factor: f32,
    to: *mut f32,
    to_row: usize,
}

impl Kernel for TransposeColumns {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (rank, to_row) = (self.rank, self.to_row);
        let padded = self.count.next_multiple_of(LANES);
        // SAFETY: the rows are inside b, the columns inside the padded rows of `to`.
        unsafe {
            let to = self.to.add(self.first);
            transpose_into::<S>(self.b.add(self.first * rank), rank, self.count, rank, to, to_row, padded);
            pack_rows::<S>(to, to_row, rank, padded, self.factor, to, to_row);
        }
    }
}

/// `hidden [m, rank] = mask(x) weights^T` for a block of `m` tokens.
pub(super) struct Reduce {
    pub x: *const f32,
    pub columns: usize,
    pub m: usize,
    /// Index of x's first element in the mask.
    pub first_index: usize,
    pub mask: Option<Mask>,
    /// [rank, columns], rows `weights_row` apart
    pub weights: *const f32,
    pub weights_row: usize,
    pub rank: usize,
    /// Rows of `rank`.
    pub hidden: *mut f32,
    pub scratch: Scratch,
}

impl Kernel for Reduce {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in (0..self.m).step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(self.m - row);
            for start in (0..self.columns).step_by(PIECE_COLUMNS) {
                let count = PIECE_COLUMNS.min(self.columns - start);
                // SAFETY: rows and columns are inside x and the weights.
                unsafe {
                    let mut x = (self.x.add(row * self.columns + start), self.columns);
                    if let Some(mask) = self.mask {
                        for r in 0..rows {
                            let at = (row + r) * self.columns + start;
                            let to = self.scratch.masked.add(r * PIECE_COLUMNS);
                            mask.apply::<S>(self.first_index + at, self.x.add(at), to, count);
                        }
                        x = (self.scratch.masked.cast_const(), PIECE_COLUMNS);
                    }
                    S::call(DotProduct {
                        a: x.0,
                        a_row: x.1,
                        b: self.weights.add(start),
                        b_row: self.weights_row,
                        c: self.hidden.add(row * self.rank),
                        c_row: self.rank,
                        m: rows,
                        n: self.rank,
                        k: count,
                        accumulate: start > 0,
                    });
                }
            }
        }
    }
}

/// `to [m, columns] += mask * (hidden weights)` for a block of `m` tokens.
pub(super) struct Expand {
    /// Rows of `rank`.
    pub hidden: *const f32,
    pub m: usize,
    pub rank: usize,
    /// [rank, columns], rows `weights_row` apart
    pub weights: *const f32,
    pub weights_row: usize,
    /// The last `columns % 16` columns of the weights, padded to 16; rows `tail_row` apart
    pub tail: *const f32,
    pub tail_row: usize,
    pub to: *mut f32,
    pub columns: usize,
    pub first_index: usize,
    pub mask: Option<Mask>,
    pub scratch: Scratch,
}

impl Kernel for Expand {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let whole = self.columns / LANES * LANES;
        // SAFETY: all columns are inside `to` and the weights.
        unsafe {
            if self.mask.is_none() {
                S::call(self.product(self.weights, self.weights_row, self.to, self.columns, whole, true));
            } else {
                for start in (0..whole).step_by(PART_COLUMNS) {
                    let count = PART_COLUMNS.min(whole - start);
                    let weights = self.weights.add(start);
                    S::call(self.product(weights, self.weights_row, self.scratch.part, PART_COLUMNS, count, false));
                    self.add_part::<S>(start, count);
                }
            }
            if whole < self.columns {
                S::call(self.product(self.tail, self.tail_row, self.scratch.part, PART_COLUMNS, LANES, false));
                self.add_part::<S>(whole, self.columns - whole);
            }
        }
    }
}

impl Expand {
    #[inline(always)]
    fn product(&self, b: *const f32, b_row: usize, c: *mut f32, c_row: usize, n: usize, accumulate: bool) -> Product {
        let (a, a_row, a_step) = (self.hidden, self.rank, 1);
        Product { a, a_row, a_step, b, b_row, c, c_row, m: self.m, k: self.rank, n, accumulate }
    }

    /// Adds the part to columns `start..start + count`, under the mask.
    #[inline(always)]
    unsafe fn add_part<S: Simd>(&self, start: usize, count: usize) {
        for row in 0..self.m {
            let at = row * self.columns + start;
            // SAFETY: the columns are inside `to`, the part has `count` rounded up to 16 columns.
            unsafe {
                let part = self.scratch.part.add(row * PART_COLUMNS);
                if let Some(mask) = self.mask {
                    mask.apply::<S>(self.first_index + at, part, part, count);
                }
                add_rows::<S>(part, PART_COLUMNS, 1, count, 1.0, self.to.add(at), self.columns);
            }
        }
    }
}

/// The matrices of an adapter and its input.
#[derive(Clone, Copy)]
pub(super) struct Adapter {
    pub x: Tensor,
    pub a: Tensor,
    pub b: Tensor,
    pub scale: f32,
    pub dropout: Dropout,
    pub hidden: Tensor,
    /// y, or its gradient.
    pub y: Tensor,
    /// Of a and b, added to; none in the forward and for an adapter that does not learn.
    pub gradients: Option<(Tensor, Tensor)>,
}

/// Adapters of one input that are computed together at most: what one block of it needs is done while it is near.
pub(super) const TOGETHER_MAX: usize = 4;

/// An adapter's places in the arena and in scratch.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub a: Place,
    pub hidden: Place,
    pub y: Place,
    pub gradients: Option<(Place, Place)>,
    pub rank: usize,
    pub n: usize,
    pub scale: f32,
    pub mask: Option<Mask>,
    /// `scale * b^T` [rank, N padded]
    pub b_transposed: Place,
    /// The last K % 16 columns of a [rank, 16]
    pub a_tail: Place,
    /// Sums of da and db^T for each part of the text: [parts, rank, K padded] and [parts, rank, N padded]
    pub sums: [Place; 2],
}

fn shared_lengths(adapter: &Adapter) -> [usize; 4] {
    let rank = adapter.a.rows();
    let [k, n] = [adapter.a.columns(), adapter.b.rows()].map(|columns| rank * columns.next_multiple_of(LANES));
    let parts = adapter.gradients.map_or(0, |_| Parts::new(adapter.y.rows()).count);
    [n, rank * LANES, parts * k, parts * n]
}

fn rank_max(adapters: &[Adapter]) -> usize {
    adapters.iter().map(|adapter| adapter.a.rows()).max().unwrap_or(0)
}

/// Bytes of scratch for either direction.
pub(super) fn scratch_bytes(adapters: &[Adapter], threads: usize) -> usize {
    let shared: usize = adapters.iter().flat_map(shared_lengths).map(scratch_size::<f32>).sum();
    shared + Scratch::byte_len(rank_max(adapters)) * threads
}

/// Several adapters of one x [T, K], ready to run.
pub(super) struct Group {
    placed: [Placed; TOGETHER_MAX],
    count: usize,
    pub x: Place,
    pub tokens: usize,
    pub k: usize,
    pub isa: Isa,
    /// The largest rank: what [`Scratch`] has room for.
    rank_max: usize,
    workers: Place<u8>,
}

impl Group {
    /// Carves scratch and fills the transposed matrices. Shapes were checked, scratch was asked for.
    pub fn new(ops: &mut Ops, adapters: &[Adapter]) -> Self {
        let mut carver = Carver::new(ops.scratch_start());
        let isa = ops.options.isa;
        let placed: [Placed; TOGETHER_MAX] = std::array::from_fn(|index| {
            let adapter = &adapters[index.min(adapters.len() - 1)];
            // Places beyond the last adapter are never used.
            let lengths = if index < adapters.len() { shared_lengths(adapter) } else { [0; 4] };
            let [b_transposed, a_tail, a_sums, b_sums] = lengths.map(|len| Place::new(carver.take::<f32>(len)));
            let gradients = adapter.gradients.map(|(da, db)| (ops.place(da), ops.place(db)));
            let [a, hidden, y] = [adapter.a, adapter.hidden, adapter.y].map(|tensor| ops.place(tensor));
            let (rank, n, scale, mask) = (adapter.a.rows(), adapter.b.rows(), adapter.scale, adapter.dropout.mask());
            Placed { a, hidden, y, gradients, rank, n, scale, mask, b_transposed, a_tail, sums: [a_sums, b_sums] }
        });
        let (tokens, k) = (adapters[0].x.rows(), adapters[0].x.columns());
        let used = &placed[..adapters.len()];
        for Placed { a, rank, a_tail, .. } in used {
            // SAFETY: `a_tail` has rank rows of 16.
            unsafe { simd::dispatch(isa, PackTail { a: a.at(0), columns: k, rank: *rank, to: a_tail.at(0) }) };
        }
        let b: [Place; TOGETHER_MAX] =
            std::array::from_fn(|index| ops.place(adapters[index.min(adapters.len() - 1)].b));
        let pieces = |placed: &Placed| placed.n.div_ceil(TURNED_ROWS);
        ops.pool.run(used.iter().map(pieces).sum(), &|mut task, _| {
            for (placed, b) in used.iter().zip(b) {
                if task < pieces(placed) {
                    let Placed { rank, n, scale: factor, b_transposed, .. } = *placed;
                    let first = task * TURNED_ROWS;
                    let (count, to_row) = (TURNED_ROWS.min(n - first), n.next_multiple_of(LANES));
                    // SAFETY: tasks cover disjoint columns of each `b_transposed`; TURNED_ROWS is a multiple of 16.
                    unsafe {
                        let (b, to) = (b.at(0).cast_const(), b_transposed.at(0));
                        simd::dispatch(isa, TransposeColumns { b, rank, first, count, factor, to, to_row });
                    }
                    return;
                }
                task -= pieces(placed);
            }
        });
        let (x, workers) = (ops.place(adapters[0].x), Place::new(carver.take::<u8>(0)));
        Self { placed, count: adapters.len(), x, tokens, k, isa, rank_max: rank_max(adapters), workers }
    }

    pub fn adapters(&self) -> &[Placed] {
        &self.placed[..self.count]
    }

    /// # Safety
    /// The worker is one of those that scratch was asked for.
    pub unsafe fn scratch(&self, worker: usize) -> Scratch {
        let bytes = Scratch::byte_len(self.rank_max);
        // SAFETY: each worker has its own part of scratch.
        unsafe { Scratch::carve(self.rank_max, self.workers.at(worker * bytes)) }
    }
}

/// hidden and y of every adapter. Shapes were checked, scratch was asked for.
pub(super) fn forward(ops: &mut Ops, adapters: &[Adapter]) {
    let group = Group::new(ops, adapters);
    let (tokens, k) = (group.tokens, group.k);
    ops.pool.run(tokens.div_ceil(BLOCK_TOKENS), &|task, worker| {
        let token = task * BLOCK_TOKENS;
        let m = BLOCK_TOKENS.min(tokens - token);
        for adapter in group.adapters() {
            let Placed { rank, n, mask, .. } = *adapter;
            let weights_row = n.next_multiple_of(LANES);
            // SAFETY: each task has its own rows of hidden and y; each worker its own scratch.
            unsafe {
                let scratch = group.scratch(worker);
                let hidden = adapter.hidden.at(token * rank);
                let reduce = Reduce {
                    x: group.x.at(token * k),
                    columns: k,
                    m,
                    first_index: token * k,
                    mask,
                    weights: adapter.a.at(0),
                    weights_row: k,
                    rank,
                    hidden,
                    scratch,
                };
                simd::dispatch(group.isa, reduce);
                let expand = Expand {
                    hidden,
                    m,
                    rank,
                    weights: adapter.b_transposed.at(0),
                    weights_row,
                    tail: adapter.b_transposed.at(n / LANES * LANES),
                    tail_row: weights_row,
                    to: adapter.y.at(token * n),
                    columns: n,
                    first_index: 0,
                    mask: None,
                    scratch,
                };
                simd::dispatch(group.isa, expand);
            }
        }
    });
}

/// The last `columns % 16` columns of `a` [rank, columns], padded with zeros to 16.
struct PackTail {
    a: *const f32,
    columns: usize,
    rank: usize,
    to: *mut f32,
}

impl Kernel for PackTail {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let whole = self.columns / LANES * LANES;
        // SAFETY: the columns are inside a, `to` has rank rows of 16.
        unsafe { pack_rows::<S>(self.a.add(whole), self.columns, self.rank, self.columns - whole, 1.0, self.to, LANES) }
    }
}
