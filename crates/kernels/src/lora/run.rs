//! Blocking and kernels of the adapter products.
//!
//! Each output element belongs to one task: hidden rows, y and dx to blocks of tokens, da and db to strips of
//! columns. The common dimension is walked in fixed pieces, so no sum depends on the number of threads.

use super::dropout::{Dropout, Mask};
use crate::arena::Tensor;
use crate::ops::{Carver, Ops, scratch_size};
use crate::place::Place;
use crate::simd::product::{DotProduct, Product, TILE_ROWS};
use crate::simd::{self, Kernel, LANES, Simd, add_rows, pack_rows, transpose_into};

/// Tokens in a task.
const BLOCK_TOKENS: usize = 4 * TILE_ROWS;
/// Columns of x (or dy) in a piece of a row product: six rows of it and four of the adapter stay in the
/// first-level cache.
const PIECE_COLUMNS: usize = 1024;
/// Columns of y (or dx) that are computed aside when they cannot be added to directly.
const PART_COLUMNS: usize = 512;
/// Columns in a strip of da or db, and tokens in a piece of its sums.
const STRIP_COLUMNS: usize = 128;
const STRIP_TOKENS: usize = 64;

/// The scratch of one worker.
#[derive(Clone, Copy)]
struct Scratch {
    /// [TILE_ROWS, PIECE_COLUMNS], x under the dropout mask
    masked: *mut f32,
    /// [BLOCK_TOKENS, PART_COLUMNS], a part of y or dx
    part: *mut f32,
    /// [STRIP_TOKENS, STRIP_COLUMNS], a piece of x or dy
    strip: *mut f32,
    /// [rank, STRIP_COLUMNS], sums of a strip
    sums: *mut f32,
    /// [STRIP_COLUMNS, padded rank]
    sums_transposed: *mut f32,
}

impl Scratch {
    fn lengths(rank: usize) -> [usize; 5] {
        [
            TILE_ROWS * PIECE_COLUMNS,
            BLOCK_TOKENS * PART_COLUMNS,
            STRIP_TOKENS * STRIP_COLUMNS,
            rank * STRIP_COLUMNS,
            STRIP_COLUMNS * rank.next_multiple_of(LANES),
        ]
    }
    fn byte_len(rank: usize) -> usize {
        Self::lengths(rank).iter().map(|len| scratch_size::<f32>(*len)).sum()
    }
    fn carve(rank: usize, start: *mut u8) -> Self {
        let mut carver = Carver::new(start);
        let [masked, part, strip, sums, sums_transposed] = Self::lengths(rank).map(|len| carver.take::<f32>(len));
        Self { masked, part, strip, sums, sums_transposed }
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
struct Reduce {
    x: *const f32,
    columns: usize,
    m: usize,
    /// Index of x's first element in the mask.
    first_index: usize,
    mask: Option<Mask>,
    /// [rank, columns], rows `weights_row` apart
    weights: *const f32,
    weights_row: usize,
    rank: usize,
    /// Rows of `rank`.
    hidden: *mut f32,
    scratch: Scratch,
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
struct Expand {
    /// Rows of `rank`.
    hidden: *const f32,
    m: usize,
    rank: usize,
    /// [rank, columns], rows `weights_row` apart
    weights: *const f32,
    weights_row: usize,
    /// The last `columns % 16` columns of the weights, padded to 16; rows `tail_row` apart
    tail: *const f32,
    tail_row: usize,
    to: *mut f32,
    columns: usize,
    first_index: usize,
    mask: Option<Mask>,
    scratch: Scratch,
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

/// `sums [rank, count] = hidden^T mask(x)` over all tokens, for `count` columns of x from `first`; then added to
/// rows of `to` (da) or, transposed, to rows of `rank` (db).
struct Strip {
    x: *const f32,
    columns: usize,
    first: usize,
    count: usize,
    tokens: usize,
    mask: Option<Mask>,
    /// [tokens, rank]
    hidden: *const f32,
    rank: usize,
    to: *mut f32,
    transposed: bool,
    factor: f32,
    scratch: Scratch,
}

impl Kernel for Strip {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (scratch, rank, count) = (self.scratch, self.rank, self.count);
        let padded = count.next_multiple_of(LANES);
        // SAFETY: tokens and columns are inside x, hidden and `to`.
        unsafe {
            for token in (0..self.tokens).step_by(STRIP_TOKENS) {
                let tokens = STRIP_TOKENS.min(self.tokens - token);
                let at = token * self.columns + self.first;
                pack_rows::<S>(self.x.add(at), self.columns, tokens, count, 1.0, scratch.strip, STRIP_COLUMNS);
                if let Some(mask) = self.mask {
                    for row in 0..tokens {
                        let strip = scratch.strip.add(row * STRIP_COLUMNS);
                        mask.apply::<S>(at + row * self.columns, strip, strip, count);
                    }
                }
                S::call(Product {
                    a: self.hidden.add(token * rank),
                    a_row: 1,
                    a_step: rank,
                    b: scratch.strip,
                    b_row: STRIP_COLUMNS,
                    c: scratch.sums,
                    c_row: STRIP_COLUMNS,
                    m: rank,
                    k: tokens,
                    n: padded,
                    accumulate: token > 0,
                });
            }
            if self.transposed {
                let rank_padded = rank.next_multiple_of(LANES);
                let turned = scratch.sums_transposed;
                transpose_into::<S>(scratch.sums, STRIP_COLUMNS, rank, count, turned, rank_padded, rank_padded);
                let to = self.to.add(self.first * rank);
                add_rows::<S>(turned, rank_padded, count, rank, self.factor, to, rank);
            } else {
                let to = self.to.add(self.first);
                add_rows::<S>(scratch.sums, STRIP_COLUMNS, rank, count, self.factor, to, self.columns);
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
}

/// Parts of scratch that all workers share.
struct Shared {
    /// `scale * b^T` [rank, N padded]
    b_transposed: Place,
    /// The last K % 16 columns of a [rank, 16]
    a_tail: Place,
    /// dhidden [T, rank]
    dhidden: Place,
    /// [`Scratch::byte_len`] for each worker
    workers: Place<u8>,
}

fn shared_lengths(adapter: &Adapter) -> [usize; 3] {
    let rank = adapter.a.rows();
    [rank * adapter.b.rows().next_multiple_of(LANES), rank * LANES, adapter.x.rows() * rank]
}

/// Bytes of scratch for either direction.
pub(super) fn scratch_bytes(adapter: &Adapter, threads: usize) -> usize {
    let shared: usize = shared_lengths(adapter).iter().map(|len| scratch_size::<f32>(*len)).sum();
    shared + Scratch::byte_len(adapter.a.rows()) * threads
}

/// Carves scratch and fills `b_transposed`.
fn prepare(ops: &mut Ops, adapter: &Adapter) -> Shared {
    let mut carver = Carver::new(ops.scratch_start());
    let [b_transposed, a_tail, dhidden] = shared_lengths(adapter).map(|len| Place::new(carver.take::<f32>(len)));
    let shared = Shared { b_transposed, a_tail, dhidden, workers: Place::new(carver.take::<u8>(0)) };
    let (isa, rank, n, factor) = (ops.options.isa, adapter.a.rows(), adapter.b.rows(), adapter.scale);
    let b = ops.place(adapter.b);
    ops.pool.run(n.div_ceil(PART_COLUMNS), &|task, _| {
        let first = task * PART_COLUMNS;
        let (count, to_row) = (PART_COLUMNS.min(n - first), n.next_multiple_of(LANES));
        // SAFETY: tasks cover disjoint columns of `b_transposed`; PART_COLUMNS is a multiple of 16.
        unsafe {
            let (b, to) = (b.at(0).cast_const(), b_transposed.at(0));
            simd::dispatch(isa, TransposeColumns { b, rank, first, count, factor, to, to_row });
        }
    });
    shared
}

/// hidden and y. Shapes were checked, scratch was asked for.
pub(super) fn forward(ops: &mut Ops, adapter: &Adapter, y: Tensor) {
    let shared = prepare(ops, adapter);
    let (tokens, k, n, rank) = (adapter.x.rows(), adapter.x.columns(), y.columns(), adapter.a.rows());
    let [x, a, hidden, y] = [adapter.x, adapter.a, adapter.hidden, y].map(|tensor| ops.place(tensor));
    let (isa, mask, weights_row) = (ops.options.isa, adapter.dropout.mask(), n.next_multiple_of(LANES));
    ops.pool.run(tokens.div_ceil(BLOCK_TOKENS), &|task, worker| {
        let token = task * BLOCK_TOKENS;
        let m = BLOCK_TOKENS.min(tokens - token);
        // SAFETY: each task has its own rows of hidden and y; each worker its own scratch.
        unsafe {
            let scratch = Scratch::carve(rank, shared.workers.at(worker * Scratch::byte_len(rank)));
            let hidden = hidden.at(token * rank);
            let reduce = Reduce {
                x: x.at(token * k),
                columns: k,
                m,
                first_index: token * k,
                mask,
                weights: a.at(0),
                weights_row: k,
                rank,
                hidden,
                scratch,
            };
            simd::dispatch(isa, reduce);
            let expand = Expand {
                hidden,
                m,
                rank,
                weights: shared.b_transposed.at(0),
                weights_row,
                tail: shared.b_transposed.at(n / LANES * LANES),
                tail_row: weights_row,
                to: y.at(token * n),
                columns: n,
                first_index: 0,
                mask: None,
                scratch,
            };
            simd::dispatch(isa, expand);
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

/// dx and, of an adapter that learns, da and db. Shapes were checked, scratch was asked for.
pub(super) fn backward(
    ops: &mut Ops,
    adapter: &Adapter,
    dy: Tensor,
    gradients: Option<(Tensor, Tensor)>,
    dx: Option<Tensor>,
) {
    let shared = prepare(ops, adapter);
    let (tokens, k, n, rank) = (adapter.x.rows(), adapter.x.columns(), dy.columns(), adapter.a.rows());
    let [x, a, hidden, dy] = [adapter.x, adapter.a, adapter.hidden, dy].map(|t| ops.place(t));
    let dx = dx.map(|dx| ops.place(dx));
    let (isa, mask, weights_row) = (ops.options.isa, adapter.dropout.mask(), n.next_multiple_of(LANES));
    // SAFETY: `a_tail` has rank rows of 16.
    unsafe { simd::dispatch(isa, PackTail { a: a.at(0), columns: k, rank, to: shared.a_tail.at(0) }) };
    ops.pool.run(tokens.div_ceil(BLOCK_TOKENS), &|task, worker| {
        let token = task * BLOCK_TOKENS;
        let m = BLOCK_TOKENS.min(tokens - token);
        // SAFETY: each task has its own rows of dhidden and dx; each worker its own scratch.
        unsafe {
            let scratch = Scratch::carve(rank, shared.workers.at(worker * Scratch::byte_len(rank)));
            let dhidden = shared.dhidden.at(token * rank);
            let reduce = Reduce {
                x: dy.at(token * n),
                columns: n,
                m,
                first_index: 0,
                mask: None,
                weights: shared.b_transposed.at(0),
                weights_row,
                rank,
                hidden: dhidden,
                scratch,
            };
            simd::dispatch(isa, reduce);
            if let Some(dx) = dx {
                let expand = Expand {
                    hidden: dhidden,
                    m,
                    rank,
                    weights: a.at(0),
                    weights_row: k,
                    tail: shared.a_tail.at(0),
                    tail_row: LANES,
                    to: dx.at(token * k),
                    columns: k,
                    first_index: token * k,
                    mask,
                    scratch,
                };
                simd::dispatch(isa, expand);
            }
        }
    });
    let Some((da, db)) = gradients else { return };
    let [da, db] = [da, db].map(|t| ops.place(t));
    let strips_of_a = k.div_ceil(STRIP_COLUMNS);
    ops.pool.run(strips_of_a + n.div_ceil(STRIP_COLUMNS), &|task, worker| {
        // SAFETY: each task has its own columns of da or rows of db; each worker its own scratch.
        unsafe {
            let scratch = Scratch::carve(rank, shared.workers.at(worker * Scratch::byte_len(rank)));
            let strip = if task < strips_of_a {
                let first = task * STRIP_COLUMNS;
                Strip {
                    x: x.at(0),
                    columns: k,
                    first,
                    count: STRIP_COLUMNS.min(k - first),
                    tokens,
                    mask,
                    hidden: shared.dhidden.at(0),
                    rank,
                    to: da.at(0),
                    transposed: false,
                    factor: 1.0,
                    scratch,
                }
            } else {
                let first = (task - strips_of_a) * STRIP_COLUMNS;
                Strip {
                    x: dy.at(0),
                    columns: n,
                    first,
                    count: STRIP_COLUMNS.min(n - first),
                    tokens,
                    mask: None,
                    hidden: hidden.at(0),
                    rank,
                    to: db.at(0),
                    transposed: true,
                    factor: adapter.scale,
                    scratch,
                }
            };
            simd::dispatch(isa, strip);
        }
    });
}
