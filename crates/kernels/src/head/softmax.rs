//! The steps between the two products, one row at a time.

use crate::simd::{Kernel, LANES, Simd, exp_up_to_88};

/// Joins a chunk of logits into what is known of the row; turns the logits into exponentials if a gradient is wanted.
pub(super) struct Softmax {
    /// [columns]
    pub logits: *mut f32,
    pub columns: usize,
    /// Column of the target if it is not before this chunk.
    pub target: Option<usize>,
    pub is_first: bool,
    pub maximum: *mut f32,
    pub sum: *mut f64,
    pub target_logit: *mut f32,
    /// [width], the gradient so far
    pub dh: Option<*mut f32>,
    pub width: usize,
}

/// Up to 16 floats, minus infinity after them: neutral for maximum and sum.
#[inline(always)]
unsafe fn load_logits<S: Simd>(from: *const f32, count: usize) -> S {
    // SAFETY: the caller has `count` floats.
    unsafe {
        if count >= LANES {
            return S::load(from);
        }
        let mut lanes = [f32::NEG_INFINITY; LANES];
        std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
        S::load(lanes.as_ptr())
    }
}

impl Kernel for Softmax {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (logits, columns) = (self.logits, self.columns);
        // SAFETY: the row has `columns` logits, the gradient `width` floats.
        unsafe {
            if let Some(target) = self.target
                && target < columns
            {
                *self.target_logit = *logits.add(target);
            }
            if self.is_first {
                *self.maximum = f32::NEG_INFINITY;
                *self.sum = 0.0;
            }
            let mut largest = S::splat(f32::NEG_INFINITY);
            for i in (0..columns).step_by(LANES) {
                largest = largest.max(load_logits::<S>(logits.add(i), columns - i));
            }
            let (old, new) = (*self.maximum, largest.reduce_max());
            if new > old {
                *self.maximum = new;
                if !self.is_first {
                    self.shrink::<S>(exp_up_to_88(S::splat(old) - S::splat(new)));
                }
            }
            // Four sums: one chain of additions would wait for itself.
            let (maximum, mut sums) = (S::splat(*self.maximum), [S::zero(); 4]);
            for (part, i) in (0..columns).step_by(LANES).enumerate() {
                let exponential = exp_up_to_88(load_logits::<S>(logits.add(i), columns - i) - maximum);
                sums[part % 4] = sums[part % 4] + exponential;
                if self.dh.is_some() {
                    exponential.store_up_to(logits.add(i), columns - i);
                }
            }
            *self.sum += f64::from(((sums[0] + sums[1]) + (sums[2] + sums[3])).reduce_add());
        }
    }
}

impl Softmax {
    /// What was summed under a smaller maximum, under the new one.
    #[inline(always)]
    unsafe fn shrink<S: Simd>(&self, factor: S) {
        // SAFETY: the gradient has `width` floats.
        unsafe {
            *self.sum *= f64::from(factor.to_array()[0]);
            if let Some(dh) = self.dh {
                for i in (0..self.width).step_by(LANES) {
                    let rest = self.width - i;
                    (S::load_up_to(dh.add(i), rest) * factor).store_up_to(dh.add(i), rest);
                }
            }
        }
    }
}

/// `dh = share * dh - factor * target_row`.
pub(super) struct Finish {
    pub dh: *mut f32,
    pub target_row: *const f32,
    pub width: usize,
    pub share: f32,
    pub factor: f32,
}

impl Kernel for Finish {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (share, factor) = (S::splat(self.share), S::splat(-self.factor));
        for i in (0..self.width).step_by(LANES) {
            let rest = self.width - i;
            // SAFETY: both rows have `width` floats.
            unsafe {
                let (dh, target) = (self.dh.add(i), S::load_up_to(self.target_row.add(i), rest));
                target.mul_add(factor, S::load_up_to(dh, rest) * share).store_up_to(dh, rest);
            }
        }
    }
}
