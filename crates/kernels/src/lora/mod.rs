//! The low-rank adapter of a frozen product (Hu et al., "LoRA"): `y += scale * (drop(x) a^T) b^T`.

mod dropout;
#[cfg(test)]
mod reference;
mod run;
#[cfg(test)]
mod tests;

use crate::arena::Tensor;
use crate::ops::{Ops, Work};
use crate::place::assert_apart;
pub use dropout::Dropout;

fn check(x: Tensor, a: Tensor, b: Tensor, dropout: Dropout, hidden: Tensor, y: (&str, Tensor)) -> u64 {
    let rank = a.rows();
    assert_eq!(x.columns(), a.columns(), "columns of x and of a");
    assert_eq!(b.columns(), rank, "columns of b and rows of a");
    assert_eq!((hidden.rows(), hidden.columns()), (x.rows(), rank), "shape of hidden");
    assert_eq!((y.1.rows(), y.1.columns()), (x.rows(), b.rows()), "shape of {}", y.0);
    assert!((0.0..1.0).contains(&dropout.rate), "dropout rate {}", dropout.rate);
    (x.rows() * rank * (x.columns() + b.rows())) as u64
}

impl Ops {
    /// `hidden = drop(x) a^T` (overwritten, kept for the backward) and `y += scale * hidden b^T`, for
    /// x [T, K], a [r, K], b [N, r], hidden [T, r], y [T, N].
    #[allow(clippy::too_many_arguments)]
    pub fn lora_forward(
        &mut self,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        scale: f32,
        dropout: Dropout,
        hidden: Tensor,
        y: Tensor,
    ) {
        let macs = check(x, a, b, dropout, hidden, ("y", y));
        assert_apart(("hidden", hidden), &[("x", x), ("a", a), ("b", b)]);
        assert_apart(("y", y), &[("x", x), ("a", a), ("b", b), ("hidden", hidden)]);
        let adapter = run::Adapter { x, a, b, scale, dropout, hidden };
        let scratch = run::scratch_bytes(&adapter, self.options.threads.max(1));
        if self.begin(Work::Adapter, macs, scratch) && !x.is_empty() {
            run::forward(self, &adapter, y);
        }
    }

    /// Gradients of the adapter and of its input, all added to: da [r, K], db [N, r], dx [T, K] (if wanted), from
    /// dy [T, N] and the `hidden` of the forward.
    #[allow(clippy::too_many_arguments)]
    pub fn lora_backward(
        &mut self,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        scale: f32,
        dropout: Dropout,
        hidden: Tensor,
        dy: Tensor,
        da: Tensor,
        db: Tensor,
        dx: Option<Tensor>,
    ) {
        let half = check(x, a, b, dropout, hidden, ("dy", dy));
        assert_eq!((da.rows(), da.columns()), (a.rows(), a.columns()), "shape of da");
        assert_eq!((db.rows(), db.columns()), (b.rows(), b.columns()), "shape of db");
        let inputs = [("x", x), ("a", a), ("b", b), ("hidden", hidden), ("dy", dy)];
        assert_apart(("da", da), &inputs);
        assert_apart(("db", db), &inputs);
        assert!(!da.overlaps(&db), "da overlaps db");
        let mut macs = 2 * half;
        if let Some(dx) = dx {
            assert_eq!((dx.rows(), dx.columns()), (x.rows(), x.columns()), "shape of dx");
            assert_apart(("dx", dx), &inputs);
            assert_apart(("dx", dx), &[("da", da), ("db", db)]);
        } else {
            macs -= (x.len() * a.rows()) as u64;
        }
        let adapter = run::Adapter { x, a, b, scale, dropout, hidden };
        let scratch = run::scratch_bytes(&adapter, self.options.threads.max(1));
        if self.begin(Work::Adapter, macs, scratch) && !x.is_empty() {
            run::backward(self, &adapter, dy, Some((da, db)), dx);
        }
    }
    /// The input gradient through an adapter that does not learn: `dx += scale * (dy b) a`, for a [r, K], b [N, r],
    /// dy [T, N], dx [T, K]. Such an adapter has no dropout, and neither its input nor its hidden values are needed.
    pub fn lora_input_grad(&mut self, a: Tensor, b: Tensor, scale: f32, dy: Tensor, dx: Tensor) {
        let rank = a.rows();
        assert_eq!(dx.columns(), a.columns(), "columns of dx and of a");
        assert_eq!(b.columns(), rank, "columns of b and rows of a");
        assert_eq!((dy.rows(), dy.columns()), (dx.rows(), b.rows()), "shape of dy");
        assert_apart(("dx", dx), &[("a", a), ("b", b), ("dy", dy)]);
        let macs = (dx.rows() * rank * (a.columns() + b.rows())) as u64;
        // In the place of x and hidden, which only the gradients of a and b are made from, stand tensors at hand.
        let adapter = run::Adapter { x: dx, a, b, scale, dropout: Dropout::NONE, hidden: a };
        let scratch = run::scratch_bytes(&adapter, self.options.threads.max(1));
        if self.begin(Work::Adapter, macs, scratch) && !dx.is_empty() {
            run::backward(self, &adapter, dy, None, Some(dx));
        }
    }
}
