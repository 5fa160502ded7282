//! Blocking and kernels of the adapter products.
//!
//! Each output element belongs to one task: hidden rows, y and dx to blocks of tokens, da and db to strips of
//! columns. The common dimension is walked in fixed pieces, so no sum depends on the number of threads.

use std::ops::Range;

use super::dropout::{Dropout, Mask};
use crate::arena::Tensor;
use crate::isa::Isa;
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

/// `sums [rank, count] = hidden^T mask(x)` over some tokens, for `count` columns of x from `first`; then added to
/// rows of `to` (da) or, transposed, to rows of `rank` (db).
struct Strip {
    x: *const f32,
    columns: usize,
    first: usize,
    count: usize,
    tokens: Range<usize>,
    mask: Option<Mask>,
    /// [T, rank]
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
            for token in self.tokens.clone().step_by(STRIP_TOKENS) {
                let tokens = STRIP_TOKENS.min(self.tokens.end - token);
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
                    accumulate: token > self.tokens.start,
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
    /// y, or its gradient.
    pub y: Tensor,
    /// Of a and b, added to; none in the forward and for an adapter that does not learn.
    pub gradients: Option<(Tensor, Tensor)>,
}

/// Adapters of one input that are computed together at most: what one block of it needs is done while it is near.
pub(super) const TOGETHER_MAX: usize = 4;

/// An adapter's places in the arena and in scratch.
#[derive(Clone, Copy)]
struct Placed {
    a: Place,
    hidden: Place,
    y: Place,
    gradients: Option<(Place, Place)>,
    rank: usize,
    n: usize,
    scale: f32,
    mask: Option<Mask>,
    /// `scale * b^T` [rank, N padded]
    b_transposed: Place,
    /// The last K % 16 columns of a [rank, 16]
    a_tail: Place,
    /// dhidden [T, rank]
    dhidden: Place,
}

fn shared_lengths(adapter: &Adapter) -> [usize; 3] {
    let rank = adapter.a.rows();
    [rank * adapter.b.rows().next_multiple_of(LANES), rank * LANES, adapter.y.rows() * rank]
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
struct Group {
    placed: [Placed; TOGETHER_MAX],
    count: usize,
    x: Place,
    tokens: usize,
    k: usize,
    isa: Isa,
    /// The largest rank: what [`Scratch`] has room for.
    rank_max: usize,
    workers: Place<u8>,
}

impl Group {
    /// Carves scratch and fills the transposed matrices. Shapes were checked, scratch was asked for.
    fn new(ops: &mut Ops, adapters: &[Adapter]) -> Self {
        let mut carver = Carver::new(ops.scratch_start());
        let isa = ops.options.isa;
        let placed: [Placed; TOGETHER_MAX] = std::array::from_fn(|index| {
            let adapter = &adapters[index.min(adapters.len() - 1)];
            // Places beyond the last adapter are never used.
            let lengths = if index < adapters.len() { shared_lengths(adapter) } else { [0; 3] };
            let [b_transposed, a_tail, dhidden] = lengths.map(|len| Place::new(carver.take::<f32>(len)));
            let gradients = adapter.gradients.map(|(da, db)| (ops.place(da), ops.place(db)));
            let [a, hidden, y] = [adapter.a, adapter.hidden, adapter.y].map(|tensor| ops.place(tensor));
            let (rank, n, scale, mask) = (adapter.a.rows(), adapter.b.rows(), adapter.scale, adapter.dropout.mask());
            Placed { a, hidden, y, gradients, rank, n, scale, mask, b_transposed, a_tail, dhidden }
        });
        let (tokens, k) = (adapters[0].x.rows(), adapters[0].x.columns());
        for (adapter, placed) in adapters.iter().zip(&placed) {
            let b = ops.place(adapter.b);
            let Placed { a, rank, n, scale: factor, b_transposed, a_tail, .. } = *placed;
            ops.pool.run(n.div_ceil(PART_COLUMNS), &|task, _| {
                let first = task * PART_COLUMNS;
                let (count, to_row) = (PART_COLUMNS.min(n - first), n.next_multiple_of(LANES));
                // SAFETY: tasks cover disjoint columns of `b_transposed`; PART_COLUMNS is a multiple of 16.
                unsafe {
                    let (b, to) = (b.at(0).cast_const(), b_transposed.at(0));
                    simd::dispatch(isa, TransposeColumns { b, rank, first, count, factor, to, to_row });
                }
            });
            // SAFETY: `a_tail` has rank rows of 16.
            unsafe { simd::dispatch(isa, PackTail { a: a.at(0), columns: k, rank, to: a_tail.at(0) }) };
        }
        let (x, workers) = (ops.place(adapters[0].x), Place::new(carver.take::<u8>(0)));
        Self { placed, count: adapters.len(), x, tokens, k, isa, rank_max: rank_max(adapters), workers }
    }

    fn adapters(&self) -> &[Placed] {
        &self.placed[..self.count]
    }

    /// # Safety
    /// The worker is one of those that scratch was asked for.
    unsafe fn scratch(&self, worker: usize) -> Scratch {
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

/// Tokens after which the sums of da and db are added up, so that the rows which made dhidden and dx are still in the
/// second-level cache when da and db read them again. Depends on nothing but K: part of the numerical contract.
fn part_tokens(k: usize) -> usize {
    if k <= 1024 { 256 } else { 128 }
}

/// dx and, of the adapters that learn, da and db. Shapes were checked, scratch was asked for.
pub(super) fn backward(ops: &mut Ops, adapters: &[Adapter], dx: Option<Tensor>) {
    let group = Group::new(ops, adapters);
    let dx = dx.map(|dx| ops.place(dx));
    let strips_of_x = group.k.div_ceil(STRIP_COLUMNS);
    let strips_of_y = |adapter: &Placed| adapter.n.div_ceil(STRIP_COLUMNS);
    let learning = || group.adapters().iter().filter(|adapter| adapter.gradients.is_some());
    let strips = if learning().next().is_some() { strips_of_x + learning().map(strips_of_y).sum::<usize>() } else { 0 };
    for start in (0..group.tokens).step_by(part_tokens(group.k)) {
        let tokens = part_tokens(group.k).min(group.tokens - start);
        ops.pool.run(tokens.div_ceil(BLOCK_TOKENS), &|task, worker| {
            let token = start + task * BLOCK_TOKENS;
            let m = BLOCK_TOKENS.min(start + tokens - token);
            // SAFETY: each task has its own rows of dhidden and dx; each worker its own scratch.
            unsafe { input_gradients(&group, dx, token, m, worker) }
        });
        ops.pool.run(strips, &|task, worker| {
            // SAFETY: each task has its own columns of every da, or rows of one db; each worker its own scratch.
            unsafe {
                if task < strips_of_x {
                    for adapter in learning() {
                        simd::dispatch(group.isa, strip_of_a(&group, adapter, task, start..start + tokens, worker));
                    }
                    return;
                }
                let mut strip = task - strips_of_x;
                for adapter in learning() {
                    if strip < strips_of_y(adapter) {
                        simd::dispatch(group.isa, strip_of_b(&group, adapter, strip, start..start + tokens, worker));
                        return;
                    }
                    strip -= strips_of_y(adapter);
                }
            }
        });
    }
}

/// dhidden of every adapter and what they add to dx, for tokens `token..token + m`.
unsafe fn input_gradients(group: &Group, dx: Option<Place>, token: usize, m: usize, worker: usize) {
    let k = group.k;
    for adapter in group.adapters() {
        let Placed { rank, n, mask, .. } = *adapter;
        // SAFETY: passed on.
        unsafe {
            let scratch = group.scratch(worker);
            let dhidden = adapter.dhidden.at(token * rank);
            let reduce = Reduce {
                x: adapter.y.at(token * n),
                columns: n,
                m,
                first_index: 0,
                mask: None,
                weights: adapter.b_transposed.at(0),
                weights_row: n.next_multiple_of(LANES),
                rank,
                hidden: dhidden,
                scratch,
            };
            simd::dispatch(group.isa, reduce);
            if let Some(dx) = dx {
                let expand = Expand {
                    hidden: dhidden,
                    m,
                    rank,
                    weights: adapter.a.at(0),
                    weights_row: k,
                    tail: adapter.a_tail.at(0),
                    tail_row: LANES,
                    to: dx.at(token * k),
                    columns: k,
                    first_index: token * k,
                    mask,
                    scratch,
                };
                simd::dispatch(group.isa, expand);
            }
        }
    }
}

/// Columns of da from some tokens.
unsafe fn strip_of_a(group: &Group, adapter: &Placed, strip: usize, tokens: Range<usize>, worker: usize) -> Strip {
    let (first, k) = (strip * STRIP_COLUMNS, group.k);
    let (da, _) = adapter.gradients.expect("an adapter that learns");
    // SAFETY: passed on.
    unsafe {
        Strip {
            x: group.x.at(0),
            columns: k,
            first,
            count: STRIP_COLUMNS.min(k - first),
            tokens,
            mask: adapter.mask,
            hidden: adapter.dhidden.at(0),
            rank: adapter.rank,
            to: da.at(0),
            transposed: false,
            factor: 1.0,
            scratch: group.scratch(worker),
        }
    }
}

/// Rows of db from some tokens.
unsafe fn strip_of_b(group: &Group, adapter: &Placed, strip: usize, tokens: Range<usize>, worker: usize) -> Strip {
    let (first, n) = (strip * STRIP_COLUMNS, adapter.n);
    let (_, db) = adapter.gradients.expect("an adapter that learns");
    // SAFETY: passed on.
    unsafe {
        Strip {
            x: adapter.y.at(0),
            columns: n,
            first,
            count: STRIP_COLUMNS.min(n - first),
            tokens,
            mask: None,
            hidden: adapter.hidden.at(0),
            rank: adapter.rank,
            to: db.at(0),
            transposed: true,
            factor: adapter.scale,
            scratch: group.scratch(worker),
        }
    }
}
