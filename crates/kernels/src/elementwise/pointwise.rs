//! The driver of ops that compute each output element from the input elements at the same place.

use crate::arena::Tensor;
use crate::ops::{Ops, Work};
use crate::simd::{self, Kernel, LANES, Simd};

/// Floats in a task: long enough to hide the cost of handing it out, short enough to share work evenly.
const TASK_FLOATS: usize = 8192;

/// A function from `I` to `O` values, applied per element.
pub(crate) trait Pointwise<const I: usize, const O: usize>: Sync {
    /// Must be `#[inline(always)]`.
    fn apply<S: Simd>(&self, inputs: [S; I]) -> [S; O];
}

struct Chunk<'a, F, const I: usize, const O: usize> {
    function: &'a F,
    inputs: [*const f32; I],
    outputs: [*mut f32; O],
    len: usize,
}

impl<F: Pointwise<I, O>, const I: usize, const O: usize> Kernel for Chunk<'_, F, I, O> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: every array has `len` floats by the promise of `Ops::pointwise`. Each vector is read from all
        // inputs before it is written, so an output may be an input.
        unsafe {
            let mut i = 0;
            while i + LANES <= self.len {
                let results = self.function.apply(self.inputs.map(|input| S::load(input.add(i))));
                for (output, result) in self.outputs.iter().zip(results) {
                    result.store(output.add(i));
                }
                i += LANES;
            }
            let rest = self.len - i;
            if rest > 0 {
                let results = self.function.apply(self.inputs.map(|input| S::load_partial(input.add(i), rest)));
                for (output, result) in self.outputs.iter().zip(results) {
                    result.store_partial(output.add(i), rest);
                }
            }
        }
    }
}

impl Ops {
    /// `outputs = function(inputs)` per element. All tensors have one length; an output is apart from every input
    /// or is that very input (the caller asserts both).
    pub(crate) fn pointwise<F: Pointwise<I, O>, const I: usize, const O: usize>(
        &mut self,
        function: &F,
        inputs: [Tensor; I],
        outputs: [Tensor; O],
    ) {
        let len = outputs[0].len();
        assert!(inputs.iter().chain(&outputs).all(|tensor| tensor.len() == len), "lengths of pointwise tensors");
        if !self.begin(Work::Elementwise, 0, 0) {
            return;
        }
        let inputs = inputs.map(|tensor| self.place(tensor));
        let outputs = outputs.map(|tensor| self.place(tensor));
        let isa = self.options.isa;
        self.pool.run(len.div_ceil(TASK_FLOATS), &|task, _| {
            let start = task * TASK_FLOATS;
            // SAFETY: tasks cover disjoint ranges of tensors of `len` floats.
            unsafe {
                let chunk = Chunk {
                    function,
                    inputs: inputs.map(|input| input.at(start).cast_const()),
                    outputs: outputs.map(|output| output.at(start)),
                    len: TASK_FLOATS.min(len - start),
                };
                simd::dispatch(isa, chunk);
            }
        });
    }
}
