//! The output head and the cross-entropy in one op, so that logits for a whole example never exist.

mod reference;

use crate::arena::Tensor;
use crate::ops::{Ops, Work};
use crate::place::{assert_apart, assert_same_shape};
use crate::qlinear::PackedMatrix;

impl Ops {
    /// `losses[m] = -log softmax(weight hidden[m])[targets[m]]` (overwritten) and, with `gradient = (dh, factor)`,
    /// `dh = factor * d(sum of losses)/d(hidden)` (overwritten), for weight [V, D], hidden, dh [M, D].
    pub fn head_cross_entropy(
        &mut self,
        weight: &PackedMatrix,
        hidden: Tensor,
        targets: &[u32],
        losses: &mut [f32],
        gradient: Option<(Tensor, f32)>,
    ) {
        assert_eq!((hidden.rows(), hidden.columns()), (targets.len(), weight.k_in()), "shape of the hidden rows");
        assert_eq!(losses.len(), targets.len(), "number of losses");
        let known = targets.iter().all(|target| (*target as usize) < weight.n_out());
        assert!(known, "a target is not below the vocabulary size {}", weight.n_out());
        if let Some((dh, _)) = gradient {
            assert_same_shape(("hidden", hidden), ("dh", dh));
            assert_apart(("dh", dh), &[("hidden", hidden)]);
        }
        let products = 1 + u64::from(gradient.is_some());
        let macs = products * hidden.len() as u64 * weight.n_out() as u64;
        if !self.begin(Work::Frozen, macs, 0) {
            return;
        }
        let (v, d) = (weight.n_out(), weight.k_in());
        let mut dense = vec![0f32; v * d];
        for (row, out) in dense.chunks_mut(d).enumerate() {
            weight.dequantize_row(row, out);
        }
        let dense: Vec<f64> = dense.into_iter().map(f64::from).collect();
        let h: Vec<f64> = self.read(hidden).iter().map(|x| f64::from(*x)).collect();
        let (l, g) = reference::losses_and_gradient(&dense, &h, targets, v, d);
        for (to, from) in losses.iter_mut().zip(l) {
            *to = from as f32;
        }
        if let Some((dh, factor)) = gradient {
            self.write(dh, &g.iter().map(|x| (*x * f64::from(factor)) as f32).collect::<Vec<_>>());
        }
    }
}
