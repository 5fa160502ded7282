//! AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization") as `torch.optim.AdamW` computes it.

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::arena::Tensor;
use crate::elementwise::pointwise::Pointwise;
use crate::ops::Ops;
use crate::place::assert_apart;
use crate::simd::Simd;

/// One update's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWParameters {
    pub learning_rate: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    /// Decoupled: parameters shrink by `learning_rate * weight_decay`, gradients do not see it.
    pub weight_decay: f32,
    /// Number of this update, from 1: the bias correction depends on it.
    pub step: u64,
    /// Gradients are multiplied by it first (mean over the window, clipping).
    pub gradient_factor: f32,
}

/// The factors of an update, computed once in float64.
struct Update {
    gradient_factor: f32,
    keep: f32,
    beta1_rest: f32,
    beta2: f32,
    beta2_rest: f32,
    step_size: f32,
    second_moment_factor: f32,
    epsilon: f32,
}

impl Update {
    fn new(p: &AdamWParameters) -> Self {
        let [beta1, beta2, learning_rate] = [p.beta1, p.beta2, p.learning_rate].map(f64::from);
        let steps = p.step as f64;
        Self {
            gradient_factor: p.gradient_factor,
            keep: (1.0 - learning_rate * f64::from(p.weight_decay)) as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: p.beta2,
            beta2_rest: (1.0 - beta2) as f32,
            step_size: (learning_rate / (1.0 - beta1.powf(steps))) as f32,
            second_moment_factor: (1.0 / (1.0 - beta2.powf(steps)).sqrt()) as f32,
            epsilon: p.epsilon,
        }
    }
}

impl Pointwise<4, 3> for Update {
    #[inline(always)]
    fn apply<S: Simd>(&self, [parameter, gradient, first, second]: [S; 4]) -> [S; 3] {
        let gradient = gradient * S::splat(self.gradient_factor);
        let first = (gradient - first).mul_add(S::splat(self.beta1_rest), first);
        let second = (gradient * gradient).mul_add(S::splat(self.beta2_rest), second * S::splat(self.beta2));
        let denominator = second.sqrt().mul_add(S::splat(self.second_moment_factor), S::splat(self.epsilon));
        let step = S::splat(-self.step_size) * (first / denominator);
        [parameter.mul_add(S::splat(self.keep), step), first, second]
    }
}

impl Ops {
    /// Updates `parameters` and both moments in place from `gradients` (read only); all of one length.
    pub fn adamw(
        &mut self,
        parameters: Tensor,
        gradients: Tensor,
        first_moment: Tensor,
        second_moment: Tensor,
        p: &AdamWParameters,
    ) {
        assert!(p.step >= 1, "AdamW steps count from 1");
        let all = [
            ("parameters", parameters),
            ("gradients", gradients),
            ("first_moment", first_moment),
            ("second_moment", second_moment),
        ];
        for i in 0..all.len() {
            assert_apart(all[i], &all[..i]);
        }
        let inputs = [parameters, gradients, first_moment, second_moment];
        self.pointwise(&Update::new(p), inputs, [parameters, first_moment, second_moment]);
    }
}
