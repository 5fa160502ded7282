//! One head turned by complex multiplication, in float64.

/// `direction` 1 forward, -1 backward. The angle is rounded to float32 as the table's contract says.
pub(super) fn turn(head: &[f64], inverse_frequencies: &[f32], position: u32, scaling: f64, direction: f64) -> Vec<f64> {
    let half = head.len() / 2;
    let mut turned = vec![0.0; head.len()];
    for i in 0..half {
        let (sine, cosine) = (f64::from(position as f32 * inverse_frequencies[i]) * direction).sin_cos();
        let (real, imaginary) = (head[i], head[i + half]);
        turned[i] = scaling * (real * cosine - imaginary * sine);
        turned[i + half] = scaling * (real * sine + imaginary * cosine);
    }
    turned
}
