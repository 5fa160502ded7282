//! Gated feed-forward: `out = activation(gate) * up`.

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::arena::Tensor;
use crate::elementwise::pointwise::Pointwise;
use crate::ops::Ops;
use crate::place::{assert_apart_or_same, assert_same_shape};
use crate::simd::{self, Simd};

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
        assert_same_shape(("gate", gate), ("up", up));
        assert_same_shape(("gate", gate), ("out", out));
        assert_apart_or_same(("out", out), &[("gate", gate), ("up", up)]);
        match activation {
            Activation::Silu => self.pointwise(&Forward(Silu), [gate, up], [out]),
            Activation::GeluTanh => self.pointwise(&Forward(GeluTanh), [gate, up], [out]),
        }
    }

    /// `dgate`, `dup` (overwritten) from `dout`, all [T, F]. Each output may be one of the inputs, not the same.
    pub fn gate_backward(
        &mut self,
        activation: Activation,
        gate: Tensor,
        up: Tensor,
        dout: Tensor,
        dgate: Tensor,
        dup: Tensor,
    ) {
        for (name, tensor) in [("up", up), ("dout", dout), ("dgate", dgate), ("dup", dup)] {
            assert_same_shape(("gate", gate), (name, tensor));
        }
        let inputs = [("gate", gate), ("up", up), ("dout", dout)];
        assert_apart_or_same(("dgate", dgate), &inputs);
        assert_apart_or_same(("dup", dup), &inputs);
        assert!(!dgate.overlaps(&dup), "dgate overlaps dup");
        match activation {
            Activation::Silu => self.pointwise(&Backward(Silu), [gate, up, dout], [dgate, dup]),
            Activation::GeluTanh => self.pointwise(&Backward(GeluTanh), [gate, up, dout], [dgate, dup]),
        }
    }
}
