//! Reductions of a whole tensor to one value.

use crate::arena::Tensor;
use crate::ops::{Carver, Ops, Work, scratch_size};
use crate::place::Place;
use std::sync::atomic::{AtomicBool, Ordering};

/// Floats in a partial sum. Part of the numerical contract: it fixes the order of the additions.
const PART_FLOATS: usize = 4096;

/// Sum of squares of up to [`PART_FLOATS`] floats in float64: eight interleaved sums, then those in order.
fn part_sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    let (chunks, rest) = values.as_chunks::<8>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*value) * f64::from(*value);
    }
    sums.iter().sum()
}

impl Ops {
    /// The sum of the squares of all elements, in float64 and in a fixed order: the same bits on any number of
    /// threads. 0 when planning.
    pub fn sum_of_squares(&mut self, tensor: Tensor) -> f64 {
        let parts = tensor.len().div_ceil(PART_FLOATS);
        // Two words hold a float64.
        if !self.begin(Work::Elementwise, 0, scratch_size::<u32>(2 * parts)) {
            return 0.0;
        }
        let x = self.place(tensor);
        let sums: Place<f64> = Place::new(Carver::new(self.scratch_start()).take::<u32>(2 * parts).cast());
        self.pool.run(parts, &|part, _| {
            let start = part * PART_FLOATS;
            // SAFETY: the range lies in the tensor, which nobody writes; each task has its own sum.
            unsafe {
                let values = std::slice::from_raw_parts(x.at(start), PART_FLOATS.min(tensor.len() - start));
                *sums.at(part) = part_sum_of_squares(values);
            }
        });
        // SAFETY: the loop above has written all `parts` sums.
        (0..parts).map(|part| unsafe { *sums.at(part) }).sum()
    }

    /// Whether no element is NaN or infinite. True when planning.
    pub fn is_finite(&mut self, tensor: Tensor) -> bool {
        if !self.begin(Work::Elementwise, 0, 0) {
            return true;
        }
        let x = self.place(tensor);
        let finite = AtomicBool::new(true);
        self.pool.run(tensor.len().div_ceil(PART_FLOATS), &|part, _| {
            let start = part * PART_FLOATS;
            // SAFETY: the range lies in the tensor, which nobody writes.
            let values = unsafe { std::slice::from_raw_parts(x.at(start), PART_FLOATS.min(tensor.len() - start)) };
            // No early exit: this form compiles to vector code.
            if !values.iter().fold(true, |all, value| all & value.is_finite()) {
                finite.store(false, Ordering::Relaxed);
            }
        });
        finite.into_inner()
    }
}
