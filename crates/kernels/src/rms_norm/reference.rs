//! RMS normalization of one row as its formula reads, in float64.

pub(super) fn forward(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
}

/// dx from dy: the derivative of each output with respect to each input, summed over outputs.
pub(super) fn backward(x: &[f64], weight: &[f64], eps: f64, dy: &[f64]) -> Vec<f64> {
    let columns = x.len() as f64;
    let root = (x.iter().map(|x| x * x).sum::<f64>() / columns + eps).sqrt();
    (0..x.len())
        .map(|i| {
            (0..x.len())
                .map(|j| {
                    let own = if i == j { 1.0 / root } else { 0.0 };
                    dy[j] * weight[j] * (own - x[j] * x[i] / (columns * root * root * root))
                })
                .sum()
        })
        .collect()
}
