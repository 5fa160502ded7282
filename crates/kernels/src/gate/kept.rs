//! Gate and up kept from the forward to the backward in half the memory: 16-bit integers with a float32 scale per row
//! and [`GROUP`] columns, the largest magnitude of a group being [`INTEGER_MAX`] steps. An element is off by at most
//! half a step, 1.6e-5 of that magnitude.
//!
//! The forward writes this form in the pass in which it reads gate and up anyway; the backward takes it apart in
//! registers.

use std::ops::Range;

use super::{Backward, Forward, Gate};
use crate::arena::{ArenaPlan, Tensor};
use crate::elementwise::pointwise::Pointwise;
use crate::ops::{Ops, Work};
use crate::place::Place;
use crate::simd::integer::{self, IntegerKernel, IntegerSimd};
use crate::simd::{LANES, Simd, TINY};

/// Columns of a row that share a scale.
pub(super) const GROUP: usize = 64;
/// Vectors of a group.
const VECTORS: usize = GROUP / LANES;
/// 32-bit words of a group: two integers each.
const WORDS: usize = GROUP / 2;
/// The integer of a group's largest magnitude, as for the activations of products. Room to 32767 for its rounding.
const INTEGER_MAX: f32 = 32639.0;
/// Values of a task at least: long enough to hide the cost of handing it out.
const TASK_VALUES: usize = 8192;

/// Places of the kept form of gate and up, [T, F] each.
#[derive(Clone, Copy, Debug)]
pub struct KeptGates {
    /// [T, groups · 64] words: for each group those of the gate, then those of up. Word i of the first 16 holds columns
    /// i and 16 + i of the group in its lower and upper half, word i of the last 16 columns 32 + i and 48 + i: a vector
    /// of words comes apart into two of columns by a shift and a mask.
    pub(super) integers: Tensor,
    /// [T, groups · 2]: for each group the scale of the gate, then that of up.
    pub(super) scales: Tensor,
}

impl KeptGates {
    /// Places for `rows` rows of `columns` columns.
    pub fn new(arena: &mut ArenaPlan, rows: usize, columns: usize) -> Self {
        let groups = columns.div_ceil(GROUP);
        Self { integers: arena.tensor(rows, 2 * WORDS * groups), scales: arena.tensor(rows, 2 * groups) }
    }
    /// The same places for the first `rows` rows.
    pub fn first_rows(&self, rows: usize) -> Self {
        Self { integers: self.integers.first_rows(rows), scales: self.scales.first_rows(rows) }
    }
    pub(super) fn check(&self, rows: usize, columns: usize) {
        let groups = columns.div_ceil(GROUP);
        let shape = |tensor: Tensor| (tensor.rows(), tensor.columns());
        assert_eq!(shape(self.integers), (rows, 2 * WORDS * groups), "shape of kept integers");
        assert_eq!(shape(self.scales), (rows, 2 * groups), "shape of kept scales");
    }
    pub(super) fn tensors(&self) -> [(&'static str, Tensor); 2] {
        [("kept integers", self.integers), ("kept scales", self.scales)]
    }
}

/// The columns of a row that a kernel takes at once.
#[derive(Clone, Copy)]
struct Part {
    /// Index of the first element in a tensor [T, F].
    first: usize,
    /// Columns, [`GROUP`] but for a row's last ones.
    width: usize,
    /// Index of the group, counted through all rows.
    group: usize,
}

/// What is done with each group.
trait EachGroup: Sync {
    /// Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The places hold tensors that have this part, which no other task writes.
    unsafe fn group<S: IntegerSimd>(&self, part: Part);
}

/// Where a group of gate and up is read.
pub(super) trait Source: Sync {
    /// Vectors of gate and up; must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`EachGroup::group`].
    unsafe fn read<S: IntegerSimd>(&self, first: usize, width: usize, group: usize) -> [[S::Float; VECTORS]; 2];
}

/// `width` floats, then zeros.
#[inline(always)]
unsafe fn load<S: Simd>(from: *const f32, width: usize) -> [S; VECTORS] {
    let mut values = [S::zero(); VECTORS];
    for (v, value) in values.iter_mut().enumerate() {
        // SAFETY: passed on; a vector that begins beyond the width is not read.
        unsafe {
            if width == GROUP {
                *value = S::load(from.add(LANES * v));
            } else if LANES * v < width {
                *value = S::load_up_to(from.add(LANES * v), width - LANES * v);
            }
        }
    }
    values
}

/// Writes the columns of vector `v` that are inside the width.
#[inline(always)]
unsafe fn store<S: Simd>(value: S, to: *mut f32, v: usize, width: usize) {
    // SAFETY: passed on, as for `load`.
    unsafe {
        if width == GROUP {
            value.store(to.add(LANES * v));
        } else if LANES * v < width {
            value.store_up_to(to.add(LANES * v), width - LANES * v);
        }
    }
}

/// The integers of a group in 32 bits each, their scale, and whether all values are finite.
#[inline(always)]
fn integers<S: IntegerSimd>(values: &[S::Float; VECTORS]) -> ([S; VECTORS], f32) {
    let mut largest = S::zero();
    for value in values {
        largest = largest.max_magnitude(*value);
    }
    let largest = f32::from_bits(largest.reduce_max_u32());
    // A NaN or an infinity makes the scale NaN, which reaches every value of the group.
    let scale = if largest < f32::INFINITY { largest * (1.0 / INTEGER_MAX) } else { f32::NAN };
    let (scale, inverse) = if largest < TINY { (0.0, 0.0) } else { (scale, 1.0 / scale) };
    let mut integers = [S::zero(); VECTORS];
    // What a NaN is rounded to differs between processors.
    let all_or_none = S::splat_i32(if scale.is_nan() { 0 } else { -1 });
    for (integer, value) in integers.iter_mut().zip(values) {
        *integer = S::from_float(*value * S::Float::splat(inverse)).and(all_or_none);
    }
    (integers, scale)
}

/// Gate and up as they are, [T, F].
#[derive(Clone, Copy)]
struct Floats {
    gate: Place,
    up: Place,
}

impl Floats {
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, first: usize, width: usize) -> [[S; VECTORS]; 2] {
        // SAFETY: passed on.
        unsafe { [load(self.gate.at(first), width), load(self.up.at(first), width)] }
    }
}

/// Gate and up as they are, read as the kept form would give them.
pub(super) struct Rounded(Floats);

impl Rounded {
    pub(super) fn new(gate: Place, up: Place) -> Self {
        Self(Floats { gate, up })
    }
}

impl Source for Rounded {
    #[inline(always)]
    unsafe fn read<S: IntegerSimd>(&self, first: usize, width: usize, _: usize) -> [[S::Float; VECTORS]; 2] {
        // SAFETY: passed on.
        let mut both = unsafe { self.0.load::<S::Float>(first, width) };
        for values in &mut both {
            let (integers, scale) = integers::<S>(values);
            for (value, integer) in values.iter_mut().zip(integers) {
                *value = integer.to_float() * S::Float::splat(scale);
            }
        }
        both
    }
}

/// The kept form.
#[derive(Clone, Copy)]
pub(super) struct Halves {
    integers: Place,
    scales: Place,
}

impl Halves {
    pub(super) fn new(ops: &mut Ops, kept: KeptGates) -> Self {
        Self { integers: ops.place(kept.integers), scales: ops.place(kept.scales) }
    }

    #[inline(always)]
    unsafe fn write<S: IntegerSimd>(&self, both: &[[S::Float; VECTORS]; 2], group: usize) {
        let lower = S::splat_i32(0xffff);
        for (index, values) in both.iter().enumerate() {
            let ([a, b, c, d], scale) = integers::<S>(values);
            // SAFETY: passed on; 32 words for each of gate and up, and two scales a group.
            unsafe {
                let to = self.integers.at((2 * group + index) * WORDS).cast::<u8>();
                a.and(lower).xor(b.shift_left_u32::<16>()).store(to);
                c.and(lower).xor(d.shift_left_u32::<16>()).store(to.add(64));
                *self.scales.at(2 * group + index) = scale;
            }
        }
    }
}

impl Source for Halves {
    #[inline(always)]
    unsafe fn read<S: IntegerSimd>(&self, _: usize, _: usize, group: usize) -> [[S::Float; VECTORS]; 2] {
        let mut both = [[S::Float::zero(); VECTORS]; 2];
        // Integers are taken to the upper half of 32 bits, where their sign is the word's. Exact, as is the way back.
        let (upper, unit) = (S::splat_i32(-0x1_0000), S::Float::splat(1.0 / 65536.0));
        for (index, values) in both.iter_mut().enumerate() {
            // SAFETY: passed on, as for `write`.
            unsafe {
                let from = self.integers.at((2 * group + index) * WORDS).cast::<u8>();
                let scale = S::Float::splat(*self.scales.at(2 * group + index));
                for half in 0..2 {
                    let words = S::load(from.add(64 * half));
                    values[2 * half] = words.shift_left_u32::<16>().to_float() * unit * scale;
                    values[2 * half + 1] = words.and(upper).to_float() * unit * scale;
                }
            }
        }
        both
    }
}

/// The gated product of values as they are, and their kept form.
struct Keep<G> {
    function: Forward<G>,
    floats: Floats,
    out: Place,
    halves: Halves,
}

impl<G: Gate> EachGroup for Keep<G> {
    #[inline(always)]
    unsafe fn group<S: IntegerSimd>(&self, part: Part) {
        // SAFETY: passed on. The group is read before any of it is written.
        unsafe {
            let [gate, up] = self.floats.load::<S::Float>(part.first, part.width);
            self.halves.write::<S>(&[gate, up], part.group);
            for v in 0..VECTORS {
                let [out] = self.function.apply([gate[v], up[v]]);
                store(out, self.out.at(part.first), v, part.width);
            }
        }
    }
}

/// The gated product.
struct Again<G, F> {
    function: Forward<G>,
    source: F,
    out: Place,
}

impl<G: Gate, F: Source> EachGroup for Again<G, F> {
    #[inline(always)]
    unsafe fn group<S: IntegerSimd>(&self, part: Part) {
        // SAFETY: passed on.
        unsafe {
            let [gate, up] = self.source.read::<S>(part.first, part.width, part.group);
            for v in 0..VECTORS {
                let [out] = self.function.apply([gate[v], up[v]]);
                store(out, self.out.at(part.first), v, part.width);
            }
        }
    }
}

/// Gradients of gate and up from that of the product.
struct Down<G, F> {
    function: Backward<G>,
    source: F,
    dout: Place,
    dgate: Place,
    dup: Place,
}

impl<G: Gate, F: Source> EachGroup for Down<G, F> {
    #[inline(always)]
    unsafe fn group<S: IntegerSimd>(&self, part: Part) {
        // SAFETY: passed on. The group is read before any of it is written.
        unsafe {
            let [gate, up] = self.source.read::<S>(part.first, part.width, part.group);
            let dout = load::<S::Float>(self.dout.at(part.first), part.width);
            for v in 0..VECTORS {
                let [dgate, dup] = self.function.apply([gate[v], up[v], dout[v]]);
                store(dgate, self.dgate.at(part.first), v, part.width);
                store(dup, self.dup.at(part.first), v, part.width);
            }
        }
    }
}

/// All groups of some rows.
struct Rows<'a, E> {
    each: &'a E,
    rows: Range<usize>,
    columns: usize,
}

impl<E: EachGroup> IntegerKernel for Rows<'_, E> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: IntegerSimd>(self) {
        let (whole, rest) = (self.columns / GROUP, self.columns % GROUP);
        let groups = self.columns.div_ceil(GROUP);
        for row in self.rows {
            let part = |index: usize, width: usize| Part {
                first: row * self.columns + index * GROUP,
                width,
                group: row * groups + index,
            };
            // SAFETY: the parts of rows of the tensors, by the promise of `each_group`.
            unsafe {
                for index in 0..whole {
                    self.each.group::<S>(part(index, GROUP));
                }
                if rest > 0 {
                    self.each.group::<S>(part(whole, rest));
                }
            }
        }
    }
}

impl Ops {
    pub(super) fn gate_keep<G: Gate>(&mut self, function: Forward<G>, [gate, up, out]: [Tensor; 3], kept: KeptGates) {
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let floats = Floats { gate: self.place(gate), up: self.place(up) };
        let (halves, place) = (Halves::new(self, kept), self.place(out));
        self.each_group(&Keep { function, floats, out: place, halves }, out);
    }

    pub(super) fn gate_from<G: Gate>(&mut self, function: Forward<G>, source: impl Source, out: Tensor) {
        let place = self.place(out);
        self.each_group(&Again { function, source, out: place }, out);
    }

    pub(super) fn gate_backward_from<G: Gate>(
        &mut self,
        function: Backward<G>,
        source: impl Source,
        [dout, dgate, dup]: [Tensor; 3],
    ) {
        let shape = dout;
        let [dout, dgate, dup] = [dout, dgate, dup].map(|tensor| self.place(tensor));
        self.each_group(&Down { function, source, dout, dgate, dup }, shape);
    }

    /// `each` over all groups of tensors shaped as `tensor`, which the caller has checked.
    fn each_group(&mut self, each: &impl EachGroup, tensor: Tensor) {
        let (rows, columns, isa) = (tensor.rows(), tensor.columns(), self.options.isa);
        let rows_at_once = TASK_VALUES.div_ceil(columns.max(1));
        self.pool.run(rows.div_ceil(rows_at_once), &|task, _| {
            let rows = task * rows_at_once..rows.min((task + 1) * rows_at_once);
            // SAFETY: each task has its own rows of all tensors.
            unsafe { integer::dispatch(isa, Rows { each, rows, columns }) }
        });
    }
}
