use crate::testing::*;

#[test]
fn weight_gradients_equal_sums_in_float64() {
    for (tokens, n, k) in [(1, 1, 16), (5, 7, 48), (33, 25, 80), (3, 50, 16), (0, 4, 16)] {
        let mut random = Random(tokens as u64 + 1);
        let (x, dy) = (random.values(tokens * k), random.values(tokens * n));
        let tensors = [given(tokens, k, &x), given(tokens, n, &dy), output(n, k)];
        let name = format!("{tokens} tokens, {n} x {k}");
        let found = run_everywhere(&name, &tensors, |ops, t| ops.weight_grad(t[0], t[1], t[2]));
        let expected: Vec<f64> = (0..n * k)
            .map(|at| (0..tokens).map(|row| f64::from(dy[row * n + at / k]) * f64::from(x[row * k + at % k])).sum())
            .collect();
        assert_close(&name, &found[2], &expected, |_| 2.0 * f64::from(f32::EPSILON) * tokens.max(1) as f64);
    }
}
