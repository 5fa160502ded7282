//! Attention as its definition reads, in float64, one score at a time.

use super::AttentionShape;

/// What one query head at one position sees: the range of keys.
fn visible(shape: &AttentionShape, position: u32) -> std::ops::RangeInclusive<usize> {
    let position = position as usize;
    let first = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
    first..=position
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Slice of head `head` of row `row` in a matrix of `heads` heads.
fn head_range(row: usize, heads: usize, head: usize, head_dim: usize) -> std::ops::Range<usize> {
    let start = (row * heads + head) * head_dim;
    start..start + head_dim
}

/// Probabilities of the visible keys, and the log of the sum of the exponentials.
fn probabilities(shape: &AttentionShape, position: u32, head: usize, q: &[f64], k: &[f64]) -> (Vec<f64>, f64) {
    let kv_head = head / (shape.heads / shape.kv_heads);
    let scores: Vec<f64> = visible(shape, position)
        .map(|key| dot(q, &k[head_range(key, shape.kv_heads, kv_head, shape.head_dim)]) * f64::from(shape.scale))
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let log_sum_exp = max + sum.ln();
    (scores.iter().map(|score| (score - log_sum_exp).exp()).collect(), log_sum_exp)
}

/// (out [Tq, H d], log_sum_exp [Tq, H])
pub(super) fn forward(
    shape: &AttentionShape,
    positions: &[u32],
    q: &[f64],
    k: &[f64],
    v: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let mut out = vec![0.0; q.len()];
    let mut log_sum_exps = Vec::new();
    for (row, position) in positions.iter().enumerate() {
        for head in 0..shape.heads {
            let kv_head = head / (shape.heads / shape.kv_heads);
            let range = head_range(row, shape.heads, head, shape.head_dim);
            let (p, log_sum_exp) = probabilities(shape, *position, head, &q[range.clone()], k);
            log_sum_exps.push(log_sum_exp);
            for (key, p) in visible(shape, *position).zip(p) {
                let value = &v[head_range(key, shape.kv_heads, kv_head, shape.head_dim)];
                for (out, value) in out[range.clone()].iter_mut().zip(value) {
                    *out += p * value;
                }
            }
        }
    }
    (out, log_sum_exps)
}

/// (dq, dk, dv) by the chain rule through the softmax.
pub(super) fn backward(
    shape: &AttentionShape,
    positions: &[u32],
    q: &[f64],
    k: &[f64],
    v: &[f64],
    dout: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for (row, position) in positions.iter().enumerate() {
        for head in 0..shape.heads {
            let kv_head = head / (shape.heads / shape.kv_heads);
            let range = head_range(row, shape.heads, head, shape.head_dim);
            let (p, _) = probabilities(shape, *position, head, &q[range.clone()], k);
            let keys: Vec<_> =
                visible(shape, *position).map(|key| head_range(key, shape.kv_heads, kv_head, shape.head_dim)).collect();
            let dp: Vec<f64> = keys.iter().map(|key| dot(&dout[range.clone()], &v[key.clone()])).collect();
            let mean = dot(&p, &dp);
            for ((key, p), dp) in keys.into_iter().zip(p).zip(dp) {
                let ds = p * (dp - mean) * f64::from(shape.scale);
                for i in 0..shape.head_dim {
                    dv[key.start + i] += p * dout[range.start + i];
                    dk[key.start + i] += ds * q[range.start + i];
                    dq[range.start + i] += ds * k[key.start + i];
                }
            }
        }
    }
    (dq, dk, dv)
}
