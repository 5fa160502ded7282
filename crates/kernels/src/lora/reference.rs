//! LoRA as its formula reads, in float64. `mask[i]` is the factor of element i of x: 0 or 1 / (1 - rate).

/// Product [m, k] x [k, n] of any two strided matrices given by their element functions.
fn product(m: usize, k: usize, n: usize, a: impl Fn(usize, usize) -> f64, b: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut c = Vec::with_capacity(m * n);
    for i in 0..m {
        for j in 0..n {
            c.push((0..k).map(|l| a(i, l) * b(l, j)).sum());
        }
    }
    c
}

pub(super) struct Sizes {
    pub tokens: usize,
    pub k: usize,
    pub n: usize,
    pub rank: usize,
}

/// (hidden [T, r], what is added to y [T, N])
pub(super) fn forward(s: &Sizes, x: &[f64], a: &[f64], b: &[f64], scale: f64, mask: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let hidden = product(s.tokens, s.k, s.rank, |t, i| x[t * s.k + i] * mask[t * s.k + i], |i, j| a[j * s.k + i]);
    let y = product(s.tokens, s.rank, s.n, |t, j| hidden[t * s.rank + j] * scale, |j, n| b[n * s.rank + j]);
    (hidden, y)
}

/// What is added to (da [r, K], db [N, r], dx [T, K]).
pub(super) fn backward(
    s: &Sizes,
    x: &[f64],
    a: &[f64],
    b: &[f64],
    scale: f64,
    mask: &[f64],
    dy: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let hidden = forward(s, x, a, b, scale, mask).0;
    let dhidden = product(s.tokens, s.n, s.rank, |t, n| dy[t * s.n + n] * scale, |n, j| b[n * s.rank + j]);
    let da = product(s.rank, s.tokens, s.k, |j, t| dhidden[t * s.rank + j], |t, i| x[t * s.k + i] * mask[t * s.k + i]);
    let db = product(s.n, s.tokens, s.rank, |n, t| dy[t * s.n + n] * scale, |t, j| hidden[t * s.rank + j]);
    let mut dx = product(s.tokens, s.rank, s.k, |t, j| dhidden[t * s.rank + j], |j, i| a[j * s.k + i]);
    for (dx, mask) in dx.iter_mut().zip(mask) {
        *dx *= mask;
    }
    (da, db, dx)
}
