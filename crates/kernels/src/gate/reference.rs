//! The gate as its formulas read, in float64.

use super::Activation;

fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}

fn derivative(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            sigmoid * (1.0 + x * (1.0 - sigmoid))
        }
        Activation::GeluTanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let tanh = (root * (x + 0.044715 * x.powi(3))).tanh();
            0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * root * (1.0 + 3.0 * 0.044715 * x * x)
        }
    }
}

pub(super) fn forward(kind: Activation, gate: f64, up: f64) -> f64 {
    activation(kind, gate) * up
}

/// (dgate, dup)
pub(super) fn backward(kind: Activation, gate: f64, up: f64, dout: f64) -> (f64, f64) {
    (dout * up * derivative(kind, gate), dout * activation(kind, gate))
}
