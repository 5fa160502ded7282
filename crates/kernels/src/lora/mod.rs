//! The low-rank adapter of a frozen product (Hu et al., "LoRA"): `y += scale * (drop(x) a^T) b^T`.

mod backward;
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

/// One adapter of an input, in the forward.
#[derive(Clone, Copy, Debug)]
pub struct LoraForward {
    /// [r, K]
    pub a: Tensor,
    /// [N, r]
    pub b: Tensor,
    pub scale: f32,
    pub dropout: Dropout,
    /// [T, r], overwritten and kept for the backward.
    pub hidden: Tensor,
    /// [T, N], added to.
    pub y: Tensor,
}

/// One adapter of an input, in the backward.
#[derive(Clone, Copy, Debug)]
pub struct LoraBackward {
    /// [r, K]
    pub a: Tensor,
    /// [N, r]
    pub b: Tensor,
    pub scale: f32,
    pub dropout: Dropout,
    /// [T, r], of the forward.
    pub hidden: Tensor,
    /// [T, N]
    pub dy: Tensor,
    /// [r, K], added to.
    pub da: Tensor,
    /// [N, r], added to.
    pub db: Tensor,
}

impl Ops {
    /// `hidden = drop(x) a^T` and `y += scale * hidden b^T` for every adapter of one x [T, K]: `None` stands for an
    /// output without adapter. Together they read x once from afar.
    pub fn lora_forward(&mut self, x: Tensor, parts: &[Option<LoraForward>]) {
        let mut adapters = [None; run::TOGETHER_MAX];
        let mut macs = 0;
        for (index, part) in parts.iter().enumerate() {
            let Some(LoraForward { a, b, scale, dropout, hidden, y }) = *part else { continue };
            macs += check(x, a, b, dropout, hidden, ("y", y));
            assert_apart(("hidden", hidden), &[("x", x), ("a", a), ("b", b)]);
            assert_apart(("y", y), &[("x", x), ("a", a), ("b", b), ("hidden", hidden)]);
            for other in parts[..index].iter().flatten() {
                assert_apart(("y", y), &[("another y", other.y), ("its hidden", other.hidden)]);
                assert_apart(("hidden", hidden), &[("another y", other.y), ("its hidden", other.hidden)]);
            }
            adapters[index] = Some(run::Adapter { x, a, b, scale, dropout, hidden, y, gradients: None });
        }
        self.run_lora(adapters, macs, run::forward);
    }

    /// Gradients of every adapter of one x [T, K] and of x, all added to: da [r, K], db [N, r], dx [T, K] (if wanted),
    /// from dy [T, N] and the `hidden` of the forward. `None` stands for an output without adapter.
    pub fn lora_backward(&mut self, x: Tensor, parts: &[Option<LoraBackward>], dx: Option<Tensor>) {
        let mut adapters = [None; run::TOGETHER_MAX];
        let mut macs = 0;
        for (index, part) in parts.iter().enumerate() {
            let Some(LoraBackward { a, b, scale, dropout, hidden, dy, da, db }) = *part else { continue };
            let half = check(x, a, b, dropout, hidden, ("dy", dy));
            assert_eq!((da.rows(), da.columns()), (a.rows(), a.columns()), "shape of da");
            assert_eq!((db.rows(), db.columns()), (b.rows(), b.columns()), "shape of db");
            let inputs = [("x", x), ("a", a), ("b", b), ("hidden", hidden), ("dy", dy)];
            assert_apart(("da", da), &inputs);
            assert_apart(("db", db), &inputs);
            assert!(!da.overlaps(&db), "da overlaps db");
            for other in parts[..index].iter().flatten() {
                assert_apart(("da", da), &[("another da", other.da), ("another db", other.db)]);
                assert_apart(("db", db), &[("another da", other.da), ("another db", other.db)]);
            }
            macs += 2 * half;
            if let Some(dx) = dx {
                assert_eq!((dx.rows(), dx.columns()), (x.rows(), x.columns()), "shape of dx");
                assert_apart(("dx", dx), &inputs);
                assert_apart(("dx", dx), &[("da", da), ("db", db)]);
            } else {
                macs -= (x.len() * a.rows()) as u64;
            }
            let gradients = Some((da, db));
            adapters[index] = Some(run::Adapter { x, a, b, scale, dropout, hidden, y: dy, gradients });
        }
        self.run_lora(adapters, macs, |ops, adapters| backward::backward(ops, adapters, dx));
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
        let dropout = Dropout::NONE;
        let adapter = run::Adapter { x: dx, a, b, scale, dropout, hidden: a, y: dy, gradients: None };
        let mut adapters = [None; run::TOGETHER_MAX];
        adapters[0] = Some(adapter);
        self.run_lora(adapters, macs, |ops, adapters| backward::backward(ops, adapters, Some(dx)));
    }

    fn run_lora(
        &mut self,
        adapters: [Option<run::Adapter>; run::TOGETHER_MAX],
        macs: u64,
        run: impl FnOnce(&mut Ops, &[run::Adapter]),
    ) {
        let Some(first) = adapters.iter().flatten().next().copied() else { return };
        let mut dense = [first; run::TOGETHER_MAX];
        let mut count = 0;
        for adapter in adapters.into_iter().flatten() {
            dense[count] = adapter;
            count += 1;
        }
        let scratch = run::scratch_bytes(&dense[..count], self.options.threads.max(1));
        if self.begin(Work::Adapter, macs, scratch) && !first.x.is_empty() {
            run(self, &dense[..count]);
        }
    }
}
