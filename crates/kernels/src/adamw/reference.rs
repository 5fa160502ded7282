//! One AdamW update of one parameter in float64, in the order of PyTorch's documentation.

use super::AdamWParameters;

/// (parameter, first moment, second moment) after the update.
pub(super) fn update(parameter: f64, gradient: f64, first: f64, second: f64, p: &AdamWParameters) -> (f64, f64, f64) {
    let [rate, beta1, beta2, epsilon, decay, factor] =
        [p.learning_rate, p.beta1, p.beta2, p.epsilon, p.weight_decay, p.gradient_factor].map(f64::from);
    let gradient = gradient * factor;
    let parameter = parameter - rate * decay * parameter;
    let first = beta1 * first + (1.0 - beta1) * gradient;
    let second = beta2 * second + (1.0 - beta2) * gradient * gradient;
    let first_unbiased = first / (1.0 - beta1.powi(p.step as i32));
    let second_unbiased = second / (1.0 - beta2.powi(p.step as i32));
    (parameter - rate * first_unbiased / (second_unbiased.sqrt() + epsilon), first, second)
}
