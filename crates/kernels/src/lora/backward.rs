//! The backward of the adapters of one input.
//!
//! The text is cut into parts. A task goes through a part block by block of tokens: what needs their rows of x, dy and
//! dx is done while they are near. Each part has sums of da and db of its own, which a second loop adds up in order.
//! Where the parts begin depends on nothing but the number of tokens, so no sum depends on the number of threads.

use std::ops::Range;

use super::dropout::Mask;
use super::run::{Adapter, BLOCK_TOKENS, Expand, Group, PART_COLUMNS, Placed, Reduce, Scratch};
use crate::arena::Tensor;
use crate::ops::Ops;
use crate::place::Place;
use crate::simd::product::Product;
use crate::simd::{self, Kernel, LANES, Simd, add_rows, pack_rows, transpose_into};

/// Parts of a text at most: enough for many cores. Of a short text at most [`PARTS_OF_SHORT`], and tokens in each of
/// more than those at least [`PART_TOKENS`], so that the sums stay small beside x and dy.
const PARTS_MAX: usize = 16;
const PARTS_OF_SHORT: usize = 8;
const PART_TOKENS: usize = 64;
/// Columns of x (or dy) whose rows of a block stay in the first-level cache while all ranks read them.
const SUM_COLUMNS: usize = 192;
/// Columns of da (or rows of db) in a task of the second loop.
const STRIP_COLUMNS: usize = PART_COLUMNS;

/// The parts of a text. Part of the numerical contract.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    tokens: usize,
    pub count: usize,
}

impl Parts {
    pub fn new(tokens: usize) -> Self {
        let count_max = tokens.div_ceil(PART_TOKENS).clamp(PARTS_OF_SHORT, PARTS_MAX);
        Self { tokens, count: tokens.div_ceil(BLOCK_TOKENS).min(count_max) }
    }
    fn part(&self, part: usize) -> Range<usize> {
        part * self.tokens / self.count..(part + 1) * self.tokens / self.count
    }
    /// The part in blocks of nearly equal length.
    fn blocks(&self, part: usize) -> impl Iterator<Item = Range<usize>> {
        let part = self.part(part);
        let blocks = part.len().div_ceil(BLOCK_TOKENS);
        (0..blocks)
            .map(move |block| part.start + block * part.len() / blocks..part.start + (block + 1) * part.len() / blocks)
    }
}

/// `sums [rank, columns] = hidden^T mask(x)`, or added to, for a block of `m` tokens.
struct Sums {
    x: *const f32,
    columns: usize,
    m: usize,
    /// Index of x's first element in the mask.
    first_index: usize,
    mask: Option<Mask>,
    /// [m, rank]
    hidden: *const f32,
    rank: usize,
    /// Rows of `columns` rounded up to 16.
    sums: *mut f32,
    accumulate: bool,
    scratch: Scratch,
}

impl Kernel for Sums {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for first in (0..self.columns).step_by(SUM_COLUMNS) {
            let count = SUM_COLUMNS.min(self.columns - first);
            // SAFETY: tokens and columns are inside x and hidden, padded columns inside the sums and the part.
            unsafe {
                let mut x = (self.x.add(first), self.columns);
                if self.mask.is_some() || !count.is_multiple_of(LANES) {
                    let part = self.scratch.part;
                    pack_rows::<S>(x.0, x.1, self.m, count, 1.0, part, PART_COLUMNS);
                    for row in 0..self.m {
                        if let Some(mask) = self.mask {
                            let (row_part, at) = (part.add(row * PART_COLUMNS), row * self.columns + first);
                            mask.apply::<S>(self.first_index + at, row_part, row_part, count);
                        }
                    }
                    x = (part.cast_const(), PART_COLUMNS);
                }
                S::call(Product {
                    a: self.hidden,
                    a_row: 1,
                    a_step: self.rank,
                    b: x.0,
                    b_row: x.1,
                    c: self.sums.add(first),
                    c_row: self.columns.next_multiple_of(LANES),
                    m: self.rank,
                    k: self.m,
                    n: count.next_multiple_of(LANES),
                    accumulate: self.accumulate,
                });
            }
        }
    }
}

/// Columns `first..first + count` of the sums of all parts, added in order, then `factor` times that to rows of `to`
/// (da [rank, columns]) or, transposed, to rows of `rank` (db).
struct AddParts {
    /// [parts, rank, columns padded]
    sums: *const f32,
    parts: usize,
    columns: usize,
    first: usize,
    count: usize,
    rank: usize,
    to: *mut f32,
    transposed: bool,
    factor: f32,
    scratch: Scratch,
}

impl Kernel for AddParts {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rank, first, count, factor, scratch, .. } = self;
        let row_len = self.columns.next_multiple_of(LANES);
        // SAFETY: columns are inside the sums, whose rows are padded, inside scratch and inside `to`.
        unsafe {
            for row in 0..rank {
                for i in (0..count).step_by(LANES) {
                    let from = self.sums.add(row * row_len + first + i);
                    let mut sum = S::load(from);
                    for part in 1..self.parts {
                        sum = sum + S::load(from.add(part * rank * row_len));
                    }
                    sum.store(scratch.sums.add(row * PART_COLUMNS + i));
                }
            }
            if self.transposed {
                let rank_padded = rank.next_multiple_of(LANES);
                let turned = scratch.sums_transposed;
                transpose_into::<S>(scratch.sums, PART_COLUMNS, rank, count, turned, rank_padded, rank_padded);
                add_rows::<S>(turned, rank_padded, count, rank, factor, self.to.add(first * rank), rank);
            } else {
                let to = self.to.add(first);
                add_rows::<S>(scratch.sums, PART_COLUMNS, rank, count, factor, to, self.columns);
            }
        }
    }
}

/// dx and, of the adapters that learn, da and db. Shapes were checked, scratch was asked for.
pub(super) fn backward(ops: &mut Ops, adapters: &[Adapter], dx: Option<Tensor>) {
    let group = Group::new(ops, adapters);
    let dx = dx.map(|dx| ops.place(dx));
    let parts = Parts::new(group.tokens);
    ops.pool.run(parts.count, &|part, worker| {
        for (index, tokens) in parts.blocks(part).enumerate() {
            for adapter in group.adapters() {
                // SAFETY: each task has its own rows of dx and its own sums; each worker its own scratch.
                unsafe { block(&group, adapter, dx, part, tokens.clone(), index > 0, group.scratch(worker)) };
            }
        }
    });
    let strips = |columns: usize| columns.div_ceil(STRIP_COLUMNS);
    let learning = || group.adapters().iter().filter(|adapter| adapter.gradients.is_some());
    let tasks = learning().map(|adapter| strips(group.k) + strips(adapter.n)).sum();
    ops.pool.run(tasks, &|task, worker| {
        let mut strip = task;
        for adapter in learning() {
            let (da, db) = adapter.gradients.expect("an adapter that learns");
            let a = (adapter.sums[0], group.k, da, false, 1.0);
            let b = (adapter.sums[1], adapter.n, db, true, adapter.scale);
            for (sums, columns, to, transposed, factor) in [a, b] {
                if strip < strips(columns) {
                    let first = strip * STRIP_COLUMNS;
                    let (count, rank) = (STRIP_COLUMNS.min(columns - first), adapter.rank);
                    // SAFETY: each task has its own columns of one da, or rows of one db; each worker its own scratch.
                    unsafe {
                        let (sums, parts, to) = (sums.at(0).cast_const(), parts.count, to.at(0));
                        let scratch = group.scratch(worker);
                        let add =
                            AddParts { sums, parts, columns, first, count, rank, to, transposed, factor, scratch };
                        simd::dispatch(group.isa, add);
                    }
                    return;
                }
                strip -= strips(columns);
            }
        }
    });
}

/// One adapter and the rows of a block: dhidden, what it adds to dx, and the sums of da and db.
unsafe fn block(
    group: &Group,
    adapter: &Placed,
    dx: Option<Place>,
    part: usize,
    tokens: Range<usize>,
    accumulate: bool,
    scratch: Scratch,
) {
    let Placed { rank, n, mask, .. } = *adapter;
    let (k, token, m) = (group.k, tokens.start, tokens.len());
    // SAFETY: passed on.
    unsafe {
        let dy = adapter.y.at(token * n).cast_const();
        let reduce = Reduce {
            x: dy,
            columns: n,
            m,
            first_index: 0,
            mask: None,
            weights: adapter.b_transposed.at(0),
            weights_row: n.next_multiple_of(LANES),
            rank,
            hidden: scratch.dhidden,
            scratch,
        };
        simd::dispatch(group.isa, reduce);
        if adapter.gradients.is_some() {
            let sums_of = |columns: usize, place: Place| place.at(part * rank * columns.next_multiple_of(LANES));
            let of_b = Sums {
                x: dy,
                columns: n,
                m,
                first_index: 0,
                mask: None,
                hidden: adapter.hidden.at(token * rank),
                rank,
                sums: sums_of(n, adapter.sums[1]),
                accumulate,
                scratch,
            };
            simd::dispatch(group.isa, of_b);
            let of_a = Sums {
                x: group.x.at(token * k),
                columns: k,
                m,
                first_index: token * k,
                mask,
                hidden: scratch.dhidden,
                rank,
                sums: sums_of(k, adapter.sums[0]),
                accumulate,
                scratch,
            };
            simd::dispatch(group.isa, of_a);
        }
        if let Some(dx) = dx {
            let expand = Expand {
                hidden: scratch.dhidden,
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
