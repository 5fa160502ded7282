//! Gated feed-forward: `out = activation(gate) * up`.

mod kept;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::arena::Tensor;
use crate::elementwise::pointwise::Pointwise;
use crate::ops::{Ops, Work};
use crate::place::{assert_apart, assert_apart_or_same, assert_same_shape};
use crate::simd::{self, Simd};
use kept::{Halves, Rounded};

pub use kept::KeptGates;

/// Where gate and up, [T, F] each, are found after the forward.
#[derive(Clone, Copy, Debug)]
pub enum GateValues {
    /// As they were.
    Float32 { gate: Tensor, up: Tensor },
    /// As they were, and each is read as [`GateValues::Kept`] would give it, to the bit.
    Rounded { gate: Tensor, up: Tensor },
    /// In the form that [`Ops::gate_forward_keeping`] wrote.
    Kept(KeptGates),
}

impl GateValues {
    /// Asserts shapes like `like`'s and outputs apart from what is read, or in its very place.
    fn check(&self, like: (&str, Tensor), outputs: &[(&str, Tensor)]) {
        match self {
            GateValues::Float32 { gate, up } | GateValues::Rounded { gate, up } => {
                let inputs = [("gate", *gate), ("up", *up)];
                inputs.iter().for_each(|input| assert_same_shape(like, *input));
                outputs.iter().for_each(|output| assert_apart_or_same(*output, &inputs));
            }
            GateValues::Kept(kept) => {
                kept.check(like.1.rows(), like.1.columns());
                outputs.iter().for_each(|output| assert_apart(*output, &kept.tensors()));
            }
        }
    }
}

/// Activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x sigmoid(x)
    Silu,
    /// The tanh approximation of GELU: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x sigmoid(2u) with
    /// u the argument of tanh; no cancellation that way.
    GeluTanh,
}

/// sqrt(2/pi)
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

/// 1 / (1 + e^-x)
#[inline(always)]
fn sigmoid<S: Simd>(x: S) -> S {
    let one = S::splat(1.0);
    one / (one + simd::exp(S::zero() - x))
}

/// The two activations as z = x sigmoid(w(x)), with w and dw/dx.
trait Gate: Sync {
    /// Must be `#[inline(always)]`.
    fn inner<S: Simd>(x: S) -> (S, S);
}

struct Silu;
impl Gate for Silu {
    #[inline(always)]
    fn inner<S: Simd>(x: S) -> (S, S) {
        (x, S::splat(1.0))
    }
}

struct GeluTanh;
impl Gate for GeluTanh {
    #[inline(always)]
    fn inner<S: Simd>(x: S) -> (S, S) {
        let square = x * x;
        let w = x * square.mul_add(S::splat(2.0 * GELU_SCALE * GELU_CUBIC), S::splat(2.0 * GELU_SCALE));
        let slope = square.mul_add(S::splat(6.0 * GELU_SCALE * GELU_CUBIC), S::splat(2.0 * GELU_SCALE));
        (w, slope)
    }
}

struct Forward<G>(G);
impl<G: Gate> Pointwise<2, 1> for Forward<G> {
    #[inline(always)]
    fn apply<S: Simd>(&self, [gate, up]: [S; 2]) -> [S; 1] {
        [gate * sigmoid(G::inner(gate).0) * up]
    }
}

struct Backward<G>(G);
impl<G: Gate> Pointwise<3, 2> for Backward<G> {
    #[inline(always)]
    fn apply<S: Simd>(&self, [gate, up, dout]: [S; 3]) -> [S; 2] {
        let (w, slope) = G::inner(gate);
        let s = sigmoid(w);
        // d(x s(w)) = s + x s (1 - s) dw. Where 1 - s is zero, the slope may be infinite: 0 then.
        let tail = s * (S::splat(1.0) - s);
        let derivative = gate.mul_add(tail * slope.min(S::splat(1e30)), s);
        [dout * up * derivative, dout * gate * s]
    }
}

impl Ops {
    /// `out = activation(gate) * up` (overwritten), all [T, F]. `out` may be `gate` or `up`.
    pub fn gate_forward(&mut self, activation: Activation, gate: Tensor, up: Tensor, out: Tensor) {
        self.gate_again(activation, GateValues::Float32 { gate, up }, out);
    }

    /// [`Ops::gate_forward`] to the bit, that in the same pass also writes gate and up to `kept`, of their shape. A NaN or
    /// an infinity makes its group of `kept` NaN.
    pub fn gate_forward_keeping(
        &mut self,
        activation: Activation,
        gate: Tensor,
        up: Tensor,
        out: Tensor,
        kept: KeptGates,
    ) {
        GateValues::Float32 { gate, up }.check(("out", out), &[("out", out)]);
        kept.check(out.rows(), out.columns());
        for tensor in kept.tensors() {
            assert_apart(tensor, &[("gate", gate), ("up", up), ("out", out)]);
        }
        match activation {
            Activation::Silu => self.gate_keep(Forward(Silu), [gate, up, out], kept),
            Activation::GeluTanh => self.gate_keep(Forward(GeluTanh), [gate, up, out], kept),
        }
    }

    /// `out = activation(gate) * up` (overwritten), [T, F], from where gate and up are found. `out` may be one of them.
    pub fn gate_again(&mut self, activation: Activation, from: GateValues, out: Tensor) {
        from.check(("out", out), &[("out", out)]);
        match activation {
            Activation::Silu => self.gate_forward_of(Forward(Silu), from, out),
            Activation::GeluTanh => self.gate_forward_of(Forward(GeluTanh), from, out),
        }
    }

    /// `dgate`, `dup` (overwritten) from `dout`, all [T, F]. Each output may be one of the inputs, not the same.
    pub fn gate_backward(
        &mut self,
        activation: Activation,
        from: GateValues,
        dout: Tensor,
        dgate: Tensor,
        dup: Tensor,
    ) {
        let outputs = [("dgate", dgate), ("dup", dup)];
        from.check(("dout", dout), &outputs);
        for output in outputs {
            assert_same_shape(("dout", dout), output);
            assert_apart_or_same(output, &[("dout", dout)]);
        }
        assert!(!dgate.overlaps(&dup), "dgate overlaps dup");
        match activation {
            Activation::Silu => self.gate_backward_of(Backward(Silu), from, [dout, dgate, dup]),
            Activation::GeluTanh => self.gate_backward_of(Backward(GeluTanh), from, [dout, dgate, dup]),
        }
    }

    fn gate_forward_of<G: Gate>(&mut self, function: Forward<G>, from: GateValues, out: Tensor) {
        match from {
            GateValues::Float32 { gate, up } => self.pointwise(&function, [gate, up], [out]),
            _ if !self.begin(Work::Elementwise, 0, 0) => {}
            GateValues::Rounded { gate, up } => {
                let source = Rounded::new(self.place(gate), self.place(up));
                self.gate_from(function, source, out);
            }
            GateValues::Kept(kept) => {
                let source = Halves::new(self, kept);
                self.gate_from(function, source, out);
            }
        }
    }

    fn gate_backward_of<G: Gate>(&mut self, function: Backward<G>, from: GateValues, gradients: [Tensor; 3]) {
        match from {
            GateValues::Float32 { gate, up } => {
                let [dout, dgate, dup] = gradients;
                self.pointwise(&function, [gate, up, dout], [dgate, dup]);
            }
            _ if !self.begin(Work::Elementwise, 0, 0) => {}
            GateValues::Rounded { gate, up } => {
                let source = Rounded::new(self.place(gate), self.place(up));
                self.gate_backward_from(function, source, gradients);
            }
            GateValues::Kept(kept) => {
                let source = Halves::new(self, kept);
                self.gate_backward_from(function, source, gradients);
            }
        }
    }
}
