//! The products as their definition reads, in float64.

use super::affine::AffineMatrix;

/// `y[t, n] = Σ_k x[t, k]·w[n, k]`, and beside it `Σ_k |x|·|w|`, which bounds the error of any order of summation.
pub(crate) fn forward(matrix: &AffineMatrix, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (n_out, k_in) = (matrix.n_out, matrix.k_in);
    let (mut y, mut size) = (Vec::new(), Vec::new());
    for x in x.chunks(k_in) {
        for n in 0..n_out {
            let (mut sum, mut sum_of_sizes) = (0.0, 0.0);
            for (k, x) in x.iter().enumerate() {
                let product = f64::from(*x) * matrix.weight(n, k);
                sum += product;
                sum_of_sizes += product.abs();
            }
            y.push(sum);
            size.push(sum_of_sizes);
        }
    }
    (y, size)
}

/// `dx[t, k] = Σ_n dy[t, n]·w[n, k]`, and beside it `Σ_n |dy|·|w|`.
pub(crate) fn input_grad(matrix: &AffineMatrix, dy: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (n_out, k_in) = (matrix.n_out, matrix.k_in);
    let (mut dx, mut size) = (Vec::new(), Vec::new());
    for dy in dy.chunks(n_out) {
        for k in 0..k_in {
            let (mut sum, mut sum_of_sizes) = (0.0, 0.0);
            for (n, dy) in dy.iter().enumerate() {
                let product = f64::from(*dy) * matrix.weight(n, k);
                sum += product;
                sum_of_sizes += product.abs();
            }
            dx.push(sum);
            size.push(sum_of_sizes);
        }
    }
    (dx, size)
}
