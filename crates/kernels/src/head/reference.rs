//! Softmax cross-entropy over all logits, as its formula reads, in float64.

/// (losses [M], d(sum of losses)/d(hidden) [M, D]) for dense weights [V, D].
pub(super) fn losses_and_gradient(
    weight: &[f64],
    hidden: &[f64],
    targets: &[u32],
    vocabulary: usize,
    width: usize,
) -> (Vec<f64>, Vec<f64>) {
    let mut losses = Vec::new();
    let mut gradient = vec![0.0; hidden.len()];
    for (row, target) in targets.iter().enumerate() {
        let hidden = &hidden[row * width..(row + 1) * width];
        let logits: Vec<f64> = (0..vocabulary)
            .map(|v| weight[v * width..(v + 1) * width].iter().zip(hidden).map(|(w, h)| w * h).sum())
            .collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - max).exp()).sum();
        losses.push(sum.ln() + max - logits[*target as usize]);
        let gradient = &mut gradient[row * width..(row + 1) * width];
        for (v, logit) in logits.iter().enumerate() {
            let p = (logit - max).exp() / sum - f64::from(u8::from(v == *target as usize));
            for (gradient, w) in gradient.iter_mut().zip(&weight[v * width..(v + 1) * width]) {
                *gradient += p * w;
            }
        }
    }
    (losses, gradient)
}
